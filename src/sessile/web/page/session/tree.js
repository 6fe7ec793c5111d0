// @ts-check
/*
 * The tree at the side: a WAI-ARIA tree that has elements only for the rows on screen.
 * The live page and exported files share this module.
 *
 * Rules: rows are a flat list with levels, indented only at forks, so that depth costs nothing; all have the same height. Tab
 * reaches one row, arrow keys move from there. The row of the current entry stays in view unless the focus is in the tree.
 */
import { button, el, later, settled } from "../dom.js";
import { FILTERS, Outline } from "./outline.js";

const ROW = 26; // height in pixels, as in the style sheet
const MAX_LEVEL = 12;
/** @type {Record<string, string>} */
const SIGNS = { user: "○", assistant: "●", summary: "◆", tool: "▸", shell: "▸" };

/** @typedef {import("./outline.js").Row & {group?: Group, nth?: number}} Row */
/** @typedef {{size: number}} Group  rows with the same parent row */
/**
 * @typedef {object} State  what the tree needs to know about the page
 * @property {Set<number>} onPath
 * @property {number} tip
 * @property {number} at
 * @property {(n: number) => string} [saw]  class of an entry in "as the model saw it"
 */
/**
 * @typedef {object} Words
 * @property {string} entries
 * @property {string} treeShow
 * @property {string} treeFind
 * @property {string} treeNothing
 * @property {string} foldAll
 * @property {string} unfoldAll
 * @property {string} failed
 * @property {Record<string, string>} filters
 * @property {(n: number) => string} number
 * @property {(count: number, tools: number, failed: number) => string} run
 */
/**
 * @typedef {object} Options
 * @property {Outline} outline
 * @property {() => State} state
 * @property {Words} words
 * @property {(n: number) => void} onOpen
 * @property {(n: number) => void} [onCompare]
 * @property {AbortSignal} [signal]
 */

export class TreeView {
  /** @param {Options} options */
  constructor({ outline, state, words, onOpen, onCompare, signal }) {
    this.outline = outline;
    this.state = state;
    this.words = words;
    this.onOpen = onOpen;
    this.onCompare = onCompare ?? onOpen;
    /** @type {Set<number>} */
    this.folded = new Set();
    /** @type {Row[]} */
    this.rows = [];
    this.chosen = 0; // the row that Tab reaches
    this.filter = el("select", { id: "filter", "aria-label": words.treeShow, on: { change: () => this.build() } });
    this.query = el("input", { type: "search", placeholder: words.treeFind, "aria-label": words.treeFind, autocomplete: "off", spellcheck: "false" });
    this.query.addEventListener("input", settled(() => this.build(), 120));
    this.list = el("ul", { class: "tree", role: "tree", "aria-label": words.entries });
    this.nothing = el("p", { class: "more", hidden: true }, words.treeNothing);
    this.box = el("div", { id: "tree" }, this.list, this.nothing);
    this.box.addEventListener("scroll", later(() => this.paint()), { passive: true });
    addEventListener("resize", later(() => this.paint()), { signal });
    this.list.addEventListener("click", (event) => this.clicked(event));
    this.list.addEventListener("keydown", (event) => this.pressed(event));
    const folds = [button(words.foldAll, () => this.foldAll(true), "⊟"), button(words.unfoldAll, () => this.foldAll(false), "⊞")];
    this.element = el("div", { class: "tree-box" },
      el("div", { class: "filter" }, this.filter, ...folds), el("div", { class: "filter" }, this.query), this.box);
    for (const key of Object.keys(FILTERS)) this.filter.append(new Option(words.filters[key], key));
  }

  /** Show how many entries each filter has. Called once all entries are known. */
  showCounts() {
    this.outline.sort();
    for (const option of this.filter.options) {
      if (option.value === "outline") continue;
      const count = this.outline.order.filter((n) => FILTERS[option.value](this.outline, n)).length;
      option.text = `${this.words.filters[option.value]} (${this.words.number(count)})`;
    }
  }

  /** Rebuild the rows. */
  build() {
    const held = this.rows[this.chosen]?.n;
    this.rows = this.outline.rows(this.filter.value, this.query.value.trim().toLowerCase(), this.folded);
    this.countGroups();
    if (held !== undefined) this.chosen = this.rowOf(held);
    this.paint();
  }

  /** Number each row among those with the same parent row. */
  countGroups() {
    /** @type {Group[]} */
    const open = [];
    for (const row of this.rows) {
      const level = this.levelOf(row);
      open.length = Math.min(open.length, level + 1);
      row.group = open[level] ??= { size: 0 };
      row.nth = ++row.group.size;
    }
  }

  /** A branch is one level below its fork, its entries are one level below its first. @param {Row} row */
  levelOf({ n, level, count }) {
    return 2 * level + (level && !count && this.outline.startsBranch(n) ? 0 : 1);
  }

  paint() {
    const hadFocus = this.list.contains(document.activeElement);
    const from = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 4);
    const to = Math.min(this.rows.length, from + Math.ceil((this.box.clientHeight || 600) / ROW) + 8);
    this.list.style.height = `${this.rows.length * ROW}px`;
    this.list.style.paddingTop = `${from * ROW}px`;
    const state = this.state();
    const here = state.at < 0 ? -1 : this.rowOf(state.at);
    const items = this.rows.slice(from, to).map((row, i) => this.item(row, from + i, from + i === here, state));
    if (this.chosen < from || this.chosen >= to) items[0]?.setAttribute("tabindex", "0"); // Tab reaches the tree wherever it is scrolled
    this.list.replaceChildren(...items);
    if (hadFocus) (items[this.chosen - from] ?? items[0])?.focus({ preventScroll: true });
    this.nothing.hidden = this.rows.length > 0;
  }

  /** @param {Row} row @param {number} index @param {boolean} isHere @param {State} state */
  item(row, index, isHere, state) {
    const { outline, words } = this;
    const { n, level } = row;
    const starts = outline.startsBranch(n) && !row.count;
    const canFold = outline.canFold(n) && !row.count;
    const isFolded = this.folded.has(n);
    const classes = ["row", `l${Math.min(level, MAX_LEVEL)}`, starts && "first", state.onPath.has(n) && "shown",
      outline.hasFailed(n) && !row.count && "bad", isHere && "at", state.saw?.(n)].filter(Boolean);
    const label = outline.labels.get(n);
    const sign = outline.hasFailed(n) ? "✗" : n === outline.leaf ? "@" : SIGNS[outline.who(n)] ?? "·";
    const inside = row.count
      ? [el("span", { class: "run" }, `~ ${words.run(row.count, row.tools, row.failed)}`)]
      : [
          canFold && el("span", { class: "fold", "aria-hidden": "true" }, isFolded ? "▸" : "▾"),
          el("span", { class: "sign", "aria-hidden": "true" }, sign),
          el("span", { class: "unseen" }, `${outline.hasFailed(n) ? `${words.failed} ` : ""}${outline.who(n)}: `),
          label && el("span", { class: "label" }, label),
          el("span", { class: "line" }, outline.lines[n]),
        ];
    return el("li", {
      class: classes.join(" "), role: "treeitem", tabindex: index === this.chosen ? "0" : "-1", title: row.count ? null : outline.lines[n],
      "aria-level": this.levelOf(row), "aria-expanded": canFold ? String(!isFolded) : null,
      "aria-current": n === state.tip ? "true" : null, "aria-setsize": row.group?.size, "aria-posinset": row.nth, data: { index },
    }, el("a", null, ...inside));
  }

  /** The row of an entry, or of the run that contains it. @param {number} n */
  rowOf(n) {
    const place = this.outline.places[n] ?? 0;
    let low = 0;
    let high = this.rows.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.rows[middle].place <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** Keep the row of the current entry in view, unless the focus is in the tree. */
  follow() {
    const { at } = this.state();
    if (at >= 0 && !this.list.contains(document.activeElement)) this.moveTo(this.rowOf(at), false);
    else this.paint();
  }

  /** @param {number} index @param {boolean} takesFocus */
  moveTo(index, takesFocus) {
    this.chosen = Math.max(0, Math.min(index, this.rows.length - 1));
    const top = this.chosen * ROW;
    const height = this.box.clientHeight;
    if (top < this.box.scrollTop + ROW || top > this.box.scrollTop + height - 2 * ROW) this.box.scrollTop = top - height / 3;
    this.paint();
    if (takesFocus) this.focus();
  }

  focus() {
    /** @type {HTMLElement | null} */ (this.list.querySelector('[tabindex="0"]'))?.focus({ preventScroll: true });
  }

  /** @param {number} n @param {boolean} isFolded */
  fold(n, isFolded) {
    if (isFolded) this.folded.add(n);
    else this.folded.delete(n);
    this.build();
  }

  /** @param {boolean} isFolded the branch that is shown stays open */
  foldAll(isFolded) {
    const { onPath } = this.state();
    this.folded = new Set(isFolded ? this.outline.order.filter((n) => this.outline.canFold(n) && !onPath.has(n)) : []);
    this.build();
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const target = /** @type {Element} */ (event.target);
    const item = /** @type {HTMLElement | null} */ (target.closest(".row"));
    if (!item) return;
    this.chosen = Number(item.dataset.index);
    const { n } = this.rows[this.chosen];
    if (target.closest(".fold")) this.fold(n, !this.folded.has(n));
    else if (event.altKey) this.onCompare(n);
    else this.onOpen(n);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const row = this.rows[this.chosen];
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const canFold = !row.count && this.outline.canFold(row.n);
    const page = Math.floor(this.box.clientHeight / ROW) - 1;
    const open = () => this.onOpen(row.n);
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowDown: () => this.moveTo(this.chosen + 1, true),
      ArrowUp: () => this.moveTo(this.chosen - 1, true),
      PageDown: () => this.moveTo(this.chosen + page, true),
      PageUp: () => this.moveTo(this.chosen - page, true),
      Home: () => this.moveTo(0, true),
      End: () => this.moveTo(this.rows.length - 1, true),
      Enter: open,
      " ": open,
      ArrowLeft: () => (canFold && !this.folded.has(row.n) ? this.fold(row.n, true) : this.moveTo(this.above(row), true)),
      ArrowRight: () => (canFold && this.folded.has(row.n) ? this.fold(row.n, false) : this.moveTo(this.chosen + 1, true)),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  }

  /** The row that starts the branch of a row, or the fork above it. @param {Row} row */
  above(row) {
    let up = this.chosen - 1;
    const starts = (/** @type {Row} */ one) => one.level === row.level && this.outline.startsBranch(one.n);
    while (up > 0 && this.rows[up].level >= row.level && !starts(this.rows[up])) up--;
    return up;
  }
}
