// @ts-check
/*
 * What is known of all entries of a session: one column a fact, the tree, the paths through it.
 *
 * Rules: an entry is its number in the file. Columns come in parts, in file order, so that a prefix is always whole; everything
 * works with the prefix that is there. Markers have numbers and are never shown. There is no recursion: a session may be one chain
 * of a million.
 */

/**
 * @typedef {object} Columns
 * @property {number} from
 * @property {number} total
 * @property {string[]} anchors
 * @property {number[]} parents  -1 for a root
 * @property {number[]} marks    who in bits 0-2, depth in 3-4, failed in 5, marker in 6
 * @property {string[]} lines
 * @property {(number | null)[]} tokens  of the context, behind an entry of the assistant
 * @property {Record<string, string>} labels
 * @property {number | null} leaf
 */

export const DEPTHS = ["prompts", "chat", "tools", "all"];
export const WHO = ["user", "assistant", "system", "tool", "shell", "summary", "setting", "note"];

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
    this.order = []; // of the tree, depth first
    /** @type {number[]} */
    this.levels = []; // of `order`
    this.isOrdered = false;
  }

  /** How many entries are known. */
  get known() {
    return this.anchors.length;
  }

  get isWhole() {
    return this.known >= this.total;
  }

  /** Take in the next part; what is known already is passed over. @param {Columns} part */
  add(part) {
    this.total = Math.max(this.total, part.total);
    this.leaf = part.leaf;
    for (let i = this.known - part.from; i >= 0 && i < part.anchors.length; i++) {
      const n = part.from + i;
      this.anchors.push(part.anchors[i]);
      this.parents.push(part.parents[i]);
      this.marks.push(part.marks[i]);
      this.lines.push(part.lines[i]);
      this.tokens.push(part.tokens[i]);
      if (this.isMarker(n)) continue;
      this.numberOf.set(part.anchors[i], n);
      const beside = this.children.get(part.parents[i]);
      if (beside) beside.push(n);
      else this.children.set(part.parents[i], [n]);
    }
    this.labels = labelsOf(part.labels);
    this.isOrdered = false;
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
  isTip(/** @type {number} */ n) {
    return !this.children.has(n);
  }
  isFork(/** @type {number} */ n) {
    return this.below(n).length > 1;
  }
  beginsBranch(/** @type {number} */ n) {
    return this.beside(n).length > 1;
  }
  /** @param {number} n @returns {number[]} */
  below(n) {
    return this.children.get(n) ?? [];
  }
  /** An entry and those that hang from the same one. @param {number} n */
  beside(n) {
    return this.below(this.parents[n] ?? -2);
  }

  /** @param {number} n @returns {number[]} from the root */
  pathTo(n) {
    const path = [];
    for (; n >= 0 && n < this.known; n = this.parents[n]) if (!this.isMarker(n)) path.push(n);
    return path.reverse();
  }

  /** The newest tip below an entry. @param {number} n */
  tipBelow(n) {
    for (let below = this.below(n); below.length; below = this.below(n)) n = below[below.length - 1];
    return n;
  }

  /** The branch that is meant by an entry: that of the session if it has it, else the newest. @param {number} n */
  tipOf(n) {
    if (this.leaf !== null && this.pathTo(this.leaf).includes(n)) return this.leaf;
    return this.tipBelow(n);
  }

  /** Put the entries into the order of the tree; the level of an entry grows only at forks. */
  inOrder() {
    if (this.isOrdered) return;
    this.isOrdered = true;
    this.order = [];
    this.levels = [];
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
      this.order.push(n);
      this.levels.push(level);
    }
  }
}

/** @param {Record<string, string>} labels @returns {Map<number, string>} */
const labelsOf = (labels) => new Map(Object.entries(labels).map(([n, text]) => [Number(n), text]));
