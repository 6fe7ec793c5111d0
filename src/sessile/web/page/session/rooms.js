// @ts-check
/*
 * Heights of entries, with fast sums for hundreds of thousands of them.
 */

const BLOCK = 256;

export class Rooms {
  /** @param {number[]} sizes */
  constructor(sizes) {
    this.sizes = Float32Array.from(sizes);
    this.blocks = new Float64Array(Math.ceil(sizes.length / BLOCK));
    this.sizes.forEach((size, i) => (this.blocks[Math.floor(i / BLOCK)] += size));
  }

  /** @param {number} i @param {number} size */
  set(i, size) {
    this.blocks[Math.floor(i / BLOCK)] += size - this.sizes[i];
    this.sizes[i] = size;
  }

  /** The height of the entries from `from` up to `to`, exclusive. @param {number} from @param {number} to */
  sum(from, to) {
    let sum = 0;
    for (let i = from; i < to; ) {
      if (i % BLOCK === 0 && i + BLOCK <= to) {
        sum += this.blocks[i / BLOCK];
        i += BLOCK;
      } else sum += this.sizes[i++];
    }
    return sum;
  }

  /** The entry at a distance from the top; the last one if it is farther. @param {number} y */
  at(y) {
    let block = 0;
    for (; block < this.blocks.length - 1 && y >= this.blocks[block]; block++) y -= this.blocks[block];
    let i = block * BLOCK;
    for (; i < this.sizes.length - 1 && y >= this.sizes[i]; i++) y -= this.sizes[i];
    return i;
  }
}
