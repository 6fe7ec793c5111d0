// @ts-check
/*
 * Actions for one entry: copy its link or a quote, label it, continue from it, compare its branch.
 *
 * Only native sessions can be changed; those of other programs are read-only.
 */
import { ask } from "../api.js";
import { go } from "../app.js";
import { copy, toast } from "../dom.js";
import { words } from "../strings.js";

const text = words.session;

export class Changing {
  /** @param {import("./page.js").SessionPage} page */
  constructor(page) {
    this.page = page;
  }

  /** @param {number} n @returns {import("./menu.js").Item[]} */
  menuOf(n) {
    const { page } = this;
    const article = page.transcript.article(n);
    const { writable } = page.info;
    return [
      { name: text.copyLink, run: () => this.copyLink(n) },
      article && { name: text.copyQuote, run: () => this.quote(article) },
      { name: text.sawHere, run: () => page.beginSaw(n) },
      writable && { name: text.labelSet, run: () => this.label(n) },
      writable && { name: text.branchHere, run: () => this.branchHere(n) },
      page.outline.startsBranch(n) && { name: text.compare, run: () => this.compareBeside(n) },
      { name: text.details, run: () => (page.choose(n), page.details?.element.hidden === false || page.toggleDetails()) },
    ].filter((item) => !!item);
  }

  /** @param {string} anchor */
  link(anchor) {
    return `${location.origin}${location.pathname}#${anchor}`;
  }

  /** @param {number} n */
  copyLink(n) {
    const anchor = this.page.outline.anchors[n];
    return anchor && copy(this.link(anchor), text.linkCopied);
  }

  /** @param {HTMLElement} article */
  async quote(article) {
    const { copyQuote } = await import("./menu.js");
    return copyQuote(article, this.page.title, this.link(article.id));
  }

  /** @param {number} n */
  async label(n) {
    const { page } = this;
    if (!page.info.writable) return toast(text.foreign);
    const { askLabel } = await import("./menu.js");
    return askLabel(page.outline.labels.get(n) ?? "", async (label) => {
      await this.change("label", { number: n, label });
      if (label) page.outline.labels.set(n, label);
      else page.outline.labels.delete(n);
      page.articles.forget([n]);
      page.transcript.refresh([n]);
      page.tree.build();
    });
  }

  /** @param {number} n */
  async branchHere(n) {
    const { page } = this;
    if (!page.info.writable) return toast(text.foreign);
    await this.change("branch", { number: n });
    page.outline.leaf = n;
    page.showBranch(n);
    page.go(n);
    page.tree.build();
    toast(text.branched);
  }

  /** @param {string} what @param {object} how */
  change(what, how) {
    const { info, signal } = this.page;
    return ask(`/v1/view/session/${what}`, {}, { body: { id: info.id, ...how }, signal });
  }

  /** @param {number} n */
  compareBeside(n) {
    const { path, outline } = this.page;
    const first = path.slice(0, path.indexOf(n) + 1).findLast((one) => outline.startsBranch(one));
    if (first === undefined) return toast(text.oneBranch);
    const siblings = outline.siblings(first);
    return this.compareWith(outline.headBelow(siblings[(siblings.indexOf(first) + 1) % siblings.length]));
  }

  /** Compare the current branch with the branch of an entry. @param {number} n */
  compareWith(n) {
    const [branch, vs] = [this.page.tip, n].map((one) => this.page.outline.anchors[one].slice(2));
    return go(`${location.pathname}?${new URLSearchParams({ branch, vs })}`);
  }
}
