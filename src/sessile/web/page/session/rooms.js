// @ts-check
/*
 * How much room so many entries take: sums of sizes that change now and then, quickly for hundreds of thousands.
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

  /** The room of those from `from` up to `to`. @param {number} from @param {number} to */
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

  /** Which one is so far down; the last one if none is. @param {number} y */
  at(y) {
    let block = 0;
    for (; block < this.blocks.length - 1 && y >= this.blocks[block]; block++) y -= this.blocks[block];
    let i = block * BLOCK;
    for (; i < this.sizes.length - 1 && y >= this.sizes[i]; i++) y -= this.sizes[i];
    return i;
  }
}
