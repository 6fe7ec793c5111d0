"""Handling stores as their tests do it: short ways to fill sessions, and to look at all that a store holds."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable
from typing import Any

from sessile.session import Session
from sessile.storage import atomic
from sessile.storage.survey import below, files_below
from sessile.store import Store

CWD = "/work/app"
AT = "2026-02-16T10:20:30.000Z"

Json = dict[str, Any]
OpenStore = Callable[[], Store]
"""Opens the store under test once more, as another process would."""
Abandon = Callable[[Session], None]
"""Ends an open session as the death of its process would: nothing of it is stored, and nobody holds it any more."""


def user(text: str) -> Json:
    """What a person says."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Json:
    """What a model says."""
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "provider": "p", "model": "m"}


def asked(text: str) -> Json:
    """What a person says, for `append_many`."""
    return {"type": "message", "message": user(text)}


def begun(store: Store, cwd: str = CWD, **options: Any) -> Session:
    """A session that listings show."""
    return store.create(cwd, publish=True, **options)


def say(session: Session, text: str) -> str:
    """Append what a person says; gives the id."""
    return session.append_message(user(text)).id


def answer(session: Session, text: str) -> str:
    """Append what a model says; gives the id."""
    return session.append_message(assistant(text)).id


def told(session: Session) -> list[str]:
    """What is said on the path of a session, as its context has it."""
    return [_text(message) for message in session.context().messages]


def _text(message: Json) -> str:
    content = message.get("content", message.get("summary"))
    return content if isinstance(content, str) else "|".join(block.get("text", "") for block in content or [])


def ids(session: Session) -> list[str]:
    """The ids of all entries, in order."""
    return [entry.id for entry in session.iter_entries()]


def line(record: Json) -> bytes:
    """A record as a line of a session file."""
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def header(session_id: str = "s1", **members: Any) -> Json:
    """The header of a session that another program has written."""
    return {"type": "session", "version": 3, "id": session_id, "timestamp": AT, "cwd": CWD, **members}


def entry(kind: str, entry_id: str | None, parent_id: str | None = None, **members: Any) -> Json:
    """An entry that another program has written; one without an id is of the first version."""
    named = {} if entry_id is None else {"id": entry_id, "parentId": parent_id}
    return {"type": kind, **named, "timestamp": AT, **members}


def place(store: Store, name: str = "2026-02-16T10-20-30-000Z_s1.jsonl") -> str:
    """Where a session of the project would lie."""
    return f"{store.layout.folder(CWD)}/{name}"


def write(store: Store, path: str, *lines: bytes) -> str:
    """A file as another program would have put it there; gives its path."""
    atomic.make_folders(store.fs, posixpath.dirname(path))
    atomic.replace(store.fs, path, lines)
    return path


def data(store: Store, path: str) -> bytes:
    """The bytes of a file."""
    return atomic.read_all(store.fs, path)


def records(store: Store, path: str) -> list[Json]:
    """The lines of a session file, decoded."""
    return [json.loads(raw) for raw in data(store, path).splitlines()]


def files(store: Store, folder: str | None = None) -> dict[str, tuple[int, int, bytes]]:
    """Every file below the root, or below a folder: which it is, when it was changed, and its bytes; not the cache."""
    top = store.layout.root if folder is None else folder
    found = [(path, status) for path, status in files_below(store.fs, top) if not _is_below(store.layout.cache, path)]
    return {path: (status.st_ino, status.st_mtime_ns, data(store, path)) for path, status in found}


def names(store: Store, folder: str) -> list[str]:
    """Everything below a folder, by its path there."""
    return sorted(posixpath.relpath(path, folder) for path, _ in below(store.fs, folder) if path != folder)


def _is_below(folder: str, path: str) -> bool:
    return path.startswith(f"{folder}/")
