// @ts-check
/*
 * The header and the toolbar of a session. Every action has a key as well.
 */
import { button, el } from "../dom.js";
import { count, when, words } from "../strings.js";
import { DEPTHS } from "./outline.js";

const text = words.session;

/** @typedef {import("./page.js").SessionPage} SessionPage */

/** @param {SessionPage} page */
export function topOf({ info, title }) {
  const branches = info.heads.length > 1 && count(info.heads.length, "branch", "branches");
  const facts = [info.agent, info.cwd, when(info.created), count(info.total, "entry", "entries"), branches].filter(Boolean);
  return el("header", { class: "top" },
    el("h1", { dir: "auto" }, title),
    el("p", { class: "line-of-facts" }, ...facts.map((fact) => el("span", null, fact)),
      el("a", { href: `/share/${encodeURIComponent(info.id)}` }, text.share)),
    info.notes.length > 0 && notesOf(info.notes));
}

/** @param {string[]} notes */
export const notesOf = (notes) => el("ul", { class: "notes" }, ...notes.map((note) => el("li", null, note)));

/** Notices about damage before the first entry. @param {SessionPage} page @returns {HTMLElement[]} */
export function gapsBefore({ info }) {
  return info.gaps.filter((/** @type {any} */ gap) => gap.after < 0).map((/** @type {any} */ gap) => el("p", { class: "gap" }, gap.text));
}

/** The toolbar, and the parts of it that change. @param {SessionPage} page */
export function barOf(page) {
  const hidden = el("span", { class: "gone" });
  const depths = DEPTHS.map((name, i) =>
    el("label", { title: text.depthNames[i] },
      el("input", { type: "radio", name: "depth", value: name, checked: i === page.depth, on: { change: () => page.setDepth(i) } }),
      el("span", null, text.depths[i])));
  const saw = button(text.saw, () => page.toggleSaw(), undefined, { class: "toggle", "aria-pressed": "false" });
  const element = el("div", { class: "bar", role: "region", "aria-label": text.tools },
    page.find.element,
    el("span", { class: "choice depth", role: "radiogroup", "aria-label": text.depth }, ...depths),
    el("span", { class: "jumps" }, button(text.promptBefore, () => page.move(-1, page.isPrompt), "↑"),
      el("span", { "aria-hidden": "true" }, text.prompt), button(text.promptNext, () => page.move(1, page.isPrompt), "↓")),
    hidden,
    el("span", { class: "right" }, saw, button(text.details, () => page.toggleDetails()),
      button(text.print, () => page.print(), text.printShort)));
  return { element, hidden, saw, depths: depths.map((label) => /** @type {HTMLInputElement} */ (label.firstChild)) };
}

/** Every key of the page; exported files use the same letters. @param {SessionPage} page @returns {import("../keys.js").Action[]} */
export function actionsOf(page) {
  const any = () => true;
  const startsBranch = (/** @type {number} */ n) => page.outline.startsBranch(n);
  /** @type {[string, string, () => unknown][]} */
  const keys = [
    ["j", text.entryNext, () => page.move(1, any)],
    ["k", text.entryBefore, () => page.move(-1, any)],
    ["J", text.promptNext, () => page.move(1, page.isPrompt)],
    ["K", text.promptBefore, () => page.move(-1, page.isPrompt)],
    ["}", text.forkNext, () => page.move(1, startsBranch)],
    ["{", text.forkBefore, () => page.move(-1, startsBranch)],
    ["]", text.branchNext, () => page.turn(1)],
    ["[", text.branchBefore, () => page.turn(-1)],
    ["g", text.firstEntry, () => page.goTo(page.transcript.list[0])],
    ["G", text.lastEntry, () => page.toEnd()],
    ["/", text.findName, () => page.find.field.focus()],
    ["n", text.hitNext, () => page.find.step(1)],
    ["N", text.hitBefore, () => page.find.step(-1)],
    ["o", text.openAll, () => page.transcript.openOrFold(page.line)],
    ["t", text.treeToggle, () => page.toggleTree()],
    ["i", text.detailsToggle, () => page.toggleDetails()],
    ["s", text.sawToggle, () => page.toggleSaw()],
    ["f", text.followToggle, () => page.news.toggle()],
    ["c", text.copyKey, () => page.changing.copyLink(page.current())],
    ["m", text.labelKey, () => page.changing.label(page.current())],
    ["b", text.branchKey, () => page.changing.branchHere(page.current())],
    ["=", text.compareKey, () => page.changing.compareBeside(page.current())],
    ...text.depthNames.map((name, i) => /** @type {[string, string, () => void]} */ ([String(i + 1), name, () => page.setDepth(i)])),
  ];
  return [...keys.map(([key, name, run]) => ({ key, name, run })), { name: text.print, run: () => page.print() }];
}

/** The browser's own print only has the entries near the screen: its key is handled here, and its menu prints a note. @param {import("./transcript.js").Transcript} transcript @param {HTMLElement} note @param {() => void} print @param {AbortSignal} signal */
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
