// @ts-check
/*
 * The first page: search, recent sessions, warnings, activity and cost, and session sources.
 */
import { ask } from "./api.js";
import { go } from "./app.js";
import { sessionItem } from "./cards.js";
import { chartFigure } from "./charts.js";
import { el } from "./dom.js";
import { addActions } from "./keys.js";
import { ago, number, when, words } from "./strings.js";

const text = words.overview;

/** @param {HTMLElement} main @param {URL} url @param {AbortSignal} signal */
export async function render(main, url, signal) {
  const data = await ask("/v1/view/overview", {}, { signal });
  const isEmpty = data.recent.length === 0;
  main.className = "page";
  main.replaceChildren(
    el("h1", { class: "unseen" }, words.pages.overview),
    searchForm(signal),
    ...(isEmpty ? [emptyState()] : []),
    ...warnings(data.warnings),
    ...(isEmpty ? [] : [
      el("section", null,
        el("div", { class: "section-head" }, el("h2", null, text.recent), el("a", { href: "/sessions" }, text.all)),
        el("ul", { class: "cards" }, ...data.recent.map(sessionItem))),
      el("div", { class: "pair" },
        chartFigure({ name: "costs", title: text.costs, note: text.costsNote, ...data.costs }, signal),
        chartFigure({ name: "activity", title: text.activity, note: text.activityNote, ...data.heatmap }, signal)),
    ]),
    sources(data.sources));
}

/** @param {AbortSignal} signal */
function searchForm(signal) {
  const field = el("input", { type: "search", name: "q", "aria-label": text.search, placeholder: text.search, autocomplete: "off" });
  const find = (/** @type {Event} */ event) => {
    event.preventDefault();
    go(`/search?${new URLSearchParams({ q: field.value })}`);
  };
  addActions([{ name: text.search, key: "/", run: () => field.focus() }], signal);
  return el("form", { class: "big-search", role: "search", on: { submit: find } }, field,
    el("button", { type: "submit", class: "main" }, text.searchSign));
}

/** @param {{kind: string, text: string, href: string | null}[]} all */
function warnings(all) {
  if (!all.length) return [];
  const items = all.map((one) => el("li", { class: one.kind }, one.text, one.href && el("a", { href: one.href }, text.look)));
  return [el("section", { class: "warnings" }, el("h2", { class: "unseen" }, text.warnings), el("ul", null, ...items))];
}

/** What to do if there are no sessions. */
export function emptyState() {
  const way = (/** @type {string} */ label, /** @type {string} */ command) => el("li", null, label, " ", el("code", null, command));
  return el("section", { class: "empty-state" },
    el("h2", null, text.emptyTitle),
    el("p", null, text.empty),
    el("ul", null,
      way(text.emptyDemo, "sessile --demo serve"),
      way(text.emptyAdd, "sessile sources add PATH"),
      el("li", null, el("a", { href: "/gateway" }, text.emptyChat))));
}

/** @param {{agent: string, path: string, sessions: number, newest: number | null}[]} all */
function sources(all) {
  const rows = all.map((one) => el("tr", null,
    el("th", { scope: "row" }, el("a", { href: `/sessions?${new URLSearchParams({ agent: one.agent })}` }, one.agent)),
    el("td", { class: "number" }, number(one.sessions)),
    el("td", { title: when(one.newest) }, ago(one.newest) || "–"),
    el("td", null, el("code", null, one.path))));
  const head = [text.agent, text.sessions, text.newest, text.folder];
  return el("section", null,
    el("h2", null, text.sources),
    el("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": text.sources },
      el("table", { class: "data" },
        el("thead", null, el("tr", null, ...head.map((name, at) => el("th", { scope: "col", class: at === 1 && "number" }, name)))),
        el("tbody", null, ...rows))));
}
