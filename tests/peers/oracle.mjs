/**
 * Lets an installed pi package answer for itself: JSON lines in on stdin, one JSON line out per request on stdout.
 *
 *   node oracle.mjs <folder of the installed package>
 *
 * Requests (every one opens the file afresh, as a new pi process would):
 *   {"op":"context","path":P,"leaf"?:id|null}            what pi would send to the model, at its own leaf or at `leaf`
 *   {"op":"append","path":P,"messages":[…],"name"?:"…"}   append messages, then a session name
 *   {"op":"branch","path":P,"entry":id|null,"messages":[…]}   the same below an earlier entry (null: before the first)
 *   {"op":"call","path":P,"method":M,"args":[…],"at"?:id|null}   one public method, below `at` if given
 *   {"op":"compaction","function":F,"args":[…]}           one exported function of the compaction module
 *   {"op":"abandoned","path":P,"from":id,"to":id}        what pi would sum up of the branch that is left
 *   {"op":"create","dir":D,"cwd":C,"messages":[…],"name"?:"…"}   a new session; pi writes it with the first assistant
 *
 * A failure is answered as {"error":"…"}; the process lives until stdin ends.
 */
import { existsSync } from "node:fs";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

console.log = console.info = console.error; // stdout carries answers only

// The package's index needs node 22 (0.87.1); its session manager, which the index re-exports, runs on 20.
const entry = join(resolve(process.argv[2]), "dist", "core", "session-manager.js");
const { SessionManager, buildSessionContext } = await import(pathToFileURL(entry));

const compaction = await import(pathToFileURL(join(resolve(process.argv[2]), "dist", "core", "compaction", "index.js")));

/** Sets have no JSON of their own. */
const plain = (name, value) => (value instanceof Set ? [...value] : value);

/** SessionManager.open makes a new session of a missing path; a test that asks for one has a mistake in it. */
function open(path) {
  if (!existsSync(path)) throw new Error(`no such file: ${path}`);
  return SessionManager.open(path);
}

function moveTo(manager, id) {
  if (id === null) manager.resetLeaf();
  else manager.branch(id);
}

function append(manager, { messages = [], name }) {
  const ids = messages.map((message) => manager.appendMessage(message));
  if (name !== undefined) ids.push(manager.appendSessionInfo(name));
  return { ids, leafId: manager.getLeafId() };
}

const operations = {
  context(request) {
    const manager = open(request.path);
    const entries = manager.getEntries();
    const context = "leaf" in request ? buildSessionContext(entries, request.leaf) : manager.buildSessionContext();
    const { messages, thinkingLevel, model } = context;
    return { messages, thinkingLevel, model, entryCount: entries.length, leafId: manager.getLeafId() };
  },
  append(request) {
    return append(open(request.path), request);
  },
  branch(request) {
    const manager = open(request.path);
    moveTo(manager, request.entry);
    return append(manager, request);
  },
  call(request) {
    const manager = open(request.path);
    if ("at" in request) moveTo(manager, request.at);
    const result = manager[request.method](...(request.args ?? []));
    return { result: result ?? null, leafId: manager.getLeafId() };
  },
  compaction(request) {
    const result = compaction[request.function](...request.args);
    return { result: result === undefined ? null : JSON.parse(JSON.stringify(result, plain)) };
  },
  abandoned(request) {
    const { entries, commonAncestorId } = compaction.collectEntriesForBranchSummary(
      open(request.path),
      request.from,
      request.to,
    );
    return { ids: entries.map((entry) => entry.id), ancestor: commonAncestorId };
  },
  create(request) {
    const manager = SessionManager.create(request.cwd, request.dir);
    return { ...append(manager, request), path: manager.getSessionFile(), id: manager.getSessionId() };
  },
};

function answer(line) {
  try {
    const request = JSON.parse(line);
    if (!Object.hasOwn(operations, request.op)) throw new Error(`unknown op: ${request.op}`);
    return JSON.stringify(operations[request.op](request));
  } catch (error) {
    return JSON.stringify({ error: String(error?.message ?? error) });
  }
}

for await (const line of createInterface({ input: process.stdin })) process.stdout.write(`${answer(line)}\n`);
