/**
 * One work of pi or of oh-my-pi; prints its seconds, the memory of the process and what it found as JSON.
 *
 *   node peer.mjs <module of the session manager> resume  <session file>
 *   …                                             go-on   <session file> <file with messages, one a line> <count>
 *   …                                             append  <empty folder> <file with messages> <count> <entries before that>
 *   …                                             list    <folder with folders of sessions>
 *   …                                             search  <folder with folders of sessions> <text>
 *
 * Both bring a SessionManager with the same names; what one of them does later is waited for.
 */
import { mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [module, work, target, ...rest] = process.argv.slice(2);
console.log = console.info = console.error;

const agent = process.env.PI_CODING_AGENT_DIR;
if (work === "list" || work === "search") {
  mkdirSync(agent, { recursive: true });
  symlinkSync(target, join(agent, "sessions"));
}
const { SessionManager } = await import(pathToFileURL(module));

const works = {
  async resume() {
    return [(await SessionManager.open(target)).buildSessionContext().messages.length, 1];
  },

  async "go-on"() {
    const manager = await SessionManager.open(target);
    const [messages, count] = [read(rest[0]), Number(rest[1])];
    begin();
    for (let number = 0; number < count; number++) {
      manager.appendMessage(messages[number % messages.length]);
      manager.buildSessionContext();
    }
    return [count, count];
  },

  async append() {
    const [messages, count, before] = [read(rest[0]), Number(rest[1]), Number(rest[2])];
    const manager = SessionManager.create("/work/bench", target);
    manager.appendMessage({ role: "user", content: "a question", timestamp: 0 });
    manager.appendMessage({ role: "assistant", content: [{ type: "text", text: "an answer" }], timestamp: 0 });
    for (let number = 0; number < before; number++) manager.appendMessage(messages[number % messages.length]);
    await manager.flush?.();
    begin();
    for (let number = 0; number < count; number++) manager.appendMessage(messages[number % messages.length]);
    await manager.flush?.();
    return [count, count];
  },

  async list() {
    return [(await SessionManager.listAll()).length, 1];
  },

  async search() {
    const found = (await SessionManager.listAll()).filter((session) => session.allMessagesText.includes(rest[0]));
    return [found.length, 1];
  },
};

function read(path) {
  return readFileSync(path, "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
}

let start;
function begin() {
  start = process.hrtime.bigint();
}

begin();
const [count, units] = await works[work]();
const seconds = Number(process.hrtime.bigint() - start) / 1e9 / units;
const memory = process.resourceUsage().maxRSS / 1024;
process.stdout.write(JSON.stringify({ seconds, memory_mb: memory, count }), () => process.exit(0));
