// @ts-check
/*
 * The menu of an entry, and the dialog for its label.
 */
import { button, copy, el } from "../dom.js";
import { dialog } from "../keys.js";
import { words } from "../strings.js";

const text = words.session;

/** @typedef {{name: string, run: () => unknown}} Item */

/** Open a menu below a button. @param {HTMLElement} owner @param {Item[]} items */
export function openMenu(owner, items) {
  document.querySelector(".menu")?.remove();
  const made = el("div", { class: "menu", role: "menu", popover: "auto", "aria-label": text.more });
  for (const { name, run } of items) {
    made.append(button(name, () => (made.hidePopover(), run()), undefined, { role: "menuitem", tabindex: "-1" }));
  }
  made.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const all = /** @type {HTMLElement[]} */ ([...made.children]);
    all[(all.indexOf(/** @type {HTMLElement} */ (document.activeElement)) + step + all.length) % all.length].focus();
  });
  made.addEventListener("toggle", (event) => {
    if (/** @type {ToggleEvent} */ (event).newState === "closed") made.remove();
  });
  document.body.append(made);
  made.showPopover();
  const box = owner.getBoundingClientRect();
  const height = made.offsetHeight;
  made.style.top = `${box.bottom + height > innerHeight ? Math.max(4, box.top - height) : box.bottom}px`;
  made.style.left = `${Math.max(4, box.right - made.offsetWidth)}px`;
  /** @type {HTMLElement} */ (made.firstElementChild).focus();
}

/** Ask for the label of an entry; an empty one removes it. @param {string} label @param {(label: string | null) => unknown} save */
export function askLabel(label, save) {
  const field = el("input", { type: "text", id: "label", value: label, maxlength: "200", autocomplete: "off" });
  const given = (/** @type {Event} */ event) => {
    event.preventDefault();
    made.close();
    save(field.value.trim() || null);
  };
  const made = dialog(text.label, el("form", { class: "label-form", on: { submit: given } },
    el("label", { for: "label" }, text.labelField), field,
    el("div", { class: "buttons" }, el("button", { type: "submit", class: "main" }, text.labelSave),
      label && button(text.labelRemove, () => (made.close(), save(null)), undefined, { class: "framed" }),
      button(words.close, () => made.close()))));
  field.focus();
}

/** Copy the text of an entry as a quote with its source. @param {HTMLElement} article @param {string} title @param {string} link */
export function copyQuote(article, title, link) {
  const said = [...article.querySelectorAll(".part")].map((part) => part.textContent?.trim()).filter(Boolean).join("\n\n");
  const quoted = (said || article.querySelector("h3")?.textContent || "").split("\n").map((line) => `> ${line}`).join("\n");
  return copy(`${quoted}\n>\n> — [${title.replaceAll("]", "\\]")}](${link})\n`, text.quoteCopied);
}
