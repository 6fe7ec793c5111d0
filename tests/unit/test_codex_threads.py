"""Sessions of Codex in several files: forks that point into their parent, and rewinds in files of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sessile import Library, Store
from sessile.session import Session
from sessile.storage.layout import Source

ROOT = "01a1e659-4481-7992-a097-3b7937fe9b7d"
FORK = "01a1e65b-1591-7d61-bcd0-b0db16e7c7bd"
SECOND = "01a1e65b-6b33-7042-8380-a42ef57588b9"
SEGMENT = "01a1e660-ba37-7e73-9ef3-8eeaee2e0e91"
LATER = "01a1e661-0f38-7150-b0dd-dd23c6c60aab"
DAY = "sessions/2026/11/16"


class Rollout:
    """A rollout that is being written: rows are numbered as Codex does."""

    def __init__(self, home: Path, name: str, thread: str, at: str = "21-52-52", **meta: Any) -> None:
        self.path = home / DAY / f"rollout-2026-11-16T{at}-{name}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        base = meta.get("history_base")
        self.ordinal = base["end_ordinal_exclusive"] if base else 0
        self.thread = thread
        known = {"id": thread, "session_id": thread, "cwd": "/work/app", "model_provider": "acme", **meta}
        self.row(
            "session_meta", {"timestamp": "2026-11-16T21:52:52.000Z", "base_instructions": {"text": "be brief"}} | known
        )
        self.row("turn_context", {"model": "gpt-x"})

    def row(self, kind: str, payload: Any, **members: Any) -> None:
        """Append a row."""
        row = {"timestamp": "2026-11-16T21:53:00.000Z", "ordinal": self.ordinal, "type": kind, "payload": payload}
        with self.path.open("a") as file:
            file.write(json.dumps(row | members) + "\n")
        self.ordinal += 1

    def turn(self, question: str, answer: str, tokens: int = 7) -> None:
        """Append a question and its answer."""
        noted = {"internal_chat_message_metadata_passthrough": {"content_item_kinds": ["user.text"]}}
        part = {"type": "input_text", "text": question}
        self.row("response_item", {"type": "message", "role": "user", "content": [part], **noted})
        said = {"type": "output_text", "text": answer}
        self.row("response_item", {"type": "message", "role": "assistant", "content": [said]})
        usage = {"input_tokens": tokens, "output_tokens": 1, "total_tokens": tokens + 1}
        self.row("token_usage_record", {"response_id": f"resp_{answer}", "usage": usage})

    @property
    def here(self) -> dict[str, Any]:
        """A `history_base` that continues after the last row."""
        end = {"end_ordinal_exclusive": self.ordinal, "end_byte_offset": self.path.stat().st_size}
        return {"thread_id": self.thread, **end}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / ".codex"


def opened(home: Path, rollout: Rollout) -> Session:
    return Store(str(home.parent / "store")).open(rollout.path, readonly=True)


def library_of(home: Path) -> Library:
    source = Source("codex", str(home), str(home / "sessions"))
    return Library(Store(str(home.parent / "store")), [source])


def texts(session: Session) -> list[str]:
    """Return the texts of a context, without the system prompt."""
    messages = session.context().messages
    return [part["text"] for message in messages for part in message["content"] if message["role"] != "system"]


def said_in(session: Session, entry_id: str) -> str:
    """Return the text of an entry."""
    entry = session.get_entry(entry_id)
    assert entry is not None
    text: str = entry["message"]["content"][0]["text"]
    return text


@pytest.mark.mission("N4")
def test_a_fork_continues_its_parent_up_to_the_point_where_it_was_made(home: Path) -> None:
    """What the parent said before the fork is in the context, what it said later is not; forks of forks too."""
    parent = Rollout(home, ROOT, ROOT)
    parent.turn("one", "first")
    fork = Rollout(home, FORK, FORK, history_base=parent.here, forked_from_id=ROOT)
    parent.turn("two", "second")
    fork.turn("other", "third")
    second = Rollout(home, SECOND, SECOND, history_base=fork.here, forked_from_id=FORK)
    fork.turn("later", "fourth")
    second.turn("last", "fifth")
    with opened(home, fork) as session:
        assert texts(session) == ["one", "first", "other", "third", "later", "fourth"]
        assert (session.id, session.header["parentSession"]) == (FORK, str(parent.path))
    with opened(home, second) as session:
        assert texts(session) == ["one", "first", "other", "third", "last", "fifth"]
        assert session.context().models == {"default": "acme/gpt-x"}


@pytest.mark.mission("N4")
def test_a_fork_is_counted_and_searched_without_the_rows_of_its_parent(home: Path) -> None:
    """Shared rows count once. A hit in a fork has the id that the entry has in the opened session."""
    parent = Rollout(home, ROOT, ROOT)
    parent.turn("one", "first")
    fork = Rollout(home, FORK, FORK, history_base=parent.here, forked_from_id=ROOT)
    fork.turn("other zebra", "third")
    with library_of(home) as library:
        library.catch_up("index")
        rows = {row.id: row for row in library.list().rows}
        assert rows[FORK].parent == str(parent.path) and rows[FORK].first_text == "other zebra"
        counts = rows[FORK].counts
        assert counts is not None and (counts.user_messages, counts.total_tokens) == (1, 8)
        (hit,) = library.search("zebra", fields=["text"]).hits
    assert hit.entry_id is not None
    with opened(home, fork) as session:
        assert said_in(session, hit.entry_id) == "other zebra"


def test_a_fork_without_its_parent_shows_its_own_rows_and_a_finding(home: Path) -> None:
    """A missing file hides nothing silently."""
    parent = Rollout(home, ROOT, ROOT)
    parent.turn("one", "first")
    fork = Rollout(home, FORK, FORK, history_base=parent.here, forked_from_id=ROOT)
    fork.turn("other", "third")
    parent.path.unlink()
    with opened(home, fork) as session:
        assert texts(session) == ["other", "third"]
        assert [finding.code for finding in session.findings] == ["missing_history"]


def test_a_fork_whose_place_in_bytes_is_wrong_uses_the_numbers_of_rows(home: Path) -> None:
    """A parent that was written again has other offsets, but the same numbers."""
    parent = Rollout(home, ROOT, ROOT)
    parent.turn("one", "first")
    base = parent.here | {"end_byte_offset": parent.here["end_byte_offset"] - 3}
    parent.turn("two", "second")
    fork = Rollout(home, FORK, FORK, history_base=base, forked_from_id=ROOT)
    fork.turn("other", "third")
    with opened(home, fork) as session:
        assert texts(session) == ["one", "first", "other", "third"]


def test_forks_that_continue_each_other_end(home: Path) -> None:
    """A cycle is a finding, not an endless loop."""
    base = {"end_ordinal_exclusive": 2, "end_byte_offset": 100}
    one = Rollout(home, ROOT, ROOT, history_base={"thread_id": FORK, **base})
    one.turn("one", "first")
    other = Rollout(home, FORK, FORK, history_base={"thread_id": ROOT, **base})
    other.turn("two", "second")
    with opened(home, one) as session:
        assert "missing_history" in {finding.code for finding in session.findings}


def rewound(home: Path) -> tuple[Rollout, Rollout]:
    """Return a thread with two turns, and the file after its second turn was taken back."""
    old = Rollout(home, ROOT, ROOT)
    old.turn("one", "first")
    base = old.here
    old.turn("two aardvark", "second")
    new = Rollout(home, f"{ROOT}_{SEGMENT}", ROOT, "22-01-01", history_base=base)
    new.turn("three", "third")
    return old, new


@pytest.mark.mission("N4")
def test_a_rewind_is_a_branch_of_one_session(home: Path) -> None:
    """The rows that were taken back are on a branch; the context goes on from the place of the rewind."""
    _, new = rewound(home)
    with opened(home, new) as session:
        assert texts(session) == ["one", "first", "three", "third"]
        assert len(session.get_heads()) == 2 and not session.findings
        assert [message["role"] for message in session.context().messages].count("system") == 1


@pytest.mark.mission("N4")
def test_a_rewound_session_is_listed_found_and_counted_once(home: Path) -> None:
    """The earlier file is hidden; its rows are found and counted in the later one."""
    _, new = rewound(home)
    with library_of(home) as library:
        library.catch_up("index")
        (row,) = library.list().rows
        assert (row.id, row.path, row.first_text) == (ROOT, str(new.path), "one")
        assert row.counts is not None and (row.counts.user_messages, row.counts.total_tokens) == (3, 24)
        assert library.find(ROOT) == str(new.path)
        (hit,) = library.search("aardvark", fields=["text"]).hits
        assert hit.path == str(new.path) and hit.entry_id is not None
        assert len(library.usage().sessions) == 1
    with opened(home, new) as session:
        assert said_in(session, hit.entry_id) == "two aardvark"


def test_a_session_that_was_rewound_twice_is_one(home: Path) -> None:
    """A later rewind may continue any earlier file of the session."""
    old, new = rewound(home)
    base = new.here | {"thread_id": SEGMENT}
    last = Rollout(home, f"{ROOT}_{LATER}", ROOT, "22-01-23", history_base=base)
    last.turn("four", "fourth")
    with opened(home, last) as session:
        assert texts(session) == ["one", "first", "three", "third", "four", "fourth"]
    again = Rollout(home, f"{ROOT}_{SECOND}", ROOT, "22-02-00", history_base=old.here)
    again.turn("five", "fifth")
    with opened(home, again) as session:
        assert texts(session) == ["one", "first", "two aardvark", "second", "five", "fifth"]
        assert len(session.get_heads()) == 2
    with library_of(home) as library:
        library.catch_up("count")
        (row,) = library.list().rows
        assert row.path == str(again.path) and row.counts is not None and row.counts.user_messages == 5


def test_a_fork_of_a_rewound_session_continues_its_last_file(home: Path) -> None:
    """Such a fork names the segment: it has neither the rows that were taken back nor later ones."""
    _, new = rewound(home)
    fork = Rollout(home, FORK, FORK, history_base=new.here | {"thread_id": SEGMENT}, forked_from_id=ROOT)
    fork.turn("other", "fourth")
    new.turn("later", "fifth")
    with opened(home, fork) as session:
        assert texts(session) == ["one", "first", "three", "third", "other", "fourth"]
        assert session.header["parentSession"] == str(new.path)


def test_a_fork_may_be_taken_back_to_a_place_before_it(home: Path) -> None:
    """A rewind of a fork may go into the rows of its parent."""
    parent = Rollout(home, ROOT, ROOT)
    parent.turn("one", "first")
    early = parent.here
    parent.turn("two", "second")
    fork = Rollout(home, FORK, FORK, history_base=parent.here, forked_from_id=ROOT)
    fork.turn("three", "third")
    back = Rollout(home, f"{FORK}_{SEGMENT}", FORK, "22-01-01", history_base=early)
    back.turn("four", "fourth")
    with opened(home, back) as session:
        assert texts(session) == ["one", "first", "four", "fourth"]


def test_a_part_of_a_session_that_was_archived_is_found(home: Path) -> None:
    """Codex moves files of archived sessions into another folder."""
    parent = Rollout(home, ROOT, ROOT)
    parent.turn("one", "first")
    fork = Rollout(home, FORK, FORK, history_base=parent.here, forked_from_id=ROOT)
    fork.turn("other", "third")
    archive = home / "archived_sessions"
    archive.mkdir()
    parent.path.rename(archive / parent.path.name)
    with opened(home, fork) as session:
        assert texts(session) == ["one", "first", "other", "third"]


def test_reading_a_session_in_several_files_changes_none_of_them(home: Path) -> None:
    """Nothing is written into Codex's folders."""
    _, new = rewound(home)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in home.rglob("*") if path.is_file()}
    with opened(home, new) as session:
        session.context()
    with library_of(home) as library:
        library.search("aardvark")
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in home.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.mission("N4")
def test_names_are_those_that_codex_shows(home: Path) -> None:
    """The last name in its list counts; it is the title in listings and in the session."""
    rollout = Rollout(home, ROOT, ROOT)
    rollout.turn("one", "first")
    names = [{"id": ROOT, "thread_name": name, "updated_at": "2026-11-16T22:00:00Z"} for name in ("Old", "New name")]
    (home / "session_index.jsonl").write_text("".join(json.dumps(name) + "\n" for name in names) + '{"id": "')
    with library_of(home) as library:
        library.catch_up()
        (row,) = library.list().rows
        assert (row.title, row.first_text) == ("New name", "one")
    with opened(home, rollout) as session:
        assert session.title == "New name"


def test_the_copied_history_of_a_sub_agent_is_read_but_not_counted(home: Path) -> None:
    """The model of a sub-agent saw what its parent knew, but the parent's rows are not the sub-agent's."""
    parent = Rollout(home, ROOT, ROOT)
    parent.turn("one", "first")
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": ROOT}}}
    known: dict[str, Any] = {
        "source": spawned,
        "agent_nickname": "Ada",
        "agent_path": "/root/count",
        "parent_thread_id": ROOT,
    }
    child = Rollout(home, FORK, FORK, subagent_history_start_ordinal=6, **known)
    child.row("session_meta", {"id": ROOT, "base_instructions": {"text": "another"}})
    child.turn("one", "first")
    note = {"type": "agent_message", "author": "/root", "recipient": "/root/count"}
    child.row("response_item", note | {"content": [{"type": "input_text", "text": "count"}]})
    said = {"type": "output_text", "text": "done"}
    child.row("response_item", {"type": "message", "role": "assistant", "content": [said]})
    with opened(home, child) as session:
        assert texts(session) == ["one", "first", "count", "done"]
        assert session.context().system == "be brief"
    with library_of(home) as library:
        library.catch_up("count")
        row = next(row for row in library.list().rows if row.id == FORK)
        assert row.counts is not None and (row.counts.user_messages, row.counts.roles.get("assistant")) == (0, 1)
        assert (row.title, row.parent) == ("Ada /root/count", str(parent.path))
