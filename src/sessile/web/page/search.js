// @ts-check
/*
 * Search in all sessions: matches grouped by session, each a link to its entry. Fields that were not searched show
 * their counts; with few matches the gateway searches all of them.
 */
import { hrefOf, hrefWith } from "./address.js";
import { ask } from "./api.js";
import { go, setTitle } from "./app.js";
import { ageOf, factsOf, sessionItem, titleLink } from "./cards.js";
import { announce, el } from "./dom.js";
import { addActions } from "./keys.js";
import { words } from "./strings.js";

const text = words.search;
const USUAL = ["text", "thinking", "tool_input"];
const FIELDS = [...USUAL, "tool_result", "other"];
const LIMIT = 50;
const MOST = 200; // matches in one response

/** @param {HTMLElement} main @param {URL} url @param {AbortSignal} signal */
export async function render(main, url, signal) {
  const params = Object.fromEntries(url.searchParams);
  const q = (params.q ?? "").trim();
  const found = q ? await ask("/v1/view/search", { limit: LIMIT, ...params, q }, { signal }) : null;
  if (q) setTitle(`${q} · ${words.pages.search}`);
  const field = el("input", { type: "search", "aria-label": text.field, placeholder: text.field, value: q, autocomplete: "off" });
  const find = (/** @type {Event} */ event) => {
    event.preventDefault();
    go(hrefWith(url, { q: field.value, limit: null }));
  };
  main.className = "page narrow";
  main.replaceChildren(
    el("h1", null, words.pages.search),
    el("form", { class: "big-search", role: "search", on: { submit: find } }, field,
      el("button", { type: "submit", class: "main" }, words.overview.searchSign)),
    ...(found ? results(found, url) : [el("p", { class: "soft" }, text.hint)]));
  addActions([{ name: text.field, key: "/", run: () => field.focus() }], signal);
  if (!found) field.focus();
}

/** @param {any} found @param {URL} url */
function results(found, url) {
  const chosen = fieldsOf(url);
  const shown = found.groups.reduce((/** @type {number} */ n, /** @type {any} */ group) => n + group.hits.length, 0);
  const all = chosen.reduce((n, field) => n + (found.matches[field] ?? 0), 0);
  const others = found.groups.some((/** @type {any} */ group) => group.hits.some((/** @type {any} */ hit) => !chosen.includes(hit.field)));
  const summary = shown ? text.summary(shown, found.groups.length) : text.none;
  announce(summary);
  return [
    chips(found.matches, chosen, url),
    el("p", { class: "soft" }, summary, all > shown && ` ${text.cut(all)}`, others && ` ${text.widened}`),
    ...found.notes.map((/** @type {string} */ note) => el("p", { class: "note" }, note)),
    found.pending > 0 && el("p", { class: "note" }, text.pending(found.pending)),
    found.unscanned > 0 && el("p", { class: "note" }, text.unscanned(found.unscanned)),
    found.titles.length > 0 && el("section", null,
      el("h2", null, text.titles), el("ul", { class: "cards" }, ...found.titles.map(sessionItem))),
    ...found.groups.map(group),
    !shown && nothing(found.matches, chosen, url),
    found.excluded > 0 && el("p", null, el("a", { href: hrefWith(url, { agent: null, project: null }) }, text.excluded(found.excluded))),
    shown === LIMIT && all > shown && el("p", null, el("a", { class: "chip", href: hrefWith(url, { limit: String(MOST) }) }, text.more)),
  ].filter(Boolean);
}

/** @param {URL} url */
function fieldsOf(url) {
  const given = url.searchParams.get("in");
  return given === "all" ? FIELDS : given ? given.split(",") : USUAL;
}

/** @param {Record<string, number>} matches @param {string[]} chosen @param {URL} url */
function chips(matches, chosen, url) {
  const links = FIELDS.map((field) => {
    const isChosen = chosen.includes(field);
    const next = FIELDS.filter((one) => (one === field ? !isChosen : chosen.includes(one)));
    const count = field in matches ? `${isChosen ? "" : "+"}${matches[field].toLocaleString()}` : "";
    const href = hrefWith(url, { in: next.join() === USUAL.join() ? null : next.join() });
    return el("li", null, el("a", { class: "chip", href, "aria-current": isChosen && "true" },
      `${isChosen ? "✓ " : ""}${text.fields(field)} `, el("span", { class: "count" }, count)));
  });
  return el("nav", { "aria-label": text.where }, el("ul", { class: "chips" }, ...links));
}

/** @param {any} found */
function group({ session, hits }) {
  return el("section", { class: "group" },
    el("div", { class: "section-head" }, el("h2", null, titleLink(session)), ageOf(session)),
    factsOf(session),
    el("ol", { class: "hits" }, ...hits.map((/** @type {any} */ hit) => el("li", null, hitLink(session, hit)))));
}

/** @param {any} session @param {any} hit */
function hitLink(session, hit) {
  const pieces = hit.excerpt.map((/** @type {any} */ piece) => (piece.match ? el("mark", null, piece.text) : piece.text));
  const where = [hit.field !== "text" && text.fields(hit.field), hit.branch === "abandoned" && text.abandoned].filter(Boolean);
  return el("a", { class: "hit", href: hrefOf(session.id, hit.number === null ? null : hit.entry, hit.number) },
    el("span", { class: "excerpt" }, ...pieces), el("span", { class: "soft" }, where.join(" · ")));
}

/** Links that would find more. @param {Record<string, number>} matches @param {string[]} chosen @param {URL} url */
function nothing(matches, chosen, url) {
  const wider = FIELDS.filter((field) => !chosen.includes(field) && matches[field]);
  return el("div", { class: "empty-state" },
    el("p", null, text.hint),
    ...wider.map((field) => el("p", null,
      el("a", { href: hrefWith(url, { in: [...chosen, field].join() }) }, text.wider(text.fields(field), matches[field])))));
}
