// @ts-check
/*
 * The script of an exported session: branches, search, depth, keys, print.
 *
 * Rules: stored text enters the page as text nodes, or as fragments that the renderer made and escaped; those of a chunked file
 * pass `parsed`, the only place that makes elements of a string. Nothing is loaded, nothing is stored, nothing is evaluated.
 * Entries are named by their number in the file. There is no recursion: a session may be one chain of a hundred thousand.
 */
"use strict";
(() => {
  /**
   * @typedef {object} Outline  what is known of all entries; one column a fact, in file order
   * @property {string[]} anchors
   * @property {number[]} parents  -1 for a root
   * @property {number[]} marks    who in bits 0-2, depth in 3-4, failed in 5
   * @property {string[]} lines
   * @property {number[]} order    the numbers in the order of the tree
   * @property {number[]} levels   of `order`
   * @property {Record<string, string>} labels
   * @property {number | null} leaf
   * @property {number} chunk      entries in a chunk; 0 if the file is not chunked
   */

  /** @param {string} id @returns {any} */
  const $ = (id) => document.getElementById(id);
  /** @type {Outline} */
  const outline = JSON.parse($("outline").textContent);
  const { anchors, parents, marks, lines, order, levels, labels, chunk } = outline;

  const DEPTHS = ["prompts", "chat", "tools", "all"];
  const WHO = ["user", "assistant", "system", "tool", "shell", "summary", "setting", "note"];
  const SIGNS = { user: "○", assistant: "●", summary: "◆", tool: "▸", shell: "▸" };
  const ROW = 26; // pixels of a row of the tree, as in the style sheet
  const DEEPEST = 12;
  const MOST_NODES = 1900; // elements of entries in a chunked file; the rest of the page has some hundreds

  const who = (/** @type {number} */ n) => WHO[marks[n] & 7];
  const depthOf = (/** @type {number} */ n) => (marks[n] >> 3) & 3;
  const hasFailed = (/** @type {number} */ n) => (marks[n] & 32) !== 0;

  // -- the tree of entries

  /** @type {Map<string, number>} */
  const numberOf = new Map();
  /** @type {Map<number, number[]>} */
  const children = new Map();
  const place = new Int32Array(anchors.length); // in the order of the tree
  order.forEach((n, at) => {
    numberOf.set(anchors[n], n);
    place[n] = at;
    const beside = children.get(parents[n]);
    if (beside) beside.push(n);
    else children.set(parents[n], [n]);
  });
  const beginsBranch = (/** @type {number} */ n) => (children.get(parents[n]) ?? []).length > 1;
  const isTip = (/** @type {number} */ n) => !children.has(n);
  const isFork = (/** @type {number} */ n) => (children.get(n) ?? []).length > 1;

  /** @param {number} n @returns {number[]} from the root */
  function pathTo(n) {
    const path = [];
    for (; n >= 0; n = parents[n]) path.push(n);
    return path.reverse();
  }

  const home = new Set(outline.leaf === null ? [] : pathTo(outline.leaf));

  /** The tip of the branch that is meant by an entry: the one shown, else the first one shown, else the newest. @param {number} n */
  function tipOf(n) {
    if (onPath.has(n)) return path[path.length - 1];
    if (outline.leaf !== null && home.has(n)) return outline.leaf;
    for (let below = children.get(n); below; below = children.get(n)) n = below[below.length - 1];
    return n;
  }

  // -- what is shown

  /** @type {number[]} */
  let path = [];
  /** @type {Set<number>} */
  let onPath = new Set();
  let at = -1; // the entry that is looked at
  let depth = DEPTHS.indexOf(/** @type {any} */ (document.querySelector("input[name=depth]:checked")).value);
  const entries = $("entries");
  const isSeen = (/** @type {number} */ n) => depthOf(n) <= depth;

  /** All entries are elements: those of other branches wait in a template. */
  class Whole {
    constructor() {
      /** @type {Map<string, Element>} */
      this.articles = new Map();
      this.store = $("others")?.content ?? document.createDocumentFragment();
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

  const policy = /** @type {any} */ (window).trustedTypes?.createPolicy("sessile", {
    createHTML: (/** @type {string} */ html) => html, // escaped and cleaned by the renderer
  }) ?? { createHTML: (/** @type {string} */ html) => html };

  /** @param {string} html @returns {Element | null} */
  const parsed = (html) => new DOMParser().parseFromString(policy.createHTML(html), "text/html").body.firstElementChild;

  /** Entries lie in chunks; those around the screen are elements, the others are room above and below. */
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
      this.heights = new Float32Array(0); // 0 is not yet measured
      this.usual = 80;
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
        found = /** @type {string[]} */ (JSON.parse($(`chunk-${number}`).textContent));
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
      return this.heights[i] || this.usual;
    }
    /** @param {number} from @param {number} to */
    room(from, to) {
      let sum = 0;
      for (let i = from; i < to; i++) sum += this.height(i);
      return sum;
    }
    top() {
      return $("before").getBoundingClientRect().top;
    }
    fill() {
      if (this.isWhole || !this.list.length) return;
      const y = Math.max(0, -this.top());
      let first = 0;
      let sum = 0;
      while (first < this.list.length - 1 && sum + this.height(first) <= y) sum += this.height(first++);
      this.around(first, this.top() + sum);
    }
    /** Show an entry of the list with its top at `top` of the screen, and those around it. @param {number} first @param {number} top */
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
      for (let below = top; to < this.list.length && below < 2 * innerHeight && nodes < MOST_NODES; to++) {
        nodes += this.make(this.list[to]).nodes;
        below += this.height(to);
      }
      let from = first;
      for (let above = top; from > 0 && above > -innerHeight; ) {
        nodes += this.make(this.list[from - 1]).nodes;
        if (nodes > MOST_NODES) break;
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
      $("before").style.height = `${this.room(0, from)}px`;
      $("after").style.height = `${this.room(to, this.list.length)}px`;
    }
    /** @param {number} from @param {number} to */
    measure(from, to) {
      const tops = this.list.slice(from, to).map((n) => this.make(n).article.getBoundingClientRect().top);
      tops.push(entries.getBoundingClientRect().bottom);
      for (let i = from; i < to; i++) this.heights[i] = Math.max(1, tops[i - from + 1] - tops[i - from]);
      this.usual = (this.usual * 3 + (tops[to - from] - tops[0]) / (to - from || 1)) / 4;
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
    /** What an entry says, without making elements of it. @param {number} n */
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
      $("before").style.height = $("after").style.height = "0";
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

  /** Run at the next frame, once. @param {() => void} what */
  function later(what) {
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

  const view = chunk ? new Windowed() : new Whole();

  /** Show the branch that ends in an entry. @param {number} tip */
  function show(tip) {
    path = pathTo(tip);
    onPath = new Set(path);
    view.show();
    tellHidden();
    tree.paint();
  }

  /** @param {string} words */
  function say(words) {
    $("status").textContent = words;
  }

  function tellHidden() {
    const hidden = path.filter((n) => !isSeen(n)).length;
    $("gone").textContent = hidden ? `${hidden.toLocaleString("en")} of ${path.length.toLocaleString("en")} entries hidden` : "";
  }

  /** @param {number} wanted */
  function setDepth(wanted) {
    const here = current();
    depth = wanted;
    $(`depth-${DEPTHS[wanted]}`).checked = true;
    tellHidden();
    view.depthChanged();
    const next = path.slice(path.indexOf(here)).find(isSeen) ?? path.findLast(isSeen);
    if (next !== undefined && here >= 0) go(next);
  }

  /** The entry that is looked at: the chosen one while it is on the screen, else the first there. */
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
   * @param {number} n @param {{open?: boolean, top?: number}} [how] `top` is where on the screen it shall stand
   */
  function go(n, how = {}) {
    if (!onPath.has(n)) {
      show(tipOf(n));
      say(`Another branch is shown: ${path.length} entries.`);
    }
    if (!isSeen(n)) setDepth(depthOf(n));
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
    say("There is no other in this direction.");
    return null;
  }

  /** Show the branch beside the one shown, at the last fork above. @param {number} step */
  function turn(step) {
    const here = path.indexOf(current());
    const first = path.slice(0, here + 1).findLast(beginsBranch) ?? path.find(beginsBranch);
    if (first === undefined) return say("There is only one branch.");
    const beside = children.get(parents[first]) ?? [];
    const next = beside[beside.indexOf(first) + step];
    if (next === undefined) return say("There is no branch on this side.");
    return switchTo(next, first);
  }

  /** Show a branch without moving the place where it begins. @param {number} next @param {number} instead */
  function switchTo(next, instead) {
    const top = view.reveal(instead).getBoundingClientRect().top;
    go(next, { top: Math.max(barHeight() + 8, top) });
    const beside = children.get(parents[next]) ?? [];
    say(`Branch ${beside.indexOf(next) + 1} of ${beside.length}.`);
    history.replaceState(null, "", `#${anchors[next]}`);
  }

  // -- the tree at the side

  const FILTERS = {
    outline: ["outline", (/** @type {number} */ n) => depthOf(n) === 0 || n in labels || isTip(n) || isFork(n) || beginsBranch(n)],
    prompts: ["prompts", (/** @type {number} */ n) => who(n) === "user"],
    labels: ["labels", (/** @type {number} */ n) => n in labels],
    failures: ["failures", hasFailed],
    heads: ["branch heads", isTip],
    forks: ["forks", beginsBranch],
    all: ["everything", () => true],
  };

  /** @typedef {{n: number, level: number, place: number, count: number, tools: number, failed: number}} Row */

  class TreeView {
    constructor() {
      this.box = $("tree");
      this.list = document.createElement("ul");
      this.list.className = "tree";
      this.list.setAttribute("role", "tree");
      this.list.setAttribute("aria-label", "Entries");
      this.box.replaceChildren(this.list);
      this.folded = new Set();
      /** @type {Row[]} */
      this.rows = [];
      this.chosen = 0; // the row that has the focus
      const filter = $("filter");
      for (const [key, [name, test]] of Object.entries(FILTERS)) {
        const count = key === "outline" ? "" : ` (${order.filter(/** @type {any} */ (test)).length.toLocaleString("en")})`;
        filter.append(new Option(name + count, key));
      }
      filter.addEventListener("change", () => this.build());
      this.box.addEventListener("scroll", later(() => this.paint()), { passive: true });
      addEventListener("resize", later(() => this.paint()));
      $("tree-box").addEventListener("toggle", () => this.paint());
      this.list.addEventListener("click", (event) => this.clicked(event));
      this.list.addEventListener("keydown", (event) => this.pressed(event));
    }
    build() {
      const key = /** @type {keyof typeof FILTERS} */ ($("filter").value);
      const keep = /** @type {(n: number) => boolean} */ (FILTERS[key][1]);
      this.rows = [];
      /** @type {Row | null} */
      let run = null;
      let foldedLevel = -1;
      order.forEach((n, place) => {
        const level = levels[place];
        if (foldedLevel >= 0 && (level > foldedLevel || (level === foldedLevel && !beginsBranch(n)))) return;
        foldedLevel = this.folded.has(n) ? level : -1;
        if (keep(n)) {
          this.rows.push({ n, level, place, count: 0, tools: 0, failed: 0 });
          run = null;
        } else if (key === "outline") {
          if (!run || run.level !== level) this.rows.push((run = { n, level, place, count: 0, tools: 0, failed: 0 }));
          run.count += 1;
          run.tools += Number(who(n) === "tool" || who(n) === "shell");
          run.failed += Number(hasFailed(n));
        }
      });
      this.chosen = Math.min(this.chosen, Math.max(0, this.rows.length - 1));
      this.paint();
    }
    paint() {
      const hadFocus = this.list.contains(document.activeElement);
      const from = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 5);
      const to = Math.min(this.rows.length, from + Math.ceil((this.box.clientHeight || 600) / ROW) + 10);
      this.list.style.height = `${this.rows.length * ROW}px`;
      this.list.style.paddingTop = `${from * ROW}px`;
      const here = at < 0 ? -1 : this.rowOf(at);
      const items = this.rows.slice(from, to).map((row, i) => this.item(row, from + i, from + i === here));
      this.list.replaceChildren(...items);
      if (hadFocus) /** @type {any} */ (items[this.chosen - from])?.focus({ preventScroll: true });
    }
    /** @param {Row} row @param {number} index @param {boolean} isHere */
    item(row, index, isHere) {
      const { n, level, count } = row;
      const begins = beginsBranch(n) && !count;
      const item = document.createElement("li");
      item.className = `row l${Math.min(level, DEEPEST)}`;
      item.classList.toggle("first", begins);
      item.classList.toggle("shown", onPath.has(n));
      item.classList.toggle("bad", hasFailed(n) && !count);
      item.classList.toggle("at", isHere);
      item.setAttribute("role", "treeitem");
      item.setAttribute("aria-level", String(2 * level + (begins && level ? 0 : 1)));
      if (begins && !isTip(n)) item.setAttribute("aria-expanded", String(!this.folded.has(n)));
      if (n === path[path.length - 1]) item.setAttribute("aria-current", "true");
      item.tabIndex = index === this.chosen ? 0 : -1;
      item.dataset.index = String(index);
      const line = document.createElement("a");
      if (count) line.append(span("run", runWords(row)));
      else {
        if (begins && !isTip(n)) line.append(span("fold", this.folded.has(n) ? "▸" : "▾", true));
        const sign = hasFailed(n) ? "✗" : n === outline.leaf ? "@" : SIGNS[/** @type {keyof typeof SIGNS} */ (who(n))] ?? "·";
        line.append(span("sign", sign, true), span("unseen", `${hasFailed(n) ? "failed " : ""}${who(n)}: `));
        if (n in labels) line.append(span("label", labels[n]));
        line.append(span("line", lines[n]));
        item.title = lines[n];
      }
      item.append(line);
      return item;
    }
    /** The row of an entry, or of the run that it is in. @param {number} n */
    rowOf(n) {
      let low = 0;
      let high = this.rows.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.rows[middle].place <= place[n]) low = middle;
        else high = middle - 1;
      }
      return low;
    }
    /** Keep the row of the entry that is looked at in sight. */
    follow() {
      if (!this.list.contains(document.activeElement)) this.focus(this.rowOf(at), false);
      else this.paint();
    }
    /** @param {number} index @param {boolean} take whether to take the focus too */
    focus(index, take) {
      this.chosen = Math.max(0, Math.min(index, this.rows.length - 1));
      const top = this.chosen * ROW;
      const height = this.box.clientHeight;
      if (top < this.box.scrollTop + ROW || top > this.box.scrollTop + height - 2 * ROW) {
        this.box.scrollTop = top - height / 3;
      }
      this.paint();
      if (take) /** @type {any} */ (this.list.querySelector('[tabindex="0"]'))?.focus({ preventScroll: true });
    }
    /** @param {number} n @param {boolean} isFolded */
    fold(n, isFolded) {
      if (isFolded) this.folded.add(n);
      else this.folded.delete(n);
      this.build();
    }
    /** @param {boolean} isFolded */
    foldAll(isFolded) {
      // The branch that is shown stays open.
      this.folded = new Set(isFolded ? order.filter((n) => beginsBranch(n) && !isTip(n) && !onPath.has(n)) : []);
      this.build();
    }
    /** @param {MouseEvent} event */
    clicked(event) {
      const target = /** @type {Element} */ (event.target);
      const item = /** @type {HTMLElement | null} */ (target.closest(".row"));
      if (!item) return;
      const row = this.rows[Number(item.dataset.index)];
      this.chosen = Number(item.dataset.index);
      if (target.closest(".fold")) this.fold(row.n, !this.folded.has(row.n));
      else this.open(row);
    }
    /** @param {Row} row */
    open(row) {
      go(row.n);
      history.replaceState(null, "", `#${anchors[row.n]}`);
      if (isNarrow()) $("tree-box").open = false;
    }
    /** @param {KeyboardEvent} event */
    pressed(event) {
      const row = this.rows[this.chosen];
      const canFold = row && !row.count && beginsBranch(row.n) && !isTip(row.n);
      const page = Math.floor(this.box.clientHeight / ROW) - 1;
      /** @type {Record<string, () => void>} */
      const keys = {
        ArrowDown: () => this.focus(this.chosen + 1, true),
        ArrowUp: () => this.focus(this.chosen - 1, true),
        PageDown: () => this.focus(this.chosen + page, true),
        PageUp: () => this.focus(this.chosen - page, true),
        Home: () => this.focus(0, true),
        End: () => this.focus(this.rows.length - 1, true),
        Enter: () => this.open(row),
        " ": () => this.open(row),
        ArrowLeft: () => {
          if (canFold && !this.folded.has(row.n)) return this.fold(row.n, true);
          let up = this.chosen - 1;
          while (up > 0 && this.rows[up].level >= row.level && !(this.rows[up].level === row.level && beginsBranch(this.rows[up].n))) up--;
          return this.focus(up, true);
        },
        ArrowRight: () => (canFold && this.folded.has(row.n) ? this.fold(row.n, false) : this.focus(this.chosen + 1, true)),
      };
      if (!row || !keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      keys[event.key]();
    }
  }

  /** @param {string} name @param {string} text @param {boolean} [isSign] */
  function span(name, text, isSign = false) {
    const made = document.createElement("span");
    made.className = name;
    made.textContent = text;
    if (isSign) made.setAttribute("aria-hidden", "true");
    return made;
  }

  /** @param {Row} row */
  function runWords({ count, tools, failed }) {
    const words = [`${count.toLocaleString("en")} ${count === 1 ? "entry" : "entries"}`];
    if (tools) words.push(`${tools.toLocaleString("en")} ${tools === 1 ? "tool" : "tools"}`);
    if (failed) words.push(`${failed.toLocaleString("en")} failed`);
    return `~ ${words.join(" · ")}`;
  }

  // -- search

  const query = $("query");
  /** @type {number[]} */
  let hits = [];
  let hit = -1;
  let search = 0; // which one is going on
  let sought = "";

  async function find() {
    const mine = ++search;
    sought = query.value.trim().toLowerCase();
    hits = [];
    hit = -1;
    paintHits();
    if (!sought) return tellHits(true);
    let begun = performance.now();
    for (const n of order) {
      if (view.text(n).toLowerCase().includes(sought)) hits.push(n);
      if (performance.now() - begun > 40) {
        tellHits(false);
        await new Promise((resolve) => setTimeout(resolve));
        if (mine !== search) return;
        begun = performance.now();
      }
    }
    const here = path.indexOf(current());
    const ahead = hits.findIndex((n) => onPath.has(n) && path.indexOf(n) >= here);
    hit = Math.max(0, ahead) - 1;
    tellHits(true);
    if (hits.length) nextHit(1);
  }

  /** @param {boolean} isDone */
  function tellHits(isDone) {
    const shown = hits.length ? `${Math.max(0, hit) + (hit >= 0 ? 1 : 0)}/${hits.length.toLocaleString("en")}` : sought ? "0/0" : "";
    $("hits").textContent = shown + (isDone ? "" : " …");
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
      [range] = rangesIn(go(n)); // a chunked page made its elements anew
    }
    if (range) {
      let fold = range.startContainer.parentElement?.closest("details");
      for (; fold; fold = fold.parentElement?.closest("details")) fold.open = true;
      const box = range.getBoundingClientRect();
      if (box.top < barHeight() || box.bottom > innerHeight) scrollBy(0, box.top - innerHeight / 3);
    }
    paintHits();
    tellHits(true);
    say(`Hit ${hit + 1} of ${hits.length}${wasOn ? "" : ", on another branch"}.`);
  }

  /** The least depth that shows a place. @param {Range} range */
  function neededDepth(range) {
    const part = range.startContainer.parentElement?.closest(".d-prompts, .d-chat, .d-tools, .d-all");
    return DEPTHS.findIndex((name) => part?.classList.contains(`d-${name}`));
  }

  /** Where an article says what is sought. @param {Element} article @returns {Range[]} */
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

  // -- print: everything of the branch, unfolded

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

  // -- actions, each a button and most a key

  const any = () => true;
  const isPrompt = (/** @type {number} */ n) => who(n) === "user";
  /** @type {Record<string, () => unknown>} */
  const ACTIONS = {
    "entry-next": () => move(1, any),
    "entry-previous": () => move(-1, any),
    "prompt-next": () => move(1, isPrompt),
    "prompt-previous": () => move(-1, isPrompt),
    "fork-next": () => move(1, beginsBranch),
    "fork-previous": () => move(-1, beginsBranch),
    "branch-next": () => turn(1),
    "branch-previous": () => turn(-1),
    first: () => path.some(isSeen) && go(/** @type {number} */ (path.find(isSeen))),
    last: () => path.some(isSeen) && go(/** @type {number} */ (path.findLast(isSeen))),
    search: () => query.focus(),
    "hit-next": () => nextHit(1),
    "hit-previous": () => nextHit(-1),
    "open-all": openOrFold,
    tree: () => ($("tree-box").open = !$("tree-box").open),
    "fold-all": () => tree.foldAll(true),
    "unfold-all": () => tree.foldAll(false),
    print: () => window.print(),
    "help-open": () => $("help").showModal(),
    "help-close": () => $("help").close(),
  };
  /** @type {Record<string, string>} */
  const KEYS = {
    j: "entry-next", k: "entry-previous", J: "prompt-next", K: "prompt-previous", "}": "fork-next", "{": "fork-previous",
    "]": "branch-next", "[": "branch-previous", g: "first", G: "last", "/": "search", n: "hit-next", N: "hit-previous",
    o: "open-all", t: "tree", "?": "help-open",
  };

  /** The articles within so many screens of this one; asking only them keeps the browser from laying out all the others. @param {number} screens */
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
      if (target.closest("dialog") && action !== "help-open") $("help").close();
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
  if (isNarrow()) $("tree-box").open = false;
  const tree = new TreeView();
  tree.build();
  if (outline.leaf !== null) show(outline.leaf);
  followAddress();
})();
