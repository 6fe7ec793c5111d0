// @ts-check
/*
 * Charts: drawn by the gateway; each gets its title, its table, and a link to the table as CSV.
 */
import { el, fragment } from "./dom.js";
import { number, words } from "./strings.js";

const text = words.charts;

/** @typedef {{columns: string[], rows: (string | number | null)[][]}} Table */

/** @typedef {{name: string, title: string, note?: string, svg: string, table: Table}} Chart */

/** @param {Chart} chart @param {AbortSignal} signal */
export function chartFigure({ name, title, note, svg, table }, signal) {
  const head = el("figcaption", null, el("h2", null, title), note && el("p", { class: "soft" }, note));
  if (!table.rows.length) return el("figure", { class: "figure" }, head, el("p", { class: "soft" }, text.none));
  const twin = el("details", { class: "twin" },
    el("summary", null, text.table),
    csvLink(name, table, signal),
    el("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": `${title}: ${text.table}` }, tableOf(table)));
  const drawn = el("div", { class: "drawn", tabindex: "0", role: "group", "aria-label": title }, fragment(svg));
  return el("figure", { class: "figure" }, head, drawn, twin);
}

/** @param {Table} table */
export function tableOf({ columns, rows }) {
  const isNumeric = columns.map((_, at) => rows.some((row) => typeof row[at] === "number"));
  const kind = (/** @type {number} */ at) => (isNumeric[at] ? { class: "number" } : null);
  return el("table", { class: "data" },
    el("thead", null, el("tr", null, ...columns.map((name, at) => el("th", { scope: "col", ...kind(at) }, name)))),
    el("tbody", null, ...rows.map((row) => el("tr", null, ...row.map((value, at) => el("td", kind(at), shown(value)))))));
}

/** @param {string | number | null} value */
function shown(value) {
  if (typeof value !== "number") return value ?? "–";
  return Number.isInteger(value) ? number(value) : String(Number(value.toPrecision(4)));
}

/** @param {string} name @param {Table} table @param {AbortSignal} signal */
function csvLink(name, { columns, rows }, signal) {
  const lines = [columns, ...rows].map((row) => row.map(cell).join(","));
  const href = URL.createObjectURL(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }));
  signal.addEventListener("abort", () => URL.revokeObjectURL(href));
  return el("a", { href, download: `sessile-${name}.csv` }, text.csv);
}

/** @param {string | number | null} value */
function cell(value) {
  if (typeof value !== "string") return value ?? "";
  const plain = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value; // a spreadsheet must not run it as a formula
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}
