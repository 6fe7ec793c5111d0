// @ts-check
/*
 * Actions: each has a name, most have a key. The help lists the keys, the palette (Ctrl-K) finds actions by name.
 *
 * Rules: keys are ignored while the user types, and in combination with Ctrl, Alt or Meta. Actions of a page end with its signal.
 */
import { el } from "./dom.js";
import { words } from "./strings.js";

/** @typedef {{name: string, run: () => unknown, key?: string}} Action */

/** @type {Set<Action>} */
const actions = new Set();

/** @param {Action[]} more @param {AbortSignal} [signal] */
export function addActions(more, signal) {
  for (const action of more) actions.add(action);
  signal?.addEventListener("abort", () => {
    for (const action of more) actions.delete(action);
  });
}

// Loaded on demand.
const openHelp = () => import("./palette.js").then((module) => module.openHelp([...actions]));
const openPalette = () => import("./palette.js").then((module) => module.openPalette([...actions]));

/** Start listening to keys. */
export function listen() {
  addActions([
    { name: words.keys.helpOpen, key: "?", run: openHelp },
    { name: words.keys.paletteOpen, key: "Ctrl-K", run: openPalette },
  ]);
  document.addEventListener("sessile:help", openHelp);
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openPalette();
      return;
    }
    const target = /** @type {Element} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input:not([type=range]), select, textarea, dialog")) return;
    const action = [...actions].findLast((one) => one.key === event.key);
    if (!action) return;
    event.preventDefault();
    action.run();
  });
}

/** A dialog that is removed when it is closed. @param {string} title @param {...Node} content */
export function dialog(title, ...content) {
  document.querySelector("dialog[open]")?.remove();
  const made = el("dialog", { "aria-label": title }, el("h2", null, title), ...content);
  made.addEventListener("close", () => made.remove());
  made.addEventListener("click", (event) => {
    if (event.target === made) made.close(); // the backdrop
  });
  document.body.append(made);
  made.showModal();
  return made;
}
