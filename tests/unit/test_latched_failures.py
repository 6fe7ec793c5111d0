"""A failed write stays: everything that writes, promises durability or copies the session raises it until `reopen`.

The tables classify every public method, so that a new one has to be classified here.
"""

from __future__ import annotations

import errno
import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.failing import FaultyFilesystem
from myagents_folder import asked, told
from sessile import Session, Store
from sessile.agents.myagents.store import MyAgentsStore
from sessile.aio import AsyncSession
from sessile.errors import StorageFailure, StorageFull, Unsupported
from sessile.session import SessionView
from sessile.storage.base import Filesystem, Journal, OwnJournal
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.journal import FileJournal
from sessile.storage.memory import MemoryFilesystem

from .test_foreign import SESSION
from .test_in_place import ROWS, user

pytestmark = [pytest.mark.promise("P50"), pytest.mark.mission("X18")]

Call = Callable[[Session], object]

RAISES: dict[str, Call] = {
    "append_many": lambda s: s.append_many([{"type": "message", "message": user("x")}]),
    "append_message": lambda s: s.append_message(user("x")),
    "append_messages": lambda s: s.append_messages([user("x"), user("y")]),
    "append_entry": lambda s: s.append_entry({"type": "message", "message": user("x")}),
    "append_thinking_level_change": lambda s: s.append_thinking_level_change("high"),
    "append_model_change": lambda s: s.append_model_change("p/m"),
    "append_compaction": lambda s: s.append_compaction("sum", None, 1),
    "append_custom_entry": lambda s: s.append_custom_entry("x"),
    "append_custom_message_entry": lambda s: s.append_custom_message_entry("x", "text"),
    "append_label_change": lambda s: s.append_label_change(first(s), "label"),
    "append_mode_change": lambda s: s.append_mode_change("plan"),
    "append_ttsr_injection": lambda s: s.append_ttsr_injection(["rule"]),
    "append_session_init": lambda s: s.append_session_init("prompt", "task", []),
    "append_context_edit": lambda s: s.append_context_edit(first(s), None),
    "append_reset_boundary": lambda s: s.append_reset_boundary(),
    "branch": lambda s: s.branch(first(s), durable=True),
    "reset_leaf": lambda s: s.reset_leaf(durable=True),
    "follow": lambda s: s.follow(),
    "branch_with_summary": lambda s: s.branch_with_summary(None, "left"),
    "set_session_name": lambda s: s.set_session_name("name"),
    "set_tag": lambda s: s.set_tag("tag"),
    "rewrite_entries": lambda s: s.rewrite_entries(lambda entry: None),
    "rewrite_tool_call": lambda s: s.rewrite_tool_call("t1", {}),
    "move_to": lambda s: s.move_to("/work/other"),
    "fork": lambda s: s.fork(),
    "create_branched_session": lambda s: s.create_branched_session(first(s)),
    "publish": lambda s: s.publish(),
    "flush": lambda s: s.flush(),
}
"""What writes, promises that something is durable, or copies the session as if it were complete."""

READS: dict[str, Call] = {
    "get_entries": lambda s: s.get_entries(),
    "iter_entries": lambda s: list(s.iter_entries()),
    "iter_lines": lambda s: list(s.iter_lines()),
    "get_entry": lambda s: s.get_entry(first(s)),
    "get_full_entry": lambda s: s.get_full_entry(first(s)),
    "get_gaps": lambda s: s.get_gaps(),
    "blob_pieces": lambda s: s.blob_pieces("0" * 64),
    "count_entries": lambda s: s.count_entries(),
    "iter_rows": lambda s: list(s.iter_rows()),
    "walk_up": lambda s: list(s.walk_up()),
    "read_row": lambda s: [s.read_row(row) for row in s.iter_rows()],
    "read_rows": lambda s: list(s.read_rows(list(s.iter_rows()))),
    "get_branch": lambda s: s.get_branch(),
    "iter_branch": lambda s: list(s.iter_branch()),
    "get_children": lambda s: s.get_children(None),
    "get_heads": lambda s: s.get_heads(),
    "get_abandoned": lambda s: s.get_abandoned(),
    "get_common_ancestor": lambda s: s.get_common_ancestor(first(s), first(s)),
    "get_tree": lambda s: s.get_tree(),
    "get_label": lambda s: s.get_label(first(s)),
    "get_labels": lambda s: s.get_labels(),
    "get_outline": lambda s: s.get_outline(),
    "iter_outline": lambda s: list(s.iter_outline()),
    "context": lambda s: s.context(),
    "build_session_context": lambda s: s.build_session_context(),
    "get_state": lambda s: s.get_state(first(s)),
    "new_session": lambda s: s.new_session().close(),  # another session, and nothing is copied
}
"""What shows the file as it is."""

ENDS = {"close", "reopen", "set_session_file", "in_memory"}  # these raise the failure once and end it; see below


def first(session: Session) -> str:
    return session.get_entries()[0].id


class Full(FaultyFilesystem):
    """A disk without room for one message."""

    def write(self, fd: int, data: Any) -> int:
        if b"lost" in bytes(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, data)


def begun(store: Store, *, publish: bool = True) -> Session:
    session = store.create("/work/app", publish=publish)
    call = {"type": "toolCall", "id": "t1", "name": "read", "arguments": {}}
    role = "assistant" if publish else "user"
    session.append_message({"role": role, "content": [call]})
    session.append_message(user("kept"))
    return session


def in_a_file(folder: Path) -> Session:
    return begun(Store(folder / "root", fs=Full(PosixFilesystem())))


def draft(folder: Path) -> Session:
    return begun(Store(folder / "root", fs=Full(PosixFilesystem())), publish=False)


def in_memory(folder: Path) -> Session:
    return begun(Store("/memory", fs=Full(MemoryFilesystem())))


def claude(folder: Path) -> Session:
    path = folder / "claude" / "projects" / "-work-app" / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return Store(folder / "root", fs=Full(PosixFilesystem()), cache=os.devnull).open(path, in_place=True)


def myagents(folder: Path) -> Session:
    theirs = MyAgentsStore(PosixFilesystem(), str(folder / ".myagents"), str(folder / "theirs"))
    theirs.create("3f6c0001-aaaa", "/work/app")
    theirs.append("3f6c0001-aaaa", [asked(0, "question"), told(1, text="answer")])
    path = folder / ".myagents" / "sessions" / "3f6c0001-aaaa.jsonl"
    return Store(folder / "root", fs=Full(PosixFilesystem()), cache=os.devnull).open(path, in_place=True)


MAKERS = [in_a_file, draft, in_memory, claude, myagents]


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Session:
    """Return a session of each kind in which an append failed."""
    session: Session = request.param(tmp_path)
    with pytest.raises(StorageFull):
        session.append_message(user("lost"))
    request.addfinalizer(lambda: _closed(session))
    return session


def _closed(session: Session) -> None:
    try:
        session.close()
    except StorageFailure:
        pass


def methods_of(cls: type) -> set[str]:
    return {name for name, value in inspect.getmembers(cls, callable) if not name.startswith("_")}


def test_every_method_of_a_session_is_classified() -> None:
    """A new method is added to one of the tables above."""
    assert methods_of(Session) == {*RAISES, *READS, *ENDS}
    assert not set(RAISES) & set(READS)
    assert methods_of(SessionView) <= set(READS)
    assert methods_of(AsyncSession) <= methods_of(Session)  # the facade calls them


@pytest.mark.parametrize("name", RAISES)
def test_what_writes_or_promises_raises_the_failure_again(broken: Session, name: str, tmp_path: Path) -> None:
    """It raises the same error and creates nothing."""
    failure = broken._writer.failure if broken._writer else None
    files = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    with pytest.raises((StorageFailure, Unsupported)) as again:
        RAISES[name](broken)
    if broken.format == "native":
        assert again.value is failure
    assert {path for path in tmp_path.rglob("*") if "cache" not in path.parts} == files


@pytest.mark.parametrize("name", READS)
def test_what_reads_shows_the_file_as_it_is(broken: Session, name: str) -> None:
    """Reading works on, without the entry that failed."""
    READS[name](broken)
    assert not any(b"lost" in entry.raw for entry in broken.get_entries())


def test_a_property_never_raises(broken: Session) -> None:
    """Properties describe the session; they are not promises."""
    for name, _ in inspect.getmembers(type(broken), lambda value: isinstance(value, property)):
        getattr(broken, name)


def test_reopening_ends_the_failure(broken: Session) -> None:
    """After `reopen` everything works again."""
    broken.reopen()
    broken.flush()
    broken.append_message(user("works"))
    broken.fork().close()


def test_closing_raises_the_failure_once(broken: Session) -> None:
    """`close` releases the file and raises; what promises something says that the session is closed."""
    with pytest.raises(StorageFull):
        broken.close()
    broken.close()
    for name in ("append_message", "flush"):
        with pytest.raises(StorageFailure, match="closed"):
            RAISES[name](broken)


def test_switching_to_another_file_raises_the_failure(tmp_path: Path) -> None:
    """The other file is open, and the failure of the first one is not hidden."""
    session = in_a_file(tmp_path)
    with session.new_session() as other:
        other.append_message({"role": "assistant", "content": []})
    with pytest.raises(StorageFull):
        session.append_message(user("lost"))
    with pytest.raises(StorageFull):
        session.set_session_file(other.path)
    assert session.id == other.id
    session.flush()
    session.close()


# -- journals

JOURNAL_RAISES: dict[str, Callable[[FileJournal], object]] = {
    "append": lambda j: j.append([b"{}"], lambda news: [b"{}"]),
    "flush": lambda j: j.flush(),
    "replace": lambda j: j.replace(lambda raw: None),
    "rename": lambda j: j.rename(j.path + "2"),
    "hold": lambda j: j.hold(),
}
JOURNAL_WORKS = {
    *("path", "header", "slot", "last", "find", "read", "read_many", "rows", "count", "up", "state", "labels", "title"),
    *("entry_before", "findings", "items", "failure", "follow"),  # these read
    *("close", "reopen", "release"),  # these end it
    "commit",  # answers for one append: one that was durable before stays so
}


def test_every_method_of_a_journal_is_classified() -> None:
    """A new method of the protocol is added to one of the tables above."""
    names = {name for cls in (Journal, OwnJournal) for base in cls.__mro__ for name in vars(base)}
    assert {name for name in names if not name.startswith("_")} == {*JOURNAL_RAISES, *JOURNAL_WORKS}


@pytest.mark.parametrize("name", JOURNAL_RAISES)
@pytest.mark.parametrize("make", [PosixFilesystem, MemoryFilesystem])
def test_a_journal_raises_the_failure_again(tmp_path: Path, make: Callable[[], Filesystem], name: str) -> None:
    """The journal itself does, not only the session above it."""
    session = begun(Store(tmp_path if make is PosixFilesystem else "/memory", fs=Full(make())))
    journal = session._writer
    assert isinstance(journal, FileJournal)
    with pytest.raises(StorageFull) as failed:
        session.append_message(user("lost"))
    with pytest.raises(StorageFull) as again:
        JOURNAL_RAISES[name](journal)
    assert again.value is failed.value
    _closed(session)
