// @ts-check
/*
 * All sessions: filters are links, so that the address is the state and Back works; the list is filtered as you type.
 *
 * Rules: the page says what the list hides, with a link to show it; an empty list says what would find more.
 */
import { hrefWith } from "./address.js";
import { ask } from "./api.js";
import { go, setAddress } from "./app.js";
import { attempt, ownedItem } from "./cards.js";
import { announce, el, settled } from "./dom.js";
import { addActions } from "./keys.js";
import { emptyState } from "./overview.js";
import { words } from "./strings.js";

const text = words.sessions;
const LIMIT = 100;
const FACETS = ["agent", "project", "model", "has"];
const SHOWN = 6; // values of a facet; the others are folded
/** What had the focus when a filter was chosen, to restore it on the new page. @type {string | null} */
let focused = null;

/** @param {HTMLElement} main @param {URL} url @param {AbortSignal} signal */
export async function render(main, url, signal) {
  const list = new List(url, signal);
  await list.fill();
  main.className = "page";
  main.replaceChildren(
    el("div", { class: "page-head" }, el("h1", null, words.pages.sessions), list.summary),
    list.form(),
    el("div", { class: "with-facets" }, list.facets, list.results));
  if (focused) document.getElementById(focused)?.focus();
  focused = null;
}

class List {
  /** @param {URL} url @param {AbortSignal} signal */
  constructor(url, signal) {
    this.url = url;
    this.signal = signal;
    this.asked = 0;
    this.summary = el("p", { class: "soft", role: "status" });
    this.facets = el("aside", { class: "facets", "aria-label": text.facets });
    this.results = el("section", { "aria-label": words.pages.sessions });
  }

  /** The first page of another list. @param {Record<string, string | null>} changes */
  href(changes) {
    return hrefWith(this.url, { offset: null, ...changes });
  }

  form() {
    const params = this.url.searchParams;
    const field = el("input", { type: "search", "aria-label": text.filter, placeholder: text.filter, value: params.get("q") ?? "" });
    const narrow = settled(() => {
      if (this.signal.aborted) return;
      setAddress(this.href({ q: field.value.trim() }));
      this.url = new URL(location.href);
      attempt(() => this.fill());
    }, 200);
    addActions([{ name: text.filter, key: "/", run: () => field.focus() }], this.signal);
    field.addEventListener("input", narrow);
    return el("form", { class: "filters", role: "search", on: { submit: (/** @type {Event} */ event) => event.preventDefault() } },
      field, this.select("since", text.since, text.sinces, ""), this.select("sort", text.sort, text.sorts, "recent"));
  }

  /** @param {string} name @param {string} label @param {Record<string, string>} choices @param {string} usual */
  select(name, label, choices, usual) {
    const value = this.url.searchParams.get(name) ?? usual;
    const options = Object.entries({ [value]: value, ...choices }).map(([key, label]) => el("option", { value: key, selected: key === value }, label));
    const made = el("select", { id: `choose-${name}` }, ...options);
    made.addEventListener("change", () => {
      focused = made.id;
      go(this.href({ [name]: made.value === usual ? null : made.value }));
    });
    return el("label", null, el("span", null, label), made);
  }

  async fill() {
    const params = Object.fromEntries(this.url.searchParams);
    const asked = ++this.asked;
    const found = await ask("/v1/view/sessions", { ...params, limit: LIMIT }, { signal: this.signal });
    if (asked !== this.asked) return; // the filter has changed since
    this.summary.replaceChildren(text.found(found.total), ...this.hidden(found.hidden));
    this.paintFacets(found.facets);
    this.paintRows(found, Number(params.offset ?? 0));
    announce(text.found(found.total));
  }

  /** @param {Record<string, number>} hidden */
  hidden(hidden) {
    const hiddenCounts = Object.entries(hidden).filter(([, n]) => n).map(([reason, n]) => `${n} ${text.reason(reason)}`);
    if (this.url.searchParams.get("all")) return [" ", el("a", { class: "chip", href: this.href({ all: null }) }, text.hide)];
    if (!hiddenCounts.length) return [];
    return [" ", el("span", { class: "chip" }, text.hidden(hiddenCounts.join(", ")), " ", el("a", { href: this.href({ all: "true" }) }, text.show))];
  }

  /** @param {Record<string, Record<string, number>>} facets */
  paintFacets(facets) {
    const parts = FACETS.map((name) => this.facet(name, facets[name])).filter(Boolean);
    const isWide = matchMedia("(min-width: 56.01rem)").matches;
    const isChosen = FACETS.some((name) => this.url.searchParams.has(name));
    this.facets.hidden = !parts.length;
    this.facets.replaceChildren(el("details", { open: isWide || isChosen },
      el("summary", null, el("h2", null, text.facets)),
      isChosen && el("p", null, el("a", { class: "chip", href: this.href(Object.fromEntries(FACETS.map((name) => [name, null]))) }, text.clear)),
      ...parts));
  }

  /** @param {string} name @param {Record<string, number>} counts */
  facet(name, counts) {
    const given = this.url.searchParams.get(name) ?? "";
    const chosen = given ? (name === "has" ? given.split(",") : [given]) : [];
    const values = Object.entries(counts).filter(([value, n]) => n || chosen.includes(value));
    for (const value of chosen) if (!(value in counts)) values.unshift([value, 0]);
    if (!values.length) return null;
    const items = values.map(([value, n], at) => this.choice(name, value, n, chosen, at));
    return el("section", null,
      el("h3", null, text.facet(name)),
      el("ul", null, ...items.slice(0, SHOWN)),
      items.length > SHOWN && el("details", { class: "rest", open: values.slice(SHOWN).some(([value]) => chosen.includes(value)) },
        el("summary", null, text.more(items.length - SHOWN)), el("ul", null, ...items.slice(SHOWN))));
  }

  /**
   * A link that adds a filter, or takes it away.
   * @param {string} name @param {string} value @param {number} n @param {string[]} chosen @param {number} at
   */
  choice(name, value, n, chosen, at) {
    const isChosen = chosen.includes(value);
    const others = chosen.filter((one) => one !== value);
    const next = isChosen ? (name === "has" ? others : []) : name === "has" ? [...others, value] : [value];
    const label = name === "project" || name === "model" ? value.split("/").at(-1) || value : text.value(value);
    const id = `${name}-${at}`;
    return el("li", null, el("a", {
      id, href: this.href({ [name]: next.join(",") }), title: label !== value && value, "aria-current": isChosen && "true",
      "aria-label": isChosen && text.without(label), on: { click: () => (focused = id) },
    }, el("span", null, label), el("span", { class: "count" }, isChosen ? "✕" : n)));
  }

  /** @param {any} found @param {number} offset */
  paintRows(found, offset) {
    const notes = found.unjudged ? [el("p", { class: "soft" }, text.unjudged(found.unjudged))] : [];
    const rows = found.rows.length ? el("ul", { class: "cards" }, ...found.rows.map(ownedItem)) : this.none(found.hidden);
    this.results.replaceChildren(rows, ...notes, this.pages(found.total, found.rows.length, offset));
  }

  /** @param {Record<string, number>} hidden */
  none(hidden) {
    const n = Object.values(hidden).reduce((sum, one) => sum + one, 0);
    if (!n && !this.url.search) return emptyState();
    return el("div", { class: "empty-state" },
      el("h2", null, text.none),
      n > 0 && el("p", null, text.noneHidden(n), " ", el("a", { href: this.href({ all: "true" }) }, text.show)),
      this.url.search && el("p", null, el("a", { href: this.url.pathname }, text.clear)));
  }

  /** @param {number} total @param {number} n @param {number} offset */
  pages(total, n, offset) {
    if (total <= LIMIT && !offset) return "";
    const to = (/** @type {number} */ at) => this.href({ offset: at > 0 ? String(at) : null });
    return el("nav", { class: "pages", "aria-label": text.pages },
      offset > 0 && el("a", { href: to(offset - LIMIT), rel: "prev" }, `‹ ${text.before}`),
      el("span", { class: "soft" }, text.range(Math.min(offset + 1, total), offset + n, total)),
      offset + n < total && el("a", { href: to(offset + LIMIT), rel: "next" }, `${text.after} ›`));
  }
}
