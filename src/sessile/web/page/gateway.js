// @ts-check
/*
 * The gateway: its state, its conversations with their current and earlier sessions, and a chat.
 */
import { hrefOf, hrefWith } from "./address.js";
import { ask, stream } from "./api.js";
import { attempt } from "./cards.js";
import { Chat } from "./chat.js";
import { el, settled } from "./dom.js";
import { ago, compact, when, words } from "./strings.js";

const text = words.gateway;
const MAIN = "main"; // the default conversation
const SOON = 300; // milliseconds in which events are combined into one update
const LIMIT = 100;
const EVERY = { includeGlobal: true, includeUnknown: true };
const MOST = "1000"; // conversations in one response

/** @param {HTMLElement} main @param {URL} url @param {AbortSignal} signal */
export async function render(main, url, signal) {
  const [status, list] = await Promise.all([ask("/v1/status", {}, { signal }), conversations(url, signal)]);
  const key = url.searchParams.get("key") ?? list.sessions[0]?.key ?? MAIN;
  const facts = el("dl", { class: "facts" });
  const rows = el("ul", { class: "keys-list" });
  const about = el("div", { class: "about-key" });
  const paint = async (/** @type {any} */ data, /** @type {any} */ found) => {
    const detail = await detailOf(key, signal);
    repaint(facts, factsOf(data));
    repaint(rows, found.sessions.map((/** @type {any} */ row) => conversation(url, row, row.key === detail?.session.key)));
    repaint(about, detail ? aboutOf(detail, about.querySelector("details")?.open) : [el("h2", null, key)]);
    return detail?.session.sessionId;
  };
  const look = settled(() => attempt(async () => {
    const sessionId = await paint(await ask("/v1/status", {}, { signal }), await conversations(url, signal));
    if (sessionId && !chat.isBusy) await chat.catchUp(sessionId); // there may be messages from elsewhere
  }), SOON);
  const chat = new Chat(key, signal, look);
  const sessionId = await paint(status, list);
  if (sessionId) await chat.catchUp(sessionId);
  const begin = hrefWith(url, { key: `dashboard:${crypto.randomUUID()}` });
  const others = list.count - list.sessions.length;
  main.className = "page";
  main.replaceChildren(
    el("h1", null, words.pages.gateway),
    facts,
    ...problems(status.problems),
    el("div", { class: "with-chat" },
      el("section", { class: "conversations" },
        el("div", { class: "section-head" }, el("h2", null, text.conversations), el("a", { href: begin }, text.begin)),
        rows, el("p", { class: "soft" }, text.none),
        others > 0 && el("p", null, el("a", { href: hrefWith(url, { limit: MOST }) }, text.more(others)))),
      el("section", { class: "chat", "aria-label": text.log }, about, chat.element)));
  chat.showEnd();
  attempt(() => stream("/v1/events", {}, () => look(), signal));
}

/** Replace content, unless the focus is in it. @param {HTMLElement} place @param {Node[]} nodes */
function repaint(place, nodes) {
  if (!place.contains(document.activeElement)) place.replaceChildren(...nodes);
}

/** @param {URL} url @param {AbortSignal} signal */
const conversations = (url, signal) => ask("/v1/sessions", { ...EVERY, limit: url.searchParams.get("limit") ?? LIMIT }, { signal });

/**
 * A conversation, or null if it does not exist yet; requesting it would be an error.
 * @param {string} key @param {AbortSignal} signal
 */
async function detailOf(key, signal) {
  const { sessions } = await ask("/v1/sessions", { ...EVERY, search: key, limit: MOST }, { signal });
  const row = sessions.find((/** @type {any} */ one) => one.key === key || bare(one.key) === key);
  return row ? ask("/v1/session", { key: row.key }, { signal }) : null;
}

/** @param {any} status */
function factsOf(status) {
  const agents = status.agents.map((/** @type {any} */ one) => [one.id, one.model ?? one.runner].filter(Boolean).join(": "));
  const data = [
    [text.version, status.version],
    [text.up, when(status.startedAt)],
    [text.turns, text.turnCounts(status.turns.running, status.turns.queued)],
    [text.agents, agents.join(", ")],
  ];
  return data.map(fact);
}

/** @param {any[]} fact a name and a value */
const fact = ([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value));

/** @param {{path?: string, message?: string, hint?: string}[]} all */
function problems(all) {
  if (!all.length) return [];
  const items = all.map((one) => el("li", { class: "damaged" }, Object.values(one).filter(Boolean).join(" – ")));
  return [el("section", { class: "warnings" }, el("h2", null, text.problems), el("ul", null, ...items))];
}

/** @param {URL} url @param {any} row @param {boolean} isShown */
function conversation(url, row, isShown) {
  return el("li", null, el("a", { href: hrefWith(url, { key: row.key }), "aria-current": isShown && "true" },
    el("span", { class: "name" }, nameOf(row)),
    el("span", { class: "soft" }, row.live > 0 && el("b", { class: "live" }, `● ${text.live(row.live)}`), ago(row.updatedAt)),
    el("span", { class: "key" }, row.key)));
}

/** @param {{title: string | null, key: string}} row */
const nameOf = (row) => row.title ?? bare(row.key);

/** A key without its agent. @param {string} key */
const bare = (key) => key.replace(/^agent:[^:]+:/, "");

/** Facts about a conversation, and its sessions. @param {any} data @param {boolean} [isOpen] */
function aboutOf(data, isOpen) {
  const row = data.session;
  const facts = [
    [text.session, row.sessionId && el("a", { href: hrefOf(row.sessionId) }, row.sessionId.slice(0, 8))],
    [text.model, data.model],
    [text.context, row.contextTokens !== null && text.tokens(compact(row.contextTokens), data.window ? compact(data.window) : "")],
  ];
  return [
    el("h2", null, nameOf(row)),
    el("dl", { class: "facts" }, ...facts.filter(([, value]) => value).map(fact)),
    el("details", { hidden: !data.previous.length, open: isOpen },
      el("summary", null, text.earlier(data.previous.length)),
      el("ul", { class: "earlier" }, ...data.previous.map(earlier))),
  ];
}

/** @param {{sessionId: string, endedAt: number | null, reason: string | null}} one */
const earlier = (one) => el("li", null, el("a", { href: hrefOf(one.sessionId) }, one.sessionId.slice(0, 8)),
  el("span", { class: "soft" }, [ago(one.endedAt), one.reason && text.ended(one.reason)].filter(Boolean).join(" · ")));
