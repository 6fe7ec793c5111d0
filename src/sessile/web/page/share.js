// @ts-check
/*
 * Sharing: review what looks like a secret, decide on each finding, then download the session as a file.
 *
 * Rules: every finding is replaced unless the user keeps it. The secrets themselves are never in the page, only how they start. The
 * gateway makes the file and the browser saves it; nothing is sent anywhere.
 */
import { hrefOf, hrefWith } from "./address.js";
import { ask, askFile } from "./api.js";
import { go, sessionOf, setAddress, setTitle } from "./app.js";
import { attempt } from "./cards.js";
import { el, toast } from "./dom.js";
import { words } from "./strings.js";

const text = words.share;
const KEEP = "keep";

/** @param {HTMLElement} main @param {URL} url @param {AbortSignal} signal */
export async function render(main, url, signal) {
  const id = sessionOf(url);
  const branch = url.searchParams.get("branch");
  const personal = url.searchParams.has("personal") || null;
  const [session, review] = await Promise.all([
    ask("/v1/view/session", { id }, { signal }),
    ask("/v1/view/share", { id, branch, personal }, { signal }),
  ]);
  const { title } = session;
  setTitle(`${words.pages.share}: ${title}`);

  const chosen = url.searchParams.get("form") ?? "html";
  const forms = Object.entries(text.forms).map(([form, label]) => {
    const note = () => setAddress(hrefWith(new URL(location.href), { form }));
    return el("label", null, el("input", { type: "radio", name: "form", value: form, checked: form === chosen, on: { change: note } }), label);
  });
  const images = review.images > 0 && el("input", { type: "checkbox", name: "images" });
  const person = el("input", { type: "checkbox", checked: Boolean(personal) });
  person.addEventListener("change", () => go(hrefWith(new URL(location.href), { personal: person.checked ? "true" : null })));
  const kept = el("p", { class: "warned", role: "status" });
  const made = el("button", { type: "submit", class: "main" }, text.download);
  const keep = () => [...new FormData(form)].filter(([, value]) => value === KEEP).map(([id]) => id);
  const tell = () => (kept.textContent = keep().length ? text.kept(keep().length) : "");
  const save = (/** @type {Event} */ event) => {
    event.preventDefault();
    made.disabled = true;
    toast(text.working);
    const kind = String(new FormData(form).get("form"));
    const params = { id, branch, personal, form: kind, images: Boolean(images && images.checked), keep: keep().join() };
    attempt(async () => download(await askFile("/v1/view/export", params, { signal }))).finally(() => (made.disabled = false));
  };
  const form = el("form", { class: "share", on: { submit: save, change: tell } },
    el("fieldset", null, el("legend", null, text.form), ...forms),
    el("fieldset", null, el("legend", null, text.what),
      branch && el("p", { class: "soft" }, text.branch),
      images && el("label", null, images, text.images(review.images)),
      el("label", null, person, text.personal)),
    el("section", null, el("h2", null, text.findings(review.findings.length)),
      review.findings.length > 0 && el("ul", { class: "findings" }, ...review.findings.map(finding)),
      !review.findings.length && el("p", { class: "soft" }, text.none)),
    kept, el("p", { class: "buttons" }, made, reportLink(review.report, signal)));

  main.className = "page narrow";
  main.replaceChildren(el("h1", null, `${words.pages.share}: `, el("a", { href: hrefOf(id) }, title)), el("p", { class: "soft" }, text.intro), form);
}

/** @param {any} found */
function finding(found) {
  const choice = (/** @type {string} */ value, /** @type {string} */ label) => el("label", null,
    el("input", { type: "radio", name: found.id, value, checked: value !== KEEP }), el("span", null, label));
  const about = [text.length(found.length), text.times(found.count)].join(", ");
  return el("li", null,
    el("fieldset", null,
      el("legend", null, found.rule, " ", el("span", { class: "soft" }, about)),
      el("div", { class: "choice" }, choice("redact", text.redact), choice(KEEP, text.keep))),
    found.excerpt && el("p", { class: "context" }, ...marked(found.excerpt, `[REDACTED:${found.id}]`)));
}

/** @param {string} excerpt @param {string} placeholder */
const marked = (excerpt, placeholder) =>
  excerpt.split(placeholder).flatMap((part, at) => (at ? [el("mark", null, placeholder), part] : [part]));

/** @param {{blob: Blob, name: string | null}} file */
function download({ blob, name }) {
  const href = URL.createObjectURL(blob);
  const link = el("a", { href, download: name ?? "session" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000); // the browser may still be saving
  toast(text.done(link.download));
}

/** @param {unknown} report @param {AbortSignal} signal */
function reportLink(report, signal) {
  const href = URL.createObjectURL(new Blob([JSON.stringify(report, null, 2)], { type: "application/json" }));
  signal.addEventListener("abort", () => URL.revokeObjectURL(href));
  return el("a", { href, download: "share-report.json" }, text.report);
}
