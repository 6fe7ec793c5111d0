// @ts-check
/*
 * Two branches of a session side by side: the number of common entries, the differences in numbers, then turn by turn.
 */
import { hrefOf, hrefWith } from "./address.js";
import { Problem, ask } from "./api.js";
import { sessionOf, setTitle } from "./app.js";
import { button, el, fragment } from "./dom.js";
import { pictures } from "./session/pictures.js";
import { words } from "./strings.js";

const text = words.diff;
const AT_ONCE = 100; // entries in one request

/** @typedef {{number: number, html: string | null}} Entry */

/** @param {HTMLElement} main @param {URL} url @param {AbortSignal} signal */
export async function render(main, url, signal) {
  const id = sessionOf(url);
  const [branch, vs] = [url.searchParams.get("branch") ?? "", url.searchParams.get("vs") ?? ""];
  const [one, other] = await Promise.all([branch, vs].map((name) => ask("/v1/view/session", { id, at: `e-${name}` }, { signal })));
  if (one.at === null || other.at === null) throw new Problem(text.missing, text.missingHint, 404);
  const data = await ask("/v1/view/diff", { id, a: one.at, b: other.at }, { signal });
  const { title } = one;
  setTitle(`${words.pages.diff}: ${title}`);
  const page = hrefOf(id);
  main.className = "page diff-page";
  main.replaceChildren(
    el("h1", null, `${words.pages.diff}: `, el("a", { href: page }, title)),
    el("p", { class: "buttons" },
      el("a", { class: "chip", href: hrefWith(url, { branch: vs, vs: branch }) }, `⇄ ${text.swap}`)),
    el("div", { class: "outcome" },
      el("section", null, el("h2", null, text.what), deltas(data.deltas.rows)),
      el("section", null, el("h2", null, text.answer), fragment(data.words.html))),
    el("section", null, el("h2", null, text.turns),
      el("p", { class: "common" }, data.common ? el("a", { href: page }, text.common(data.common)) : text.nothing),
      el("div", { class: "beside" }, ...[[text.left, branch], [text.right, vs]].map(([name, tip]) => el("h3", { class: "side-name" },
        el("a", { href: hrefWith(url, { branch: tip, vs: null }) }, `${name} · ${tip}`))), ...turns(data, id, signal))));
}

/** @param {string[][]} rows */
function deltas(rows) {
  const head = [text.left, text.right, text.difference].map((name) => el("th", { scope: "col", class: "number" }, name));
  const body = rows.map(([name, ...values]) =>
    el("tr", null, el("th", { scope: "row" }, name), ...values.map((value) => el("td", { class: "number" }, value))));
  return el("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": text.what },
    el("table", { class: "data" }, el("thead", null, el("tr", null, el("td", null), ...head)), el("tbody", null, ...body)));
}

/** Put matching turns side by side. @param {any} data @param {string} id @param {AbortSignal} signal */
function turns({ left, right, pairs }, id, signal) {
  const sides = [left, right].map((side, which) => parts(side, pairs.map((/** @type {(number | null)[]} */ pair) => pair[which])));
  const rows = pairs.map((/** @type {unknown} */ _, /** @type {number} */ at) =>
    sides.map((side, which) => el("div", { class: "turn", role: "group", "aria-label": which ? text.right : text.left },
      side[at] ? articles(side[at], id, signal) : el("p", { class: "soft" }, text.onlyOther))));
  return rows.flat();
}

/**
 * The entries of each turn of a side.
 * @param {Entry[]} side @param {(number | null)[]} starts
 */
function parts(side, starts) {
  const places = starts.map((begin) => (begin === null ? -1 : side.findIndex((entry) => entry.number === begin)));
  return places.map((place, at) => {
    if (place < 0) return null;
    const next = places.slice(at + 1).find((one) => one >= 0);
    return side.slice(place, next);
  });
}

/** @param {Entry[]} entries @param {string} id @param {AbortSignal} signal */
function articles(entries, id, signal) {
  const ready = entries.filter((entry) => entry.html !== null);
  const missing = entries.filter((entry) => entry.html === null).map((entry) => entry.number);
  const place = el("div", null);
  const add = (/** @type {string[]} */ html) => {
    const made = fragment(html.join(""));
    for (const link of made.querySelectorAll('a[href^="#e-"]')) link.setAttribute("href", hrefOf(id) + link.getAttribute("href"));
    pictures(made, id, signal);
    place.append(made);
  };
  const more = button(text.more(missing.length), async () => {
    const asked = missing.splice(0, AT_ONCE);
    const data = await ask("/v1/view/entries", { id, numbers: asked.join() }, { signal });
    add(asked.map((number) => data.articles[number] ?? ""));
    more.textContent = text.more(missing.length);
    if (!missing.length) more.remove();
  }, undefined, { class: "framed" });
  add(ready.map((entry) => entry.html ?? ""));
  return el("div", null, place, missing.length > 0 && more);
}
