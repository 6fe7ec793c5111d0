// @ts-check
/*
 * Addresses of what is shown: the same page with something else chosen, and sessions with their entries.
 */

const LONGEST_ANCHOR = 120; // characters of an id, as the renderer cuts them

/** The same page with other parameters; nothing takes one away. @param {URL} url @param {Record<string, string | null>} changes */
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

/** As the renderer writes anchors. @param {string[]} letters @param {number | null} [number] */
function anchorOf(letters, number) {
  const plain = letters.slice(0, LONGEST_ANCHOR).map((one) => (/[\w-]/.test(one) ? one : `.${one.codePointAt(0)?.toString(16)}.`));
  return `e-${plain.join("")}${letters.length > LONGEST_ANCHOR ? `:${number}` : ""}`;
}
