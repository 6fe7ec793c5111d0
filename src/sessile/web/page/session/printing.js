// @ts-check
/*
 * Print: the whole branch is loaded before the browser's dialog opens, up to a limit; what is left out is said on the paper.
 */
import { el, fragment } from "../dom.js";
import { number, words } from "../strings.js";
import { Articles } from "./articles.js";
import { Transcript } from "./transcript.js";

export const MOST_PRINTED = 3_000;
const text = words.session;

/** The browser's own print has only what is around the screen: its key is taken, and its menu prints a note. @param {Transcript} transcript @param {HTMLElement} note @param {() => void} print @param {AbortSignal} signal */
export function onPrint(transcript, note, print, signal) {
  addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key !== "p" || event.shiftKey) return;
    event.preventDefault();
    print();
  }, { signal });
  addEventListener("beforeprint", () => {
    const isPart = !transcript.isWhole && transcript.entries.children.length < transcript.list.length;
    note.classList.toggle("needed", isPart);
  }, { signal });
}

/** @param {Transcript} transcript @param {Articles} articles @param {(done: number, all: number) => void} onProgress */
export async function printBranch(transcript, articles, onProgress) {
  const list = transcript.list.slice(0, MOST_PRINTED);
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
  addEventListener("afterprint", () => {
    transcript.showFew();
    scrollTo({ top: place, behavior: "instant" });
  }, { once: true });
  window.print();
}
