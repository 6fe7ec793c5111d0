// @ts-check
/*
 * What is known of all entries of a session: one column for each fact, the tree, the paths through it, and its rows.
 * The live page and exported files share this module.
 *
 * Rules: an entry is identified by its number in the file. Columns come from Python (`render.outline`), in parts, in file order;
 * everything works with the entries known so far. Rows follow the rules of `page_outline` there: they are computed here because
 * the live page gets its entries in parts and while the session grows, and because rows are filtered and folded. Leaf markers have
 * numbers but are never shown. No recursion: a session may be one chain of a million entries.
 */

/**
 * @typedef {object} Columns
 * @property {number} from
 * @property {number} total
 * @property {string[]} anchors
 * @property {number[]} parents  -1 for a root
 * @property {number[]} marks    who in bits 0-2, depth in 3-4, failed in 5, marker in 6
 * @property {string[]} lines
 * @property {(number | null)[]} [tokens]  size of the context after an assistant's entry; exported files have none
 * @property {Record<string, string>} labels
 * @property {number | null} leaf
 */

/**
 * An entry, or a run of `count` elided entries that starts with entry `n`. `place` is its place in tree order.
 * @typedef {{n: number, level: number, place: number, count: number, tools: number, failed: number}} Row
 */

export const DEPTHS = ["prompts", "chat", "tools", "all"];
export const WHO = ["user", "assistant", "system", "tool", "shell", "summary", "setting", "note"];

/** Which entries have a row. @type {Record<string, (outline: Outline, n: number) => boolean>} */
export const FILTERS = {
  outline: (o, n) => o.depthOf(n) === 0 || o.labels.has(n) || n === o.leaf || o.below(n).length !== 1 || o.startsBranch(n),
  prompts: (o, n) => o.who(n) === "user",
  chat: (o, n) => o.depthOf(n) <= 1,
  tools: (o, n) => o.depthOf(n) <= 2,
  all: () => true,
  labels: (o, n) => o.labels.has(n),
  failures: (o, n) => o.hasFailed(n),
  heads: (o, n) => o.isHead(n),
  forks: (o, n) => o.startsBranch(n),
};

export class Outline {
  /** @param {{total: number, leaf: number | null, labels: Record<string, string>}} info */
  constructor({ total, leaf, labels }) {
    this.total = total;
    this.leaf = leaf;
    /** @type {string[]} */
    this.anchors = [];
    /** @type {number[]} */
    this.parents = [];
    /** @type {number[]} */
    this.marks = [];
    /** @type {string[]} */
    this.lines = [];
    /** @type {(number | null)[]} */
    this.tokens = [];
    /** @type {Map<number, string>} */
    this.labels = labelsOf(labels);
    /** @type {Map<string, number>} */
    this.numberOf = new Map();
    /** @type {Map<number, number[]>} */
    this.children = new Map();
    /** @type {number[]} */
    this.order = []; // numbers in tree order, depth first
    /** @type {number[]} */
    this.levels = []; // of `order`
    this.places = new Int32Array(0); // in `order`, by number
    this.isSorted = false;
  }

  /** How many entries are known. */
  get known() {
    return this.anchors.length;
  }

  get isComplete() {
    return this.known >= this.total;
  }

  /** Add the next part; entries that are already known are skipped. @param {Columns} part */
  add(part) {
    this.total = Math.max(this.total, part.total);
    this.leaf = part.leaf;
    for (let i = this.known - part.from; i >= 0 && i < part.anchors.length; i++) {
      const n = part.from + i;
      this.anchors.push(part.anchors[i]);
      this.parents.push(part.parents[i]);
      this.marks.push(part.marks[i]);
      this.lines.push(part.lines[i]);
      this.tokens.push(part.tokens?.[i] ?? null);
      if (this.isMarker(n)) continue;
      this.numberOf.set(part.anchors[i], n);
      const siblings = this.children.get(part.parents[i]);
      if (siblings) siblings.push(n);
      else this.children.set(part.parents[i], [n]);
    }
    this.labels = labelsOf(part.labels);
    this.isSorted = false;
  }

  who(/** @type {number} */ n) {
    return WHO[this.marks[n] & 7];
  }
  depthOf(/** @type {number} */ n) {
    return (this.marks[n] >> 3) & 3;
  }
  hasFailed(/** @type {number} */ n) {
    return (this.marks[n] & 32) !== 0;
  }
  isMarker(/** @type {number} */ n) {
    return (this.marks[n] & 64) !== 0;
  }
  isHead(/** @type {number} */ n) {
    return !this.children.has(n);
  }
  startsBranch(/** @type {number} */ n) {
    return this.siblings(n).length > 1;
  }
  /** Whether the rows below an entry can be folded into its row. */
  canFold(/** @type {number} */ n) {
    return this.startsBranch(n) && !this.isHead(n);
  }
  /** @param {number} n @returns {number[]} */
  below(n) {
    return this.children.get(n) ?? [];
  }
  /** An entry and all others with the same parent. @param {number} n */
  siblings(n) {
    return this.below(this.parents[n] ?? -2);
  }

  /** @param {number} n @returns {number[]} from the root */
  pathTo(n) {
    const path = [];
    for (; n >= 0 && n < this.known; n = this.parents[n]) if (!this.isMarker(n)) path.push(n);
    return path.reverse();
  }

  /** The newest head below an entry. @param {number} n */
  headBelow(n) {
    for (let below = this.below(n); below.length; below = this.below(n)) n = below[below.length - 1];
    return n;
  }

  /** The head of the branch to show for an entry: the leaf if the entry is on its path, else the newest head. @param {number} n */
  headOf(n) {
    if (this.leaf !== null && this.pathTo(this.leaf).includes(n)) return this.leaf;
    return this.headBelow(n);
  }

  /** Put the entries into tree order. The level of an entry grows only at forks. */
  sort() {
    if (this.isSorted) return;
    this.isSorted = true;
    this.order = [];
    this.levels = [];
    this.places = new Int32Array(this.known);
    /** @type {[number, number][]} */
    const waiting = [];
    let [n, level] = [-1, 0];
    for (;;) {
      const below = this.below(n);
      if (below.length > 1 && n >= 0) level += 1;
      for (let i = below.length - 1; i >= 0; i--) waiting.push([below[i], level]);
      const next = waiting.pop();
      if (!next) return;
      [n, level] = next;
      this.places[n] = this.order.length;
      this.order.push(n);
      this.levels.push(level);
    }
  }

  /**
   * The rows of the tree. The filter "outline" elides straight runs of entries; a search shows only entries that contain the text.
   * @param {string} filter @param {string} sought in lower case @param {Set<number>} folded @returns {Row[]}
   */
  rows(filter, sought, folded) {
    this.sort();
    const hasRuns = filter === "outline" && !sought;
    const keep = FILTERS[filter];
    /** @type {Row[]} */
    const rows = [];
    /** @type {Row | null} */
    let run = null;
    let foldedLevel = -1;
    for (let place = 0; place < this.order.length; place++) {
      const n = this.order[place];
      const level = this.levels[place];
      if (foldedLevel >= 0 && (level > foldedLevel || (level === foldedLevel && !this.startsBranch(n)))) continue;
      foldedLevel = folded.has(n) ? level : -1;
      if (sought ? this.contains(n, sought) : keep(this, n)) {
        rows.push({ n, level, place, count: 0, tools: 0, failed: 0 });
        run = null;
      } else if (hasRuns) {
        if (!run || run.level !== level) rows.push((run = { n, level, place, count: 0, tools: 0, failed: 0 }));
        run.count += 1;
        run.tools += Number(this.who(n) === "tool" || this.who(n) === "shell");
        run.failed += Number(this.hasFailed(n));
      }
    }
    for (const row of rows) if (row.count === 1) row.count = 0; // a run of one is shown as the entry
    return rows;
  }

  /** @param {number} n @param {string} sought */
  contains(n, sought) {
    return this.lines[n].toLowerCase().includes(sought) || (this.labels.get(n) ?? "").toLowerCase().includes(sought);
  }
}

/** @param {Record<string, string>} labels @returns {Map<number, string>} */
const labelsOf = (labels) => new Map(Object.entries(labels).map(([n, text]) => [Number(n), text]));
