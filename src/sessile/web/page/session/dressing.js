// @ts-check
/*
 * What the page adds to rendered articles: a context meter, what the model saw, a menu; and clicks on them.
 *
 * An article can be updated again at any time.
 */
import { button, copy } from "../dom.js";
import { words } from "../strings.js";
import { pictures } from "./pictures.js";
import { meter } from "./saw.js";

const text = words.session;

export class Dressing {
  /** @param {import("./page.js").SessionPage} page */
  constructor(page) {
    this.page = page;
  }

  /** @param {HTMLElement} article @param {number} n */
  dress(article, n) {
    const { page } = this;
    article.classList.toggle("at", n === page.at);
    article.classList.toggle("first-fresh", n === page.news.first);
    article.classList.remove("saw-in", "saw-gone", "saw-later", "saw-at", "saw-changed");
    const saw = page.saw.classOf(n);
    if (saw) article.classList.add(saw);
    const reason = page.saw.reasonOf(n);
    const before = page.transcript.list[(page.transcript.index.get(n) ?? 0) - 1] ?? -1;
    article.title = reason;
    setData(article, "reason", reason === page.saw.reasonOf(before) ? "" : reason); // once for consecutive entries with the same reason
    setData(article, "fresh", n === page.news.first ? text.freshRule : "");
    const aside = article.querySelector(":scope > .aside");
    if (aside && !aside.querySelector(".more-button")) {
      aside.append(button(text.more, () => {}, "⋯", { class: "more-button", "aria-haspopup": "menu" }));
      pictures(article, page.info.id, page.signal);
    }
    const tokens = page.outline.tokens[n];
    if (tokens && !aside?.querySelector(".meter")) {
      aside?.prepend(meter(tokens, page.info.window, page.mostTokens, () => page.beginSaw(n)));
    }
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const { page } = this;
    const target = /** @type {Element} */ (event.target);
    const article = /** @type {HTMLElement | null} */ (target.closest(".entry"));
    if (!article) return;
    const n = Number(article.dataset.n);
    const step = target.closest("a.step");
    const more = /** @type {HTMLElement | null} */ (target.closest(".more-button"));
    if (step) {
      event.preventDefault();
      this.stepTo((step.getAttribute("href") ?? "").slice(1), n);
    } else if (more) import("./menu.js").then(({ openMenu }) => openMenu(more, page.changing.menuOf(n)));
    else if (target.closest("a.permalink")) {
      event.preventDefault();
      history.replaceState(history.state, "", `#${article.id}`);
      page.choose(n);
      if (event.shiftKey) page.changing.quote(article);
      else copy(page.changing.link(article.id), text.linkCopied);
    } else if (!target.closest("a, button, summary")) page.choose(n);
  }

  /** @param {string} anchor @param {number} instead */
  async stepTo(anchor, instead) {
    const { page } = this;
    const next = await page.numberOf(anchor);
    if (next !== undefined) page.switchTo(next, instead);
  }
}

/** @param {HTMLElement} article @param {string} name @param {string} value */
function setData(article, name, value) {
  if (value) article.dataset[name] = value;
  else delete article.dataset[name];
}
