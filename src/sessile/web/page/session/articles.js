// @ts-check
/*
 * Articles rendered by the gateway, requested in parts and cached.
 *
 * Rules: the latest demand comes first. Earlier demands that are not in progress are dropped, so that fast scrolling does not wait
 * for entries that are no longer on screen.
 */
import { ask } from "../api.js";

const FIRST = 12; // entries in the first request: about a screen
const PART = 60; // entries in later requests
const AT_ONCE = 2;
const MAX_CACHED = 2_000;

export class Articles {
  /** @param {string} id @param {AbortSignal} signal @param {(numbers: number[]) => void} onLoad */
  constructor(id, signal, onLoad) {
    this.id = id;
    this.signal = signal;
    this.onLoad = onLoad;
    /** @type {Map<number, string>} */
    this.cache = new Map();
    /** @type {Set<number>} */
    this.loading = new Set();
    /** @type {number[]} */
    this.wanted = [];
    this.requests = 0;
    this.part = FIRST;
  }

  /** @param {number} n */
  get(n) {
    return this.cache.get(n);
  }

  /** Request these entries, in this order. @param {number[]} numbers */
  want(numbers) {
    this.wanted = numbers.filter((n) => !this.cache.has(n) && !this.loading.has(n));
    this.part = numbers.slice(0, FIRST).some((n) => !this.cache.has(n)) ? FIRST : PART;
    this.next();
  }

  next() {
    while (this.wanted.length && this.requests < AT_ONCE && !this.signal.aborted) this.askFor(this.wanted.splice(0, this.part));
  }

  /** @param {number[]} numbers */
  async askFor(numbers) {
    this.requests += 1;
    for (const n of numbers) this.loading.add(n);
    try {
      await this.load(numbers);
      if (!this.signal.aborted) this.onLoad(numbers);
    } catch (error) {
      this.wanted = []; // requested again when they are needed
      throw error;
    } finally {
      for (const n of numbers) this.loading.delete(n);
      this.requests -= 1;
      this.next();
    }
  }

  /** @param {number[]} numbers at most `PART` */
  async load(numbers) {
    const params = { id: this.id, numbers: [...numbers].sort((a, b) => a - b).join(",") };
    const { articles } = await ask("/v1/view/entries", params, { signal: this.signal });
    for (const n of numbers) this.cache.set(n, articles[n] ?? "");
    for (const n of this.cache.keys()) {
      if (this.cache.size <= MAX_CACHED) break;
      this.cache.delete(n);
    }
  }

  /** Wait until no request is in progress. */
  async idle() {
    while (this.requests && !this.signal.aborted) await new Promise((resolve) => setTimeout(resolve, 20));
  }

  /** Load all of these in parts. @param {number[]} numbers @param {(part: number[]) => void} onPart */
  async each(numbers, onPart) {
    for (let i = 0; i < numbers.length; i += PART) {
      const part = numbers.slice(i, i + PART);
      const missing = part.filter((n) => !this.cache.has(n));
      if (missing.length) await this.load(missing);
      onPart(part);
    }
  }

  /** Drop entries that have changed. @param {Iterable<number>} numbers */
  forget(numbers) {
    for (const n of numbers) this.cache.delete(n);
  }
}
