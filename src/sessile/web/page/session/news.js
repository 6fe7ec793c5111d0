// @ts-check
/*
 * What new entries do to the page.
 *
 * Rules: somebody who reads is never moved; who is at the end stays at the end, unless they do not want to. Others see how many
 * there are, and where they begin. They are announced at rest, all at once.
 */
import { announce, button, settled, toast } from "../dom.js";
import { words } from "../strings.js";

const text = words.session;

export class News {
  /** @param {import("./page.js").SessionPage} page */
  constructor(page) {
    this.page = page;
    this.follows = true;
    this.unseen = 0;
    this.first = -1; // of those that were not seen when they came
    this.untold = 0;
    this.pill = button("", () => page.toEnd(), undefined, { class: "pill", hidden: true });
    this.tell = settled(() => {
      announce(text.freshSaid(this.untold));
      this.untold = 0;
    }, 1_500);
  }

  /** @param {import("./outline.js").Columns} part */
  come(part) {
    const { page } = this;
    const { outline, tip } = page;
    const before = outline.known;
    const staysAtEnd = this.follows && page.transcript.isAtEnd();
    outline.add(part);
    const come = [];
    for (let n = before; n < outline.known; n++) if (!outline.isMarker(n)) come.push(n);
    this.refreshAround(come);
    const path = outline.leaf === null ? [] : outline.pathTo(outline.leaf);
    const grown = tip < 0 || path.includes(tip) ? path : outline.pathTo(outline.headBelow(tip));
    if (grown.length > page.path.length) this.grow(grown, staysAtEnd);
    else if (come.length) toast(text.elsewhere);
    page.tree.build();
  }

  /** @param {number[]} path @param {boolean} staysAtEnd */
  grow(path, staysAtEnd) {
    const { page } = this;
    const seen = path.slice(page.path.length).filter((n) => page.isSeen(n));
    if (!staysAtEnd && seen.length) {
      if (!this.unseen) this.first = seen[0];
      this.unseen += seen.length;
      this.pill.textContent = `${text.fresh(this.unseen)} ↓`;
    }
    this.pill.hidden = !this.unseen;
    page.setPath(path);
    if (staysAtEnd) page.toEnd();
    this.untold += seen.length;
    if (this.untold) this.tell();
  }

  /** They make forks, and answer calls: what stands there is made anew. @param {number[]} come */
  refreshAround(come) {
    const { outline, articles, transcript } = this.page;
    const changed = new Set();
    for (const n of come) {
      const beside = outline.siblings(n);
      if (beside.length > 1) for (const one of beside) changed.add(one);
      if (outline.who(n) !== "tool") continue;
      let up = outline.parents[n];
      for (let step = 0; step < 64 && up >= 0 && outline.who(up) === "tool"; step++) up = outline.parents[up];
      changed.add(up);
    }
    articles.forget(changed);
    transcript.refresh(changed);
  }

  /** The end was reached. */
  seen() {
    this.unseen = 0;
    this.pill.hidden = true;
  }

  toggle() {
    this.follows = !this.follows;
    toast(this.follows ? text.follows : text.followsNot);
  }
}
