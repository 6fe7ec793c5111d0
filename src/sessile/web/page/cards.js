// @ts-check
/*
 * Sessions in lists: a title that links to the session, facts about it, and actions.
 *
 * Rules: unknown values are left out, never shown as 0. Only native sessions can be renamed here.
 */
import { hrefOf } from "./address.js";
import { Problem, ask } from "./api.js";
import { button, copy, el, toast } from "./dom.js";
import { ago, money, when, words } from "./strings.js";

const text = words.cards;

/** @typedef {any} Card a SessionCard of the gateway */

/** The title of a session. @param {Card} session */
export const titleOf = (session) => session.title || session.first || words.session.untitled;

/** The title, as a link if the session can be opened. @param {Card} session */
export const titleLink = (session) =>
  session.id ? el("a", { href: hrefOf(session.id) }, titleOf(session)) : el("span", null, titleOf(session));

/** The facts about a session, in one line. @param {Card} session */
export function factsOf(session) {
  const facts = [
    session.project && el("span", { title: session.cwd }, session.project),
    el("span", null, session.agent),
    counted(session.entries, text.entries),
    session.branches > 1 && counted(session.branches, text.branches),
    session.compactions > 0 && counted(session.compactions, text.compactions),
    session.subAgents > 0 && counted(session.subAgents, text.subAgents),
    session.cost !== null && el("span", null, money(session.cost)),
    session.failures > 0 && el("span", { class: "bad" }, text.failures(session.failures)),
    session.parent && el("a", { href: hrefOf(session.parent) }, text.fork),
    session.draft && el("span", { class: "tag", title: text.draftMeans }, text.draft),
    session.tag && el("span", { class: "tag" }, session.tag),
    session.problem && el("span", { class: "bad" }, session.problem),
  ];
  return el("p", { class: "facts-line" }, ...facts);
}

/** @param {number | null} n @param {(n: number) => string} say */
const counted = (n, say) => n !== null && el("span", null, say(n));

/** @param {Card} session */
export const ageOf = (session) =>
  el("time", { datetime: new Date(session.modified).toISOString(), title: when(session.modified) }, ago(session.modified));

/** A session in a list, with a button to resume it. @param {Card} session */
export const sessionItem = (session) => item(session, el("div", { class: "card-title" }, titleLink(session)));

/** A session in a list, with all actions. @param {Card} session */
export function ownedItem(session) {
  const title = el("div", { class: "card-title" }, titleLink(session));
  return item(session, title, session.writable && button(text.rename, () => rename(session, title), "✎"), session.id && pinButton(session));
}

/** @param {Card} session @param {HTMLElement} title @param {...(HTMLElement | false)} actions */
const item = (session, title, ...actions) => el("li", { class: "card" }, title, factsOf(session), ageOf(session),
  el("div", { class: "card-actions" }, ...actions, session.id && resumeButton(session)));

/** Copies the command that resumes the session in its agent. @param {Card} session */
export function resumeButton(session) {
  const command = `sessile resume ${session.id}`;
  return button(`${text.resume}: ${command}`, () => copy(command, text.copied(command)), text.resumeSign, { class: "framed" });
}

/** @param {Card} session */
function pinButton(session) {
  const made = button(text.pin, () => turn(), "", { class: "pin" });
  const paint = () => {
    made.textContent = session.pinned ? "★" : "☆";
    made.setAttribute("aria-pressed", String(session.pinned));
    made.title = session.pinned ? text.unpin : text.pin;
  };
  const turn = () => attempt(async () => {
    ({ pinned: session.pinned } = await ask("/v1/view/session/pin", {}, { body: { id: session.id, pinned: !session.pinned } }));
    paint();
    toast(session.pinned ? text.pinned : text.unpinned);
  });
  paint();
  return made;
}

/** Replace the title by a field, until the new title is saved or the change is cancelled. @param {Card} session @param {HTMLElement} place */
function rename(session, place) {
  const field = el("input", { type: "text", "aria-label": text.name, value: titleOf(session), maxlength: 1000, required: true });
  const done = () => {
    place.replaceChildren(titleLink(session));
    place.querySelector("a")?.focus();
  };
  const save = (/** @type {Event} */ event) => {
    event.preventDefault();
    attempt(async () => {
      ({ title: session.title } = await ask("/v1/view/session/rename", {}, { body: { id: session.id, title: field.value } }));
      done();
    });
  };
  field.addEventListener("keydown", (event) => event.key === "Escape" && done());
  place.replaceChildren(el("form", { class: "rename", on: { submit: save } }, field,
    el("button", { type: "submit", class: "framed" }, text.save), button(text.cancel, done)));
  field.select();
}

/** Run something, and show a toast if it fails. @param {() => Promise<unknown>} what */
export async function attempt(what) {
  try {
    await what();
  } catch (error) {
    if (/** @type {any} */ (error).name === "AbortError") return; // the page was left
    if (!(error instanceof Problem)) throw error;
    toast([error.detail, error.hint].filter(Boolean).join(" – "));
  }
}
