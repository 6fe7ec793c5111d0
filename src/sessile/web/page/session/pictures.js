// @ts-check
/*
 * Images stored as blobs: an `<img>` cannot send the token, so each is fetched and shown through an object URL.
 */
import { askFile } from "../api.js";
import { el } from "../dom.js";
import { words } from "../strings.js";

/** Load the images of some articles; resolves when all are loaded. @param {ParentNode} root @param {string} id of the session @param {AbortSignal} signal */
export function pictures(root, id, signal) {
  const found = /** @type {NodeListOf<HTMLImageElement>} */ (root.querySelectorAll("img[data-blob]"));
  return Promise.all([...found].map((picture) => show(picture, id, signal)));
}

/** @param {HTMLImageElement} picture @param {string} id @param {AbortSignal} signal */
async function show(picture, id, signal) {
  const digest = picture.dataset.blob ?? "";
  delete picture.dataset.blob;
  try {
    const { blob } = await askFile("/v1/view/blob", { id, digest }, { signal });
    const address = URL.createObjectURL(blob);
    picture.addEventListener("load", () => URL.revokeObjectURL(address), { once: true });
    picture.src = address;
    await picture.decode().catch(() => {}); // a broken image shows its alternative text
  } catch (error) {
    if (signal.aborted) return;
    picture.replaceWith(el("span", { class: "missing" }, words.pictureMissing(picture.alt)));
  }
}
