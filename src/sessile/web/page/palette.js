// @ts-check
/*
 * The help, which lists every key with a button for the same action, and the palette, which finds actions by name.
 */
import { button, el } from "./dom.js";
import { dialog } from "./keys.js";
import { words } from "./strings.js";

/** @typedef {import("./keys.js").Action} Action */

/** @param {Action[]} actions */
export function openHelp(actions) {
  const rows = actions.filter((one) => one.key).map((one) => {
    const run = () => (made.close(), one.run());
    return el("li", null, el("kbd", null, one.key), button(one.name, run));
  });
  const made = dialog(words.keys.title, el("ul", { class: "keys" }, ...rows), el("p", null, words.keys.hint),
    button(words.close, () => made.close(), undefined, { class: "framed" }));
  made.classList.add("wide");
}

/** @param {Action[]} actions */
export function openPalette(actions) {
  const field = el("input", { type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": "palette", placeholder: words.keys.find, "aria-label": words.keys.find });
  const list = el("ul", { id: "palette", role: "listbox", "aria-label": words.keys.palette });
  const made = dialog(words.keys.palette, field, list);
  /** @type {Action[]} */
  let found = [];
  let chosen = 0;
  const fill = () => {
    const wanted = field.value.toLowerCase().split(/\s+/);
    found = actions.filter((one) => wanted.every((word) => one.name.toLowerCase().includes(word)));
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
