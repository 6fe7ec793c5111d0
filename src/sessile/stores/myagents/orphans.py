"""Session files of MyAgents that its index does not name: shown, and taken into the index when somebody asks for it.

A damaged index, a deletion of the first versions or a copied file leave them. MyAgents never shows them; nothing of them is
lost. Showing looks at names and sizes alone. The file itself is not touched, whatever is done here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sessile.core.text import iso_timestamp, parse_timestamp
from sessile.errors import Invalid, SessionNotFound, storage_failures
from sessile.formats.myagents import stats
from sessile.formats.myagents.titles import DEFAULT, title_of
from sessile.formats.myagents.types import Message, Metadata, check_session_id, is_session_id
from sessile.stores.myagents.directory_lock import PATIENT
from sessile.stores.myagents.store import MyAgentsStore

_ENDINGS = (".jsonl.gz", ".jsonl", ".json")


class Orphan(NamedTuple):
    """Files of one session without a row; `session_id` is `None` if the name of the file cannot be that of a session."""

    session_id: str | None
    paths: tuple[str, ...]
    bytes: int
    modified: int  # nanoseconds, of the newest file


def orphans(store: MyAgentsStore) -> list[Orphan]:
    """The sessions that have a file and no row, by name."""
    known = store.index.rows()
    found: dict[str, Orphan] = {}
    for name, path in _session_files(store):
        if name in known:
            continue
        with storage_failures(path, "look at a session"):
            try:
                status = store.fs.lstat(path)
            except FileNotFoundError:
                continue  # gone since
        before = found.get(name, Orphan(name if is_session_id(name) else None, (), 0, 0))
        size, modified = before.bytes + status.st_size, max(before.modified, status.st_mtime_ns)
        found[name] = Orphan(before.session_id, (*before.paths, path), size, modified)
    return [found[name] for name in sorted(found)]


def _session_files(store: MyAgentsStore) -> Iterator[tuple[str, str]]:
    """The name of a session and the path of a file of it, for every file that looks like one."""
    for folder in (store.places.sessions, store.places.transcripts_v2):
        with storage_failures(folder, "look for sessions"):
            try:
                names = store.fs.names(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
        for name in names:
            ending = next((each for each in _ENDINGS if name.endswith(each)), None)
            if ending is not None and not name.startswith("."):
                yield name.removesuffix(ending), f"{folder}/{name}"


def adopt(store: MyAgentsStore, session_id: str, agent_dir: str, title: str | None = None) -> Metadata:
    """Give a session file a row in the index: times, title and statistics are those of its messages."""
    loaded = store.load(check_session_id(session_id))
    if loaded.path is None:
        raise SessionNotFound(f"there is no file of {session_id} to adopt", path=store.places.session(session_id))
    if not agent_dir:
        raise Invalid(
            "a session of MyAgents belongs to a folder", path=loaded.path, hint="say in which folder the agent worked"
        )
    with storage_failures(loaded.path, "look at a session"):
        written = store.fs.lstat(loaded.path).st_mtime_ns // 1_000_000
    messages = loaded.messages
    moments = [at for at in (parse_timestamp(message.timestamp) for message in messages) if at is not None] or [written]
    row = Metadata(
        {
            "id": session_id,
            "agentDir": agent_dir,
            "title": title or _title(messages),
            "createdAt": iso_timestamp(min(moments)),
            "lastActiveAt": iso_timestamp(max(moments)),
            "stats": stats.recount(messages),
        }
    )
    store.index.create(row, PATIENT)
    return row


def _title(messages: list[Message]) -> str:
    """What MyAgents would have called the session."""
    return next((title_of(message.text) for message in messages if message.role == "user"), DEFAULT)
