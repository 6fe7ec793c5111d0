// @ts-check
/*
 * Requests to the gateway, and the token that authorizes them.
 *
 * Rules: requests go to the origin that served the page, below /v1/, and nowhere else; no address, parameter or stored text can
 * change that. The token arrives after the #, which no server sees, is removed from the address and the history at once, and stays in
 * this tab.
 */

const STORED = "sessile.token";
const MAX_PAUSE = 10_000; // milliseconds between two attempts to connect

/** An error reported by the gateway. */
export class Problem extends Error {
  /** @param {string} detail @param {string | null} hint @param {number} status 0 if there was no response */
  constructor(detail, hint, status) {
    super(detail);
    this.detail = detail;
    this.hint = hint;
    this.status = status;
  }
}

/** Take the token from the address, if there is one. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return;
  setToken(given);
  history.replaceState(history.state, "", location.pathname + location.search);
}

/** @param {string} token empty to forget it */
export function setToken(token) {
  if (token) sessionStorage.setItem(STORED, token);
  else sessionStorage.removeItem(STORED);
}

export function hasToken() {
  return sessionStorage.getItem(STORED) !== null;
}

/** @typedef {Record<string, string | number | boolean | null | undefined>} Params parameters without a value are left out */

/** @param {string} path @param {Params} [params] */
function address(path, params = {}) {
  if (!path.startsWith("/v1/")) throw new Error(`invalid path ${path}: use a path below /v1/`);
  const url = new URL(path, location.origin);
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, String(value));
  }
  return url;
}

/** @typedef {{method?: string, body?: unknown, signal?: AbortSignal, headers?: Record<string, string>}} Options */

/** @param {string} path @param {Params} [params] @param {Options} [options] @returns {Promise<Response>} */
async function fetched(path, params, { method, body, signal, headers } = {}) {
  const sent = body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  const response = await fetch(address(path, params), {
    method: method ?? (body === undefined ? "GET" : "POST"),
    signal,
    ...sent,
    headers: { ...sent.headers, ...headers, Authorization: `Bearer ${sessionStorage.getItem(STORED) ?? ""}` },
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
  }).catch((error) => {
    if (signal?.aborted) throw error;
    throw new Problem("The gateway does not respond.", "Check that `sessile serve` is still running.", 0);
  });
  if (!response.ok) throw await problemOf(response);
  return response;
}

/** @param {Response} response */
async function problemOf(response) {
  const problem = await response.json().catch(() => ({}));
  return new Problem(String(problem.detail ?? response.statusText), problem.hint ? String(problem.hint) : null, response.status);
}

/**
 * Send a request and return its JSON; with a body it is a POST. Throws a `Problem` or an AbortError.
 * @param {string} path @param {Params} [params] @param {Options} [options] @returns {Promise<any>}
 */
export async function ask(path, params, options) {
  return (await fetched(path, params, options)).json();
}

/** Fetch a file and its name. @param {string} path @param {Params} [params] @param {Options} [options] */
export async function askFile(path, params, options) {
  const response = await fetched(path, params, options);
  const name = /filename="([^"]+)"/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? null;
  return { blob: await response.blob(), name };
}

/** @typedef {{id: string | null, kind: string, data: any}} LiveEvent */

/**
 * Listen to events until the signal. Reconnects automatically and continues after the last event.
 * @param {string} path @param {Params} params @param {(event: LiveEvent) => void} onEvent @param {AbortSignal} signal
 * @param {(isOpen: boolean) => void} [onState]
 */
export async function stream(path, params, onEvent, signal, onState = () => {}) {
  let last = "";
  let pause = 0;
  while (!signal.aborted) {
    try {
      const headers = last ? { "Last-Event-ID": last } : undefined;
      const { body } = await fetched(path, params, { signal, headers });
      onState(true);
      pause = 0;
      for await (const event of eventsOf(/** @type {ReadableStream<Uint8Array>} */ (body))) {
        last = event.id ?? last;
        onEvent(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem && error.status >= 400 && error.status < 500 && error.status !== 429) throw error;
    }
    onState(false);
    pause = Math.min(MAX_PAUSE, pause * 2 || 500);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/** Yield the events of one response. @param {string} path @param {unknown} body @param {AbortSignal} signal */
export async function* eventsFrom(path, body, signal) {
  const response = await fetched(path, {}, { body, signal });
  yield* eventsOf(/** @type {ReadableStream<Uint8Array>} */ (response.body));
}

/** Yield server-sent events as they arrive. @param {ReadableStream<Uint8Array>} body @returns {AsyncGenerator<LiveEvent>} */
async function* eventsOf(body) {
  const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop() ?? "";
    for (const block of blocks) {
      const event = eventOf(block);
      if (event) yield event;
    }
  }
}

/** @param {string} block @returns {LiveEvent | null} null for a comment */
function eventOf(block) {
  /** @type {Record<string, string>} */
  const fields = {};
  for (const line of block.split("\n")) {
    const [, name, value] = /^(\w+): ?(.*)$/.exec(line) ?? [];
    if (name) fields[name] = name in fields ? `${fields[name]}\n${value}` : value;
  }
  return "data" in fields ? { id: fields.id ?? null, kind: fields.event ?? "message", data: JSON.parse(fields.data) } : null;
}
