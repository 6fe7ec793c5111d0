// @ts-check
/*
 * Print: the whole branch is loaded before the browser's dialog opens, up to a limit; a note says what is left out.
 */
import { el, fragment } from "../dom.js";
import { number, words } from "../strings.js";
import { Articles } from "./articles.js";
import { pictures } from "./pictures.js";
import { Transcript } from "./transcript.js";

export const MAX_PRINTED = 3_000;
const text = words.session;

/** @param {Transcript} transcript @param {Articles} articles @param {(done: number, all: number) => void} onProgress */
export async function printBranch(transcript, articles, onProgress) {
  const list = transcript.list.slice(0, MAX_PRINTED);
  /** @type {HTMLElement[]} */
  const made = [];
  await articles.each(list, (part) => {
    for (const n of part) {
      const article = /** @type {HTMLElement | null} */ (fragment(articles.get(n) ?? "").firstElementChild);
      if (article) made.push(article);
    }
    onProgress(made.length, list.length);
  });
  const left = transcript.list.length - list.length;
  if (left) made.push(el("p", { class: "note" }, text.notPrinted(number(left))));
  const place = scrollY;
  transcript.showAll(made);
  await pictures(transcript.entries, articles.id, articles.signal);
  addEventListener("afterprint", () => {
    transcript.showFew();
    scrollTo({ top: place, behavior: "instant" });
  }, { once: true });
  window.print();
}
