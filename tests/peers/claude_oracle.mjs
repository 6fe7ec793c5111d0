// Calls the session functions of the Claude Agent SDK that it is asked for, one JSON line each way.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const sdk = await import(pathToFileURL(`${process.argv[2]}/sdk.mjs`));

async function answer(request) {
  process.env.CLAUDE_CONFIG_DIR = request.home;
  try {
    return { result: (await sdk[request.function](...request.arguments, request.options)) ?? null };
  } catch (error) {
    return { error: String(error) };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`);
}
