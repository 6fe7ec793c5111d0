// @ts-check
/*
 * The tree at the side: a WAI-ARIA tree whose rows are elements only where they are seen.
 *
 * Rules: rows are a flat list with levels, indented at forks only, so that depth costs nothing; all have one height. One row can be
 * reached with Tab, the arrows move from it. The row of the entry that is looked at is kept in sight, unless somebody works in the
 * tree. What lies between outstanding entries is told as a run.
 */
import { button, el, later, settled } from "../dom.js";
import { count, number, words } from "../strings.js";
import { Outline } from "./outline.js";

const ROW = 26; // pixels, as in the style sheet
const DEEPEST = 12;
/** @type {Record<string, string>} */
const SIGNS = { user: "○", assistant: "●", summary: "◆", tool: "▸", shell: "▸" };
const text = words.session;

/** @typedef {{size: number}} Group  rows below the same one */
/** @typedef {{n: number, level: number, place: number, count: number, tools: number, failed: number, group?: Group, nth?: number}} Row */
/**
 * @typedef {object} Shown  what the tree has to know of the page
 * @property {Set<number>} onPath
 * @property {number} tip
 * @property {number} at
 * @property {(n: number) => string} saw  the class of an entry as the model saw it
 */

/** @type {Record<string, (outline: Outline, n: number) => boolean>} */
const FILTERS = {
  outline: (o, n) => o.depthOf(n) === 0 || o.labels.has(n) || o.below(n).length !== 1 || o.beginsBranch(n),
  prompts: (o, n) => o.who(n) === "user",
  chat: (o, n) => o.depthOf(n) <= 1,
  tools: (o, n) => o.depthOf(n) <= 2,
  all: () => true,
  labels: (o, n) => o.labels.has(n),
  failures: (o, n) => o.hasFailed(n),
  heads: (o, n) => o.isTip(n),
  forks: (o, n) => o.beginsBranch(n),
};

export class TreeView {
  /**
   * @param {Outline} outline @param {() => Shown} shown
   * @param {(n: number) => void} onOpen @param {(n: number) => void} onCompare @param {AbortSignal} signal
   */
  constructor(outline, shown, onOpen, onCompare, signal) {
    this.outline = outline;
    this.shown = shown;
    this.onOpen = onOpen;
    this.onCompare = onCompare;
    /** @type {Set<number>} */
    this.folded = new Set();
    /** @type {Row[]} */
    this.rows = [];
    this.chosen = 0; // the row that Tab reaches
    this.sought = "";
    /** @type {{of: number[], at: Int32Array}} */
    this.places = { of: [], at: new Int32Array(0) }; // of entries in the order of the tree
    this.filter = el("select", { "aria-label": text.treeShow, on: { change: () => this.build() } });
    this.query = el("input", { type: "search", placeholder: text.treeFind, "aria-label": text.treeFind, autocomplete: "off", spellcheck: "false" });
    this.query.addEventListener("input", settled(() => this.build(), 120));
    this.list = el("ul", { class: "tree", role: "tree", "aria-label": text.entries });
    this.nothing = el("p", { class: "more", hidden: true }, text.treeNothing);
    this.box = el("div", { id: "tree" }, this.list, this.nothing);
    this.box.addEventListener("scroll", later(() => this.paint()), { passive: true });
    addEventListener("resize", later(() => this.paint()), { signal });
    this.list.addEventListener("click", (event) => this.clicked(event));
    this.list.addEventListener("keydown", (event) => this.pressed(event));
    const folds = [button(text.foldAll, () => this.foldAll(true), "⊟"), button(text.unfoldAll, () => this.foldAll(false), "⊞")];
    this.element = el("div", { class: "tree-box" },
      el("div", { class: "filter" }, this.filter, ...folds), el("div", { class: "filter" }, this.query), this.box);
    for (const key of Object.keys(FILTERS)) this.filter.append(new Option(text.filters[key], key));
  }

  /** How many entries each filter has; asked once all are known. */
  tellCounts() {
    for (const option of this.filter.options) {
      if (option.value === "outline") continue;
      const many = this.outline.order.filter((n) => FILTERS[option.value](this.outline, n)).length;
      option.text = `${text.filters[option.value]} (${number(many)})`;
    }
  }

  /** Make the rows anew. */
  build() {
    const { outline } = this;
    const held = this.rows[this.chosen]?.n;
    outline.inOrder();
    this.sought = this.query.value.trim().toLowerCase();
    const hasRuns = this.filter.value === "outline" && !this.sought;
    const keep = FILTERS[this.filter.value];
    const rows = [];
    /** @type {Row | null} */
    let run = null;
    let foldedLevel = -1;
    for (let place = 0; place < outline.order.length; place++) {
      const n = outline.order[place];
      const level = outline.levels[place];
      if (foldedLevel >= 0 && (level > foldedLevel || (level === foldedLevel && !outline.beginsBranch(n)))) continue;
      foldedLevel = this.folded.has(n) ? level : -1;
      if (this.sought ? this.says(n) : keep(outline, n)) {
        rows.push({ n, level, place, count: 0, tools: 0, failed: 0 });
        run = null;
      } else if (hasRuns) {
        if (!run || run.level !== level) rows.push((run = { n, level, place, count: 0, tools: 0, failed: 0 }));
        run.count += 1;
        run.tools += Number(outline.who(n) === "tool" || outline.who(n) === "shell");
        run.failed += Number(outline.hasFailed(n));
      }
    }
    this.rows = rows;
    this.countGroups();
    if (held !== undefined) this.chosen = this.rowOf(held);
    this.paint();
  }

  /** Which of how many each row is, among those below the same one. */
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

  /** A branch hangs from its fork, its entries from its first. @param {Row} row */
  levelOf({ n, level, count }) {
    return 2 * level + (level && !count && this.outline.beginsBranch(n) ? 0 : 1);
  }

  /** @param {number} n */
  says(n) {
    const label = this.outline.labels.get(n) ?? "";
    return this.outline.lines[n].toLowerCase().includes(this.sought) || label.toLowerCase().includes(this.sought);
  }

  paint() {
    const hadFocus = this.list.contains(document.activeElement);
    const from = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 4);
    const to = Math.min(this.rows.length, from + Math.ceil((this.box.clientHeight || 600) / ROW) + 8);
    this.list.style.height = `${this.rows.length * ROW}px`;
    this.list.style.paddingTop = `${from * ROW}px`;
    const shown = this.shown();
    const here = shown.at < 0 ? -1 : this.rowOf(shown.at);
    const items = this.rows.slice(from, to).map((row, i) => this.item(row, from + i, from + i === here, shown));
    if (this.chosen < from || this.chosen >= to) items[0]?.setAttribute("tabindex", "0"); // Tab reaches the tree wherever it stands
    this.list.replaceChildren(...items);
    if (hadFocus) (items[this.chosen - from] ?? items[0])?.focus({ preventScroll: true });
    this.nothing.hidden = this.rows.length > 0;
  }

  /** @param {Row} row @param {number} index @param {boolean} isHere @param {Shown} shown */
  item(row, index, isHere, shown) {
    const { outline } = this;
    const { n, level } = row;
    const begins = outline.beginsBranch(n) && !row.count;
    const canFold = begins && !outline.isTip(n);
    const isFolded = this.folded.has(n);
    const classes = ["row", `l${Math.min(level, DEEPEST)}`, begins && "first", shown.onPath.has(n) && "shown",
      outline.hasFailed(n) && !row.count && "bad", isHere && "at", shown.saw(n)].filter(Boolean);
    const label = outline.labels.get(n);
    const sign = outline.hasFailed(n) ? "✗" : n === outline.leaf ? "@" : SIGNS[outline.who(n)] ?? "·";
    const inside = row.count
      ? [el("span", { class: "run" }, runWords(row))]
      : [
          canFold && el("span", { class: "fold", "aria-hidden": "true" }, isFolded ? "▸" : "▾"),
          el("span", { class: "sign", "aria-hidden": "true" }, sign),
          el("span", { class: "unseen" }, `${outline.hasFailed(n) ? text.failed : ""} ${outline.who(n)}: `),
          label && el("span", { class: "label" }, label),
          el("span", { class: "line" }, outline.lines[n]),
        ];
    return el("li", {
      class: classes.join(" "), role: "treeitem", tabindex: index === this.chosen ? "0" : "-1", title: row.count ? null : outline.lines[n],
      "aria-level": this.levelOf(row), "aria-expanded": canFold ? String(!isFolded) : null,
      "aria-current": n === shown.tip ? "true" : null, "aria-setsize": row.group?.size, "aria-posinset": row.nth, data: { index },
    }, el("a", null, ...inside));
  }

  /** The row of an entry, or of the run that it is in. @param {number} n */
  rowOf(n) {
    const place = this.placeOf(n);
    let low = 0;
    let high = this.rows.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.rows[middle].place <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** @param {number} n */
  placeOf(n) {
    if (this.places.of !== this.outline.order) {
      const at = new Int32Array(this.outline.known);
      this.outline.order.forEach((one, place) => (at[one] = place));
      this.places = { of: this.outline.order, at };
    }
    return this.places.at[n] ?? 0;
  }

  /** Keep the row of the entry that is looked at in sight, unless somebody works in the tree. */
  follow() {
    const { at } = this.shown();
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
    const { outline } = this;
    const { onPath } = this.shown();
    this.folded = new Set(isFolded ? outline.order.filter((n) => outline.beginsBranch(n) && !outline.isTip(n) && !onPath.has(n)) : []);
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
    const canFold = !row.count && this.outline.beginsBranch(row.n) && !this.outline.isTip(row.n);
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

  /** The row that begins the branch of a row, or that it hangs from. @param {Row} row */
  above(row) {
    let up = this.chosen - 1;
    const begins = (/** @type {Row} */ one) => one.level === row.level && this.outline.beginsBranch(one.n);
    while (up > 0 && this.rows[up].level >= row.level && !begins(this.rows[up])) up--;
    return up;
  }
}

/** @param {Row} row */
function runWords(row) {
  const told = [count(row.count, "entry", "entries")];
  if (row.tools) told.push(count(row.tools, "tool"));
  if (row.failed) told.push(text.someFailed(row.failed));
  return `~ ${told.join(" · ")}`;
}
