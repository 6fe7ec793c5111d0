// @ts-check
/*
 * Actions: each has a name, most a key. The help lists the keys, the palette (Ctrl-K) finds actions by name.
 *
 * Rules: a key does nothing while somebody types, and never takes one that is held with Ctrl, Alt or Meta. Actions of a page end
 * with its signal.
 */
import { button, el } from "./dom.js";
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

/** Hear keys from now on. */
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

/** A dialog that is gone when it is closed. @param {string} title @param {...Node} content */
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

function openHelp() {
  const rows = [...actions].filter((one) => one.key).map((one) => {
    const run = () => (made.close(), one.run());
    return el("li", null, el("kbd", null, one.key), button(one.name, run));
  });
  const made = dialog(words.keys.title, el("ul", { class: "keys" }, ...rows), el("p", null, words.keys.hint),
    button(words.close, () => made.close(), undefined, { class: "framed" }));
  made.classList.add("wide");
}

function openPalette() {
  const field = el("input", { type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": "palette", placeholder: words.keys.find, "aria-label": words.keys.find });
  const list = el("ul", { id: "palette", role: "listbox", "aria-label": words.keys.palette });
  const made = dialog(words.keys.palette, field, list);
  /** @type {Action[]} */
  let found = [];
  let chosen = 0;
  const fill = () => {
    const wanted = field.value.toLowerCase().split(/\s+/);
    found = [...actions].filter((one) => one.run !== openPalette && wanted.every((word) => one.name.toLowerCase().includes(word)));
    chosen = 0;
    paint();
  };
  const paint = () => {
    const items = found.map((one, i) =>
      el("li", { role: "option", id: `command-${i}`, "aria-selected": String(i === chosen), on: { click: () => run(one) } },
        one.name, one.key && el("kbd", null, one.key)));
    list.replaceChildren(...(items.length ? items : [el("li", { class: "soft" }, words.keys.nothing)]));
    field.setAttribute("aria-activedescendant", `command-${chosen}`);
    items[chosen]?.scrollIntoView({ block: "nearest" });
  };
  const run = (/** @type {Action} */ action) => (made.close(), action.run());
  field.addEventListener("input", fill);
  field.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) {
      event.preventDefault();
      chosen = (chosen + step + found.length) % found.length;
      paint();
    }
    if (event.key === "Enter" && found[chosen]) {
      event.preventDefault();
      run(found[chosen]);
    }
  });
  fill();
  field.focus();
}
