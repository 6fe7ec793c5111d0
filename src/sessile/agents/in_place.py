"""Sessions of other agents, written where they lie: the same verbs, as far as the format goes.

    with store.open("…/3f6c….jsonl", in_place=True) as session:
        session.append_message({"role": "user", "content": "go on"})
        session.set_session_name("Webhook retries")

Rules: only a writer below `stores` touches the file, and only by appending. What the format has no counterpart for raises
`Unsupported` and writes nothing. Content stays whole in the file, also where ours would go to a blob. The leaf is where the
other agent would go on; one that was moved without an append is forgotten.

A session of MyAgents is in a list, too: its title stands there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NoReturn

from sessile.agents.base import unsupported
from sessile.agents.claude import rows
from sessile.agents.claude.journal import TranscriptJournal
from sessile.agents.claude.rows import AI_TITLE
from sessile.agents.claude.translation import uuid_for
from sessile.agents.listed import myagents_at
from sessile.agents.myagents.journal import MessagesJournal
from sessile.agents.myagents.places import session_at
from sessile.agents.myagents.store import MyAgentsStore
from sessile.agents.myagents.translation import NAME as MYAGENTS
from sessile.agents.reader import format_name, refusal
from sessile.core.entries import Payload
from sessile.core.text import clean_name
from sessile.errors import Unsupported
from sessile.session import OnLeafMoved, Receipt, Session

if TYPE_CHECKING:
    from sessile.store import Store


def open_for_writing(store: Store, path: str, *, in_place: bool) -> Session:
    """Another agent's session, if somebody has said that it may be written, and something can write it."""
    if store.layout.keeps(path):
        raise Unsupported("this is the copy of a session that was kept, byte for byte", path=path, hint="fork it")
    name = format_name(store.fs, path)
    if not in_place or name not in _WRITERS:
        raise refusal(name, path)
    return _WRITERS[name](store, path)


class InPlaceSession(Session):
    """A session of another agent that is written where it lies."""

    def set_session_file(self, path: str) -> NoReturn:
        """What is written here is not written elsewhere: another session is opened by itself."""
        raise Unsupported("another agent's session stays the one that it is", path=self.path, hint="open the other one")

    def _stored(self, entry: Payload) -> Payload:
        return entry


class TranscriptSession(InPlaceSession):
    """A session of Claude Code that is written in its transcript."""

    def __init__(self, store: Store, journal: TranscriptJournal) -> None:
        super().__init__(store, journal, journal, ours=False)
        self._transcript = journal

    def set_session_name(self, name: str, source: Literal["user", "auto"] = "user") -> bool:
        """Name the session as Claude Code does; an automatic name never replaces another. Says whether it was set."""
        name = clean_name(name)
        with self._lock:
            if not name or (source == "auto" and self.title is not None):
                return False
            row = rows.title_row(self.id, name)
            if source == "auto":
                row = rows.value_row(self.id, AI_TITLE, name)
            self._transcript.note(row)
            return True

    def set_tag(self, tag: str | None) -> str | None:
        """Tag the session as Claude Code does; `None` takes the tag away. Gives the tag as it is kept."""
        with self._lock:
            row = rows.tag_row(self.id, tag)
            self._transcript.note(row)
            return str(row["tag"]) or None

    def _ids(self, count: int, key: str | None) -> list[str]:
        """Ids that are the uuids of their rows, so that what Claude Code hangs from them is found."""
        return [uuid_for(self.id, entry_id) for entry_id in super()._ids(count, key)]


class MyAgentsSession(InPlaceSession):
    """A session of MyAgents that is written in its file; its title stands in MyAgents' list."""

    def __init__(self, store: Store, theirs: MyAgentsStore, journal: MessagesJournal) -> None:
        super().__init__(store, journal, journal, ours=False)
        self._theirs = theirs
        self.notices = journal.notices

    def append_many(
        self,
        entries: Iterable[Payload],
        expected_leaf: str | None = None,
        key: str | None = None,
        on_leaf_moved: OnLeafMoved = "branch",
    ) -> list[Receipt]:
        """Append entries; the file has no branches, so that what another has written meanwhile is followed."""
        follow: OnLeafMoved = "follow" if on_leaf_moved == "branch" else on_leaf_moved
        return super().append_many(entries, expected_leaf, key, follow)

    def set_session_name(self, name: str, source: Literal["user", "auto"] = "user") -> bool:
        """Name the session in MyAgents' list; an automatic name never replaces another. Says whether it was set."""
        name = clean_name(name)
        with self._lock:
            self._writing()
            set_name = self._theirs.suggest if source == "auto" else self._theirs.rename
            if not name or set_name(self.id, name) is None:
                return False
            self._header = {**self._header, "title": name}
            return True

    def set_tag(self, tag: str | None) -> NoReturn:
        """MyAgents knows no tags."""
        raise unsupported(MYAGENTS, "tags", self.path, "tag")

    def _move_leaf(self, leaf: str | None, durable: bool) -> None:
        if leaf != self._leaf:
            raise unsupported(MYAGENTS, "branches", self.path)
        super()._move_leaf(leaf, durable)


def _open_claude(store: Store, path: str) -> Session:
    journal = TranscriptJournal(
        store.fs,
        path,
        index_path=store.layout.index(path),
        power=store.durability == "power",
        patience=store.patience,
    )
    return TranscriptSession(store, journal)


def _open_myagents(store: Store, path: str) -> Session:
    home, session_id = session_at(path) or ("/", "")
    theirs = myagents_at(store, home)
    kept = theirs.files.make_writable(session_id) if session_id else []
    if not session_id or path not in (theirs.places.session(session_id), theirs.places.legacy(session_id)):
        raise Unsupported(
            "only a session in MyAgents' own folder can be written: sessions/<session id>.jsonl",
            path=path,
            hint="fork it (sessile fork), and go on in the copy",
        )
    journal = MessagesJournal(theirs, session_id, index_path=store.layout.index(theirs.places.session(session_id)))
    journal.notices += [f"the session had the form before JSONL; as it was, it is in {original}" for original in kept]
    return MyAgentsSession(store, theirs, journal)


_WRITERS: Mapping[str, Callable[[Store, str], Session]] = {"claude": _open_claude, MYAGENTS: _open_myagents}
