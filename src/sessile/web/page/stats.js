// @ts-check
/*
 * Usage: charts drawn by the gateway, each with its table, for the period and interval in the address.
 */
import { hrefWith } from "./address.js";
import { ask } from "./api.js";
import { chartFigure } from "./charts.js";
import { el } from "./dom.js";
import { words } from "./strings.js";

const text = words.stats;

/** @param {HTMLElement} main @param {URL} url @param {AbortSignal} signal */
export async function render(main, url, signal) {
  const data = await ask("/v1/view/stats", Object.fromEntries(url.searchParams), { signal });
  main.className = "page";
  main.replaceChildren(
    el("div", { class: "page-head" }, el("h1", null, words.pages.stats),
      choices(url, "since", text.since, text.sinces, "30d"), choices(url, "by", text.by, text.steps, data.by, "day")),
    ...data.notes.map((/** @type {string} */ note) => el("p", { class: "note" }, note)),
    figures(data.charts, signal));
}

/** @param {any[]} charts @param {AbortSignal} signal */
function figures(charts, signal) {
  if (charts.every((chart) => !chart.rows.length)) return el("p", { class: "soft" }, words.charts.none);
  const made = charts.map(({ columns, rows, ...chart }) => chartFigure({ ...chart, table: { columns, rows } }, signal));
  return el("div", { class: "figures" }, ...made);
}

/**
 * A choice as links; one of them is current.
 * @param {URL} url @param {string} name @param {string} label @param {Record<string, string>} all @param {string} now @param {string} [usual]
 */
function choices(url, name, label, all, now, usual = now) {
  const chosen = name === "by" ? now : url.searchParams.get(name) ?? usual;
  const links = Object.entries(all).map(([value, data]) =>
    el("a", { href: hrefWith(url, { [name]: value }), "aria-current": value === chosen && "true" }, data));
  return el("nav", { class: "links", "aria-label": label }, ...links);
}
