// @ts-check
/*
 * Addresses: the current page with other parameters, and sessions and their entries.
 */

const MAX_ANCHOR = 120; // characters of an id, as in the renderer

/** The same page with other parameters; null removes one. @param {URL} url @param {Record<string, string | null>} changes */
export function hrefWith(url, changes) {
  const params = new URLSearchParams(url.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) params.set(name, value);
    else params.delete(name);
  }
  return params.size ? `${url.pathname}?${params}` : url.pathname;
}

/** A session, or an entry in it. @param {string} id @param {string | null} [entry] @param {number | null} [number] */
export function hrefOf(id, entry, number) {
  const page = `/s/${encodeURIComponent(id)}`;
  return entry ? `${page}#${anchorOf([...entry], number)}` : page;
}

/** An anchor, as the renderer writes it. @param {string[]} letters @param {number | null} [number] */
function anchorOf(letters, number) {
  const plain = letters.slice(0, MAX_ANCHOR).map((one) => (/[\w-]/.test(one) ? one : `.${one.codePointAt(0)?.toString(16)}.`));
  return `e-${plain.join("")}${letters.length > MAX_ANCHOR ? `:${number}` : ""}`;
}
