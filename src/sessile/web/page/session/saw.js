// @ts-check
/*
 * "As the model saw it": which entries were in the context at a turn, which were removed and why, and how full the context was.
 */
import { ask } from "../api.js";
import { announce, button, el, settled } from "../dom.js";
import { compact, number, words } from "../strings.js";

const text = words.session;

/**
 * @typedef {object} Seen
 * @property {number} at
 * @property {Set<number>} inside
 * @property {Map<number, string>} reasons  for removed entries
 * @property {Set<number>} changed
 */

export class Saw {
  /**
   * @param {string} id @param {() => number[]} turns  the answers on the branch
   * @param {(seen: Seen | null) => void} onChange @param {(n: number) => void} onMove @param {AbortSignal} signal
   */
  constructor(id, turns, onChange, onMove, signal) {
    this.id = id;
    this.turns = turns;
    this.onChange = onChange;
    this.onMove = onMove;
    this.signal = signal;
    /** @type {Seen | null} */
    this.seen = null;
    this.asked = 0;
    this.slider = el("input", { type: "range", min: "0", "aria-label": text.sawSlider });
    this.title = el("strong", null);
    this.summary = el("span", { class: "summary" });
    this.bar = el("span", { class: "fullness", "aria-hidden": "true" }, el("i", null));
    this.element = el("section", { class: "saw", "aria-label": text.saw, hidden: true },
      el("div", { class: "saw-words" }, this.title, this.bar, this.summary),
      el("div", { class: "saw-turns" },
        button(text.turnBefore, () => this.step(-1), "‹"), this.slider, button(text.turnNext, () => this.step(1), "›"),
        button(text.sawEnd, () => this.end(), text.everything, { class: "framed" })));
    const ask = settled((/** @type {number} */ n) => this.ask(n), 60);
    this.slider.addEventListener("input", () => {
      this.showTurn();
      ask(this.turns()[Number(this.slider.value)]);
    });
  }

  get isOn() {
    return !this.element.hidden;
  }

  /** Start at an entry, or at the next turn after it. @param {number} n */
  begin(n) {
    const turns = this.turns();
    if (!turns.length) return announce(text.noTurns);
    const path = turns.findIndex((turn) => turn >= n);
    const index = path < 0 ? turns.length - 1 : path;
    this.slider.max = String(turns.length - 1);
    this.slider.value = String(index);
    this.element.hidden = false;
    this.showTurn();
    return this.ask(turns[index]);
  }

  end() {
    this.asked += 1;
    this.element.hidden = true;
    this.seen = null;
    this.onChange(null);
    announce(text.sawEnded);
  }

  /** @param {number} step */
  step(step) {
    this.slider.value = String(Number(this.slider.value) + step);
    this.showTurn();
    return this.ask(this.turns()[Number(this.slider.value)]);
  }

  /** The branch has grown. */
  grow() {
    this.slider.max = String(Math.max(0, this.turns().length - 1));
    if (this.isOn) this.showTurn();
  }

  showTurn() {
    const many = this.turns().length;
    this.title.textContent = text.turn(Number(this.slider.value) + 1, many);
    this.slider.setAttribute("aria-valuetext", this.title.textContent);
  }

  /** @param {number} n */
  async ask(n) {
    const mine = ++this.asked;
    const answer = await ask("/v1/view/saw", { id: this.id, at: n }, { signal: this.signal });
    if (mine !== this.asked) return;
    /** @type {Map<number, string>} */
    const reasons = new Map();
    for (const { kind, numbers } of answer.removed) for (const one of numbers) reasons.set(one, text.reasons[kind] ?? kind);
    this.seen = { at: n, inside: new Set(answer.numbers), reasons, changed: new Set(answer.changed) };
    this.showSummary(answer, reasons.size);
    this.onChange(this.seen);
    this.onMove(n);
  }

  /** @param {any} answer @param {number} gone */
  showSummary(answer, gone) {
    const { tokens, window, source, model } = answer;
    const size = tokens === null ? text.sizeUnknown : `${source === "estimate" ? "≈ " : ""}${compact(tokens)}${window ? ` / ${compact(window)}` : ""} ${text.tokens}`;
    const { characters, tools, gaps } = answer.prompt;
    const facts = [size, text.inContext(answer.numbers.length), gone && text.goneCount(gone), model,
      characters && text.promptSize(compact(characters)), tools.length && text.toolCount(tools.length), ...gaps];
    this.summary.textContent = facts.filter(Boolean).join(" · ");
    this.summary.title = tools.join(", ");
    this.bar.hidden = !window || tokens === null;
    /** @type {HTMLElement} */ (this.bar.firstChild).style.width = `${Math.min(100, (100 * tokens) / (window || 1))}%`;
    announce(`${this.title.textContent}: ${this.summary.textContent}`);
  }

  /** The class of an entry. @param {number} n */
  classOf(n) {
    if (!this.seen || n < 0) return "";
    if (n === this.seen.at) return "saw-at";
    if (this.seen.inside.has(n)) return this.seen.changed.has(n) ? "saw-changed" : "saw-in";
    return n > this.seen.at ? "saw-later" : "saw-gone";
  }

  /** Why an entry was not in the context; empty if it was. @param {number} n */
  reasonOf(n) {
    switch (this.classOf(n)) {
      case "saw-gone": return this.seen?.reasons.get(n) ?? text.neverSeen;
      case "saw-later": return text.laterThan;
      case "saw-changed": return text.wasChanged;
      default: return "";
    }
  }
}

/** A meter of the context after an entry. @param {number} tokens @param {number | null} window @param {number} most @param {() => void} run */
export function meter(tokens, window, most, run) {
  const share = Math.min(1, tokens / (window ?? most));
  const fill = el("i", null);
  fill.style.width = `${Math.max(2, 100 * share)}%`;
  const name = text.meter(compact(tokens), window ? compact(window) : null);
  return button(name, run, [el("span", { class: "fullness", "aria-hidden": "true" }, fill), el("span", { "aria-hidden": "true" }, compact(tokens))],
    { class: `meter${share > 0.8 ? " full" : ""}`, title: text.meter(number(tokens), window ? number(window) : null) });
}
