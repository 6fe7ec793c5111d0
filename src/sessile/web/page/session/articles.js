// @ts-check
/*
 * The articles of entries as the gateway renders them, asked for in parts and kept for a while.
 *
 * Rules: what is wanted last is asked for first; what was wanted before and is not under way is forgotten, so that a fast reader
 * does not wait for what flew by.
 */
import { ask } from "../api.js";

const FIRST = 12; // entries that are asked for before all others: about a screen
const PART = 60; // entries in a request
const AT_ONCE = 2;
const KEPT = 2_000;

export class Articles {
  /** @param {string} id @param {AbortSignal} signal @param {(numbers: number[]) => void} onCome */
  constructor(id, signal, onCome) {
    this.id = id;
    this.signal = signal;
    this.onCome = onCome;
    /** @type {Map<number, string>} */
    this.kept = new Map();
    /** @type {Set<number>} */
    this.underWay = new Set();
    /** @type {number[]} */
    this.wanted = [];
    this.requests = 0;
    this.part = FIRST;
  }

  /** @param {number} n */
  get(n) {
    return this.kept.get(n);
  }

  /** Have these soon, the first ones first. @param {number[]} numbers */
  want(numbers) {
    this.wanted = numbers.filter((n) => !this.kept.has(n) && !this.underWay.has(n));
    this.part = numbers.slice(0, FIRST).some((n) => !this.kept.has(n)) ? FIRST : PART;
    this.next();
  }

  next() {
    while (this.wanted.length && this.requests < AT_ONCE && !this.signal.aborted) this.askFor(this.wanted.splice(0, this.part));
  }

  /** @param {number[]} numbers */
  async askFor(numbers) {
    this.requests += 1;
    for (const n of numbers) this.underWay.add(n);
    try {
      await this.load(numbers);
      if (!this.signal.aborted) this.onCome(numbers);
    } catch (error) {
      this.wanted = []; // asked for again when somebody looks there
      throw error;
    } finally {
      for (const n of numbers) this.underWay.delete(n);
      this.requests -= 1;
      this.next();
    }
  }

  /** @param {number[]} numbers at most `PART` */
  async load(numbers) {
    const params = { id: this.id, numbers: [...numbers].sort((a, b) => a - b).join(",") };
    const { articles } = await ask("/v1/view/entries", params, { signal: this.signal });
    for (const n of numbers) this.kept.set(n, articles[n] ?? "");
    for (const n of this.kept.keys()) {
      if (this.kept.size <= KEPT) break;
      this.kept.delete(n);
    }
  }

  /** Until nobody waits for an article. */
  async idle() {
    while (this.requests && !this.signal.aborted) await new Promise((resolve) => setTimeout(resolve, 20));
  }

  /** All of these, some at a time. @param {number[]} numbers @param {(part: number[]) => void} onPart */
  async each(numbers, onPart) {
    for (let i = 0; i < numbers.length; i += PART) {
      const part = numbers.slice(i, i + PART);
      const missing = part.filter((n) => !this.kept.has(n));
      if (missing.length) await this.load(missing);
      onPart(part);
    }
  }

  /** They have changed. @param {Iterable<number>} numbers */
  forget(numbers) {
    for (const n of numbers) this.kept.delete(n);
  }
}
