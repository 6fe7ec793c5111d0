// @ts-check
/*
 * The page of a session: its tree, the transcript of the current branch, and everything around them.
 *
 * Rules: the entries of the current branch are shown first; the outline of all entries is loaded afterwards, in parts, and refines
 * the page without moving it. There is always one current entry (`at`): the chosen one while it is on screen, else the topmost.
 */
import { ask } from "../api.js";
import { sessionOf, setAddress, setTitle } from "../app.js";
import { announce, el, settled, toast } from "../dom.js";
import { addActions } from "../keys.js";
import { number, words } from "../strings.js";
import { Articles } from "./articles.js";
import { actionsOf, barOf, gapsBefore, onPrint, topOf } from "./bar.js";
import { Changing } from "./changing.js";
import { Dressing } from "./dressing.js";
import { Find } from "./find.js";
import { follow } from "./live.js";
import { News } from "./news.js";
import { DEPTHS, Outline } from "./outline.js";
import { Saw } from "./saw.js";
import { Transcript } from "./transcript.js";
import { TreeView } from "./tree.js";

const text = words.session;
const PART = 2_000; // entries of the outline in one request
const DEPTH = "sessile.depth";
const USUAL_DEPTH = "tools";
const RECENT = 600_000; // milliseconds; a session that changed within this time is opened at its end
const NARROW = "(max-width: 56rem)";

/** @param {HTMLElement} main @param {URL} url @param {AbortSignal} signal */
export async function render(main, url, signal) {
  const branch = url.searchParams.get("branch");
  const anchor = decodeURIComponent(location.hash.slice(1)) || (branch && `e-${branch.replace(/^e-/, "")}`) || "";
  const info = await ask("/v1/view/session", { id: sessionOf(url), at: anchor.startsWith("e-") ? anchor : null }, { signal });
  if (signal.aborted) return;
  const page = new SessionPage(info, signal);
  page.put(main);
  await page.open(anchor);
}

export class SessionPage {
  /** @param {any} info @param {AbortSignal} signal */
  constructor(info, signal) {
    this.info = info;
    this.signal = signal;
    this.title = info.title;
    this.outline = new Outline(info);
    /** @type {number[]} */
    this.path = info.path;
    this.onPath = new Set(this.path);
    this.at = -1;
    this.depth = Math.max(0, DEPTHS.indexOf(localStorage.getItem(DEPTH) ?? USUAL_DEPTH));
    this.mostTokens = 1;
    /** @type {Map<number, (article: HTMLElement | null) => void>} */
    this.awaited = new Map();

    this.articles = new Articles(info.id, signal, (numbers) => this.loadedArticles(numbers));
    this.transcript = new Transcript({
      html: (n) => this.articles.get(n),
      want: (numbers) => this.articles.want(numbers),
      kind: (n) => (n < this.outline.known ? this.outline.marks[n] & 7 : 8),
      dress: (article, n) => this.dressing.dress(article, n),
    }, signal);
    this.transcript.onScroll = () => this.scrolled();
    this.tree = new TreeView({
      outline: this.outline,
      state: () => ({ onPath: this.onPath, tip: this.tip, at: this.at, saw: (/** @type {number} */ n) => this.saw.classOf(n) }),
      words: text,
      onOpen: (n) => this.openFromTree(n),
      onCompare: (n) => this.changing.compareWith(n),
      signal,
    });
    this.find = new Find(info.id, (n) => this.go(n), () => this.transcript.entries.children, (hits) => this.firstAhead(hits),
      (depth) => depth > this.depth && this.setDepth(depth), signal);
    this.saw = new Saw(info.id, () => this.turns(), () => this.sawChanged(), (n) => this.showTurn(n), signal);
    this.followSoon = settled(() => this.tree.follow(), 60);
    /** @type {import("./details.js").Details | null} */
    this.details = null; // loaded on demand
    this.columns = el("div", { class: "columns" });
    this.changing = new Changing(this);
    this.dressing = new Dressing(this);
    this.news = new News(this);
    this.bar = barOf(this);
    this.progress = el("span", { class: "soft" });
    this.side = el("details", { class: "tree-fold", open: !matchMedia(NARROW).matches, on: { toggle: () => this.sideChanged() } },
      el("summary", null, el("h2", null, text.tree), this.progress), this.tree.element);
  }

  get tip() {
    return this.path[this.path.length - 1] ?? -1;
  }

  /** @param {number} n */
  isSeen(n) {
    return n >= this.outline.known || this.outline.depthOf(n) <= this.depth;
  }

  // -- layout

  /** @param {HTMLElement} main */
  put(main) {
    setTitle(this.title);
    const note = el("p", { class: "print-note" }, text.printedPart);
    main.className = "session-page";
    this.columns.append(
      el("nav", { class: "side", "aria-label": text.treeName }, this.side),
      el("section", { class: "transcript", "aria-label": text.transcript },
        el("h2", { class: "unseen" }, text.transcript),
        note, ...gapsBefore(this),
        this.transcript.before, this.transcript.entries, this.transcript.after, el("p", { class: "soft empty" }, text.empty)));
    main.replaceChildren(topOf(this), this.bar.element, this.columns, this.news.pill, this.saw.element);
    document.documentElement.classList.add("windowed");
    this.signal.addEventListener("abort", () => document.documentElement.classList.remove("windowed", "with-details", "with-saw", "without-tree"));
    main.addEventListener("click", (event) => this.dressing.clicked(event), { signal: this.signal });
    addEventListener("hashchange", () => this.followAddress(), { signal: this.signal });
    onPrint(this.transcript, note, () => this.print(), this.signal);
    addActions(actionsOf(this), this.signal);
  }

  // -- loading

  /** Show what the address points to, then load the outline. @param {string} anchor */
  async open(anchor) {
    this.showList();
    const { at, modified } = this.info;
    if (this.onPath.has(at)) this.go(at, { opens: true });
    else if (!anchor && Date.now() - (modified ?? 0) < RECENT) this.toEnd();
    this.loaded = this.loadOutline();
    if (typeof at === "number" && !this.onPath.has(at)) this.go(at, { opens: true });
    else if (anchor.startsWith("e-") && typeof at !== "number") toast(text.noEntry);
  }

  async loadOutline() {
    const { outline, info, signal } = this;
    do {
      await this.articles.idle(); // the entries on screen come first
      const from = outline.known;
      const part = await ask("/v1/view/outline", { id: info.id, from, to: from + PART }, { signal });
      if (signal.aborted) return;
      if (!part.anchors.length) break;
      outline.add(part);
      this.mostTokens = part.tokens.reduce((/** @type {number} */ most, /** @type {number | null} */ n) => Math.max(most, n ?? 0), this.mostTokens);
      this.showList();
      this.transcript.redress();
      if (from === 0 || outline.isComplete) this.tree.build();
      this.progress.textContent = outline.isComplete ? "" : text.treeLoading(number(outline.known), number(outline.total));
    } while (!outline.isComplete);
    this.tree.showCounts();
    this.tree.follow();
    follow(info.id, info.live, () => outline.known, (part) => this.news.add(part), signal);
  }

  /** Wait until an entry is known. @param {number} n */
  async knows(n) {
    if (n < this.outline.known || this.onPath.has(n)) return;
    announce(words.loading);
    await this.loaded;
  }

  showList() {
    const list = this.path.filter((n) => this.isSeen(n));
    this.transcript.entries.dataset.depth = DEPTHS[this.depth];
    this.transcript.show(list);
    const gone = this.path.length - list.length;
    this.bar.hidden.textContent = gone ? text.hidden(number(gone), number(this.path.length)) : "";
  }

  /** @param {number[]} numbers */
  loadedArticles(numbers) {
    this.transcript.refresh(numbers);
    for (const n of numbers) {
      const article = this.transcript.article(n);
      if (article) this.settle(n, article);
    }
    this.find.paint();
  }

  /** @param {number} n @param {HTMLElement | null} article */
  settle(n, article) {
    this.awaited.get(n)?.(article);
    this.awaited.delete(n);
  }

  // -- navigation

  get line() {
    const stuck = matchMedia(NARROW).matches ? this.side.querySelector("summary") : this.bar.element;
    return Math.max(0, stuck?.getBoundingClientRect().bottom ?? 0); // the bottom of what sticks to the top
  }

  /** @param {number | undefined} n */
  goTo(n) {
    return n === undefined ? announce(text.noOther) : this.go(n);
  }

  /**
   * Go to an entry, on its branch, at a depth that shows it. Resolves to its article, or `null` if another entry was chosen first.
   * @param {number} n @param {{opens?: boolean, y?: number, focuses?: boolean}} [how] `y` is where on the screen to put it
   * @returns {Promise<HTMLElement | null>}
   */
  async go(n, { opens = false, y, focuses = true } = {}) {
    await this.knows(n);
    for (const other of [...this.awaited.keys()]) this.settle(other, null);
    if (!this.onPath.has(n)) {
      this.showBranch(this.outline.headOf(n));
      announce(text.otherBranch(number(this.path.length)));
    }
    if (!this.isSeen(n)) this.setDepth(this.outline.depthOf(n));
    this.transcript.reveal(n, y ?? this.line + 8);
    this.choose(n);
    const there = this.transcript.article(n);
    const article = there ?? (await new Promise((resolve) => this.awaited.set(n, resolve)));
    if (!article) return null;
    if (opens) for (const fold of /** @type {NodeListOf<HTMLDetailsElement>} */ (article.querySelectorAll(":scope > details"))) fold.open = true;
    if (focuses && !document.activeElement?.closest("#tree, .find, dialog, .saw, .menu")) this.transcript.focus(n);
    return article;
  }

  toEnd() {
    const last = this.transcript.list[this.transcript.list.length - 1];
    if (last === undefined) return;
    this.transcript.reveal(last, innerHeight - 24, "bottom");
    this.choose(last);
    this.news.seen();
  }

  /** @param {number[]} path */
  setPath(path) {
    this.path = path;
    this.onPath = new Set(path);
    this.showList();
    this.saw.grow();
  }

  /** @param {number} tip */
  showBranch(tip) {
    this.setPath(this.outline.pathTo(tip));
    this.tree.paint();
  }

  /** @param {number} depth */
  setDepth(depth) {
    const here = this.current();
    this.depth = depth;
    localStorage.setItem(DEPTH, DEPTHS[depth]);
    this.bar.depths[depth].checked = true;
    this.showList();
    if (here >= 0 && !this.isSeen(here)) {
      const next = this.path.slice(this.path.indexOf(here)).find((n) => this.isSeen(n)) ?? this.path.findLast((n) => this.isSeen(n));
      if (next !== undefined) this.go(next, { focuses: false });
    }
  }

  /** The current entry: the chosen one while it is on screen, else the topmost. */
  current() {
    const box = this.onPath.has(this.at) ? this.transcript.boxOf(this.at) : null;
    if (box?.height && box.bottom > this.line && box.top < innerHeight) return this.at;
    return this.transcript.topmost(this.line);
  }

  /** @param {number} n */
  choose(n) {
    if (n === this.at || n < 0) return;
    const before = this.at;
    this.at = n;
    this.transcript.article(before)?.classList.remove("at");
    this.transcript.article(n)?.classList.add("at");
    this.followSoon();
    this.details?.show(n);
  }

  scrolled() {
    const n = this.current();
    if (n >= 0) this.choose(n);
    if (this.find.sought) this.find.paint();
    if (this.news.unseen && this.transcript.isAtEnd()) this.news.seen();
  }

  isPrompt = (/** @type {number} */ n) => this.outline.who(n) === "user";

  /** @param {number} step @param {(n: number) => boolean} accept */
  move(step, accept) {
    const here = this.path.indexOf(this.current());
    let i = here + step;
    while (i >= 0 && i < this.path.length && !(this.isSeen(this.path[i]) && accept(this.path[i]))) i += step;
    return this.goTo(this.path[i]);
  }

  /** Switch to the previous or next branch at the nearest fork above. @param {number} step */
  turn(step) {
    const here = this.path.indexOf(this.current());
    const startsBranch = (/** @type {number} */ n) => this.outline.startsBranch(n);
    const first = this.path.slice(0, here + 1).findLast(startsBranch) ?? this.path.find(startsBranch);
    if (first === undefined) return announce(text.oneBranch);
    const siblings = this.outline.siblings(first);
    const next = siblings[siblings.indexOf(first) + step];
    return next === undefined ? announce(text.noBranchThere) : this.switchTo(next, first);
  }

  /** Show a branch without moving the place where it starts. @param {number} next @param {number} instead */
  async switchTo(next, instead) {
    const box = this.transcript.article(instead)?.getBoundingClientRect();
    await this.go(next, { y: Math.max(this.line + 8, box?.top ?? 0) });
    const siblings = this.outline.siblings(next);
    announce(text.branchOf(siblings.indexOf(next) + 1, siblings.length));
    this.address(next);
  }

  /** @param {number} n */
  openFromTree(n) {
    this.go(n, { opens: true });
    this.address(n);
    if (matchMedia(NARROW).matches) this.side.open = false;
  }

  /** @param {number} n */
  address(n) {
    setAddress(`#${this.outline.anchors[n]}`);
  }

  async followAddress() {
    const anchor = decodeURIComponent(location.hash.slice(1));
    if (!anchor.startsWith("e-")) return;
    const n = await this.numberOf(anchor);
    if (n === undefined) toast(text.noEntry);
    else this.go(n, { opens: true });
  }

  /** @param {string} anchor */
  async numberOf(anchor) {
    if (!this.outline.numberOf.has(anchor)) await this.loaded;
    return this.outline.numberOf.get(anchor);
  }

  /** The index of the next match on the current branch. @param {number[]} hits */
  firstAhead(hits) {
    const here = Math.max(0, this.path.indexOf(this.current()));
    const below = new Set(this.path.slice(here));
    return Math.max(0, hits.findIndex((n) => below.has(n)));
  }

  // -- as the model saw it

  turns() {
    return this.path.filter((n) => n < this.outline.known && this.outline.who(n) === "assistant");
  }

  toggleSaw() {
    if (this.saw.isOn) this.saw.end();
    else this.beginSaw(this.current());
  }

  /** @param {number} n */
  async beginSaw(n) {
    await this.loaded;
    await this.saw.begin(n);
  }

  /** Scroll to a turn and what came before it, unless it is on screen. @param {number} n */
  showTurn(n) {
    const box = this.transcript.article(n)?.getBoundingClientRect();
    const end = this.saw.element.getBoundingClientRect().top;
    const isThere = box && box.top > this.line && Math.min(box.bottom, box.top + 80) < end;
    if (!isThere) this.go(n, { y: innerHeight / 2, focuses: false });
  }

  sawChanged() {
    this.bar.saw.setAttribute("aria-pressed", String(this.saw.isOn));
    document.documentElement.classList.toggle("with-saw", this.saw.isOn);
    this.transcript.redress();
    this.tree.paint();
  }

  // -- other panels

  async toggleDetails() {
    if (!this.details) {
      const { Details } = await import("./details.js");
      this.details = new Details(this);
      this.columns.append(this.details.element);
    }
    this.transcript.keep(this.current());
    this.details.toggle();
    this.details.show(this.at);
  }

  toggleTree() {
    this.transcript.keep(this.current());
    this.side.open = !this.side.open;
    if (this.side.open) this.tree.focus();
  }

  sideChanged() {
    document.documentElement.classList.toggle("without-tree", !this.side.open);
    this.tree.paint();
  }

  async print() {
    const { printBranch } = await import("./printing.js");
    await printBranch(this.transcript, this.articles, (done, all) => announce(text.printing(number(done), number(all))));
  }
}
