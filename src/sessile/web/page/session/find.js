// @ts-check
/*
 * Find in all branches of the session: the gateway returns the entries, the page highlights the matches in them.
 */
import { ask } from "../api.js";
import { announce, button, el, later, settled } from "../dom.js";
import { number, words } from "../strings.js";

const text = words.session;

export class Find {
  /**
   * @param {string} id @param {(n: number) => Promise<HTMLElement | null>} go @param {() => Iterable<Element>} onScreen
   * @param {(hits: number[]) => number} ahead  index of the first match to show
   * @param {(depth: number) => void} deepen  show at least this depth @param {AbortSignal} signal
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
    /** @type {typeof import("./ranges.js") | null} */
    this.ranges = null;
    this.field = el("input", { type: "search", placeholder: text.find, "aria-label": text.findName, autocomplete: "off", spellcheck: "false" });
    this.counter = el("output", null);
    this.element = el("form", { class: "find", role: "search", on: { submit: (/** @type {Event} */ event) => event.preventDefault() } },
      this.field, this.counter, button(text.hitBefore, () => this.step(-1), "↑"), button(text.hitNext, () => this.step(1), "↓"));
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
    this.counter.value = sought ? "…" : "";
    if (!sought) return;
    const found = await ask("/v1/view/find", { id: this.id, q: sought }, { signal: this.signal });
    if (mine !== this.asked) return;
    this.hits = found.numbers;
    this.more = found.more;
    this.hit = this.ahead(this.hits) - 1;
    if (this.hits.length) await this.step(1);
    else {
      this.counter.value = "0/0";
      announce(text.noHits);
    }
  }

  /** @param {number} step */
  async step(step) {
    if (!this.hits.length) return;
    this.hit = (this.hit + step + this.hits.length) % this.hits.length;
    const mine = this.asked;
    this.counter.value = `${number(this.hit + 1)}/${number(this.hits.length)}${this.more ? "+" : ""}`;
    const article = await this.go(this.hits[this.hit]);
    if (mine !== this.asked || !article) return;
    this.ranges ??= await import("./ranges.js"); // loaded with the first search
    const [range] = this.ranges.rangesIn(article, this.sought);
    if (range) {
      this.deepen(this.ranges.depthOf(range));
      this.ranges.showRange(range);
    }
    this.paint();
    announce(text.hit(this.hit + 1, this.hits.length));
  }

  highlight() {
    const { highlights } = /** @type {any} */ (CSS);
    if (!highlights) return;
    highlights.delete("hit");
    const { ranges, sought } = this;
    if (!sought || !this.hits.length || !ranges) return;
    const found = [...this.onScreen()].flatMap((article) => ranges.rangesIn(article, sought));
    highlights.set("hit", new /** @type {any} */ (window).Highlight(...found));
  }
}
