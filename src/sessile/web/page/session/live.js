// @ts-check
/*
 * New entries while the page is open.
 *
 * Rules: an event only says that there is more. The page requests everything after the last entry it knows, so that nothing is
 * missed or shown twice. Sessions that the gateway does not follow are polled once a second, less often while nothing changes, and
 * not while the page is hidden.
 */
import { Problem, ask, stream } from "../api.js";

const SOON = 1_000; // milliseconds
const SELDOM = 8_000;

/** @typedef {import("./outline.js").Columns} Columns */

/**
 * Follow a session until the signal.
 * @param {string} id @param {boolean} isFollowed whether the gateway follows it @param {() => number} known
 * @param {(part: Columns) => void} onNews @param {AbortSignal} signal
 */
export function follow(id, isFollowed, known, onNews, signal) {
  let isAsking = false;
  let isWanted = false;

  /** Request new entries until there are no more. @returns {Promise<boolean>} whether there were any */
  async function catchUp() {
    isWanted = true;
    if (isAsking) return false;
    isAsking = true;
    let found = false;
    try {
      while (isWanted && !signal.aborted) {
        isWanted = false;
        const from = known();
        const part = await ask("/v1/view/outline", { id, from, to: from + 5_000 }, { signal });
        if (signal.aborted || !part.anchors.length) continue;
        found = true;
        isWanted = part.total > from + part.anchors.length;
        onNews(part);
      }
    } finally {
      isAsking = false;
    }
    return found;
  }

  async function listen() {
    const noted = (/** @type {{kind: string}} */ { kind }) => void ((kind === "entry" || kind === "compaction") && catchUp().catch(() => {}));
    // After a reconnect, request what was missed.
    await stream("/v1/events", { session: id }, noted, signal, (isOpen) => void (isOpen && catchUp().catch(() => {})));
  }

  async function look() {
    let pause = SOON;
    while (!signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, pause));
      if (signal.aborted || document.hidden) continue;
      const found = await catchUp().catch(() => false);
      pause = found ? SOON : Math.min(SELDOM, pause * 1.25);
    }
  }

  const begin = isFollowed ? listen : look;
  begin().catch((error) => {
    if (!signal.aborted && error instanceof Problem) look();
  });
}
