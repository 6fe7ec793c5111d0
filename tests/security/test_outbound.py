"""Outbound connections: every module that can make one is classified, and none follows an address in stored content.

Real servers listen on the addresses that content names, because libraries outside Python report nothing to an audit hook.
"""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from builders import assistant, user
from cli.gateways import serving
from figures import measured
from model_server import serving as model_server
from sessile import Library, Session, Store
from sessile.errors import InvalidConfig, SessileError
from sessile.vendors.clients import VENDORS, AsyncEndpoint, RunnerSettings

pytestmark = pytest.mark.promise("P42")

SOURCE = Path(__file__).parents[2] / "src" / "sessile"

# Every module that can connect or start a program, and who chooses the address or the program. A new one must be added here,
# and must not take either from a session, a store file, a page or a model.
CLASSIFIED = {
    "agents/claude/remote.py": "the caller's URL; checked, no proxies, no redirects",
    "cli/arguments.py": "git, in a folder that the user names",
    "cli/gateway_client.py": "--url, or the running gateway of the store on this machine",
    "cli/output.py": "the pager of the user",
    "cli/servers.py": "the user's browser, with a file of ours",
    "cli/resume.py": "the program of a session's agent, from the table of agents",
    "gateway/http/server.py": "listens; connects to nothing",
    "gateway/turns/runners.py": "the command of the configuration; models through vendors/clients.py",
    "mcp/access.py": "the name of this machine",
    "storage/locks.py": "the name of this machine",
    "storage/objects.py": "the caller's `blobs` URL",
    "storage/postgres/*": "the root that the caller names",
    "vendors/clients.py": "the base URL of the configuration, or the vendor's",
    "vendors/summarizers.py": "the URL or the command of the caller; no proxies, no redirects",
}
MODULES = {
    *(
        "socket",
        "ssl",
        "http.client",
        "urllib.request",
        "ftplib",
        "smtplib",
        "telnetlib",
        "xmlrpc.client",
        "socketserver",
    ),
    *("httpx", "httpcore", "requests", "aiohttp", "urllib3", "websockets", "anthropic", "openai", "boto3", "botocore"),
    *("psycopg", "obstore", "subprocess", "webbrowser", "multiprocessing", "pty"),
}
CALLS = {
    *("open_connection", "open_unix_connection", "create_connection", "connect_tcp", "connect_unix", "sock_connect"),
    *("create_subprocess_exec", "create_subprocess_shell", "open_process", "run_process", "system", "popen"),
    *("posix_spawn", "execv", "execve", "execvp", "startfile", "urlopen", "import_module", "getaddrinfo", "startTLS"),
}
OF_LIBRARIES = ("'uname'", "'/sbin/ldconfig'")  # programs that the clients of vendors start to describe this machine


def ways_out(path: Path) -> set[str]:
    """Return what a module imports or calls that can connect or start a program."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Call):
            called = node.func
            name = (
                called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
            )
            if name in CALLS:
                found.add(f"{name}()")
    tops = {
        name for name in found if name in MODULES or name.partition(".")[0] in MODULES - {"http", "urllib", "xmlrpc"}
    }
    return tops | {name for name in found if name.endswith("()")}


def test_every_module_that_can_connect_is_classified() -> None:
    """A module that gains a way out, or loses it, must be looked at."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if out := ways_out(path):
            found["storage/postgres/*" if name.startswith("storage/postgres/") else name] = out
    unknown = {name: out for name, out in found.items() if name not in CLASSIFIED and out != {"import_module()"}}
    assert not unknown, f"classify these in CLASSIFIED: {unknown}"
    assert set(CLASSIFIED) <= set(found), f"these connect no more: {set(CLASSIFIED) - set(found)}"
    measured("P42", "modules that can connect", modules=len(found), unclassified=0)


# -- traps


class Trap:
    """A server that accepts connections and counts them."""

    def __init__(self) -> None:
        self.visits = 0
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._sock.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                visitor = self._sock.accept()[0]
            except OSError:
                return
            self.visits += 1
            visitor.close()

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join()

    def addresses(self) -> list[str]:
        """Return addresses of this server in many spellings."""
        hosts = ("127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "[::ffff:127.0.0.1]")
        urls = [f"{scheme}://{host}:{self.port}/x.png" for scheme in ("http", "https") for host in hosts]
        return [
            *urls,
            f"http://api.openai.com@127.0.0.1:{self.port}/",
            f"//127.0.0.1:{self.port}/x",
            f"ftp://127.0.0.1:{self.port}/x",
            f"postgresql://u:p@127.0.0.1:{self.port}/db",
            f"postgres://127.0.0.1:{self.port}/db?sslmode=disable",
            f"s3://bucket/x?endpoint=http://127.0.0.1:{self.port}",
            f"http://127.0.0.1:{self.port}/{{session_id}}",
            f"git+ssh://127.0.0.1:{self.port}/x",
            f"ws://127.0.0.1:{self.port}/",
            f"\\\\127.0.0.1@{self.port}\\share",
        ]


@contextmanager
def trap() -> Iterator[Trap]:
    made = Trap()
    try:
        yield made
    finally:
        made.close()


def test_a_trap_counts_whoever_comes() -> None:
    """Otherwise the tests below would prove nothing; also for libraries that are not written in Python."""
    psycopg = pytest.importorskip("psycopg")
    with trap() as one:
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(f"postgresql://127.0.0.1:{one.port}/x?connect_timeout=5")
        assert one.visits >= 1


# -- stored content


def poisoned(root: Path, addresses: Sequence[str]) -> list[str]:
    """Make sessions that name addresses in every place that holds a name, a path or a URL. Return their ids."""
    made = []
    with Store(root, durability="process") as store:
        for address in addresses:
            parts: list[Any] = [
                {"type": "text", "text": f"see {address} ![x]({address}) <img src='{address}'>"},
                {"type": "image", "source": {"type": "url", "url": address}, "url": address, "mimeType": "image/png"},
                {"type": "image_url", "image_url": {"url": address}},
                {"type": "file", "file": {"file_data": address, "file_id": address}},
            ]
            with store.create(f"/work/{address}", publish=True) as session:
                asked = {"role": "user", "content": parts, "timestamp": 1}
                session.append_entry({"type": "message", "message": asked})  # parts of several APIs in one message
                session.append_message(assistant(address))
                session.append_custom_entry("sessile.remote", {"url": address, "baseUrl": address, "dsn": address})
                session.append_model_change(address, address)
                session.set_session_name(address)
                session.append_message(user(f"/model {address}"))
                session.append_message(assistant("yes"))
                made.append(session.id)
            path = Path(session.path)
            header, rest = path.read_text().split("\n", 1)
            members = json.loads(header) | {
                "parentSession": address,
                "root": address,
                "blobs": address,
                "source": address,
            }
            path.write_text(json.dumps(members) + "\n" + rest)
    return made


VERBS = [
    *(["ls", "-A"], ["search", "see"], ["check", "--all"], ["doctor"], ["du"], ["stats"]),
    *(["show", "{id}"], ["tree", "{id}"], ["context", "{id}"], ["fork", "{id}"], ["resume", "{id}", "--print"]),
    *(["export", "{id}", "-t", form, "-o", "-"] for form in ("html", "md", "txt", "jsonl")),
    *(["show", "{address}"], ["import", "{address}"], ["sources", "add", "{address}"], ["--root", "{address}", "ls"]),
]


def test_no_verb_follows_an_address_in_a_session(tmp_path: Path) -> None:
    """Every way to read a session, and names that are URLs where a file or folder is expected: nobody is visited."""
    with trap() as one:
        addresses = [address for address in one.addresses() if not address.startswith(("postgres", "s3:"))]
        ids = poisoned(tmp_path / "root", one.addresses())
        environment = {**os.environ, "HOME": str(tmp_path), "SESSILE_ROOT": str(tmp_path / "root")}
        environment |= dict.fromkeys(PROXIES, f"http://127.0.0.1:{one.port}")
        asked = worked = 0
        for number, verb in enumerate(VERBS):
            session_id = ids[number % len(ids)]
            words = [word.format(id=session_id, address=addresses[number % len(addresses)]) for word in verb]
            command = [sys.executable, "-m", "sessile.cli.main", "--root", str(tmp_path / "root"), *words]
            ended = subprocess.run(
                command,
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=120,
                check=False,
            )
            assert b"Traceback" not in ended.stderr, ended.stderr
            asked, worked = asked + 1, worked + (ended.returncode == 0)
        assert one.visits == 0 and worked == asked - 4
    measured("P42", "addresses in sessions, through verbs", calls=asked, addresses=len(addresses), connections=0)


def test_the_library_follows_no_address_in_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening, contexts, searches, forks and names that are addresses."""
    monkeypatch.chdir(tmp_path)  # an address that is taken for a path is one below this folder
    with trap() as one:
        ids = poisoned(tmp_path / "root", one.addresses())
        with Store(tmp_path / "root") as store, Library(store) as library:
            for session_id in ids:
                with store.open(session_id) as session:
                    session.context()
                    with session.fork() as forked:
                        forked.append_message(user("more"))
            library.search("see")
            for address in one.addresses():
                for call in (store.find, library.find, store.open):
                    try:
                        found = call(address)
                    except (SessileError, OSError, ValueError):
                        continue
                    if isinstance(found, Session):
                        found.close()
        assert one.visits == 0
    measured("P42", "addresses in sessions, through the library", sessions=len(ids), connections=0)


# -- a gateway with a model

PROXIES = [
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "FTP_PROXY", "SOCKS_PROXY"),
    *("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "OPENAI_PROXY", "AWS_ENDPOINT", "AWS_ENDPOINT_URL"),
]
WATCHED = """
import json, os, runpy, sys
seen = open(os.environ["SEEN"], "a", buffering=1)
def hear(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "subprocess.Popen", "os.posix_spawn", "os.exec"):
        place = arguments[1] if event == "socket.connect" else arguments[:2]
        seen.write(json.dumps([event, repr(place)]) + "\\n")
sys.addaudithook(hear)
runpy.run_module("sessile.cli.main", run_name="__main__", alter_sys=True)
"""


def test_a_gateway_connects_to_its_model_and_to_nobody_else(tmp_path: Path) -> None:
    """Whatever messages, stored sessions, redirects and variables name: only the configured address is connected to."""
    with trap() as one, model_server() as model:
        place = urlsplit(model.url)
        for status in (301, 302, 303, 307, 308):
            model.say("moved", status=status, raw=b"{}", headers=(("Location", f"http://127.0.0.1:{one.port}/"),))
        model.say(f"look at http://127.0.0.1:{one.port}/ ![x](http://127.0.0.1:{one.port}/x.png)")
        ids = poisoned(tmp_path / "root", one.addresses())
        provider = {"baseUrl": f"{model.url}/v1", "api": "openai", "models": [{"id": "m", "contextWindow": 100_000}]}
        config = {
            "agents": {"defaults": {"model": "local/m"}},
            "models": {"providers": {"local": provider}},
            "session": {"reset": {"mode": "none"}},
        }
        (tmp_path / "config.json").write_text(json.dumps(config))
        variables = dict.fromkeys(PROXIES, f"http://127.0.0.1:{one.port}")
        variables |= {"SEEN": str(tmp_path / "seen"), "NO_PROXY": "", "no_proxy": ""}
        options = ("--config", str(tmp_path / "config.json"))
        program = (sys.executable, "-c", WATCHED)
        with serving(tmp_path / "root", *options, environment=variables, program=program) as gateway:
            headers = {"Authorization": f"Bearer {gateway.token}"}
            with httpx.Client(base_url=gateway.url, headers=headers, timeout=60, trust_env=False) as client:
                asked = ask_for_everything(client, one.addresses(), ids)
        seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
        allowed = (f"('{place.hostname}', {place.port})", f"('{place.hostname}', {place.port}")
        seen = [(event, where) for event, where in seen if not any(name in where for name in OF_LIBRARIES)]
        others = [
            (event, where)
            for event, where in seen
            if not where.startswith(allowed) and not is_listening(where, gateway)
        ]
        assert not others, others
        assert one.visits == 0 and len(model.asked) > 10
    measured("P42", "a gateway with a model", requests=asked, addresses=len(one.addresses()), to_others=0)


def is_listening(where: str, gateway: Any) -> bool:
    """Return whether an event is about the address that the gateway listens on."""
    return "'127.0.0.1', 0" in where or f"'127.0.0.1', {gateway.place[1]}" in where


def ask_for_everything(client: httpx.Client, addresses: Sequence[str], ids: Sequence[str]) -> int:
    """Send every address in every way, and read the poisoned sessions in every way. Return the number of requests."""
    asked = 0
    for address, session_id in zip(addresses, ids, strict=True):
        part = {"type": "image_url", "image_url": {"url": address}}
        text = {"type": "text", "text": f"read {address} ![x]({address})"}
        queries: list[tuple[str, str, Mapping[str, str | int]]] = [
            *(("GET", f"/v1/view/{what}", {"id": session_id}) for what in ("session", "outline", "share")),
            *(("GET", "/v1/view/export", {"id": session_id, "form": form}) for form in ("html", "md", "json", "jsonl")),
            ("GET", "/v1/view/entries", {"id": session_id, "from": 0, "to": 9}),
            ("GET", "/v1/view/saw", {"id": session_id, "at": 2}),
            ("GET", "/v1/view/blob", {"id": session_id, "digest": address}),
            ("GET", "/v1/view/session", {"id": address}),
            ("GET", "/v1/view/session", {"id": session_id, "url": address}),
            ("GET", "/", {"url": address, "gatewayUrl": address}),
            ("GET", "/v1/search", {"q": address}),
        ]
        bodies = [
            ("/v1/chat/send", {"message": f"read {address} ![x]({address})", "wait": True}),
            ("/v1/chat/send", {"message": f"/model openai/{address}", "wait": True}),
            (
                "/v1/chat/send",
                {"message": "x", "inbound": {"channel": address[:400], "to": address, "sender": address}},
            ),
            ("/v1/chat/completions", {"model": "x", "messages": [{"role": "user", "content": [text, part]}]}),
            ("/v1/chat/completions", {"model": address, "messages": [{"role": "user", "content": address}]}),
            ("/v1/session/compact", {"key": "main"}),
            ("/v1/view/session/fork", {"id": session_id, "number": 0, "cwd": "/work"}),
        ]
        for method, path, query in queries:
            assert client.request(method, path, params=query).status_code < 500, path
        for path, body in bodies:
            assert client.post(path, json=body).status_code < 600, path
        asked += len(queries) + len(bodies)
    return asked


# -- base URLs

TRICKY = [
    "https://api.openai.com@evil.example/v1",
    "https://api.openai.com:pass@evil.example/v1",
    "https://api.openai.com\\@evil.example/v1",
    "https://evil.example\\.api.openai.com/v1",
    "https://evil.example#@api.openai.com/v1",
    "https://evil.example?@api.openai.com/v1",
    "https://evil.example/api.openai.com/v1",
    "https://api.openai.com.evil.example/v1",
    "https://evil.example;@api.openai.com/v1",
    "https://api.openai.com%2f@evil.example/v1",
    "https://api.openai.com%00.evil.example/v1",
    "https://api.openai.com\t.evil.example/v1",
    "https://api.openai.com\n.evil.example/v1",
    "https://evil.example\t@api.openai.com/v1",
    "https:///evil.example/v1",
    "https:evil.example/v1",
    "http://api.openai.com/v1",
    "https://\u24d0pi.openai.com/v1",
    "https://api\u3002openai.com/v1",
    "file:///etc/passwd",
    "gopher://127.0.0.1/",
    "//api.openai.com/v1",
]


@pytest.mark.parametrize("url", TRICKY)
def test_a_base_url_means_one_host_to_all_who_read_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either the URL is refused, or the client connects to the host that was checked, and the vendor's key stays at home."""
    key = "sk-canary-0123456789abcdef0123456789abcdef"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    try:
        endpoint = AsyncEndpoint.from_settings(RunnerSettings(name="openai", base_url=url))
    except (InvalidConfig, httpx.InvalidURL):
        return
    used = endpoint._client.base_url
    assert used.host == urlsplit(url).hostname
    assert (endpoint._client.api_key == key) == ((used.scheme, used.host) == ("https", "api.openai.com"))
    assert VENDORS["openai"].home.startswith("https://")


# -- the note of a gateway


@pytest.mark.parametrize("url", ["http://evil.example:80", "http://192.0.2.7:8787", "http://[2001:db8::7]:8787"])
def test_a_note_does_not_choose_who_gets_the_token(tmp_path: Path, url: str) -> None:
    """The note of a running gateway that names another machine is refused, and nothing is sent."""
    with serving(tmp_path / "root") as gateway:
        note = tmp_path / "root" / "gateway.json"
        note.write_text(json.dumps(json.loads(note.read_text()) | {"url": url}))
        command = [sys.executable, "-m", "sessile.cli.main", "--root", str(tmp_path / "root"), "status"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 7 and "not an address of this machine" in ended.stderr
        assert gateway.token not in ended.stderr + ended.stdout
