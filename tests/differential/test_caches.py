"""Caches never change an answer: random operations, edits of journals and damage to caches, against a store without cache.

Each round changes something, then asks everything twice: through the caches that have followed all earlier rounds, and
through a store with an empty cache folder. The answers must be equal. Sessions of all formats take part. Handles and
libraries stay open while files change below them, as in a gateway.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

import sessile.storage.index as index_module
from builders import Json, assistant, entry, said
from claude_trees import boundary
from figures import measured
from sessile import Filter, Library, Session, Store
from sessile.core.statistics import by_model, by_project
from sessile.core.words import INDEXED
from sessile.errors import SessileError
from sessile.session import TreeNode
from sessile.storage import search
from sessile.storage.catalog_rows import SessionRow
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.layout import Source
from sessile.upkeep.check import check
from sessions import dumps, header, other_store_at, store_at

pytestmark = pytest.mark.promise("P45")

# Words, models, labels and folders have the same length, so that an edit may keep the size of a file.
WORDS = ("alpha", "omega", "gamma", "delta", "kappa", "sigma", "theta", "话树", "分支")
MODELS = ("m-one", "m-two", "m-six")
LABELS = ("here1", "here2", "here3")
FOLDERS = ("/work/app", "/work/api")
AT = "2026-02-16T10:20:30.000Z"
UUID = "0f4e8b1c-2d3a-4c5b-8e6f-7a8b9c0d1e2f"
EVERYTHING = Filter(hide=())

Answers = dict[str, Any]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save an index for every session, however small."""
    monkeypatch.setattr(index_module, "SAVE_AFTER_ROWS", 1)


# -- sessions of all formats


class Writer:
    """Writes rows of one format; ids are numbered."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._number = 0

    def text(self) -> str:
        """Return some words, and often enough filler that the rest of the file is far from its end."""
        filler = "x" * self._random.choice((0, 0, 100, 2000))
        return " ".join((*self._random.choices(WORDS, k=self._random.randint(1, 9)), filler)).strip()

    def title(self) -> str:
        return " ".join(self._random.choices(WORDS, k=3))

    def _id(self) -> str:
        self._number += 1
        return f"{self._number:08d}"

    def begin(self, kind: str, name: str) -> list[Json]:
        """Return the first rows of a file."""
        made: dict[str, list[Json]] = {
            "native": [header(name, self._random.choice(FOLDERS))],
            "claude": [],
            "codex": [
                {"timestamp": AT, "type": "session_meta", "payload": {"id": name, "timestamp": AT, "cwd": FOLDERS[0]}}
            ],
            "myagents": [],
        }
        return made[kind] + [row for _ in range(self._random.randint(1, 12)) for row in self.more(kind)]

    def more(self, kind: str) -> list[Json]:
        """Return the next rows of a file."""
        made: list[Json] = getattr(self, f"_{kind}")()
        return made

    def _parent(self) -> str | None:
        back = self._random.choice((0, 0, 0, 0, 1, 3))
        return f"{self._number - back:08d}" if self._number > back else None

    def _native(self) -> list[Json]:
        pick, parent = self._random, self._parent()
        usage = {"input": 3, "output": 4, "totalTokens": pick.randint(5, 9), "cost": {"total": 0.25}}
        reply = assistant(self.text(), "p", pick.choice(MODELS)) | {"usage": usage}
        reply["content"].append({"type": "thinking", "thinking": self.text()})
        call = {"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": self.text()}}
        kinds: list[Callable[[str], Json]] = [
            lambda i: said(i, parent, self.text()),
            lambda i: entry("message", i, parent, message=reply),
            lambda i: entry("message", i, parent, message={**reply, "content": [*reply["content"], call]}),
            lambda i: entry("message", i, parent, message={"role": "toolResult", "toolCallId": "c1", "content": []}),
            lambda i: entry("label", i, parent, targetId=parent, label=pick.choice(LABELS)),
            lambda i: entry("session_info", i, parent, name=self.title()),
            lambda i: entry("model_change", i, parent, model=f"p/{pick.choice(MODELS)}"),
            lambda i: entry("thinking_level_change", i, parent, thinkingLevel=pick.choice(("high", "none"))),
            lambda i: entry("compaction", i, parent, summary=self.text(), firstKeptEntryId=parent, tokensBefore=9),
        ]
        return [pick.choices(kinds, [6, 6, 2, 2, 1, 1, 1, 1, 1])[0](self._id())]

    def _claude(self) -> list[Json]:
        pick, parent = self._random, self._parent()
        base = {"timestamp": AT, "cwd": pick.choice(FOLDERS), "sessionId": UUID, "isSidechain": False}
        usage = {"input_tokens": 3, "output_tokens": 4}
        kind = pick.choices(("user", "assistant", "title", "boundary"), [6, 6, 1, 1])[0]
        if kind == "title":
            return [{"type": "custom-title", "customTitle": self.title(), "sessionId": UUID}]
        uuid = self._id()
        if kind == "boundary":
            return [boundary(uuid, parent, preTokens=9) | {"sessionId": UUID}]
        message: Json = {"role": kind, "content": [{"type": "text", "text": self.text()}]}
        if kind == "assistant":
            message |= {"id": f"msg_{uuid}", "model": pick.choice(MODELS), "usage": usage}
        return [{"type": kind, "uuid": uuid, "parentUuid": parent, "message": message, **base}]

    def _codex(self) -> list[Json]:
        pick = self._random
        role = pick.choice(("user", "assistant"))
        content = [{"type": "input_text" if role == "user" else "output_text", "text": self.text()}]
        item: Json = {"type": "message", "role": role, "content": content}
        if pick.random() < 0.2:
            return [
                {"timestamp": AT, "type": "turn_context", "payload": {"model": pick.choice(MODELS), "cwd": FOLDERS[0]}}
            ]
        return [{"timestamp": AT, "type": "response_item", "payload": item}]

    def _myagents(self) -> list[Json]:
        role = self._random.choice(("user", "assistant"))
        row: Json = {"id": self._id(), "role": role, "content": self.text(), "timestamp": AT}
        if role == "assistant":
            row["usage"] = {
                "inputTokens": 5,
                "outputTokens": 1,
                "cacheReadTokens": 2,
                "model": self._random.choice(MODELS),
            }
        return [row]


# -- the rig


class Rig:
    """A store, the folders of other agents, their caches, and everything that may happen to them."""

    def __init__(self, folder: Path, seed: int, fs: PosixFilesystem | None = None) -> None:
        self.random = Random(seed)
        self._fs = fs
        self._folder = folder
        self._cache = folder / "cache"
        self._no_cache = folder / "no-cache"
        self._no_cache.write_text("a file instead of a folder, so that nothing can be saved in it")
        self._backups = folder / "backups"
        self._backups.mkdir(parents=True)
        self._writer = Writer(self.random)
        self._store = self._open_store(self._cache)
        self._numbers = iter(range(1_000_000))
        self._handles: list[Session] = []
        self._inodes: dict[int, int] = {}  # of the files of handles, when they were opened
        self._deleted: list[str] = []
        self._formats: dict[str, str] = {}
        self.done: list[str] = []
        home = folder / "home"
        self._sources = [
            Source("pi", str(home / "pi"), str(home / "pi" / "sessions")),
            Source("claude", str(home / "claude"), str(home / "claude" / "projects")),
            Source("codex", str(home / "codex"), str(home / "codex" / "sessions")),
            Source("myagents", str(home / "myagents"), str(home / "myagents" / "sessions")),
            Source("openclaw", str(home / "openclaw"), str(home / "openclaw" / "agents" / "main" / "sessions")),
        ]
        self._library = self._open_library(self._store, self._cache)
        for place, kind, below in (
            ("pi", "native", "--work-app--"),
            ("claude", "claude", "-work-app"),
            ("codex", "codex", "2026/05/01"),
            ("myagents", "myagents", "."),
            ("openclaw", "native", "."),
        ):
            sessions = Path(next(source.sessions for source in self._sources if source.agent == place))
            for number in range(2):
                name = f"{place}{number}"
                rows = Writer(self.random).begin(kind, name)
                path = sessions / below / f"{'rollout-' * (kind == 'codex')}{name}.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("".join(dumps(row) + "\n" for row in rows))
                self._formats[os.path.normpath(path)] = kind
        self._write_lists()
        for _ in range(2):
            self.create()
        self._back_up()

    def _open_store(self, cache: Path) -> Store:
        return store_at(self._folder / "own", cache=cache, fs=self._fs)

    def _open_library(self, store: Store, cache: Path) -> Library:
        return Library(store, self._sources, cache=str(cache))

    def close(self) -> None:
        self._library.close()
        for handle in self._handles:
            with suppress(SessileError):
                handle.close()

    def paths(self) -> list[str]:
        """Return all session files."""
        found = [*(self._folder / "own" / "sessions").rglob("*.jsonl"), *(self._folder / "home").rglob("*.jsonl")]
        return sorted(map(str, found))

    def _path(self) -> str:
        return self.random.choice(self.paths())

    def _own(self) -> str | None:
        paths = [path for path in self.paths() if "/own/" in path]
        return self.random.choice(paths) if paths else None

    # -- operations

    def create(self) -> None:
        if sum("/own/" in path for path in self.paths()) < 5:
            with self._store.create(self.random.choice(FOLDERS), title=self._writer.title(), publish=True) as session:
                for _ in range(self.random.randint(1, 12)):
                    self._append(session)

    def _append(self, session: Session) -> None:
        pick = self.random
        ids = [each.id for each in session.get_entries()]
        what = pick.choices(
            ("say", "answer", "branch", "label", "title", "compact", "model", "think"), [6, 6, 2, 1, 1, 1, 1, 1]
        )[0]
        if what == "answer":
            usage = {"input": 3, "totalTokens": pick.randint(4, 9), "cost": {"total": 0.5}}
            session.append_message(assistant(self._writer.text(), "p", pick.choice(MODELS)) | {"usage": usage})
        elif what == "branch" and ids:
            session.branch(pick.choice(ids))
        elif what == "label" and ids:
            session.append_label_change(pick.choice(ids), pick.choice((*LABELS, None)))
        elif what == "title":
            session.set_session_name(self._writer.title())
        elif what == "compact" and ids:
            session.append_compaction(self._writer.text(), pick.choice(ids), 9)
        elif what == "model":
            session.append_model_change(f"p/{pick.choice(MODELS)}")
        elif what == "think":
            session.append_thinking_level_change(pick.choice(("high", "none")))
        else:
            session.append_message({"role": "user", "content": self._writer.text()})

    def append(self) -> None:
        path = self._own()
        if path is not None:
            with self._store.open(path) as session:
                for _ in range(self.random.randint(1, 4)):
                    self._append(session)

    def append_elsewhere(self) -> None:
        """Another process appends, with its own cache."""
        path = self._own()
        if path is not None:
            cache = tempfile.mkdtemp(dir=self._folder)
            with other_store_at(self._folder / "own", cache=cache, fs=self._fs).open(path) as session:
                self._append(session)

    def fork(self) -> None:
        path = self._own()
        if path is not None and len(self.paths()) < 18:
            with self._store.fork_from(path, self.random.choice(FOLDERS)):
                pass

    def rewrite(self) -> None:
        path = self._own()
        if path is not None:
            text = self._writer.text()
            with self._store.open(path) as session:
                session.rewrite_entries(lambda each: {**each, "summary": text} if each.type == "compaction" else None)

    def move(self) -> None:
        path = self._own()
        if path is not None:
            with self._store.open(path) as session:
                session.move_to(self.random.choice(FOLDERS))

    def delete(self) -> None:
        path = self._own()
        if path is not None:
            self._deleted.append(self._store.delete(path).token)

    def undo(self) -> None:
        if self._deleted:
            self._store.undo(self._deleted.pop())

    def keep_open(self) -> None:
        """Leave a session open, for reading or writing."""
        path = self._path()
        readonly = "/own/" not in path or self.random.random() < 0.5
        handle = self._store.open(path, readonly=readonly)
        self._handles.append(handle)
        self._inodes[id(handle)] = os.stat(path).st_ino
        if len(self._handles) > 4:
            self._handles.pop(0).close()

    def append_to_open(self) -> None:
        for handle in self._handles:
            if not handle.readonly:
                self._append(handle)
                return

    def close_open(self) -> None:
        if self._handles:
            self._handles.pop(self.random.randrange(len(self._handles))).close()

    def reopen(self) -> None:
        """Start over with new objects, as the next process does."""
        self._library.close()
        self._store = self._open_store(self._cache)
        self._library = self._open_library(self._store, self._cache)

    # -- edits of journals

    def edit(self) -> None:
        """Change a file in some way that keeps its size: a text, a parent, a model, a label, a folder."""
        path = self._path()
        data = Path(path).read_bytes()
        for _ in range(self.random.randint(1, 3)):
            data = self._edited(data)
        self._put(path, data)

    def edit_and_grow(self) -> None:
        """Change something far before the end, and append."""
        path = self._path()
        rows = self._writer.more(self._format_of(path))
        grown = "".join(dumps(row) + "\n" for row in rows).encode()
        self._put(path, self._edited(Path(path).read_bytes()) + grown)

    def _edited(self, data: bytes) -> bytes:
        pick = self.random
        lines = data.split(b"\n")
        kind = pick.choice(("word", "word", "model", "label", "folder", "parent", "parent", "role"))
        if kind == "parent":
            ids = [found[1] for raw in lines if (found := re.search(rb'"(?:uu)?id":("[0-9A-Za-z]{8}")', raw))]
            number = pick.randrange(len(lines))
            if ids:
                other = rb"\g<1>" + pick.choice(ids)
                lines[number] = re.sub(rb'("parent(?:Uui|I)d":)"[0-9A-Za-z]{8}"', other, lines[number])
            return b"\n".join(lines)
        texts = {"word": WORDS[:7], "model": MODELS, "label": LABELS, "folder": FOLDERS, "role": ('"user"', '"uxer"')}[
            kind
        ]
        old, new = (text.encode() for text in pick.sample(texts, 2))
        number = pick.randrange(len(lines))
        if pick.random() < 0.5:
            return data.replace(old, new, 1)
        lines[number] = lines[number].replace(old, new)
        return b"\n".join(lines)

    def _put(self, path: str, data: bytes) -> None:
        """Write a file as some program may: in place, truncated first, by rename, or by rename twice; with its old time."""
        pick, before = self.random, os.stat(path)
        how = pick.choice(("in place", "truncate", "rename", "rename twice"))
        if how == "in place":
            with open(path, "r+b") as file:
                file.write(data)
                file.truncate()
        elif how == "truncate":
            Path(path).write_bytes(data)
        else:
            for _ in range(1 if how == "rename" else 2):
                temp = f"{path}.new"
                Path(temp).write_bytes(data)
                os.replace(temp, path)
        if pick.random() < 0.6:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def cut(self) -> None:
        path = self._path()
        data = Path(path).read_bytes()
        at = self.random.randrange(len(data) + 1)
        if self.random.random() < 0.5:
            at = data.rfind(b"\n", 0, at) + 1
        before = os.stat(path)
        os.truncate(path, at)
        if self.random.random() < 0.5:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def append_foreign(self) -> None:
        """Another program appends without a lock; its last line may be torn."""
        path = self._path()
        rows = [row for _ in range(self.random.randint(1, 3)) for row in self._writer.more(self._format_of(path))]
        data = "".join(dumps(row) + "\n" for row in rows).encode()
        if self.random.random() < 0.3:
            data = data[: -self.random.randint(1, 30)]
        with open(path, "ab") as file:
            file.write(data)

    def touch(self) -> None:
        path = self._path()
        times = self.random.choice((None, (1e9, 1e9), (1.9e9, 1.9e9)))
        os.utime(path, times)

    def change_mode(self) -> None:
        path = self._path()
        os.chmod(path, 0o600)

    def swap(self) -> None:
        """Swap two files of one format."""
        path = self._path()
        others = [each for each in self.paths() if each != path and self._format_of(each) == self._format_of(path)]
        if others:
            other = self.random.choice(others)
            os.rename(path, f"{path}.swap")
            os.rename(other, path)
            os.rename(f"{path}.swap", other)

    def replace(self) -> None:
        """Replace a file by a copy of another one."""
        path, other = self._path(), self._path()
        if path != other:
            shutil.copy2(other, f"{path}.new")
            os.replace(f"{path}.new", path)

    def restore(self) -> None:
        """Restore an earlier version, with its times, in place or by rename."""
        path = self._path()
        versions = sorted(self._backups.glob(f"*-{self._backup_name(path)}"))
        if versions:
            version = self.random.choice(versions)
            if self.random.random() < 0.5:
                shutil.copy2(version, path)
            else:
                shutil.copy2(version, f"{path}.new")
                os.replace(f"{path}.new", path)

    def _back_up(self) -> None:
        number = next(self._numbers)
        for path in self.paths():
            shutil.copy2(path, self._backups / f"{number}-{self._backup_name(path)}")
        self._forget_backups()

    def back_up(self) -> None:
        """Keep the sessions, and the cache, as they are."""
        self._back_up()
        target = self._backups / f"{next(self._numbers)}.cache"
        if self._cache.exists():
            shutil.copytree(self._cache, target)

    def _forget_backups(self) -> None:
        for old in sorted(self._backups.iterdir(), key=lambda each: each.stat().st_ctime_ns)[:-80]:
            shutil.rmtree(old) if old.is_dir() else old.unlink()

    def _backup_name(self, path: str) -> str:
        return os.path.relpath(path, self._folder).replace("/", "!")

    def _format_of(self, path: str) -> str:
        return self._formats.get(path, "native")

    def retitle(self) -> None:
        """Another agent rewrites, or deletes, its list of sessions."""
        self._write_lists()

    def _write_lists(self) -> None:
        pick, home = self.random, self._folder / "home"
        rows = [
            {"id": f"myagents{n}", "agentDir": pick.choice(FOLDERS), "title": self._writer.title(), "createdAt": AT}
            for n in range(2)
            if pick.random() < 0.8
        ]
        named = {
            f"agent:main:{n}": {"sessionId": f"openclaw{n}", "displayName": self._writer.title(), "updatedAt": 1}
            for n in range(2)
            if pick.random() < 0.8
        }
        for path, value in (
            (home / "myagents" / "sessions.json", rows),
            (home / "openclaw" / "agents" / "main" / "sessions" / "sessions.json", named),
        ):
            if pick.random() < 0.1:
                path.unlink(missing_ok=True)
            elif not path.exists():
                path.write_text(json.dumps(value))
            else:
                self._put(str(path), json.dumps(value).encode())

    # -- damage to caches

    def _cache_files(self, pattern: str = "**/*") -> list[Path]:
        return sorted(path for path in self._cache.glob(pattern) if path.is_file() and path.name != "catalog.lock")

    def damage_cache(self) -> None:
        """Change the bytes, the size or the time of a cache file, perhaps with its old time."""
        files = self._cache_files(self.random.choice(("index/**/*", "catalog*")))
        if not files:
            return
        path = self.random.choice(files)
        before, data = path.stat(), bytearray(path.read_bytes())
        how = self.random.choice(("flip", "flip", "cut", "zero", "touch", "delete", "fill"))
        if how == "flip" and data:
            for _ in range(self.random.choice((1, 1, 20))):
                data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        elif how == "cut":
            del data[self.random.randrange(len(data) + 1) :]
        elif how == "zero" and data:
            at = self.random.randrange(len(data))
            data[at : at + 4096] = bytes(len(data[at : at + 4096]))
        elif how == "fill":
            data[:] = self.random.randbytes(len(data))
        if how == "touch":
            os.utime(path)
            return
        if how == "delete":
            path.unlink()
            return
        with open(path, "r+b") as file:
            file.write(data)
            file.truncate()
        if self.random.random() < 0.7:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def swap_indexes(self) -> None:
        files = self._cache_files("index/**/*")
        if len(files) > 1:
            first, second = self.random.sample(files, 2)
            data = first.read_bytes()
            shutil.copy2(second, first)
            second.write_bytes(data)

    def restore_cache(self) -> None:
        """Restore an earlier cache: all of it or one file, over the present one or by rename."""
        caches = sorted(self._backups.glob("*.cache"))
        if not caches:
            return
        kept = self.random.choice(caches)
        if self.random.random() < 0.3:
            shutil.rmtree(self._cache, ignore_errors=True)
            shutil.copytree(kept, self._cache)
            return
        files = [path for path in kept.rglob("*") if path.is_file() and path.name != "catalog.lock"]
        for path in files if self.random.random() < 0.5 else self.random.sample(files, 1):
            target = self._cache / path.relative_to(kept)
            target.parent.mkdir(parents=True, exist_ok=True)
            if self.random.random() < 0.5:
                shutil.copy2(path, f"{target}.new")
                os.replace(f"{target}.new", target)
            else:
                shutil.copy2(path, target)

    def plant_rows(self) -> None:
        """Write wrong values into the catalog with SQLite, and give it its old time."""
        path = self._cache / "catalog.db"
        if not path.exists():
            return
        before = path.stat()
        wrong = self.random.choice(
            (
                "UPDATE sessions SET title = 'planted', messages = 99, cwd = '/planted'",
                "UPDATE sessions SET first_text = 'planted', cost = 9e9, last_role = 'planted'",
                "UPDATE sessions SET size = size + 1",
                "DELETE FROM sessions WHERE number % 2",
                "INSERT INTO texts (texts) VALUES ('delete-all')",
                "UPDATE sessions SET path = cast('/nowhere' AS BLOB) WHERE number % 3 = 0",
                "INSERT INTO texts (rowid, text) SELECT number << 40 | 77, 'alpha' FROM sessions",
            )
        )
        with suppress(sqlite3.Error):
            database = sqlite3.connect(path, timeout=0)
            with suppress(sqlite3.Error), database:
                database.execute(wrong)
            database.close()
        if self.random.random() < 0.7 and path.exists():
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def drop_cache(self) -> None:
        shutil.rmtree(self._cache, ignore_errors=True)

    # -- questions

    OPERATIONS = (
        "create", "append", "append", "append", "append_elsewhere", "fork", "rewrite", "move", "delete", "undo",
        "keep_open", "keep_open", "append_to_open", "append_to_open", "close_open", "reopen",
    )  # fmt: skip
    EDITS = (
        "edit", "edit", "edit", "edit_and_grow", "cut", "append_foreign", "append_foreign", "touch", "change_mode", "swap",
        "replace", "restore", "back_up", "retitle",
    )  # fmt: skip
    DAMAGE = ("damage_cache", "damage_cache", "swap_indexes", "restore_cache", "plant_rows", "drop_cache")

    def step(self, only: Sequence[str] = ()) -> None:
        """Let something happen. An operation may be refused, with a typed error."""
        pick = self.random
        for _ in range(pick.randint(1, 4)):
            kinds = pick.choices((self.OPERATIONS, self.EDITS, self.DAMAGE), [5, 5, 2])[0]
            name = pick.choice(only or kinds)
            self.done.append(name)
            with suppress(SessileError):
                getattr(self, name)()

    def differences(self) -> list[str]:
        """Ask everything with and without the caches; return what differs."""
        fresh = self._open_store(self._no_cache)
        words = (self.random.choice(WORDS), " ".join(self.random.sample(WORDS, 2)))
        found: list[str] = []
        with Library(fresh, self._sources, cache=None) as library:
            found += _compared("library", library_facts(self._library, words), library_facts(library, words))
        for path in self.paths():
            found += _compared(path, session_facts(self._store, path), session_facts(fresh, path))
        for handle in [*self._handles]:
            found += self._compare_open(handle, fresh)
        return found

    def _compare_open(self, handle: Session, fresh: Store) -> list[str]:
        """Compare what an open handle tells with the file, if it still has that session's file."""
        try:
            with fresh.open(handle.path, readonly=True) as session:
                if session.id != handle.id or session.format != handle.format or self._is_apart(handle):
                    raise FileNotFoundError
                expected = rows_facts(session, session.leaf_id)
                told = rows_facts(handle, session.leaf_id)
                del expected["context at"], told["context at"]  # a handle keeps the messages that it has read
        except (SessileError, OSError):
            self._handles.remove(handle)  # it was replaced, deleted or damaged; the handle may say so
            with suppress(SessileError):
                handle.close()
            return []
        return _compared(f"open {handle.path}", told, expected)

    def _is_apart(self, handle: Session) -> bool:
        """Return whether a handle reads a file that has lost its name: that of another agent stays with the open file."""
        return handle.format != "native" and os.stat(handle.path).st_ino != self._inodes[id(handle)]


def _compared(where: str, told: Answers, expected: Answers) -> list[str]:
    found = []
    for name in {**told, **expected}:
        one, other = told.get(name), expected.get(name)
        if isinstance(one, SessionRow) and isinstance(other, SessionRow):
            one, other = dict(zip(one._fields, one, strict=True)), dict(zip(other._fields, other, strict=True))
            found += _compared(f"{where}: {name}", one, other)
        elif one != other:
            found.append(f"{where}: {name}: {one!r} instead of {other!r}")
    return found


def session_facts(store: Store, path: str) -> Answers:
    """Return everything that a session tells, or the error. The check comes last, because it removes wrong caches."""
    try:
        facts = _told(store, path)
    except SessileError as error:
        facts = {"error": repr(error)}
    try:
        report = check(store, path)
    except SessileError as error:
        return {**facts, "check": repr(error)}
    problems = tuple(each for each in report.problems if each.kind != "wrong_cache")
    return {**facts, "check": report._replace(problems=problems)}


def _told(store: Store, path: str) -> Answers:
    with store.open(path, readonly=True) as session:
        leaf = session.leaf_id
        return {
            "about": (session.id, session.cwd, session.title, session.title_source, session.tag, leaf, session.format),
            "state": None if leaf is None else session.get_state(leaf),
            "context": session.context(),
            "gaps": session.get_gaps(),
            **rows_facts(session, leaf),
            "findings": sorted(map(repr, session.findings)),
        }


def rows_facts(session: Session, leaf: str | None) -> Answers:
    """Return what the rows of a session tell."""
    return {
        "entries": [(each.id, each.parent_id, each.type, bytes(each.raw)) for each in session.get_entries()],
        "count": session.count_entries(),
        "tree": [_branch(node) for node in session.get_tree()],
        "labels": dict(session.get_labels()),
        "heads": [each.id for each in session.get_heads()],
        "branch": [] if leaf is None else [each.id for each in session.get_branch(leaf)],
        "context at": None if leaf is None else session.context(leaf),
    }


def _branch(node: TreeNode) -> tuple[str, str | None, list[Any]]:
    return node.entry.id, node.label, [_branch(child) for child in node.children]


def library_facts(library: Library, words: tuple[str, ...]) -> Answers:
    """Return everything that lists and searches tell; the numbers of rows and the order of hits may differ."""
    listing = library.list(EVERYTHING, timeout=None)
    facts: Answers = {f"row {row.path}": row._replace(number=0, searchable=False) for row in listing.rows}
    facts["listing"] = (listing.total, listing.hidden, listing.unjudged, listing.unread)
    facts["default"] = sorted(row.path for row in library.list(timeout=None).rows)
    for text in words:
        results = library.search(text, fields=INDEXED, limit=100_000, timeout=None)  # the rest is scanned below
        facts[f"hits of {text}"] = sorted(repr(hit._replace(rank=None)) for hit in results.hits)
        facts[f"titles with {text}"] = sorted(results.titles)
        facts[f"matches of {text}"] = (
            {field: results.matches[field] for field in INDEXED},
            results.pending,
            results.unread,
            results.ignored,
        )
        needle = search.Needle(text)
        notices: list[str] = []
        facts[f"scan for {text}"] = sorted(
            repr((each.row.path, each.match)) for each in library.scan(needle, notices=notices)
        )
    usage = library.usage(timeout=None)
    facts["usage"] = (sorted(map(repr, usage.sessions)), usage.hidden, usage.uncounted)
    facts["tables"] = (repr(by_model(usage)), repr(by_project(usage)))
    facts["facets"] = library.facets()
    return facts


def run(
    folder: Path, seed: int, rounds: int, only: Sequence[str] = (), fs: PosixFilesystem | None = None
) -> Iterator[list[str]]:
    """Yield what differs after each round."""
    rig = Rig(folder, seed, fs)
    try:
        for number in range(rounds):
            rig.done.append(f"round {number}")
            rig.step(only)
            found = rig.differences()
            if found:
                found.insert(0, f"seed {seed}: after {', '.join(rig.done[-40:])}")
            yield found
    finally:
        rig.close()


def check_rounds(folder: Path, seed: int, rounds: int) -> None:
    found = [difference for differences in run(folder, seed, rounds) for difference in differences]
    assert not found, "\n".join(each[:1500] for each in found[:5])
    measured("P45", "caches against journals", rounds=rounds, differences=0)


@pytest.mark.parametrize("seed", range(2))
def test_caches_never_change_an_answer(tmp_path: Path, seed: int) -> None:
    """After any operation, edit or damage, lists, searches and sessions tell the same as without a cache."""
    check_rounds(tmp_path, seed, 10)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_caches_never_change_an_answer_at_length(tmp_path: Path, seed: int) -> None:
    """The same for 2,000 rounds."""
    check_rounds(tmp_path, seed, 50)


# -- teeth


class Blind(PosixFilesystem):
    """Shows files without some members of their status, as if nothing compared them."""

    def __init__(self, **constant: int) -> None:
        self._constant = constant

    def lstat(self, path: Any, *, dir_fd: int | None = None) -> Any:
        return self._shown(super().lstat(path, dir_fd=dir_fd))

    def fstat(self, fd: int) -> Any:
        return self._shown(super().fstat(fd))

    def _shown(self, status: Any) -> Any:
        names = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_size", "st_mtime_ns", "st_ctime_ns")
        return SimpleNamespace(**{name: getattr(status, name) for name in names} | self._constant)


def _believe(name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(name, value)


TEETH: dict[str, tuple[Sequence[str], PosixFilesystem | None, Callable[[pytest.MonkeyPatch], None]]] = {
    "the change time is ignored": (("edit",), Blind(st_ctime_ns=1_000_000_001), lambda patch: None),
    "counted lines are not compared": (
        ("edit_and_grow",),
        None,
        _believe("sessile.storage.catch_up.Prefix.digest", lambda prefix: b"same"),
    ),
    "lists are not compared": (
        ("retitle",),
        None,
        _believe("sessile.storage.catalog.has_changed", lambda *arguments: False),
    ),
    "the seal is not compared": (
        ("plant_rows",),
        None,
        _believe("sessile.storage.catalog.CatalogFile._fits", lambda file, seal, mark: mark is not None),
    ),
    "the index is not compared": (
        ("edit", "edit_and_grow"),
        None,
        _believe("sessile.storage.reader.JournalReader._starts_with", lambda *arguments: True),
    ),
}


@pytest.mark.parametrize("missing", TEETH)
def test_the_rig_notices_a_missing_protection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """If one comparison is left out, an answer differs after a few rounds."""
    only, fs, remove = TEETH[missing]
    remove(monkeypatch)
    assert any(run(tmp_path, 2, 60, only, fs)), f"no difference although {missing}"
