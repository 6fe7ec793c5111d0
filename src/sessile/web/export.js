// @ts-check
/*
 * The script of an exported session: branches, search, depth, keyboard shortcuts, print.
 *
 * Rules: stored text enters the page as text nodes, or as fragments that the renderer made and escaped. Nothing is loaded, stored
 * or evaluated. Entries are identified by their number in the file. No recursion: a session may be one chain of a hundred thousand
 * entries. `render.page` puts this file and the modules that it imports into the page as one script.
 */
import { announce, byId, fragment, later } from "./page/dom.js";
import { DEPTHS, Outline } from "./page/session/outline.js";
import { TreeView } from "./page/session/tree.js";

{
  /** @type {import("./page/session/outline.js").Columns & {chunk: number}} `chunk` is 0 if the file is not chunked */
  const columns = JSON.parse(byId("outline").textContent);
  const { chunk } = columns;
  const outline = new Outline(columns);
  outline.add(columns);
  outline.sort();
  const { anchors, numberOf } = outline;

  const MAX_NODES = 1900; // elements of entries in a chunked file; the rest of the page has some hundreds
  const startsBranch = (/** @type {number} */ n) => outline.startsBranch(n);
  const number = (/** @type {number} */ n) => n.toLocaleString("en");
  const count = (/** @type {number} */ n, /** @type {string} */ one, /** @type {string} */ many) => `${number(n)} ${n === 1 ? one : many}`;
  const home = new Set(outline.leaf === null ? [] : outline.pathTo(outline.leaf));

  /** The head of the branch to show for an entry: the shown one, else the leaf's, else the newest. @param {number} n */
  function headOf(n) {
    if (onPath.has(n)) return path[path.length - 1];
    return outline.leaf !== null && home.has(n) ? outline.leaf : outline.headBelow(n);
  }

  // -- what is shown

  /** @type {number[]} */
  let path = [];
  /** @type {Set<number>} */
  let onPath = new Set();
  let at = -1; // the current entry
  let depth = DEPTHS.indexOf(/** @type {any} */ (document.querySelector("input[name=depth]:checked")).value);
  const entries = byId("entries");
  const isSeen = (/** @type {number} */ n) => outline.depthOf(n) <= depth;

  /** All entries are elements; those of other branches are in a template. */
  class Whole {
    constructor() {
      /** @type {Map<string, Element>} */
      this.articles = new Map();
      this.store = byId("others")?.content ?? document.createDocumentFragment();
      for (const part of [entries, this.store]) for (const one of part.children) this.articles.set(one.id, one);
    }
    show() {
      const wanted = path.map((n) => this.articles.get(anchors[n]));
      let one = entries.firstElementChild;
      let same = 0;
      for (; one && one === wanted[same]; same++) one = one.nextElementSibling;
      while (one) {
        const next = one.nextElementSibling;
        this.store.append(one);
        one = next;
      }
      for (const article of wanted.slice(same)) if (article) entries.append(article);
    }
    depthChanged() {}
    /** @param {number} n @returns {any} */
    reveal(n) {
      return this.articles.get(anchors[n]);
    }
    /** @param {number} n */
    text(n) {
      return this.articles.get(anchors[n])?.textContent ?? "";
    }
    showAll() {}
    showFew() {}
  }

  /** @param {string} html @returns {Element | null} */
  const parsed = (html) => fragment(html).firstElementChild;

  /** Entries are in chunks; those near the screen are elements, the others are empty space above and below. */
  class Windowed {
    constructor() {
      document.documentElement.classList.add("windowed");
      /** @type {Map<number, string[]>} */
      this.chunks = new Map();
      /** @type {Map<number, string>} */
      this.texts = new Map();
      /** @type {Map<number, {article: any, nodes: number}>} */
      this.made = new Map();
      /** @type {number[]} */
      this.list = [];
      this.heights = new Float32Array(0); // 0 means not measured yet
      this.average = 80;
      this.isWhole = false;
      const fill = later(() => this.fill());
      addEventListener("scroll", fill, { passive: true });
      addEventListener("resize", fill);
    }
    show() {
      this.list = path.filter(isSeen);
      this.index = new Map(this.list.map((n, i) => [n, i]));
      this.heights = new Float32Array(this.list.length);
      this.made.clear();
      entries.replaceChildren();
      this.fill();
    }
    depthChanged() {
      this.show();
    }
    /** @param {number} n */
    html(n) {
      const number = Math.floor(n / chunk);
      let found = this.chunks.get(number);
      if (!found) {
        found = /** @type {string[]} */ (JSON.parse(byId(`chunk-${number}`).textContent));
        if (this.chunks.size > 20) this.chunks.delete(this.chunks.keys().next().value ?? 0);
        this.chunks.set(number, found);
      }
      return found[n % chunk];
    }
    /** @param {number} n */
    make(n) {
      let one = this.made.get(n);
      if (!one) {
        const article = parsed(this.html(n));
        one = { article, nodes: 1 + (article?.querySelectorAll("*").length ?? 0) };
        this.made.set(n, one);
      }
      return one;
    }
    /** @param {number} i */
    height(i) {
      return this.heights[i] || this.average;
    }
    /** @param {number} from @param {number} to */
    room(from, to) {
      let sum = 0;
      for (let i = from; i < to; i++) sum += this.height(i);
      return sum;
    }
    top() {
      return byId("before").getBoundingClientRect().top;
    }
    fill() {
      if (this.isWhole || !this.list.length) return;
      const y = Math.max(0, -this.top());
      let first = 0;
      let sum = 0;
      while (first < this.list.length - 1 && sum + this.height(first) <= y) sum += this.height(first++);
      this.around(first, this.top() + sum);
    }
    /** Show an entry of the list with its top at `top` of the screen, and the entries around it. @param {number} first @param {number} top */
    around(first, top) {
      const known = this.made.get(this.list[first])?.article;
      if (known?.isConnected) top = known.getBoundingClientRect().top;
      for (let round = 0; round < 4; round++) {
        const [from, to] = this.range(first, top);
        this.put(from, to);
        this.measure(from, to);
        const moved = this.make(this.list[first]).article.getBoundingClientRect().top - top;
        if (Math.abs(moved) >= 1) scrollBy(0, moved);
        if (to === this.list.length || entries.getBoundingClientRect().bottom > innerHeight) break;
      }
    }
    /** @param {number} first @param {number} top @returns {[number, number]} */
    range(first, top) {
      let nodes = 0;
      let to = first;
      for (let below = top; to < this.list.length && below < 2 * innerHeight && nodes < MAX_NODES; to++) {
        nodes += this.make(this.list[to]).nodes;
        below += this.height(to);
      }
      let from = first;
      for (let above = top; from > 0 && above > -innerHeight; ) {
        nodes += this.make(this.list[from - 1]).nodes;
        if (nodes > MAX_NODES) break;
        above -= this.height(--from);
      }
      return [from, to];
    }
    /** @param {number} from @param {number} to */
    put(from, to) {
      const wanted = new Set(this.list.slice(from, to));
      for (const [n, one] of this.made) {
        if (wanted.has(n)) continue;
        one.article.remove();
        this.made.delete(n);
      }
      let next = entries.firstElementChild;
      for (const n of wanted) {
        const { article } = this.make(n);
        if (article === next) next = next.nextElementSibling;
        else entries.insertBefore(article, next);
      }
      while (next) {
        const gone = next;
        next = next.nextElementSibling;
        gone.remove();
      }
      this.rooms(from, to);
    }
    /** @param {number} from @param {number} to */
    rooms(from, to) {
      byId("before").style.height = `${this.room(0, from)}px`;
      byId("after").style.height = `${this.room(to, this.list.length)}px`;
    }
    /** @param {number} from @param {number} to */
    measure(from, to) {
      const tops = this.list.slice(from, to).map((n) => this.make(n).article.getBoundingClientRect().top);
      tops.push(entries.getBoundingClientRect().bottom);
      for (let i = from; i < to; i++) this.heights[i] = Math.max(1, tops[i - from + 1] - tops[i - from]);
      this.average = (this.average * 3 + (tops[to - from] - tops[0]) / (to - from || 1)) / 4;
      this.rooms(from, to);
    }
    /** @param {number} n @returns {any} */
    reveal(n) {
      const i = this.index?.get(n) ?? 0;
      if (this.isWhole || this.made.get(n)?.article.isConnected) return this.make(n).article;
      scrollTo(0, scrollY + this.top() + this.room(0, i));
      this.around(i, 0);
      return this.make(n).article;
    }
    /** The text of an entry, without creating elements. @param {number} n */
    text(n) {
      let text = this.texts.get(n);
      if (text === undefined) {
        text = this.html(n).replace(/<[^>]*>/g, "").replace(/&(lt|gt|quot|#x27|amp);/g, (_, name) => ENTITIES[name]);
        this.texts.set(n, text);
      }
      return text;
    }
    showAll() {
      this.isWhole = true;
      byId("before").style.height = byId("after").style.height = "0";
      const all = document.createDocumentFragment();
      for (const n of this.list) {
        const article = parsed(this.html(n));
        if (article) all.append(article);
      }
      this.made.clear();
      entries.replaceChildren(all);
    }
    showFew() {
      this.isWhole = false;
      entries.replaceChildren();
      this.fill();
    }
  }
  /** @type {Record<string, string>} */
  const ENTITIES = { lt: "<", gt: ">", quot: '"', "#x27": "'", amp: "&" };

  const view = chunk ? new Windowed() : new Whole();

  /** Show the branch that ends with an entry. @param {number} tip */
  function show(tip) {
    path = outline.pathTo(tip);
    onPath = new Set(path);
    view.show();
    showHidden();
    tree.paint();
  }

  function showHidden() {
    const hidden = path.filter((n) => !isSeen(n)).length;
    byId("gone").textContent = hidden ? `${number(hidden)} of ${number(path.length)} entries hidden` : "";
  }

  /** @param {number} wanted */
  function setDepth(wanted) {
    const here = current();
    depth = wanted;
    byId(`depth-${DEPTHS[wanted]}`).checked = true;
    showHidden();
    view.depthChanged();
    const next = path.slice(path.indexOf(here)).find(isSeen) ?? path.findLast(isSeen);
    if (next !== undefined && here >= 0) go(next);
  }

  /** The current entry: the chosen one while it is on screen, else the topmost. */
  function current() {
    const chosen = at >= 0 && onPath.has(at) && document.getElementById(anchors[at]);
    if (chosen) {
      const box = chosen.getBoundingClientRect();
      if (box.height && box.bottom > 0 && box.top < innerHeight) return at;
    }
    return topmost();
  }

  function topmost() {
    const box = entries.getBoundingClientRect();
    for (let y = barHeight() + 16; y < innerHeight; y += 24) {
      const found = document.elementFromPoint(box.left + 24, y)?.closest(".entry");
      if (found) return numberOf.get(found.id) ?? -1;
    }
    return -1;
  }

  const bar = /** @type {HTMLElement} */ (document.querySelector(".bar"));
  const barHeight = () => Math.max(0, bar.getBoundingClientRect().bottom);

  /** @param {number} n */
  function choose(n) {
    if (n === at) return;
    if (at >= 0) document.getElementById(anchors[at])?.classList.remove("at");
    at = n;
    document.getElementById(anchors[n])?.classList.add("at");
    tree.follow();
  }

  /**
   * Go to an entry, on its branch, at a depth that shows it.
   * @param {number} n @param {{open?: boolean, top?: number}} [how] `top` is where on the screen to put it
   */
  function go(n, how = {}) {
    if (!onPath.has(n)) {
      show(headOf(n));
      announce(`Switched to another branch: ${count(path.length, "entry", "entries")}.`);
    }
    if (!isSeen(n)) setDepth(outline.depthOf(n));
    const article = view.reveal(n);
    if (how.open) for (const fold of article.querySelectorAll(":scope > details")) fold.open = true;
    if (how.top === undefined) article.scrollIntoView({ block: "start" });
    else scrollBy(0, article.getBoundingClientRect().top - how.top);
    choose(n);
    article.classList.add("at");
    article.tabIndex = -1;
    if (!document.activeElement?.closest("#tree, .find, dialog")) article.focus({ preventScroll: true });
    return article;
  }

  /** @param {number} step @param {(n: number) => boolean} accept */
  function move(step, accept) {
    const here = current();
    let i = path.indexOf(here) + step;
    while (i >= 0 && i < path.length && !(isSeen(path[i]) && accept(path[i]))) i += step;
    if (i >= 0 && i < path.length) return go(path[i]);
    announce("No more in this direction.");
    return null;
  }

  /** Switch to the previous or next branch at the nearest fork above. @param {number} step */
  function turn(step) {
    const here = path.indexOf(current());
    const first = path.slice(0, here + 1).findLast(startsBranch) ?? path.find(startsBranch);
    if (first === undefined) return announce("There is only one branch.");
    const beside = outline.siblings(first);
    const next = beside[beside.indexOf(first) + step];
    if (next === undefined) return announce("No more branches at this fork.");
    return switchTo(next, first);
  }

  /** Show a branch without moving the place where it starts. @param {number} next @param {number} instead */
  function switchTo(next, instead) {
    const top = view.reveal(instead).getBoundingClientRect().top;
    go(next, { top: Math.max(barHeight() + 8, top) });
    const beside = outline.siblings(next);
    announce(`Branch ${beside.indexOf(next) + 1} of ${beside.length}.`);
    history.replaceState(null, "", `#${anchors[next]}`);
  }

  // -- the tree at the side

  const tree = new TreeView({
    outline,
    state: () => ({ onPath, tip: path[path.length - 1] ?? -1, at }),
    onOpen: (n) => {
      go(n);
      history.replaceState(null, "", `#${anchors[n]}`);
      if (isNarrow()) byId("tree-fold").open = false;
    },
    words: {
      entries: "Entries",
      treeShow: "Entries to show in the tree",
      treeFind: "Filter the tree",
      treeNothing: "No matching entries.",
      foldAll: "Collapse other branches",
      unfoldAll: "Expand all branches",
      failed: "failed",
      filters: {
        outline: "outline", prompts: "prompts", chat: "chat", tools: "chat and tools", all: "everything", labels: "labels",
        failures: "failures", heads: "branch heads", forks: "branches",
      },
      number,
      run: (entries, tools, failed) => [
        count(entries, "entry", "entries"), tools && count(tools, "tool", "tools"), failed && `${number(failed)} failed`,
      ].filter(Boolean).join(" · "),
    },
  });
  byId("tree-box").replaceWith(tree.element);
  byId("tree-fold").addEventListener("toggle", () => tree.paint());

  // -- search

  const query = byId("query");
  /** @type {number[]} */
  let hits = [];
  let hit = -1;
  let search = 0; // number of the running search
  let sought = "";

  async function find() {
    const mine = ++search;
    sought = query.value.trim().toLowerCase();
    hits = [];
    hit = -1;
    paintHits();
    if (!sought) return showHits(true);
    let begun = performance.now();
    for (const n of outline.order) {
      if (view.text(n).toLowerCase().includes(sought)) hits.push(n);
      if (performance.now() - begun > 40) {
        showHits(false);
        await new Promise((resolve) => setTimeout(resolve));
        if (mine !== search) return;
        begun = performance.now();
      }
    }
    const here = path.indexOf(current());
    const ahead = hits.findIndex((n) => onPath.has(n) && path.indexOf(n) >= here);
    hit = Math.max(0, ahead) - 1;
    showHits(true);
    if (hits.length) nextHit(1);
  }

  /** @param {boolean} isDone */
  function showHits(isDone) {
    const shown = hits.length ? `${Math.max(0, hit) + (hit >= 0 ? 1 : 0)}/${number(hits.length)}` : sought ? "0/0" : "";
    byId("hits").textContent = shown + (isDone ? "" : " …");
  }

  /** @param {number} step */
  function nextHit(step) {
    if (!hits.length) return;
    hit = (hit + step + hits.length) % hits.length;
    const n = hits[hit];
    const wasOn = onPath.has(n);
    let [range] = rangesIn(go(n));
    const needed = range ? neededDepth(range) : 0;
    if (needed > depth) {
      setDepth(needed);
      [range] = rangesIn(go(n)); // a chunked page has created new elements
    }
    if (range) {
      let fold = range.startContainer.parentElement?.closest("details");
      for (; fold; fold = fold.parentElement?.closest("details")) fold.open = true;
      const box = range.getBoundingClientRect();
      if (box.top < barHeight() || box.bottom > innerHeight) scrollBy(0, box.top - innerHeight / 3);
    }
    paintHits();
    showHits(true);
    announce(`Match ${hit + 1} of ${hits.length}${wasOn ? "" : ", on another branch"}.`);
  }

  /** The lowest depth that shows a range. @param {Range} range */
  function neededDepth(range) {
    const part = range.startContainer.parentElement?.closest(".d-prompts, .d-chat, .d-tools, .d-all");
    return DEPTHS.findIndex((name) => part?.classList.contains(`d-${name}`));
  }

  /** The places in an article that match the search. @param {Element} article @returns {Range[]} */
  function rangesIn(article) {
    const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
    /** @type {[Node, number][]} */
    const nodes = [];
    let text = "";
    while (walker.nextNode()) {
      nodes.push([walker.currentNode, text.length]);
      text += walker.currentNode.nodeValue ?? "";
    }
    const ranges = [];
    const lower = text.toLowerCase();
    let last = 0;
    for (let from = lower.indexOf(sought); from >= 0 && ranges.length < 200; from = lower.indexOf(sought, from + sought.length)) {
      const range = document.createRange();
      while (last + 1 < nodes.length && nodes[last + 1][1] <= from) last++;
      set(range, "setStart", nodes[last], from);
      let end = last;
      while (end + 1 < nodes.length && nodes[end + 1][1] < from + sought.length) end++;
      set(range, "setEnd", nodes[end], from + sought.length);
      ranges.push(range);
    }
    return ranges;
  }

  /** @param {Range} range @param {"setStart" | "setEnd"} edge @param {[Node, number]} node @param {number} at */
  function set(range, edge, [node, begin], at) {
    range[edge](node, Math.min(at - begin, node.nodeValue?.length ?? 0));
  }

  const paintHits = later(() => {
    const highlights = /** @type {any} */ (CSS).highlights;
    if (!highlights) return;
    highlights.delete("hit");
    if (!sought || !hits.length) return;
    highlights.set("hit", new /** @type {any} */ (window).Highlight(...near(1).flatMap(rangesIn)));
  });

  // -- print: the whole branch, expanded

  /** @type {HTMLDetailsElement[]} */
  let unfolded = [];
  addEventListener("beforeprint", () => {
    view.showAll();
    unfolded = /** @type {any} */ ([...entries.querySelectorAll("details:not([open])")]);
    for (const fold of unfolded) fold.open = true;
  });
  addEventListener("afterprint", () => {
    for (const fold of unfolded) fold.open = false;
    view.showFew();
  });

  // -- actions: each has a button, most have a key

  const any = () => true;
  const isPrompt = (/** @type {number} */ n) => outline.who(n) === "user";
  /** @type {Record<string, () => unknown>} */
  const ACTIONS = {
    "entry-next": () => move(1, any),
    "entry-previous": () => move(-1, any),
    "prompt-next": () => move(1, isPrompt),
    "prompt-previous": () => move(-1, isPrompt),
    "fork-next": () => move(1, startsBranch),
    "fork-previous": () => move(-1, startsBranch),
    "branch-next": () => turn(1),
    "branch-previous": () => turn(-1),
    first: () => path.some(isSeen) && go(/** @type {number} */ (path.find(isSeen))),
    last: () => path.some(isSeen) && go(/** @type {number} */ (path.findLast(isSeen))),
    search: () => query.focus(),
    "hit-next": () => nextHit(1),
    "hit-previous": () => nextHit(-1),
    "open-all": openOrFold,
    tree: () => (byId("tree-fold").open = !byId("tree-fold").open),
    print: () => window.print(),
    "help-open": () => byId("help").showModal(),
    "help-close": () => byId("help").close(),
  };
  /** @type {Record<string, string>} */
  const KEYS = {
    j: "entry-next", k: "entry-previous", J: "prompt-next", K: "prompt-previous", "}": "fork-next", "{": "fork-previous",
    "]": "branch-next", "[": "branch-previous", g: "first", G: "last", "/": "search", n: "hit-next", N: "hit-previous",
    o: "open-all", t: "tree", "?": "help-open",
  };

  /** The articles at most this many screens away; measuring only these saves the browser from laying out all others. @param {number} screens */
  function near(screens) {
    return [...entries.children].filter((one) => {
      const box = one.getBoundingClientRect();
      return box.height && box.bottom > -screens * innerHeight && box.top < (1 + screens) * innerHeight;
    });
  }

  function openOrFold() {
    const folds = /** @type {HTMLDetailsElement[]} */ (near(0).flatMap((one) => [...one.querySelectorAll("details:not(.picture)")]));
    const open = folds.some((fold) => !fold.open);
    for (const fold of folds) fold.open = open;
  }

  document.addEventListener("click", (event) => {
    const target = /** @type {Element} */ (event.target);
    const action = target.closest("[data-action]")?.getAttribute("data-action");
    if (action) {
      if (target.closest("dialog") && action !== "help-open") byId("help").close();
      ACTIONS[action]?.();
    }
    const step = target.closest("a.step");
    const here = step?.closest(".entry");
    if (!step || !here) return;
    event.preventDefault();
    const next = numberOf.get((step.getAttribute("href") ?? "").slice(1));
    if (next !== undefined) switchTo(next, numberOf.get(here.id) ?? next);
  });

  document.addEventListener("keydown", (event) => {
    const target = /** @type {Element} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, select, textarea, dialog")) return;
    const action = KEYS[event.key];
    if (!action) return;
    event.preventDefault();
    ACTIONS[action]();
  });

  let typing = 0;
  query.addEventListener("input", () => {
    clearTimeout(typing);
    typing = window.setTimeout(find, 180);
  });
  query.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") query.blur();
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (query.value.trim().toLowerCase() !== sought) {
      clearTimeout(typing);
      find();
    } else nextHit(event.shiftKey ? -1 : 1);
  });
  query.form.addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
  for (const choice of document.querySelectorAll("input[name=depth]")) {
    choice.addEventListener("change", () => setDepth(DEPTHS.indexOf(/** @type {any} */ (choice).value)));
  }

  const isNarrow = () => matchMedia("(max-width: 56rem)").matches;
  addEventListener("scroll", later(() => {
    const n = topmost();
    if (n >= 0 && n !== at && current() !== at) choose(n);
    if (sought) paintHits();
  }), { passive: true });

  function followAddress() {
    const n = numberOf.get(decodeURIComponent(location.hash.slice(1)));
    if (n !== undefined) go(n, { open: true });
  }
  addEventListener("hashchange", followAddress);

  document.documentElement.classList.add("js");
  if (isNarrow()) byId("tree-fold").open = false;
  tree.build();
  tree.showCounts();
  if (outline.leaf !== null) show(outline.leaf);
  followAddress();
}
