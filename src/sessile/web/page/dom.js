// @ts-check
/*
 * Creating elements. The live page and exported files share this module.
 *
 * Rules: stored text becomes text nodes. The only way from a string to elements is `fragment`, for HTML that the renderer has
 * escaped and sanitized. Attributes that could run code are rejected. Styles are set through properties, because the policy of the
 * page allows nothing else.
 */

const policy = /** @type {any} */ (window).trustedTypes?.createPolicy("sessile", {
  createHTML: (/** @type {string} */ html) => html, // escaped and sanitized by the renderer
}) ?? { createHTML: (/** @type {string} */ html) => html };

/** The elements of HTML from the renderer. No other function may parse HTML. @param {string} html */
export function fragment(html) {
  const made = document.createDocumentFragment();
  made.append(...new DOMParser().parseFromString(policy.createHTML(html), "text/html").body.childNodes);
  return made;
}

/** @typedef {Node | string | number | null | undefined | false | readonly any[]} Child */
/** @typedef {Record<string, any>} Props */

/**
 * Create an element. `on: {click: …}` adds listeners, `data: {…}` sets data attributes, true sets a boolean attribute.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} name @param {Props | null} [props] @param {...Child} children strings become text nodes
 * @returns {HTMLElementTagNameMap[T]}
 */
export function el(name, props, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(props ?? {})) set(made, key, value);
  add(made, children);
  return made;
}

/** @param {HTMLElement} made @param {string} key @param {any} value */
function set(made, key, value) {
  if (value === null || value === undefined || value === false) return;
  if (key === "on") for (const [kind, listener] of Object.entries(value)) made.addEventListener(kind, listener);
  else if (key === "data") Object.assign(made.dataset, value);
  else if (/^(on|style$|srcdoc$)/i.test(key)) throw new Error(`attribute not allowed: ${key}`);
  else if (key === "href" && !/^(\/(?!\/)|#|https?:|blob:)/.test(value)) throw new Error(`invalid link: ${value}`);
  else if (key === "value" || key === "checked") /** @type {any} */ (made)[key] = value;
  else made.setAttribute(key, value === true ? "" : String(value));
}

/** @param {Element} parent @param {Child[]} children */
function add(parent, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(parent, child);
    else if (child !== null && child !== undefined && child !== false) {
      parent.append(child instanceof Node ? child : String(child));
    }
  }
}

/** A button; the sign is shown instead of its name. @param {string} name @param {() => unknown} run @param {Child} [sign] @param {Props} [props] */
export function button(name, run, sign, props) {
  const label = sign === undefined ? {} : { "aria-label": name, title: name };
  return el("button", { type: "button", on: { click: run }, ...label, ...props }, sign ?? name);
}

/** @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

/** Run once at the next frame, however often it is called before. @param {() => void} what */
export function later(what) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      what();
    });
  };
}

/** Run after a pause without further calls, in milliseconds. @template {any[]} A @param {(...args: A) => void} what @param {number} pause */
export function settled(what, pause) {
  let timer = 0;
  return (/** @type {A} */ ...args) => {
    clearTimeout(timer);
    timer = window.setTimeout(() => what(...args), pause);
  };
}

/** Announce to screen readers. @param {string} words */
export function announce(words) {
  byId("status").textContent = words;
}

/** Show a message for a few seconds, and announce it. @param {string} words */
export function toast(words) {
  document.querySelector(".toast")?.remove();
  const made = el("p", { class: "toast" }, words);
  document.body.append(made);
  announce(words);
  setTimeout(() => made.remove(), 4000);
}

/** @param {string} text @param {string} done the message after copying */
export async function copy(text, done) {
  await navigator.clipboard.writeText(text);
  toast(done);
}
