"""No text becomes a path outside the root: ids, folders, agents, keys, hashes, tokens and attachments, crafted by the million.

The interpreter's audit hook (`sys.addaudithook`) reports every file that is opened, renamed, removed, created or listed. A name
without a folder is passed together with the descriptor of a folder, which was reached from the root in the same way.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import anyio
import pytest

from figures import measured
from http_rig import http
from sessile import Store, import_session
from sessile.agents.claude import paths as claude
from sessile.agents.myagents.places import Places
from sessile.agents.openclaw.paths import StateFolder
from sessile.errors import SessileError
from sessile.gateway.conversations.registry import Conversations
from sessile.gateway.http.asgi import openapi_document
from sessile.storage.layout import Layout, file_name
from sessile.storage.turn_log import TurnLog
from sessions import store_at, write_file

pytestmark = pytest.mark.promise("P30")

SHORT, LONG = 2_000, 1_000_000  # names
EVENTS = {
    *("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.listdir", "os.scandir"),
    *("os.truncate", "os.chmod", "os.utime", "shutil.rmtree", "sqlite3.connect"),
}

PARTS = [
    *(
        "..",
        ".",
        "/",
        "\\",
        "//",
        "\0",
        "%2f",
        "%2e%2e",
        "%00",
        "~",
        "~root",
        "$HOME",
        "${HOME}",
        "`id`",
        "a",
        "main",
        "x.jsonl",
    ),
    *(
        "CON",
        "NUL",
        "aux.",
        " ",
        "\n",
        "\r",
        "\t",
        "\x7f",
        ":",
        "::",
        "|",
        "*",
        "?",
        "<",
        ">",
        '"',
        "'",
        "-",
        "--",
        "_",
    ),
    *(
        "․․",
        "‥",
        "…",
        "／",
        "＼",
        "∕",
        "⁄",
        "．．",
        "\u202e",
        "\ufeff",
        "é",
        "e\u0301",
        "İ",
        "ß",
        "\ud800",
        "🙂",
        "\u200b",
    ),
    *(
        "file://",
        "etc/passwd",
        "/etc/passwd",
        "../../../../etc",
        "C:\\Windows",
        "\\\\host\\share",
        "/proc/self/fd/3",
        "/dev/tty",
    ),
    *(".ssh", ".jsonl", ".draft", ".tmp", "sessions.json", "blob:sha256:", "a" * 64, "0" * 64, "x" * 300, "é" * 130),
]
UUID = "6513270e-2b1d-4c55-9a0e-7d1f3c5b9e42"


def made_up(rng: Random) -> str:
    """Return a name that tries to be a path, or nearly is one."""
    if rng.random() < 0.05:
        return "".join(map(chr, rng.choices(range(0x250), k=rng.randrange(12))))
    return "".join(rng.choices(PARTS, k=rng.choice((1, 1, 2, 3, 5))))


PROCESSES = re.compile(r"/proc(/\d+/fd)?")  # looked at before a deletion, to find who has the session open


class Watch:
    """Record every file that this process touches while listening. An audit hook cannot be removed, so there is one instance."""

    def __init__(self) -> None:
        self._roots: tuple[str, ...] = ()
        self.outside: list[tuple[str, str]] = []
        self.count = 0
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self._roots or event not in EVENTS:
            return
        paths = arguments[:2] if event in ("os.rename", "os.link") else arguments[:1]
        for path in paths:
            if isinstance(path, str | bytes):
                self.count += 1
                name = os.fsdecode(path).removeprefix("file:").partition("?mode=")[0]
                if not self._is_inside(event, name):
                    self.outside.append((event, name))

    def _is_inside(self, event: str, name: str) -> bool:
        if "/" not in name:
            return name not in ("..", "")
        if event == "os.listdir" and PROCESSES.fullmatch(name):
            return True
        plain = posixpath.normpath(name)
        above = event == "open" and name == plain  # the folders above the root are opened to make its name durable
        return any(f"{plain}/".startswith(f"{root}/") or (above and root.startswith(plain)) for root in self._roots)

    @contextmanager
    def within(self, *roots: Path) -> Iterator[Watch]:
        """Record during the block; every path must be in one of these folders."""
        # Imports and the interpreter's own lookups do not depend on the tested names.
        own = (
            *map(str, roots),
            sys.prefix,
            sys.base_prefix,
            posixpath.dirname(posixpath.dirname(__file__)),
            "/proc/locks",
        )
        self.outside, self.count = [], 0
        self._roots = (*own, *(path for path in sys.path if path))
        try:
            yield self
        finally:
            self._roots = ()


WATCH = Watch()
Take = Callable[[str], object]


def namings(root: str) -> dict[str, Take]:
    """Return every function that makes a path from a text, for a store at a root."""
    layout = Layout(root, f"{root}/cache")
    state, turns = StateFolder(root), TurnLog(store_at(root).fs, root)
    blobs = store_at(root).blobs
    places = Places(f"{root}/myagents", f"{root}/ours")
    return {
        "folder of a project": layout.folder,
        "file of a session by its time": lambda text: f"{root}/{file_name(text, UUID)}",
        "file of a session": lambda text: f"{root}/{file_name('2026-01-01T00:00:00.000Z', text)}",
        "breadcrumb": layout.breadcrumb,
        "blob": blobs.path,
        "agent": state.agent,
        "bindings": state.store,
        "turns": turns._path,
        "claude project": lambda text: claude.project_dir(root, text),
        "claude session": lambda text: claude.session_path(root, text),
        "claude sub-agent": lambda text: claude.subagent_path(root, UUID, text),
        "claude sub-agent in a folder": lambda text: claude.subagent_path(root, UUID, "a", text),
        "myagents session": places.session,
        "myagents archive": places.archive,
        "myagents attachment": lambda text: places.attachment(UUID, text, "png"),
        "myagents attachment as named": places.attachment_at,
        "myagents attachment of a session": lambda text: places.attachment_at(f"{UUID}/{text}"),
    }


def check_namings(root: str, rng: Random, names: int) -> tuple[int, int]:
    """Make paths from random names. Return the numbers of paths and refusals."""
    made = refused = 0
    takes = namings(root)
    for _ in range(names):
        text = made_up(rng)
        for what, take in takes.items():
            try:
                path = take(text)
            except SessileError:
                refused += 1
                continue
            assert isinstance(path, str) and "\0" not in path and ".." not in path.split("/"), (what, text, path)
            assert path.startswith(f"{root}/"), (what, text, path)
            made += 1
    return made, refused


def uses(store: Store, conversations: Conversations, rng: Random) -> list[tuple[float, Take]]:
    """Return the uses of a name in a store, and their frequency: creating something is much slower than refusing."""

    def named(text: str) -> None:
        if "/" not in text and not text.endswith(
            (".jsonl", ".draft")
        ):  # otherwise it is a path, which the user may choose
            store.open(text, readonly=True).close()
            store.delete(text)

    def create(text: str) -> None:
        with store.create(text, publish=rng.random() < 0.5) as session:
            session.append_message({"role": "user", "content": text})
            session.set_session_name(text or "x")

    def create_with_id(text: str) -> None:
        store.create("/work", session_id=text, title=text, parent_session=text, publish=True).close()

    return [
        (1, store.find),
        (1, store.blobs.get),
        (1, store.undo),
        (0.2, named),
        (0.02, lambda text: store.list(text)),
        (0.01, create),
        (0.01, create_with_id),
        (0.01, lambda text: conversations.resolve(text)),
        (0.01, lambda text: conversations.resolve(f"agent:{text}:main")),
    ]


def check_store(folder: Path, rng: Random, names: int) -> int:
    """Use random names in a store under the audit hook. Return the number of touched files."""
    (folder / "beside").mkdir()
    (folder / "beside" / "secret.jsonl").write_text('{"type":"session","id":"s","version":3}\n')
    root = folder / "root"
    store = store_at(root)
    store.create("/work", publish=True).close()
    os.chdir(folder / "beside")
    with WATCH.within(root) as watch, Conversations(store, workspace=lambda agent: "/work", hold=None) as conversations:
        takes = uses(store, conversations, rng)
        for number in range(names):
            text = made_up(rng)
            for share, take in takes:
                if share < 1 and rng.random() > share:
                    continue
                try:
                    take(text)
                except SessileError:
                    pass
            assert watch.outside == [], (text, watch.outside)
            if number % 1_000 == 999:
                empty(root / "sessions")
    assert sorted(path.name for path in folder.iterdir()) == ["beside", "root"]
    assert [path.name for path in (folder / "beside").iterdir()] == ["secret.jsonl"]
    return watch.count


def empty(folder: Path) -> None:
    """Remove the created sessions, so that listing them does not get slower and slower."""
    for path in folder.glob("*/*"):
        if path.is_file():
            path.unlink()
    for path in folder.glob("*"):
        path.rmdir()


def run(folder: Path, seed: int, names: int) -> None:
    made, refused = check_namings(str(folder / "root"), Random(seed), names)
    touched = check_store(folder, Random(seed + 1), names)
    measured("P30", "names crafted as paths", names=names, paths_made=made, refused=refused, outside_the_root=0)
    measured("P30", "files touched under an audit hook", names=names, touched=touched, outside_the_root=0)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working directory, which is restored afterwards."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_no_name_leads_out_of_the_root(here: Path) -> None:
    """Each name is refused or becomes a path below the root; nothing else is touched."""
    run(here, 1, SHORT)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_a_million_names_lead_nowhere(here: Path, seed: int) -> None:
    """The long form of the test above."""
    run(here, 100 + 2 * seed, LONG // 10)


@pytest.mark.anyio
async def test_no_request_reaches_a_file_outside(here: Path) -> None:
    """This covers keys, ids, agents, entries, hashes and tokens of every operation."""
    rng = Random(3)
    root = here / "root"
    async with http(root) as gate:
        asked = operations()
        with WATCH.within(root) as watch:
            for number in range(300):
                text = made_up(rng).encode("utf-8", "replace").decode()
                method, path, place, name = asked[number % len(asked)]
                query = {name: text} if place == "query" else {}
                body = {name: text} if place == "body" else None
                response = await gate.client.request(method, path, params=query, json=body)
                assert response.status_code < 500
                assert watch.outside == [], (path, text, watch.outside)
            await anyio.sleep(0)
    measured("P30", "requests under an audit hook", requests=300, touched=watch.count, outside_the_root=0)


def operations() -> list[tuple[str, str, str, str]]:
    """Return every text that an operation takes: method, path, place and name."""
    found = []
    told = openapi_document()
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "query":
                    found.append((method.upper(), path, "query", parameter["name"]))
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            named = told["components"]["schemas"].get(body.get("$ref", "").rpartition("/")[2], body)
            found += [(method.upper(), path, "body", name) for name in named.get("properties", ())]
    return found


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("at", ["2026/../../../../x", "x\0y", "../x", "z" * 400, 5, None, ["a"], ""])
@pytest.mark.parametrize("format_", ["codex", "claude"])
def test_the_time_in_a_file_of_another_agent_is_no_part_of_a_path(here: Path, format_: str, at: object) -> None:
    """An imported session is in the folder of its project, whatever time its header has."""
    meta = {"id": UUID, "timestamp": at, "cwd": "/work", "originator": "codex_cli", "cli_version": "1"}
    row = {"uuid": UUID, "parentUuid": None, "sessionId": UUID, "type": "user", "cwd": "/work", "timestamp": at}
    said = {"role": "user", "content": "hello"}
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    rows = {
        "codex": [
            {"timestamp": at, "type": "session_meta", "payload": meta},
            {"timestamp": at, "type": "response_item", "payload": item},
        ],
        "claude": [{**row, "isSidechain": False, "userType": "external", "version": "2", "message": said}],
    }
    path = write_file(here / "foreign.jsonl", *rows[format_])
    store = store_at(here / "root")
    with WATCH.within(here) as watch:
        imported = import_session(store, path)
    assert watch.outside == []
    assert posixpath.dirname(imported.path) == store.layout.folder("/work")
    assert [info.path for info in store.list("/work")] == [imported.path]


# -- teeth


def test_a_store_without_checks_is_noticed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If any text may be an id, the rig reports a path or a touched file outside the root."""
    monkeypatch.setattr("sessile.storage.blobs.checked_hash", lambda digest: digest)
    with pytest.raises(AssertionError):
        check_namings(str(here / "root"), Random(1), 500)
    monkeypatch.setattr("sessile.storage.filesystem.RootedFilesystem._place", lambda self, path: plainly(path))
    with pytest.raises(AssertionError):
        check_store(here, Random(2), 2_000)


@contextmanager
def plainly(path: str) -> Iterator[tuple[None, str]]:
    yield None, path
