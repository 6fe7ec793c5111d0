// @ts-check
/*
 * The drawer at the side: facts about the session and the current entry, with its JSON.
 */
import { ask } from "../api.js";
import { button, copy, el, settled } from "../dom.js";
import { number, words } from "../strings.js";
import { notesOf } from "./bar.js";

const text = words.session;
const MAX_JSON = 200_000; // characters that are shown

export class Details {
  /** @param {import("./page.js").SessionPage} page */
  constructor(page) {
    const { info } = page;
    this.page = page;
    this.at = -1;
    this.asked = 0;
    this.entry = el("section", { "aria-label": text.entry });
    this.element = el("aside", { class: "drawer", "aria-label": text.details, hidden: true },
      el("div", { class: "drawer-head" }, el("h2", null, text.details), button(words.close, () => page.toggleDetails(), "✕")),
      this.entry,
      el("section", { "aria-label": text.session },
        el("h3", null, text.session), list(info.facts),
        info.notes.length > 0 && notesOf(info.notes)));
    this.fill = settled(() => this.load(), 150);
  }

  toggle() {
    this.element.hidden = !this.element.hidden;
    document.documentElement.classList.toggle("with-details", !this.element.hidden);
    if (!this.element.hidden) this.load();
  }

  /** @param {number} n */
  show(n) {
    if (n === this.at) return;
    this.at = n;
    if (!this.element.hidden) this.fill();
  }

  async load() {
    if (this.at < 0 || this.element.hidden) return;
    const mine = ++this.asked;
    const n = this.at;
    const { entry } = await ask("/v1/view/raw", { id: this.page.info.id, number: n }, { signal: this.page.signal });
    if (mine !== this.asked) return;
    const json = JSON.stringify(entry, null, 2);
    const shown = json.length > MAX_JSON ? json.slice(0, MAX_JSON) : json;
    this.entry.replaceChildren(
      el("h3", null, text.entryNumber(number(n))), list(this.factsOf(n)),
      el("div", { class: "drawer-head" }, el("h4", null, text.raw), button(text.copyRaw, () => copy(json, text.copied), text.copy)),
      el("pre", { class: "plain", tabindex: "0", role: "group", "aria-label": text.raw }, shown),
      shown.length < json.length ? el("p", { class: "soft" }, text.rawCut(number(json.length - shown.length))) : "",
    );
  }

  /** @param {number} n @returns {[string, string][]} */
  factsOf(n) {
    const { outline } = this.page;
    if (n >= outline.known) return [];
    const tokens = outline.tokens[n];
    /** @type {[string, string | null | undefined | false][]} */
    const facts = [
      [text.facts.who, outline.who(n)],
      [text.label, outline.labels.get(n)],
      [text.facts.tokens, tokens ? `${number(tokens)} ${text.tokens}` : null],
      [text.facts.parent, outline.parents[n] >= 0 && number(outline.parents[n])],
      [text.facts.branches, outline.below(n).length > 1 && number(outline.below(n).length)],
    ];
    return /** @type {[string, string][]} */ (facts.filter(([, value]) => value));
  }
}

/** @param {[string, string][]} facts */
function list(facts) {
  return el("dl", null, ...facts.map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value))));
}
