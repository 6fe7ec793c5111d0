// @ts-check
/*
 * The shell: routes, the token, the theme, and navigation between pages.
 *
 * Rules: the address is the state, so that it can be reloaded and shared. Unknown parameters are dropped. Each page is a module with
 * `render(main, url, signal)`, loaded on demand; the signal aborts when the page is left.
 */
import { Problem, hasToken, setToken, takeToken } from "./api.js";
import { announce, button, byId, el, toast } from "./dom.js";
import { addActions, listen } from "./keys.js";
import { words } from "./strings.js";

/** @typedef {{render: (main: HTMLElement, url: URL, signal: AbortSignal) => Promise<void>}} PageModule */
/** @typedef {{path: RegExp, name: string, load: () => Promise<PageModule>, when?: (url: URL) => boolean}} Route */

/** @type {Route[]} */
const ROUTES = [
  { path: /^\/$/, name: words.pages.overview, load: () => import("./overview.js") },
  { path: /^\/sessions$/, name: words.pages.sessions, load: () => import("./sessions.js") },
  { path: /^\/s\/[^/]+$/, name: words.pages.diff, load: () => import("./diff.js"), when: (url) => url.searchParams.has("vs") },
  { path: /^\/s\/[^/]+$/, name: words.pages.session, load: () => import("./session/page.js") },
  { path: /^\/search$/, name: words.pages.search, load: () => import("./search.js") },
  { path: /^\/stats$/, name: words.pages.stats, load: () => import("./stats.js") },
  { path: /^\/share\/[^/]+$/, name: words.pages.share, load: () => import("./share.js") },
  { path: /^\/gateway$/, name: words.pages.gateway, load: () => import("./gateway.js") },
];
const NAV = /** @type {const} */ (["/", "/sessions", "/search", "/stats", "/gateway"]);
const PARAMS = new Set(
  "q in agent project model has since until sort by all offset limit branch vs depth personal form key tag view".split(" "),
);

let leaving = new AbortController();
/** @type {URL | null} */
let shown = null;

/** Go to a page. @param {string} href */
export function go(href) {
  const url = new URL(href, location.href);
  if (url.origin !== location.origin) throw new Error(`${href} is not an address of this origin`);
  rememberPlace();
  history.pushState(null, "", clean(url));
  return show();
}

/** Update the address without loading another page. @param {string | URL} href */
export function setAddress(href) {
  const url = new URL(href, location.href);
  history.replaceState(history.state, "", clean(url));
  shown = new URL(location.href);
}

/** Set the title of the window. @param {string} name */
export function setTitle(name) {
  document.title = name ? `${name} · Sessile` : "Sessile";
}

/** The session in the path. @param {URL} url */
export function sessionOf(url) {
  return decodeURIComponent(url.pathname.split("/")[2] ?? "");
}

/** @param {URL} url */
function clean(url) {
  const kept = [...url.searchParams].filter(([name]) => PARAMS.has(name));
  const query = new URLSearchParams(kept).toString();
  return url.pathname + (query ? `?${query}` : "") + url.hash;
}

function rememberPlace() {
  history.replaceState({ scroll: scrollY }, "");
}

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const main = byId("main");
  shown = new URL(location.href);
  const url = shown;
  if (!hasToken()) return askForToken(main);
  const route = ROUTES.find((one) => one.path.test(url.pathname) && (one.when?.(url) ?? true));
  markNav(url.pathname);
  main.replaceChildren(el("p", { class: "loading" }, words.loading));
  main.className = "";
  setTitle(route?.name ?? "");
  if (!route) return showProblem(main, new Problem(words.noSuchPage, null, 404));
  try {
    const page = await route.load();
    if (signal.aborted) return;
    await page.render(main, url, signal);
    if (signal.aborted) return;
    announce(document.title);
    if (history.state?.scroll && !url.hash) scrollTo(0, history.state.scroll);
  } catch (error) {
    if (signal.aborted) return;
    if (error instanceof Problem && error.status === 401) askForToken(main);
    else showProblem(main, error);
  }
}

/** Show an error, a hint, and a button to try again. @param {HTMLElement} main @param {unknown} error */
export function showProblem(main, error) {
  const problem = error instanceof Problem ? error : new Problem(words.unexpected, String(error), 0);
  main.className = "";
  main.replaceChildren(
    el("section", { class: "panel", role: "alert" },
      el("h1", null, problem.status === 404 ? words.notFound : words.wrong),
      el("p", null, problem.detail),
      problem.hint && el("p", { class: "soft" }, problem.hint),
      el("p", null, button(words.again, show))),
  );
  if (!(error instanceof Problem)) console.error(error);
}

/** @param {HTMLElement} main */
function askForToken(main) {
  setToken("");
  setTitle(words.token.title);
  const field = el("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const form = el("form", { class: "panel", on: { submit: given } },
    el("h1", null, words.token.title),
    el("p", null, words.token.why),
    el("label", { for: "token" }, words.token.field),
    field,
    el("p", null, el("button", { type: "submit", class: "main" }, words.token.open)));
  main.className = "";
  main.replaceChildren(form);
  field.focus();

  /** Accepts the token or the whole address. @param {Event} event */
  function given(event) {
    event.preventDefault();
    setToken(/token=([^&\s]+)/.exec(field.value)?.[1] ?? field.value.trim());
    show();
  }
}

// -- around the pages

function makeNav() {
  const links = NAV.map((path) => {
    const { name } = /** @type {Route} */ (ROUTES.find((one) => one.path.test(path)));
    return el("a", { href: path }, name);
  });
  byId("pages").append(...links);
}

/** @param {string} path */
function markNav(path) {
  for (const link of byId("pages").children) {
    const isHere = link.getAttribute("href") === path;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

const THEMES = ["system", "light", "dark"];
const THEME = "sessile.theme";

/** @param {string} theme */
function setTheme(theme) {
  localStorage.setItem(THEME, theme);
  document.documentElement.dataset.theme = theme;
}

function makeTheme() {
  const saved = localStorage.getItem(THEME) ?? "system";
  const theme = THEMES.includes(saved) ? saved : "system";
  setTheme(theme);
  const choices = THEMES.map((name) => el("option", { value: name, selected: name === theme }, words.themes[name]));
  const select = el("select", { class: "quiet", "aria-label": words.theme }, ...choices);
  select.addEventListener("change", () => setTheme(select.value));
  byId("tools").append(select, button(words.help, () => document.dispatchEvent(new Event("sessile:help")), "?"));
}

/** Follow links between pages without a reload. @param {MouseEvent} event */
function clicked(event) {
  const link = /** @type {Element} */ (event.target).closest("a");
  const plain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  if (!link || !plain || event.defaultPrevented || link.target || link.hasAttribute("download")) return;
  const href = link.getAttribute("href") ?? "";
  if (!href.startsWith("/")) return;
  event.preventDefault();
  go(href);
}

/** A change of the anchor alone is left to the page. */
function moved() {
  const isSame = shown && shown.pathname === location.pathname && shown.search === location.search;
  if (!isSame) show();
}

/** Show unhandled errors as a toast; requests aborted by navigation are ignored. @param {PromiseRejectionEvent} event */
function showUnhandled(event) {
  const error = event.reason;
  if (!(error instanceof Problem) && error?.name !== "AbortError") return;
  event.preventDefault();
  if (error.status === 401) show();
  else if (error instanceof Problem) toast([error.detail, error.hint].filter(Boolean).join(" "));
}

takeToken();
history.replaceState(history.state, "", clean(new URL(location.href)));
history.scrollRestoration = "manual";
makeNav();
makeTheme();
listen();
addActions(NAV.map((path) => ({ name: words.goTo(words.pages[path.slice(1) || "overview"]), run: () => go(path) })));
document.addEventListener("click", clicked);
addEventListener("popstate", moved);
addEventListener("unhandledrejection", showUnhandled);
addEventListener("hashchange", () => {
  if (!new URLSearchParams(location.hash.slice(1)).has("token")) return;
  takeToken();
  show();
});
show();
