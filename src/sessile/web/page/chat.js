// @ts-check
/*
 * A chat: the last entries, the answer as it is written, and a field for the next message.
 *
 * Rules: a message has an idempotency key, so that sending it again does not repeat it. While an answer is written it is plain
 * text; when it is done, the rendered article replaces it. Commands and notices have no entries and stay as they are.
 */
import { hrefOf } from "./address.js";
import { Problem, ask, eventsFrom } from "./api.js";
import { attempt } from "./cards.js";
import { announce, button, el, fragment } from "./dom.js";
import { pictures } from "./session/pictures.js";
import { words } from "./strings.js";

const text = words.gateway;
const LAST = 30; // earlier entries that are shown
const NEAR = 48; // pixels from the end of the log that count as the end

export class Chat {
  /** @param {string} key @param {AbortSignal} signal @param {() => void} onReply */
  constructor(key, signal, onReply) {
    this.key = key;
    this.signal = signal;
    this.onReply = onReply;
    /** @type {string | null} */
    this.sessionId = null;
    this.shown = -1; // the number of the last entry in the log
    this.log = el("div", { class: "log", tabindex: "0", role: "log", "aria-label": text.log, "aria-live": "off" });
    this.field = el("textarea", { rows: 2, "aria-label": text.field, placeholder: text.field, "aria-describedby": "chat-hint" });
    this.stop = button(text.stop, () => this.abort(), undefined, { class: "framed", hidden: true });
    this.sending = el("button", { type: "submit", class: "main" }, text.send);
    this.form = el("form", { class: "say", on: { submit: (/** @type {Event} */ event) => (event.preventDefault(), this.send()) } },
      this.field, el("div", { class: "buttons" }, this.sending, this.stop, el("span", { class: "soft", id: "chat-hint" }, text.hint)));
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    this.element = el("div", { class: "chat-box" }, this.log, this.form);
  }

  get isBusy() {
    return this.sending.disabled;
  }

  showEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }

  /** Change the log; if it is scrolled to its end, it stays there. @param {() => void} change */
  follow(change) {
    const isAtEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR;
    change();
    if (isAtEnd) this.showEnd();
  }

  /** Add new entries to the log; returns whether there were any. @param {string} sessionId */
  async catchUp(sessionId) {
    const { signal } = this;
    const session = await ask("/v1/view/session", { id: sessionId }, { signal });
    if (sessionId !== this.sessionId) {
      if (this.sessionId) this.log.append(el("p", { class: "began soft" }, text.begun));
      this.sessionId = sessionId;
      this.shown = -1;
    }
    const numbers = session.path.filter((/** @type {number} */ number) => number > this.shown).slice(-LAST);
    if (!numbers.length) return false;
    this.shown = numbers.at(-1);
    const { articles } = await ask("/v1/view/entries", { id: sessionId, numbers: numbers.join() }, { signal });
    const made = fragment(numbers.map((/** @type {number} */ number) => articles[number] ?? "").join(""));
    for (const link of made.querySelectorAll('a[href^="#e-"]')) link.setAttribute("href", hrefOf(sessionId) + link.getAttribute("href"));
    pictures(made, sessionId, signal);
    this.follow(() => this.log.append(made));
    return true;
  }

  async send() {
    const message = this.field.value.trim();
    if (!message || this.isBusy) return;
    const said = bubble("user", text.you, message);
    const answer = bubble("assistant", text.answers, "");
    const body = /** @type {HTMLElement} */ (answer.lastElementChild);
    this.log.append(said, answer);
    this.busy(true);
    this.field.value = "";
    this.showEnd();
    try {
      const request = { key: this.key, message, stream: true, idempotencyKey: crypto.randomUUID() };
      for await (const { kind, data } of eventsFrom("/v1/chat/send", request, this.signal)) {
        if (kind === "delta") this.follow(() => body.append(data.text));
        if (kind === "reply") await this.replied(data, said, answer);
      }
    } catch (error) {
      if (this.signal.aborted) return;
      if (!(error instanceof Problem)) throw error;
      answer.remove();
      this.note([error.detail, error.hint].filter(Boolean).join(" – "), "bad");
      if (!this.field.value) this.field.value = message; // so that it need not be typed again
    } finally {
      this.busy(false);
    }
  }

  /** @param {any} turn @param {HTMLElement} said @param {HTMLElement} answer */
  async replied({ sessionId, reply }, said, answer) {
    for (const notice of reply.notices) this.note(notice);
    if (reply.stop !== "command" && await this.catchUp(sessionId)) {
      this.follow(() => (said.remove(), answer.remove()));
    } else if (reply.text) this.follow(() => (/** @type {HTMLElement} */ (answer.lastElementChild).textContent = reply.text));
    else answer.remove();
    for (const remark of reply.remarks) this.note(remark);
    if (reply.silent) this.note(text.silent);
    if (reply.stop === "aborted") this.note(text.stopped);
    else if (reply.error) this.note(`${text.failed} ${reply.error}`, "bad");
    announce(reply.delivered || text.silent);
    this.onReply();
  }

  async abort() {
    await attempt(() => ask("/v1/chat/abort", {}, { body: { key: this.key }, signal: this.signal }));
  }

  /** @param {boolean} isBusy */
  busy(isBusy) {
    this.sending.disabled = isBusy;
    this.stop.hidden = !isBusy;
    this.log.setAttribute("aria-busy", String(isBusy));
  }

  /** @param {string} message @param {string} [kind] */
  note(message, kind = "soft") {
    this.follow(() => this.log.append(el("p", { class: `remark ${kind}` }, message)));
  }
}

/** @param {string} who @param {string} name @param {string} said */
const bubble = (who, name, said) => el("article", { class: `entry message ${who}` },
  el("h3", null, el("span", { class: "who" }, name)), el("div", { class: "part plain-words" }, said));
