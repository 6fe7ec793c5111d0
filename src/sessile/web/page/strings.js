// @ts-check
/*
 * Every word of the interface, in one place, so that another language is one more file; and how numbers and times are written.
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
/** Milliseconds since 1970 as "3 hours ago"; nothing if unknown. @param {number | null} at */
export function ago(at) {
  if (at === null) return "";
  const passed = Date.now() - at;
  const unit = UNITS.find(([, size]) => Math.abs(passed) >= size);
  return unit ? relative.format(-Math.floor(passed / unit[1]), unit[0]) : words.justNow;
}
/** Milliseconds since 1970 as a date and a time; nothing if unknown. @param {number | null} at */
export const when = (at) => (at === null ? "" : moment.format(at));
/** What is unknown is not nothing. @param {number | null} cost */
export const money = (cost) => (cost === null ? words.unknown : `$${cost.toFixed(cost < 1 ? 3 : 2)}`);

/** A sentence with places, filled in order; numbers are written as people read them. @param {string} sentence */
const told = (sentence) => (/** @type {(string | number)[]} */ ...values) =>
  sentence.replace(/\{\}/g, () => {
    const value = values.shift() ?? "";
    return typeof value === "number" ? number(value) : value;
  });

const shell = {
  loading: "Loading …",
  justNow: "just now",
  unknown: "n/a",
  wrong: "That did not work",
  notFound: "There is nothing here",
  unexpected: "The page made a mistake.",
  noSuchPage: "There is no page at this address.",
  again: "Try again",
  close: "Close",
  theme: "Colours",
  themes: /** @type {Record<string, string>} */ ({ system: "System colours", light: "Light", dark: "Dark" }),
  help: "Help and keys",
  pictureMissing: told("{}, not found"),
  goTo: told("Go to {}"),
  pages: /** @type {Record<string, string>} */ ({
    overview: "Overview", sessions: "Sessions", session: "Session", diff: "Compare branches", search: "Search", stats: "Stats",
    share: "Share", gateway: "Gateway",
  }),
  token: {
    title: "Open Sessile",
    why: "Only you may look at your sessions. Open the address that `sessile serve` has printed, or paste it here.",
    field: "Address or token",
    open: "Open",
  },
  keys: {
    title: "Keys",
    palette: "Commands",
    find: "What do you want to do?",
    nothing: "No command is called that.",
    hint: "Every key is also a button. Ctrl-K finds commands by name. Times in entries are UTC.",
    paletteOpen: "find a command",
    helpOpen: "this help",
  },
};

// -- the session page

const session = {
  session: "Session",
  entries: "Entries",
  entry: "Entry",
  details: "Details",
  untitled: "Untitled session",
  tools: "Tools",
  tree: "Tree",
  treeName: "Tree of the session",
  treeShow: "What the tree shows",
  treeFind: "Search in the tree",
  treeNothing: "No entry is like that.",
  treeLoading: told("{} of {} entries …"),
  foldAll: "Fold other branches",
  unfoldAll: "Unfold all branches",
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
  hidden: told("{} of {} entries hidden"),
  find: "Find in all branches  /",
  findName: "Find in all branches",
  hitNext: "Next hit",
  hitBefore: "Previous hit",
  hit: told("Hit {} of {}."),
  noHits: "Nothing found.",
  prompt: "prompt",
  promptNext: "next prompt",
  promptBefore: "previous prompt",
  entryNext: "next entry",
  entryBefore: "previous entry",
  forkNext: "next fork",
  forkBefore: "previous fork",
  branchNext: "branch after, at this fork",
  branchBefore: "branch before, at this fork",
  firstEntry: "first entry",
  lastEntry: "last entry",
  openAll: "open or fold what is on the screen",
  treeToggle: "show or hide the tree",
  detailsToggle: "show or hide the details",
  followToggle: "follow what is new, or not",
  sawToggle: "as the model saw it",
  labelKey: "label this entry",
  branchKey: "branch here",
  copyKey: "copy the link of this entry",
  compareKey: "compare with the branch beside",
  print: "Print this branch",
  printShort: "Print",
  printing: told("Loading for print: {} of {}"),
  notPrinted: told("{} more entries of this branch are not printed."),
  printedPart: "Only the entries around the screen are on this paper. The page's own Print loads the whole branch.",
  share: "Share or export",
  noOther: "There is no other in this direction.",
  oneBranch: "There is only one branch.",
  noBranchThere: "There is no branch on this side.",
  otherBranch: told("Another branch is shown: {} entries."),
  branchOf: told("Branch {} of {}."),
  noEntry: "There is no such entry in this session.",
  saw: "As the model saw it",
  sawSlider: "Turn",
  sawEnd: "Show everything again",
  sawEnded: "Everything is shown.",
  everything: "Everything",
  turn: told("Turn {} of {}"),
  turnNext: "Next turn",
  turnBefore: "Previous turn",
  noTurns: "No model has answered on this branch.",
  tokens: "tokens",
  sizeUnknown: "size unknown",
  inContext: (/** @type {number} */ n) => count(n, "entry in context", "entries in context"),
  goneCount: told("{} gone"),
  neverSeen: "not sent to the model",
  laterThan: "after this turn",
  wasChanged: "sent in a changed form",
  reasons: /** @type {Record<string, string>} */ ({
    compaction: "gone: compacted", pruned: "gone: pruned", prune: "gone: pruned", context_edit: "gone: removed from the context", reset: "gone: reset",
  }),
  meter: (/** @type {string} */ n, /** @type {string | null} */ of) => `${n}${of ? ` of ${of}` : ""} tokens of context. Show what the model saw`,
  entryNumber: told("Entry {}"),
  raw: "JSON",
  rawCut: told("{} more characters are not shown."),
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
  labelField: "Name of this entry",
  labelSave: "Save",
  labelRemove: "Remove",
  branchHere: "Branch here",
  branched: "The session goes on behind this entry now.",
  compare: "Compare with the branch beside",
  foreign: "This session belongs to another program: it is only read here.",
  fresh: told("{} new"),
  freshSaid: (/** @type {number} */ n) => count(n, "new entry", "new entries"),
  freshRule: "new since you looked",
  elsewhere: "The session goes on, on another branch.",
  follows: "New entries are followed.",
  followsNot: "New entries are not followed.",
  facts: { number: "number", who: "who", tokens: "context", parent: "behind", branches: "branches from here" },
};

// -- the other pages, one part each

/** @param {string} one @param {string} [many] */
const counted = (one, many) => (/** @type {number} */ n) => count(n, one, many);
const named = (/** @type {Record<string, string>} */ names) => (/** @type {string} */ name) => names[name] ?? name.replaceAll("_", " ");

const cards = {
  entries: counted("entry", "entries"),
  branches: counted("branch", "branches"),
  compactions: counted("compaction"),
  failures: told("✗ {} failed"),
  subAgents: counted("sub-agent"),
  fork: "fork of another session",
  resume: "Copy the command that resumes this session",
  resumeSign: "Resume",
  copied: told("Copied: {}"),
  pin: "Pin: keep from being cleaned up",
  unpin: "Pinned: do not keep any longer",
  pinned: "Pinned",
  unpinned: "Not pinned any longer",
  rename: "Rename",
  name: "Name of the session",
  save: "Save",
  cancel: "Cancel",
};

const charts = {
  table: "Table",
  csv: "CSV",
  none: "Nothing was used in this time.",
};

const overview = {
  search: "Search everything that was said",
  searchSign: "Search",
  recent: "Continue where you left",
  all: "All sessions",
  warnings: "Worth a look",
  look: "Show them",
  activity: "Activity",
  activityTold: "answers per day, last 26 weeks",
  costs: "Cost",
  costsTold: "per day, last 30 days, by model",
  sources: "Where sessions were found",
  agent: "Agent",
  sessions: "Sessions",
  newest: "Newest",
  folder: "Folder",
  emptyTitle: "No sessions yet",
  empty: "Sessions of agents on this machine show up here by themselves. Until there are some:",
  emptyDemo: "look at made-up sessions:",
  emptyAdd: "point to a folder with sessions:",
  emptyChat: "or talk to the gateway",
};

const sessions = {
  found: counted("session"),
  filter: "Filter by title or first words",
  sort: "Sort by",
  sorts: { recent: "newest first", started: "begun last", cost: "cost", tokens: "tokens", messages: "messages", size: "size" },
  since: "Changed",
  sinces: { "": "at any time", "1d": "in the last day", "7d": "in the last 7 days", "30d": "in the last 30 days", "1y": "in the last year" },
  facets: "Narrow down",
  facet: named({ agent: "Agent", project: "Project", model: "Model", has: "With" }),
  value: named({ finding: "unreadable lines", error: "failures", branch: "branches", image: "images", label: "labels", compaction: "compactions" }),
  without: told("Without the filter {}"),
  clear: "Without filters",
  hidden: told("hidden: {}"),
  show: "Show them",
  hide: "Hide empty sessions and sub-agents",
  reason: named({ one_shot: "of one turn", sub_agent: "of sub-agents" }),
  unjudged: (/** @type {number} */ n) => `${count(n, "session is", "sessions are")} not counted yet, and may belong here.`,
  none: "No session is like that.",
  noneHidden: (/** @type {number} */ n) => `${count(n, "hidden session is", "hidden sessions are")}.`,
  pages: "Pages of the list",
  before: "Before",
  after: "After",
  range: told("{}–{} of {}"),
  more: told("{} more"),
};

const search = {
  field: "Words that one entry holds",
  hint: "All words have to be in one entry. “two words” in quotes is a phrase, and retr* has any ending.",
  where: "Where",
  fields: named({ text: "messages", thinking: "thinking", tool_input: "what tools were asked", tool_result: "what tools printed" }),
  abandoned: "on an abandoned branch",
  told: (/** @type {number} */ hits, /** @type {number} */ groups) => `${count(hits, "entry", "entries")} in ${count(groups, "session")}`,
  cut: (/** @type {number} */ all) => `of ${count(all, "match", "matches")}`,
  more: "Show more",
  titles: "In the title",
  none: "Nothing was found.",
  wider: (/** @type {string} */ field, /** @type {number} */ n) => `${number(n)} in ${field}`,
  everywhere: "Search in all projects and agents",
  pending: (/** @type {number} */ n) => `${count(n, "session is", "sessions are")} not indexed yet: there may be more.`,
};

const stats = {
  since: "Time",
  sinces: { "7d": "7 days", "30d": "30 days", "90d": "90 days", "1y": "a year", "10y": "all" },
  by: "Step",
  steps: { day: "by day", week: "by week" },
};

const share = {
  told: "A file for others to read. What looks like a secret is replaced in it; nothing leaves this machine before you send the file yourself. Finding secrets is best effort: look the file over.",
  form: "Form",
  forms: { html: "HTML, one page with everything", md: "Markdown", jsonl: "JSONL, the entries" },
  what: "What is in it",
  branch: "Only the branch that was shown",
  images: (/** @type {number} */ n) => `With ${count(n, "image")}; what they show is not looked at`,
  personal: "Replace names, addresses and folders of persons, too",
  findings: (/** @type {number} */ n) => (n ? `${count(n, "finding")} to be replaced` : "No secret was found"),
  none: "Nothing in it looks like a key, a token or a password.",
  redact: "replace",
  keep: "keep",
  kept: (/** @type {number} */ n) => `${count(n, "finding")} will be readable for everybody who has the file.`,
  times: (/** @type {number} */ n) => (n === 1 ? "once" : `${number(n)} times`),
  starts: (/** @type {string} */ begins, /** @type {number} */ length) => (begins ? `${begins}… ` : "") + count(length, "character"),
  download: "Download",
  working: "Writing the file …",
  done: told("Saved as {}"),
  report: "Report",
};

const diff = {
  common: counted("entry in common", "entries in common"),
  nothing: "The branches have nothing in common",
  left: "A",
  right: "B",
  what: "From where they part",
  difference: "Difference",
  answer: "How the last answer differs",
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
  turnsTold: told("{} running, {} waiting"),
  agents: "Agents",
  problems: "Files that could not be read",
  live: counted("turn"),
  none: "Nobody has spoken yet. Say something to begin.",
  earlier: counted("earlier session"),
  session: "Session",
  model: "Model",
  context: "Context",
  tokens: (/** @type {string} */ n, /** @type {string} */ of) => (of ? `${n} of ${of} tokens` : `${n} tokens`),
  ended: named({ idle: "idle for long", daily: "a new day", new: "begun anew", reset: "begun anew" }),
  more: counted("more conversation"),
  log: "Conversation",
  field: "Message",
  hint: "Enter sends, Shift-Enter begins a line. /help lists commands.",
  send: "Send",
  stop: "Stop",
  stopped: "Stopped.",
  you: "user",
  answers: "assistant",
  silent: "No answer was to be given.",
  begun: "A new session",
  failed: "The turn failed.",
};

export const words = { ...shell, session, cards, charts, overview, sessions, search, stats, share, diff, gateway };
