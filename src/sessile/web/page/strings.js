// @ts-check
/*
 * Every text of the interface in one place, so that a translation is one more file; and the format of numbers and times.
 * Each page has its own part of `words`.
 */

const LANGUAGE = "en";
const whole = new Intl.NumberFormat(LANGUAGE);
const short = new Intl.NumberFormat(LANGUAGE, { notation: "compact", maximumFractionDigits: 1 });
const relative = new Intl.RelativeTimeFormat(LANGUAGE, { numeric: "auto" });
const moment = new Intl.DateTimeFormat(LANGUAGE, { dateStyle: "medium", timeStyle: "short" });
/** @type {[Intl.RelativeTimeFormatUnit, number][]} */
const UNITS = [["year", 31_536_000_000], ["month", 2_592_000_000], ["day", 86_400_000], ["hour", 3_600_000], ["minute", 60_000]];

/** 12,345 @param {number} n */
export const number = (n) => whole.format(n);
/** 12.3k @param {number} n */
export const compact = (n) => short.format(n).replace("K", "k");
/** "1 entry", "12,345 entries" @param {number} n @param {string} one @param {string} [many] */
export const count = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;
/** Milliseconds since 1970 as "3 hours ago"; empty if unknown. @param {number | null} at */
export function ago(at) {
  if (at === null) return "";
  const passed = Date.now() - at;
  const unit = UNITS.find(([, size]) => Math.abs(passed) >= size);
  return unit ? relative.format(-Math.floor(passed / unit[1]), unit[0]) : words.justNow;
}
/** Milliseconds since 1970 as a date and a time; empty if unknown. @param {number | null} at */
export const when = (at) => (at === null ? "" : moment.format(at));
/** Unknown is not $0. @param {number | null} cost */
export const money = (cost) => (cost === null ? words.unknown : `$${cost.toFixed(cost < 1 ? 3 : 2)}`);

/** A sentence with placeholders, filled in order; numbers are formatted. @param {string} sentence */
const template = (sentence) => (/** @type {(string | number)[]} */ ...values) =>
  sentence.replace(/\{\}/g, () => {
    const value = values.shift() ?? "";
    return typeof value === "number" ? number(value) : value;
  });

const shell = {
  loading: "Loading …",
  justNow: "just now",
  unknown: "n/a",
  wrong: "Something went wrong",
  notFound: "Not found",
  unexpected: "The page has an unexpected error.",
  noSuchPage: "There is no page at this address.",
  again: "Try again",
  close: "Close",
  theme: "Theme",
  themes: /** @type {Record<string, string>} */ ({ system: "System theme", light: "Light", dark: "Dark" }),
  help: "Help and keyboard shortcuts",
  pictureMissing: template("{}, not found"),
  goTo: template("Go to {}"),
  pages: /** @type {Record<string, string>} */ ({
    overview: "Overview", sessions: "Sessions", session: "Session", diff: "Compare branches", search: "Search", stats: "Stats",
    share: "Share", gateway: "Gateway",
  }),
  token: {
    title: "Open Sessile",
    why: "Your sessions are private. Open the address that `sessile serve` printed, or paste it here.",
    field: "Address or token",
    open: "Open",
  },
  keys: {
    title: "Keyboard shortcuts",
    palette: "Commands",
    find: "Type a command",
    nothing: "No matching commands.",
    hint: "Every shortcut also has a button. Ctrl-K finds commands by name. Times of entries are in UTC.",
    paletteOpen: "find a command",
    helpOpen: "show this help",
  },
};

// -- the session page

const session = {
  session: "Session",
  entries: "Entries",
  entry: "Entry",
  details: "Details",
  untitled: "(no title)",
  tools: "Tools",
  tree: "Tree",
  treeName: "Session tree",
  treeShow: "Entries to show in the tree",
  treeFind: "Filter the tree",
  treeNothing: "No matching entries.",
  treeLoading: template("{} of {} entries …"),
  foldAll: "Collapse other branches",
  unfoldAll: "Expand all branches",
  filters: /** @type {Record<string, string>} */ ({
    outline: "outline", prompts: "prompts", chat: "chat", tools: "chat and tools", all: "everything", labels: "labels",
    failures: "failures", heads: "branch heads", forks: "branches",
  }),
  failed: "failed",
  number,
  run: (/** @type {number} */ entries, /** @type {number} */ tools, /** @type {number} */ failed) => [
    count(entries, "entry", "entries"), tools && count(tools, "tool"), failed && `${number(failed)} failed`,
  ].filter(Boolean).join(" · "),
  transcript: "Transcript",
  empty: "This session has no entries yet.",
  depth: "Depth",
  depths: ["prompts", "chat", "tools", "all"],
  depthNames: ["prompts only", "prompts and answers", "answers and tools", "everything"],
  hidden: template("{} of {} entries hidden"),
  find: "Find in all branches  /",
  findName: "Find in all branches",
  hitNext: "Next match",
  hitBefore: "Previous match",
  hit: template("Match {} of {}."),
  noHits: "No matches.",
  prompt: "prompt",
  promptNext: "next prompt",
  promptBefore: "previous prompt",
  entryNext: "next entry",
  entryBefore: "previous entry",
  forkNext: "next fork",
  forkBefore: "previous fork",
  branchNext: "next branch at this fork",
  branchBefore: "previous branch at this fork",
  firstEntry: "first entry",
  lastEntry: "last entry",
  openAll: "expand or collapse everything on screen",
  treeToggle: "show or hide the tree",
  detailsToggle: "show or hide the details",
  followToggle: "follow new entries, or stop following",
  sawToggle: "as the model saw it",
  labelKey: "label this entry",
  branchKey: "branch here",
  copyKey: "copy the link to this entry",
  compareKey: "compare with the next branch",
  print: "Print this branch",
  printShort: "Print",
  printing: template("Loading for print: {} of {}"),
  notPrinted: template("{} more entries of this branch are not printed."),
  printedPart: "Only the entries near the screen are printed. Use the Print button of the page to print the whole branch.",
  share: "Share or export",
  noOther: "No more in this direction.",
  oneBranch: "There is only one branch.",
  noBranchThere: "No more branches at this fork.",
  otherBranch: template("Switched to another branch: {} entries."),
  branchOf: template("Branch {} of {}."),
  noEntry: "This session has no such entry.",
  saw: "As the model saw it",
  sawSlider: "Turn",
  sawEnd: "Show everything again",
  sawEnded: "Showing everything.",
  everything: "Everything",
  turn: template("Turn {} of {}"),
  turnNext: "Next turn",
  turnBefore: "Previous turn",
  noTurns: "This branch has no answers from a model.",
  tokens: "tokens",
  sizeUnknown: "size unknown",
  inContext: (/** @type {number} */ n) => count(n, "entry in context", "entries in context"),
  goneCount: template("{} removed"),
  promptSize: template("system prompt of {} characters"),
  toolCount: (/** @type {number} */ n) => count(n, "tool", "tools"),
  neverSeen: "not sent to the model",
  laterThan: "after this turn",
  wasChanged: "sent in an edited form",
  reasons: /** @type {Record<string, string>} */ ({
    compaction: "removed: compacted", pruned: "removed: pruned", prune: "removed: pruned", context_edit: "removed: context edit",
    reset: "removed: reset", reset_boundary: "removed: reset",
  }),
  meter: (/** @type {string} */ n, /** @type {string | null} */ of) => `${n}${of ? ` of ${of}` : ""} tokens of context. Show what the model saw`,
  entryNumber: template("Entry {}"),
  raw: "JSON",
  rawCut: template("{} more characters are not shown."),
  copy: "copy",
  copyRaw: "Copy the JSON",
  copied: "Copied",
  linkCopied: "Link copied",
  quoteCopied: "Quote copied",
  more: "Actions for this entry",
  copyLink: "Copy link",
  copyQuote: "Copy as Markdown quote",
  sawHere: "As the model saw it here",
  label: "Label",
  labelSet: "Label …",
  labelField: "Label of this entry",
  labelSave: "Save",
  labelRemove: "Remove",
  branchHere: "Branch here",
  branched: "The session now continues from this entry.",
  compare: "Compare with the next branch",
  foreign: "This session belongs to another program and is read-only here.",
  fresh: template("{} new"),
  freshSaid: (/** @type {number} */ n) => count(n, "new entry", "new entries"),
  freshRule: "new since you last looked",
  elsewhere: "The session continues on another branch.",
  follows: "Following new entries.",
  followsNot: "Not following new entries.",
  facts: { number: "number", who: "who", tokens: "context", parent: "parent", branches: "branches from here" },
};

// -- the other pages, one part each

/** @param {string} one @param {string} [many] */
const counted = (one, many) => (/** @type {number} */ n) => count(n, one, many);
const named = (/** @type {Record<string, string>} */ names) => (/** @type {string} */ name) => names[name] ?? name.replaceAll("_", " ");

const cards = {
  entries: counted("entry", "entries"),
  branches: counted("branch", "branches"),
  compactions: counted("compaction"),
  failures: template("✗ {} failed"),
  subAgents: counted("sub-agent"),
  fork: "fork of another session",
  resume: "Copy the command to resume this session",
  resumeSign: "Resume",
  copied: template("Copied: {}"),
  pin: "Pin: never clean up this session",
  unpin: "Pinned: click to unpin",
  draft: "draft",
  draftMeans: "No answer yet. Other programs do not list it.",
  pinned: "Pinned",
  unpinned: "Unpinned",
  rename: "Rename",
  name: "Name of the session",
  save: "Save",
  cancel: "Cancel",
};

const charts = {
  table: "Table",
  csv: "CSV",
  none: "No usage in this period.",
};

const overview = {
  search: "Search all sessions",
  searchSign: "Search",
  recent: "Continue where you left off",
  all: "All sessions",
  warnings: "Needs attention",
  look: "Show",
  activity: "Activity",
  activityNote: "answers per day, last 26 weeks",
  costs: "Cost",
  costsNote: "per day, last 30 days, by model",
  sources: "Session sources",
  agent: "Agent",
  sessions: "Sessions",
  newest: "Newest",
  folder: "Folder",
  emptyTitle: "No sessions yet",
  empty: "Sessions of agents on this machine appear here automatically. Until then:",
  emptyDemo: "explore the sample sessions:",
  emptyAdd: "add a folder with sessions:",
  emptyChat: "chat with the gateway",
};

const sessions = {
  found: counted("session"),
  filter: "Filter by title or first prompt",
  sort: "Sort by",
  sorts: { recent: "newest first", started: "last started", cost: "cost", tokens: "tokens", messages: "messages", size: "size" },
  since: "Modified",
  sinces: { "": "at any time", "1d": "in the last day", "7d": "in the last 7 days", "30d": "in the last 30 days", "1y": "in the last year" },
  facets: "Filters",
  facet: named({ agent: "Agent", project: "Project", model: "Model", has: "With" }),
  value: named({ finding: "unreadable lines", error: "failures", branch: "branches", image: "images", label: "labels", compaction: "compactions" }),
  without: template("Remove the filter {}"),
  clear: "Clear filters",
  hidden: template("hidden: {}"),
  show: "Show",
  hide: "Hide empty sessions and sub-agents",
  reason: named({ one_shot: "single-turn", sub_agent: "by sub-agents" }),
  unjudged: (/** @type {number} */ n) => `${count(n, "session has", "sessions have")} not been counted yet and may be missing here.`,
  none: "No matching sessions.",
  noneHidden: (/** @type {number} */ n) => `${count(n, "hidden session matches", "hidden sessions match")}.`,
  pages: "Pages",
  before: "Previous",
  after: "Next",
  range: template("{}–{} of {}"),
  more: template("{} more"),
};

const search = {
  field: "Search words",
  hint: "An entry must contain all words. Use “quotes” for a phrase and retr* for any ending.",
  where: "Where",
  fields: named({ text: "messages", thinking: "thinking", tool_input: "tool input", tool_result: "tool output", other: "other data" }),
  abandoned: "on an abandoned branch",
  summary: (/** @type {number} */ hits, /** @type {number} */ groups) => `${count(hits, "entry", "entries")} in ${count(groups, "session")}`,
  cut: (/** @type {number} */ all) => `of ${count(all, "match", "matches")}`,
  more: "Show more",
  titles: "In the title",
  none: "No results.",
  wider: (/** @type {string} */ field, /** @type {number} */ n) => `${number(n)} in ${field}`,
  widened: "– few matches, so all fields were searched",
  excluded: (/** @type {number} */ n) => `${number(n)} in other projects and agents`,
  unscanned: (/** @type {number} */ n) => `${count(n, "session was", "sessions were")} not read for tool output and other data: there may be more.`,
  pending: (/** @type {number} */ n) => `${count(n, "session is", "sessions are")} not searched yet: there may be more.`,
};

const stats = {
  since: "Period",
  sinces: { "7d": "7 days", "30d": "30 days", "90d": "90 days", "1y": "1 year", "10y": "all time" },
  by: "Interval",
  steps: { day: "by day", week: "by week" },
};

const share = {
  intro: "Export this session as a file for others to read. Anything that looks like a secret is replaced. Nothing leaves this machine until you send the file yourself. Secret detection is best effort: review the file before you share it.",
  form: "Format",
  forms: { html: "HTML, one page with everything", md: "Markdown", jsonl: "JSONL, the entries" },
  what: "Content",
  branch: "Only the current branch",
  images: (/** @type {number} */ n) => `Include ${count(n, "image")} (what they show is not checked)`,
  personal: "Also replace personal data: names, addresses, home folders",
  findings: (/** @type {number} */ n) => (n ? `${count(n, "finding")} to replace` : "No secrets found"),
  none: "Nothing looks like a key, a token or a password.",
  redact: "replace",
  keep: "keep",
  kept: (/** @type {number} */ n) => `${count(n, "finding")} will be readable by anyone who has the file.`,
  times: (/** @type {number} */ n) => (n === 1 ? "once" : `${number(n)} times`),
  length: (/** @type {number} */ n) => count(n, "character"),
  download: "Download",
  working: "Writing the file …",
  done: template("Saved as {}"),
  report: "Report",
};

const diff = {
  common: counted("entry in common", "entries in common"),
  nothing: "The branches have nothing in common",
  left: "A",
  right: "B",
  what: "After the fork",
  difference: "Difference",
  answer: "Changes in the last answer",
  turns: "Turn by turn",
  onlyOther: "Only on the other branch.",
  more: (/** @type {number} */ n) => `Show ${count(n, "more entry", "more entries")}`,
  swap: "Swap",
  missing: "These two branches cannot be compared.",
  missingHint: "One of the entries in the address is not in this session.",
};

const gateway = {
  conversations: "Conversations",
  begin: "New conversation",
  version: "Version",
  up: "Running since",
  turns: "Turns",
  turnCounts: template("{} running, {} waiting"),
  agents: "Agents",
  problems: "Files that could not be read",
  live: counted("turn"),
  none: "No messages yet. Send one to start.",
  earlier: counted("earlier session"),
  session: "Session",
  model: "Model",
  context: "Context",
  tokens: (/** @type {string} */ n, /** @type {string} */ of) => (of ? `${n} of ${of} tokens` : `${n} tokens`),
  ended: named({ idle: "idle timeout", daily: "daily reset", new: "new session", reset: "reset" }),
  more: counted("more conversation"),
  log: "Conversation",
  field: "Message",
  hint: "Enter sends, Shift-Enter adds a line break. /help lists commands.",
  send: "Send",
  stop: "Stop",
  stopped: "Stopped.",
  you: "user",
  answers: "assistant",
  silent: "No reply.",
  begun: "New session started",
  failed: "The turn failed.",
};

export const words = { ...shell, session, cards, charts, overview, sessions, search, stats, share, diff, gateway };
