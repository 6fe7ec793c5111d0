// @ts-check
/*
 * Find in the whole session, all branches: the gateway says which entries, the page shows where in them.
 */
import { ask } from "../api.js";
import { announce, button, el, later, settled } from "../dom.js";
import { number, words } from "../strings.js";
import { DEPTHS } from "./outline.js";

const text = words.session;
const MOST_RANGES = 200; // in one article

export class Find {
  /**
   * @param {string} id @param {(n: number) => Promise<HTMLElement | null>} go @param {() => Iterable<Element>} onScreen
   * @param {(hits: number[]) => number} ahead  the place of the hit to begin with
   * @param {(depth: number) => void} deepen  show at least this @param {AbortSignal} signal
   */
  constructor(id, go, onScreen, ahead, deepen, signal) {
    this.id = id;
    this.go = go;
    this.onScreen = onScreen;
    this.ahead = ahead;
    this.deepen = deepen;
    this.signal = signal;
    this.sought = "";
    /** @type {number[]} */
    this.hits = [];
    this.hit = -1;
    this.asked = 0;
    this.more = false;
    this.field = el("input", { type: "search", placeholder: text.find, "aria-label": text.findName, autocomplete: "off", spellcheck: "false" });
    this.told = el("output", null);
    this.element = el("form", { class: "find", role: "search", on: { submit: (/** @type {Event} */ event) => event.preventDefault() } },
      this.field, this.told, button(text.hitBefore, () => this.step(-1), "↑"), button(text.hitNext, () => this.step(1), "↓"));
    this.field.addEventListener("input", settled(() => this.find(), 180));
    this.field.addEventListener("keydown", (event) => this.pressed(event));
    this.paint = later(() => this.highlight());
    signal.addEventListener("abort", () => /** @type {any} */ (CSS).highlights?.delete("hit"));
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.key === "Escape") this.field.blur();
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (this.field.value.trim().toLowerCase() === this.sought) this.step(event.shiftKey ? -1 : 1);
    else this.find();
  }

  async find() {
    const sought = this.field.value.trim().toLowerCase();
    if (sought === this.sought) return;
    const mine = ++this.asked;
    this.sought = sought;
    this.hits = [];
    this.hit = -1;
    this.paint();
    this.told.value = sought ? "…" : "";
    if (!sought) return;
    const found = await ask("/v1/view/find", { id: this.id, q: sought }, { signal: this.signal }).catch((error) => {
      this.told.value = error.detail ?? "";
      throw error;
    });
    if (mine !== this.asked) return;
    this.hits = found.numbers;
    this.more = found.more;
    this.hit = this.ahead(this.hits) - 1;
    if (this.hits.length) await this.step(1);
    else {
      this.told.value = "0/0";
      announce(text.noHits);
    }
  }

  /** @param {number} step */
  async step(step) {
    if (!this.hits.length) return;
    this.hit = (this.hit + step + this.hits.length) % this.hits.length;
    const mine = this.asked;
    this.told.value = `${number(this.hit + 1)}/${number(this.hits.length)}${this.more ? "+" : ""}`;
    const article = await this.go(this.hits[this.hit]);
    if (mine !== this.asked || !article) return;
    const [range] = this.rangesIn(article);
    if (range) {
      this.deepen(depthOf(range));
      showRange(range);
    }
    this.paint();
    announce(text.hit(this.hit + 1, this.hits.length));
  }

  /** Where an article says what is sought; if it says it nowhere as it stands, where it says the words. @param {Element} article */
  rangesIn(article) {
    const whole = rangesOf(article, this.sought);
    return whole.length ? whole : this.sought.split(/\s+/).flatMap((word) => rangesOf(article, word));
  }

  highlight() {
    const { highlights } = /** @type {any} */ (CSS);
    if (!highlights) return;
    highlights.delete("hit");
    if (!this.sought || !this.hits.length) return;
    const ranges = [...this.onScreen()].flatMap((article) => this.rangesIn(article));
    highlights.set("hit", new /** @type {any} */ (window).Highlight(...ranges));
  }
}

/** The least depth that shows a place. @param {Range} range */
function depthOf(range) {
  const part = range.startContainer.parentElement?.closest(".d-prompts, .d-chat, .d-tools, .d-all");
  return DEPTHS.findIndex((name) => part?.classList.contains(`d-${name}`));
}

/** Open what the range is folded in, and bring it on the screen. @param {Range} range */
function showRange(range) {
  let fold = range.startContainer.parentElement?.closest("details");
  for (; fold; fold = fold.parentElement?.closest("details")) fold.open = true;
  const box = range.getBoundingClientRect();
  if (box.top < 64 || box.bottom > innerHeight - 24) scrollBy({ top: box.top - innerHeight / 3, behavior: "instant" });
}

/** @param {Element} article @param {string} sought @returns {Range[]} */
function rangesOf(article, sought) {
  const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  /** @type {[Node, number][]} */
  const nodes = [];
  let told = "";
  while (walker.nextNode()) {
    nodes.push([walker.currentNode, told.length]);
    told += walker.currentNode.nodeValue ?? "";
  }
  const ranges = [];
  const lower = told.toLowerCase();
  let last = 0;
  for (let from = lower.indexOf(sought); from >= 0 && ranges.length < MOST_RANGES; from = lower.indexOf(sought, from + sought.length)) {
    const range = document.createRange();
    while (last + 1 < nodes.length && nodes[last + 1][1] <= from) last++;
    setEdge(range, "setStart", nodes[last], from);
    let end = last;
    while (end + 1 < nodes.length && nodes[end + 1][1] < from + sought.length) end++;
    setEdge(range, "setEnd", nodes[end], from + sought.length);
    ranges.push(range);
  }
  return ranges;
}

/** @param {Range} range @param {"setStart" | "setEnd"} edge @param {[Node, number]} node @param {number} at */
function setEdge(range, edge, [node, begin], at) {
  range[edge](node, Math.min(at - begin, node.nodeValue?.length ?? 0)); // lower case may be longer
}
