// @ts-check
/*
 * How new entries are shown.
 *
 * Rules: the view never moves, except that at the end of the transcript it stays at the end (unless following is off). Elsewhere a
 * button shows how many new entries there are, and a line where they start. They are announced together, after a pause.
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
    this.first = -1; // the first unseen entry
    this.unannounced = 0;
    this.pill = button("", () => page.toEnd(), undefined, { class: "pill", hidden: true });
    this.announceSoon = settled(() => {
      announce(text.freshSaid(this.unannounced));
      this.unannounced = 0;
    }, 1_500);
  }

  /** @param {import("./outline.js").Columns} part */
  add(part) {
    const { page } = this;
    const { outline, tip } = page;
    const before = outline.known;
    const staysAtEnd = this.follows && page.transcript.isAtEnd();
    outline.add(part);
    const added = [];
    for (let n = before; n < outline.known; n++) if (!outline.isMarker(n)) added.push(n);
    this.refreshAround(added);
    const path = outline.leaf === null ? [] : outline.pathTo(outline.leaf);
    const grown = tip < 0 || path.includes(tip) ? path : outline.pathTo(outline.headBelow(tip));
    if (grown.length > page.path.length) this.grow(grown, staysAtEnd);
    else if (added.length) toast(text.elsewhere);
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
    this.unannounced += seen.length;
    if (this.unannounced) this.announceSoon();
  }

  /** New entries can create forks and answer calls: reload the entries affected. @param {number[]} added */
  refreshAround(added) {
    const { outline, articles, transcript } = this.page;
    const changed = new Set();
    for (const n of added) {
      const siblings = outline.siblings(n);
      if (siblings.length > 1) for (const one of siblings) changed.add(one);
      if (outline.who(n) !== "tool") continue;
      let up = outline.parents[n];
      for (let step = 0; step < 64 && up >= 0 && outline.who(up) === "tool"; step++) up = outline.parents[up];
      changed.add(up);
    }
    articles.forget(changed);
    transcript.refresh(changed);
  }

  /** The end of the transcript is on screen. */
  seen() {
    this.unseen = 0;
    this.pill.hidden = true;
  }

  toggle() {
    this.follows = !this.follows;
    toast(this.follows ? text.follows : text.followsNot);
  }
}
