// Calls the session functions of the Claude Agent SDK that it is asked for, one JSON line each way.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const sdk = await import(pathToFileURL(`${process.argv[2]}/sdk.mjs`));
for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  process.env.CLAUDE_CONFIG_DIR = request.home;
  const answer = await sdk[request.function](...request.arguments);
  process.stdout.write(`${JSON.stringify(answer ?? null)}\n`);
}
