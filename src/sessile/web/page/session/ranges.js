// @ts-check
/*
 * The places in an article that match a search.
 */
import { DEPTHS } from "./outline.js";

const MAX_RANGES = 200; // in one article

/** Matches of the whole text; if there are none, of its words. @param {Element} article @param {string} sought */
export function rangesIn(article, sought) {
  const whole = rangesOf(article, sought);
  return whole.length ? whole : sought.split(/\s+/).flatMap((word) => rangesOf(article, word));
}

/** The lowest depth that shows a range. @param {Range} range */
export function depthOf(range) {
  const part = range.startContainer.parentElement?.closest(".d-prompts, .d-chat, .d-tools, .d-all");
  return DEPTHS.findIndex((name) => part?.classList.contains(`d-${name}`));
}

/** Expand what contains a range, and scroll to it. @param {Range} range */
export function showRange(range) {
  let fold = range.startContainer.parentElement?.closest("details");
  for (; fold; fold = fold.parentElement?.closest("details")) fold.open = true;
  const box = range.getBoundingClientRect();
  if (box.top < 64 || box.bottom > innerHeight - 24) scrollBy({ top: box.top - innerHeight / 3, behavior: "instant" });
}

/** @param {Element} article @param {string} sought @returns {Range[]} */
function rangesOf(article, sought) {
  const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  /** @type {[Node, number][]} */
  const nodes = [];
  let content = "";
  while (walker.nextNode()) {
    nodes.push([walker.currentNode, content.length]);
    content += walker.currentNode.nodeValue ?? "";
  }
  const ranges = [];
  const lower = content.toLowerCase();
  let last = 0;
  for (let from = lower.indexOf(sought); from >= 0 && ranges.length < MAX_RANGES; from = lower.indexOf(sought, from + sought.length)) {
    const range = document.createRange();
    while (last + 1 < nodes.length && nodes[last + 1][1] <= from) last++;
    setEdge(range, "setStart", nodes[last], from);
    let end = last;
    while (end + 1 < nodes.length && nodes[end + 1][1] < from + sought.length) end++;
    setEdge(range, "setEnd", nodes[end], from + sought.length);
    ranges.push(range);
  }
  return ranges;
}

/** @param {Range} range @param {"setStart" | "setEnd"} edge @param {[Node, number]} node @param {number} at */
function setEdge(range, edge, [node, begin], at) {
  range[edge](node, Math.min(at - begin, node.nodeValue?.length ?? 0)); // lower case may be longer
}
