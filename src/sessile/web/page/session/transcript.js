// @ts-check
/*
 * The transcript of a branch: entries near the screen are elements, the others are empty space above and below.
 *
 * Rules: what is on screen does not move. Before a change, one entry is held: the one that was jumped to until the user scrolls,
 * else the first on screen; after the change it is in the same place. An entry that is not loaded yet is an empty box of the
 * average height of its kind. There are never more than a few thousand elements, however long the session is.
 */
import { el, fragment, later } from "../dom.js";
import { Rooms } from "./rooms.js";

const MAX_NODES = 1_700; // elements of entries; the rest of the page has some hundreds
const MAX_HEIGHT = 12_000_000; // pixels that browsers can lay out
const AHEAD = 40; // entries to load beyond those that are elements
const SCROLLS = new Set(["ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End", " "]);
const NEAR_END = 48; // pixels below the screen that count as the end

/**
 * @typedef {object} Source
 * @property {(n: number) => string | undefined} html
 * @property {(numbers: number[]) => void} want
 * @property {(n: number) => number} kind   entries of a kind have similar heights
 * @property {(article: HTMLElement, n: number) => void} dress
 */
/** @typedef {{article: HTMLElement, nodes: number, waits: boolean}} Made */
/** @typedef {{n: number, edge: "top" | "bottom", y: number}} Hold */

export class Transcript {
  /** @param {Source} source @param {AbortSignal} signal */
  constructor(source, signal) {
    this.source = source;
    this.before = el("div", { class: "room" });
    this.entries = el("div", { id: "entries", tabindex: "-1" });
    this.after = el("div", { class: "room" });
    /** @type {number[]} */
    this.list = [];
    /** @type {Map<number, number>} */
    this.index = new Map();
    /** @type {Map<number, Made>} */
    this.made = new Map();
    this.heights = new Float32Array(0); // by number; 0 means not measured yet
    /** @type {number[]} */
    this.average = []; // height, by kind
    this.rooms = new Rooms([]);
    this.from = 0; // the range of the list that are elements
    this.to = 0;
    this.isStale = true; // whether elements must be checked again
    /** @type {Map<number, boolean[]>} */
    this.folds = new Map(); // which folds of an entry are open, to restore them
    /** @type {Hold | null} */
    this.hold = null;
    this.placed = 0; // the last scroll position set here
    this.isWhole = false;
    this.onScroll = () => {};
    const fill = later(() => {
      if (signal.aborted) return;
      this.fill();
      this.onScroll();
    });
    const letGo = () => (this.hold = null);
    const quiet = { passive: true, signal };
    addEventListener("scroll", fill, quiet);
    const resized = () => ((this.isStale = true), fill());
    addEventListener("resize", resized, quiet);
    // In the capture phase: an action of the same key may hold an entry again.
    for (const kind of ["wheel", "touchmove", "pointerdown"]) addEventListener(kind, letGo, { ...quiet, capture: true });
    addEventListener("keydown", (event) => SCROLLS.has(event.key) && letGo(), { ...quiet, capture: true });
    new ResizeObserver(resized).observe(this.entries); // a fold may be opened
  }

  /** Show these entries. @param {number[]} list */
  show(list) {
    this.list = list;
    this.index = new Map(list.map((n, i) => [n, i]));
    if (this.hold && !this.index.has(this.hold.n)) this.hold = null;
    const highest = list.reduce((most, n) => Math.max(most, n), 0);
    if (highest >= this.heights.length) {
      const more = new Float32Array(highest + 1_000);
      more.set(this.heights);
      this.heights = more;
    }
    this.rooms = new Rooms(list.map((n) => this.height(n)));
    this.isStale = true;
    this.fill();
  }

  /** Rebuild entries that were loaded or have changed. @param {Iterable<number>} numbers */
  refresh(numbers) {
    const focused = document.activeElement?.closest(".entry");
    let again = -1;
    for (const n of numbers) {
      const one = this.made.get(n);
      if (!one || this.isWhole) continue;
      if (one.article === focused) again = n;
      this.keepFolds(n, one.article);
      this.made.delete(n);
      this.isStale = true;
    }
    this.fill();
    if (again >= 0) this.focus(again);
  }

  /** Update all elements. */
  redress() {
    for (const [n, one] of this.made) if (!one.waits) this.source.dress(one.article, n);
  }

  /** @param {number} n */
  make(n) {
    let one = this.made.get(n);
    if (one) return one;
    const html = this.source.html(n);
    const article = html === undefined ? this.empty(n) : /** @type {HTMLElement | null} */ (fragment(html).firstElementChild) ?? el("div");
    if (html !== undefined) {
      this.source.dress(article, n);
      const open = this.folds.get(n);
      const folds = article.querySelectorAll("details");
      if (open?.length === folds.length) folds.forEach((fold, i) => (fold.open = open[i]));
    }
    one = { article, nodes: 1 + article.querySelectorAll("*").length, waits: html === undefined };
    this.made.set(n, one);
    return one;
  }

  /** A placeholder for an entry that is not loaded yet. @param {number} n */
  empty(n) {
    const made = el("div", { class: "entry waiting" });
    made.style.height = `${this.height(n)}px`;
    return made;
  }

  /** The measured height, or the average of its kind. @param {number} n */
  height(n) {
    return this.heights[n] || Math.min(this.average[this.source.kind(n)] ?? 80, MAX_HEIGHT / this.list.length);
  }

  top() {
    return this.before.getBoundingClientRect().top;
  }

  fill() {
    if (Math.abs(scrollY - this.placed) > 2) this.hold = null; // the user has scrolled
    if (this.isWhole || !this.entries.isConnected || this.suffices()) return;
    if (!this.list.length) return this.put(0, 0);
    const held = this.hold ? this.index.get(this.hold.n) : undefined;
    if (this.hold && held !== undefined) return this.around(held, this.hold.y, this.hold.edge);
    const [first, top] = this.firstOnScreen();
    this.around(first, top, "top");
  }

  /** Whether the elements cover the screen. */
  suffices() {
    if (this.isStale || this.hold) return false;
    const box = this.entries.getBoundingClientRect();
    const isHigh = this.from === 0 || box.top < -0.25 * innerHeight;
    return isHigh && (this.to === this.list.length || box.bottom > 1.25 * innerHeight);
  }

  /** The first entry on screen, and its position. @returns {[number, number]} */
  firstOnScreen() {
    for (const child of this.entries.children) {
      const box = child.getBoundingClientRect();
      const i = this.index.get(Number(/** @type {HTMLElement} */ (child).dataset.n));
      if (i !== undefined && box.bottom > 0 && box.top < innerHeight) return [i, box.top];
    }
    const first = this.rooms.at(-this.top());
    return [first, this.top() + this.rooms.sum(0, first)];
  }

  /** Show an entry of the list with its edge at `y` on the screen, and the entries around it. @param {number} held @param {number} y @param {"top" | "bottom"} edge */
  around(held, y, edge) {
    const n = this.list[held];
    for (let round = 0; round < 4; round++) {
      const top = edge === "top" ? y : y - this.rooms.sizes[held];
      const [from, to] = this.range(held, top);
      this.put(from, to);
      this.measure(from, to);
      const moved = this.make(n).article.getBoundingClientRect()[edge] - y;
      if (Math.abs(moved) >= 1) scrollBy({ top: moved, behavior: "instant" });
      if (this.entries.getBoundingClientRect().bottom > innerHeight || to === this.list.length) break;
    }
    this.placed = scrollY;
    this.isStale = false;
    this.wantAround(held);
  }

  /** @param {number} held @param {number} top @returns {[number, number]} */
  range(held, top) {
    let nodes = 0;
    let to = held;
    for (let below = top; to < this.list.length && below < 1.75 * innerHeight && nodes < MAX_NODES; to++) {
      nodes += this.make(this.list[to]).nodes;
      below += this.rooms.sizes[to];
    }
    let from = held;
    for (let above = top; from > 0 && above > -0.75 * innerHeight; ) {
      nodes += this.make(this.list[from - 1]).nodes;
      if (nodes > MAX_NODES && above <= 0) break;
      above -= this.rooms.sizes[--from];
    }
    return [from, to];
  }

  /** @param {number} held */
  wantAround(held) {
    const numbers = [];
    const shown = this.entries.children.length;
    for (let step = 0; step < shown + AHEAD; step++) {
      if (held + step < this.list.length) numbers.push(this.list[held + step]);
      if (step && held - step >= 0) numbers.push(this.list[held - step]);
    }
    this.source.want(numbers);
  }

  /** @param {number} from @param {number} to */
  put(from, to) {
    const wanted = new Set(this.list.slice(from, to));
    for (const [n, one] of this.made) {
      if (wanted.has(n)) continue;
      this.keepFolds(n, one.article);
      if (one.article.contains(document.activeElement)) this.entries.focus({ preventScroll: true });
      one.article.remove();
      this.made.delete(n);
    }
    let next = this.entries.firstElementChild;
    for (const n of wanted) {
      const { article } = this.make(n);
      article.dataset.n = String(n);
      if (article === next) next = next.nextElementSibling;
      else this.entries.insertBefore(article, next);
    }
    while (next) {
      const gone = next;
      next = next.nextElementSibling;
      gone.remove();
    }
    this.leaveRoom(from, to);
  }

  /** @param {number} from @param {number} to */
  leaveRoom(from, to) {
    [this.from, this.to] = [from, to];
    this.before.style.height = `${this.rooms.sum(0, from)}px`;
    this.after.style.height = `${this.rooms.sum(to, this.list.length)}px`;
  }

  /** @param {number} from @param {number} to */
  measure(from, to) {
    const tops = this.list.slice(from, to).map((n) => this.make(n).article.getBoundingClientRect().top);
    tops.push(this.entries.getBoundingClientRect().bottom);
    for (let i = from; i < to; i++) {
      const n = this.list[i];
      if (this.make(n).waits) continue;
      const height = Math.max(0.01, tops[i - from + 1] - tops[i - from]);
      const kind = this.source.kind(n);
      if (!this.heights[n]) this.average[kind] = ((this.average[kind] ?? height) * 7 + height) / 8;
      this.heights[n] = height;
      this.rooms.set(i, height);
    }
    this.leaveRoom(from, to);
  }

  /** @param {number} n @param {HTMLElement} article */
  keepFolds(n, article) {
    const folds = [...article.querySelectorAll("details")];
    if (folds.length) this.folds.set(n, folds.map((fold) => fold.open));
  }

  /** Scroll an entry to this place on the screen; it may be loaded later. @param {number} n @param {number} y @param {"top" | "bottom"} [edge] */
  reveal(n, y, edge = "top") {
    const i = this.index.get(n);
    if (i === undefined) return;
    if (this.isWhole) return this.make(n).article.scrollIntoView();
    this.hold = { n, edge, y };
    if (!this.made.get(n)?.article.isConnected) {
      scrollTo({ top: scrollY + this.top() + this.rooms.sum(0, i) - y, behavior: "instant" });
    }
    this.around(i, y, edge);
  }

  /** Hold an entry where it is. @param {number} n */
  keep(n) {
    const box = this.boxOf(n);
    if (box) this.hold = { n, edge: "top", y: box.top };
  }

  /** The box of an entry, even if it is not loaded yet. @param {number} n */
  boxOf(n) {
    const one = this.made.get(n);
    return one?.article.isConnected ? one.article.getBoundingClientRect() : null;
  }

  /** The article of an entry, if it is an element. @param {number} n @returns {HTMLElement | null} */
  article(n) {
    const one = this.made.get(n);
    return one && !one.waits ? one.article : null;
  }

  /** @param {number} n */
  focus(n) {
    const article = this.made.get(n)?.article;
    if (!article) return;
    article.tabIndex = -1;
    article.focus({ preventScroll: true });
  }

  /** Expand all folds on screen below a line, or collapse them if all are expanded. @param {number} line */
  openOrFold(line) {
    const onScreen = [...this.entries.children].filter((one) => {
      const box = one.getBoundingClientRect();
      return box.bottom > line && box.top < innerHeight;
    });
    const folds = onScreen.flatMap((one) => [.../** @type {NodeListOf<HTMLDetailsElement>} */ (one.querySelectorAll("details:not(.picture)"))]);
    const opens = folds.some((fold) => !fold.open);
    for (const fold of folds) fold.open = opens;
  }

  /** Whether the end of the last entry is on screen. */
  isAtEnd() {
    if (!this.list.length) return true;
    const last = this.made.get(this.list[this.list.length - 1]);
    return !!last?.article.isConnected && last.article.getBoundingClientRect().bottom <= innerHeight + NEAR_END;
  }

  /** The first entry on screen below a line, or -1. @param {number} line */
  topmost(line) {
    for (const child of this.entries.children) {
      const box = child.getBoundingClientRect();
      if (box.height && box.bottom > line + 8) return Number(/** @type {HTMLElement} */ (child).dataset.n);
    }
    return -1;
  }

  // -- print

  /** Show all of these, until `showFew` is called. @param {HTMLElement[]} articles */
  showAll(articles) {
    this.isWhole = true;
    this.before.style.height = this.after.style.height = "0";
    this.made.clear();
    this.entries.replaceChildren(...articles);
  }

  showFew() {
    this.isWhole = false;
    this.isStale = true;
    this.entries.replaceChildren();
    this.fill();
  }
}
