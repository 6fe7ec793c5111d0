// @ts-check
/*
 * How elements are made.
 *
 * Rules: stored text becomes text nodes. The only way from a string to elements is `fragment`, for what the gateway's renderer
 * made, escaped and cleaned. Attributes that could run something are refused, whoever asks; styles are set through properties,
 * because the policy of the page allows no others.
 */

const policy = /** @type {any} */ (window).trustedTypes?.createPolicy("sessile", {
  createHTML: (/** @type {string} */ html) => html, // escaped and cleaned by the renderer
}) ?? { createHTML: (/** @type {string} */ html) => html };

/** The elements of HTML that the gateway's renderer made. The one sanitised way in. @param {string} html */
export function fragment(html) {
  const made = document.createDocumentFragment();
  made.append(...new DOMParser().parseFromString(policy.createHTML(html), "text/html").body.childNodes);
  return made;
}

/** @typedef {Node | string | number | null | undefined | false | readonly any[]} Child */
/** @typedef {Record<string, any>} Props */

/**
 * An element. `class`, `on: {click: …}`, `data: {…}` and `hidden`-like booleans are what they say; all else are attributes.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} name @param {Props | null} [props] @param {...Child} children text becomes text nodes
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
  else if (/^(on|style$|srcdoc$)/i.test(key)) throw new Error(`${key} is not set from here`);
  else if (key === "href" && !/^(\/(?!\/)|#|https?:|blob:)/.test(value)) throw new Error("a link leads to a page, an entry or the web");
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

/** A button of the given name; the sign is what is seen of it. @param {string} name @param {() => unknown} run @param {Child} [sign] @param {Props} [props] */
export function button(name, run, sign, props) {
  const told = sign === undefined ? {} : { "aria-label": name, title: name };
  return el("button", { type: "button", on: { click: run }, ...told, ...props }, sign ?? name);
}

/** @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

/** Run at the next frame, once. @param {() => void} what */
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

/** Run when nothing came for so many milliseconds. @template {any[]} A @param {(...args: A) => void} what @param {number} pause */
export function settled(what, pause) {
  let timer = 0;
  return (/** @type {A} */ ...args) => {
    clearTimeout(timer);
    timer = window.setTimeout(() => what(...args), pause);
  };
}

/** Tell it to those who do not see it. @param {string} words */
export function announce(words) {
  byId("status").textContent = words;
}

/** Tell something for some seconds, to everybody. @param {string} words */
export function toast(words) {
  document.querySelector(".toast")?.remove();
  const made = el("p", { class: "toast" }, words);
  document.body.append(made);
  announce(words);
  setTimeout(() => made.remove(), 4000);
}

/** @param {string} text @param {string} done what is said when it is copied */
export async function copy(text, done) {
  await navigator.clipboard.writeText(text);
  toast(done);
}
