/**
 * Times a pi package at the works of S1 and S4; prints seconds as JSON.
 *
 *   node peers.mjs <folder of the installed package> resume <session file>
 *   node peers.mjs <folder of the installed package> append <empty folder> <file with messages, one a line> <count>
 */
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, work, target, source, count] = process.argv.slice(2);
console.log = console.info = console.error;
const entry = join(resolve(folder), "dist", "core", "session-manager.js");
const { SessionManager } = await import(pathToFileURL(entry));

function resume() {
  const start = process.hrtime.bigint();
  const context = SessionManager.open(target).buildSessionContext();
  const end = process.hrtime.bigint();
  if (context.messages.length < 50) throw new Error("the context is not the one expected");
  return Number(end - start) / 1e9;
}

function append() {
  const messages = readFileSync(source, "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
  const manager = SessionManager.create("/work/bench", target);
  for (const message of messages) manager.appendMessage(message);
  const start = process.hrtime.bigint();
  for (let number = 0; number < Number(count); number++) manager.appendMessage(messages[number % messages.length]);
  return Number(process.hrtime.bigint() - start) / 1e9 / Number(count);
}

process.stdout.write(JSON.stringify(work === "resume" ? resume() : append()));
