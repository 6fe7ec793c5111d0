"""The catalog: the content of its rows, how it follows the files, and how it recovers from damage."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders import Json, answered, assistant, entry, said, user
from figures import measured
from sessile.agents.registry import AGENTS
from sessile.core.codec import encode
from sessile.core.kinds import LEAF_MARKER
from sessile.core.statistics import by_model, by_project
from sessile.errors import InvalidQuery
from sessile.storage import atomic, catch_up
from sessile.storage import catalog as catalog_file
from sessile.storage.catalog import VERSION, Catalog
from sessile.storage.catalog_rows import SessionRow
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.filters import SORTS, Filter
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.filesystem_contract import put
from sessions import CWD, FOLDER, answer, append_raw, begun, header, say, snapshot, store_at, write_file

EVERYTHING = Filter(hide=())
SETTLED = 0.06  # seconds after which a change of a file certainly changes its times
USAGE = {"input": 10, "output": 5, "cacheRead": 2, "cacheWrite": 1, "totalTokens": 18, "cost": {"total": 0.25}}


def place(root: Path) -> str:
    return str(root / "sessions")


def session_at(root: Path, name: str, *records: Json | str, folder: str = FOLDER, **members: Any) -> str:
    return write_file(root / "sessions" / folder / f"{name}.jsonl", header(name, **members), *records)


def rows_of(root: Path, wanted: Filter = EVERYTHING, depth: catch_up.Depth = "count") -> list[SessionRow]:
    with Catalog(PosixFilesystem(), str(root / "cache"), AGENTS) as catalog:
        catalog.catch_up([place(root)], depth=depth)
        assert not catalog.notices
        return catalog.list(wanted).rows


def facts(catalog: Catalog, *queries: str) -> tuple[list[Any], list[Any]]:
    """Return everything a catalog reports, except the numbers of its rows."""
    rows = [row._replace(number=0) for row in catalog.list(EVERYTHING).rows]
    found: list[Any] = []
    for query in queries:
        results = catalog.search(query, limit=10_000)
        found += sorted((hit.path, hit.entry_id or "", hit.offset, hit.field, hit.excerpt) for hit in results.hits)
        found += [results.titles, results.pending]
    found.append(sorted(catalog.usage().sessions, key=repr))
    return sorted(rows, key=lambda row: row.path), found


def fresh_facts(root: Path, *queries: str) -> tuple[list[Any], list[Any]]:
    """Return the same from a newly built catalog."""
    with Catalog(PosixFilesystem(), None, AGENTS) as catalog:
        catalog.catch_up([place(root)], depth="index")
        return facts(catalog, *queries)


def some_sessions(root: Path) -> None:
    session_at(root, "a", said("u1", None, "alpha beta"), answered("a1", "u1"), title="First things")
    session_at(root, "b", said("u1", None, "beta 会话树"), answered("a1", "u1"), folder="--other--", cwd="/other")
    session_at(root, "c", *(said(f"e{n}", f"e{n - 1}" if n else None, f"alpha {n} " + "x" * 300) for n in range(60)))


QUERIES = ("alpha", "beta", "话树", "First")


# -- the content of a row


def test_a_row_tells_what_a_session_is_about(tmp_path: Path) -> None:
    """Id, folder, title, first prompt, parent and the end of the conversation are read from the file."""
    path = session_at(
        tmp_path,
        "s1",
        said("u1", None, "What\nis  this?"),
        answered("a1", "u1"),
        title="Named",
        parentSession="/p.jsonl",
    )
    (row,) = rows_of(tmp_path, depth="look")
    assert (row.path, row.id, row.cwd, row.title, row.parent) == (path, "s1", CWD, "Named", "/p.jsonl")
    assert (row.first_text, row.last_role, row.last_status, row.format) == (
        "What is this?",
        "assistant",
        None,
        "native",
    )
    assert row.created_ms == 1_771_237_230_000
    assert row.modified_ns == os.stat(path).st_mtime_ns


def test_counts_are_over_all_branches(tmp_path: Path) -> None:
    """Messages by role, branches, labels, compactions, models, tokens, cost, tools and images are counted."""
    call = {"type": "toolCall", "id": "c", "name": "read", "arguments": {}}
    image = {"type": "image", "data": "…", "mimeType": "image/png"}
    reply = assistant("hm", "anthropic", "opus") | {"usage": USAGE, "stopReason": "toolUse"}
    reply["content"].append(call)
    failed = {"role": "toolResult", "toolCallId": "c", "content": [image], "isError": True}
    session_at(
        tmp_path,
        "s1",
        said("u1", None),
        entry("message", "a1", "u1", message=reply),
        entry("message", "r1", "a1", message=failed),
        said("u2", "u1"),
        entry("label", "l1", "u2", targetId="u1", label="here"),
        entry("compaction", "k1", "l1", summary="so far", firstKeptEntryId="u1", tokensBefore=1),
        entry("custom", "m1", "a1", customType=LEAF_MARKER),
        entry("message", "a2", "k1", message=assistant("oh") | {"stopReason": "error"}),
    )
    (row,) = rows_of(tmp_path)
    counts = row.counts
    assert counts is not None
    assert (counts.entries, counts.messages, counts.user_messages) == (7, 5, 2)
    assert counts.roles == {"user": 2, "assistant": 2, "toolResult": 1}
    assert (counts.branches, counts.labels, counts.compactions, counts.images) == (2, 1, 1, 1)
    assert counts.models == {"anthropic/opus": 1, "p/m": 1}
    assert (counts.input_tokens, counts.total_tokens, counts.cost, counts.unpriced) == (10, 18, 0.25, 1)
    assert (counts.tool_calls, counts.tool_failures, counts.errors, counts.findings) == (1, 1, 1, 0)
    assert (row.last_role, row.last_status) == ("assistant", "error")


def test_what_nobody_told_is_unknown(tmp_path: Path) -> None:
    """Without usage, tokens and cost are unknown, not zero; a cost of zero for used tokens is unknown, too."""
    session_at(tmp_path, "s1", said("u1", None), answered("a1", "u1"))
    free = assistant("hm") | {"usage": USAGE | {"cost": {"total": 0}}}
    session_at(tmp_path, "s2", said("u1", None), entry("message", "a1", "u1", message=free))
    counts = {row.id: row.counts for row in rows_of(tmp_path)}
    assert counts["s1"] and counts["s2"]
    assert (counts["s1"].total_tokens, counts["s1"].cost, counts["s1"].unpriced) == (None, None, 1)
    assert (counts["s2"].total_tokens, counts["s2"].cost, counts["s2"].unpriced) == (18, None, 1)


def test_a_large_session_is_shown_before_it_is_counted(tmp_path: Path) -> None:
    """The depth "look" reads only both ends of a file; counts stay unknown until they are requested."""
    session_at(tmp_path, "s1", said("u1", None, "begin"), *(said(f"e{n}", "u1", "x" * 900) for n in range(500)))
    (row,) = rows_of(tmp_path, depth="look")
    assert (row.first_text, row.last_role, row.counts) == ("begin", "user", None)
    (row,) = rows_of(tmp_path, depth="count")
    assert row.counts and row.counts.entries == 501


def test_the_last_name_in_the_file_counts(tmp_path: Path) -> None:
    """A name set by an entry replaces the one in the header, wherever the entry is."""
    long = [said(f"e{n}", None, "x" * 900) for n in range(50)]
    session_at(tmp_path, "near", said("u1", None), *long, entry("session_info", "i1", "u1", name="New"), title="Old")
    session_at(tmp_path, "far", said("u1", None), entry("session_info", "i1", "u1", name="New"), *long, title="Old")
    assert {row.id: row.title for row in rows_of(tmp_path, depth="look")} == {"near": "New", "far": "Old"}
    assert {row.id: row.title for row in rows_of(tmp_path, depth="count")} == {"near": "New", "far": "New"}


@pytest.mark.parametrize("size", [1, 900])  # characters of each text: both ends are the same bytes, or are apart
@pytest.mark.parametrize(
    "last",
    [
        said("z", "u1", "bye"),
        entry("message", "z", "u1", message={"role": "assistant", "content": [], "stopReason": "error"}),
        entry("message", "z", "u1", message={"role": "toolResult", "content": [], "isError": True}),
        entry("message", "z", "u1", message={"role": "toolResult", "content": []}),
        entry("message", "z", "u1", message={"role": "\ud800", "content": "", "stopReason": "\udfff"}),
        entry("message", "z", "u1", message=None),
        entry("session_info", "z", "u1", name="Named at last"),
        entry("title_change", "z", "u1", title=""),
        entry("custom", "z", "u1", customType="session_info"),
    ],
)
def test_however_lines_are_written_a_look_tells_the_same(tmp_path: Path, last: Json, size: int) -> None:
    """The fast path for compact lines, the slow path for other lines and a full count return the same values."""
    records = [said("u1", None, f"alpha {'x' * size}"), *(said(f"e{n}", "u1", "x" * size) for n in range(9)), last]
    lines = [header("s1", title="Old"), *records]
    path = tmp_path / "sessions" / FOLDER / "s1.jsonl"
    write_file(path, *(encode(line).decode() for line in lines))
    (plain,) = rows_of(tmp_path, depth="look")
    write_file(path, *(json.dumps(line) for line in lines))
    (spaced,) = rows_of(tmp_path, depth="look")
    (counted,) = rows_of(tmp_path)
    ends = [row[8:15] for row in (plain, spaced, counted)]
    assert ends[0] == ends[1] == ends[2]


def test_a_session_without_a_message_is_known_to_be_empty_at_once(tmp_path: Path) -> None:
    """A session without messages is known to be empty at the depth "look", and a listing hides it."""
    session_at(tmp_path, "empty")
    session_at(tmp_path, "talk", said("u1", None))
    assert [row.id for row in rows_of(tmp_path, Filter(), depth="look")] == ["talk"]


def test_a_title_slot_is_the_title(tmp_path: Path) -> None:
    """The title slot that oh-my-pi writes before the header is the title."""
    path = tmp_path / "sessions" / FOLDER / "s1.jsonl"
    write_file(path, {"type": "title", "title": "In the slot"}, header("s1", title="Old"), said("u1", None))
    (row,) = rows_of(tmp_path, depth="look")
    assert row.title == "In the slot"


def test_damage_is_counted(tmp_path: Path) -> None:
    """Unreadable lines are counted as findings, and the other lines are counted as usual."""
    session_at(tmp_path, "s1", said("u1", None), "not json", said("u2", "u1"), '{"type":"message"}')
    (row,) = rows_of(tmp_path)
    assert row.counts and (row.counts.entries, row.counts.findings) == (2, 2)


def test_version_1_is_one_chain(tmp_path: Path) -> None:
    """Entries of version 1 have no ids; this is not a finding."""
    lines = [{"type": "message", "message": user("a")}, {"type": "message", "message": user("b")}]
    session_at(tmp_path, "s1", *lines, version=1)
    (row,) = rows_of(tmp_path)
    assert row.counts and (row.counts.entries, row.counts.branches, row.counts.findings) == (2, 1, 0)


def test_any_text_can_be_stored(tmp_path: Path) -> None:
    """Lone surrogates, NUL and file names that are not UTF-8 can be stored."""
    line = '{"type":"message","id":"u1","parentId":null,"message":{"role":"user","content":"a\\ud800\\u0000b"}}'
    folder = tmp_path / "sessions" / FOLDER
    write_file(
        folder / "s1.jsonl", '{"type":"session","version":3,"id":"s\\udfff","cwd":"/\\ud83d","title":"\\ud800"}', line
    )
    os.rename(folder / "s1.jsonl", os.fsencode(folder) + b"/s\xff.jsonl")
    (row,) = rows_of(tmp_path, depth="index")
    assert row.path.encode("utf-8", "surrogateescape").endswith(b"/s\xff.jsonl")
    assert row.counts and row.counts.entries == 1


# -- listing


def test_a_listing_says_what_it_hides(tmp_path: Path) -> None:
    """Empty sessions, sessions of sub-agents and files that are not sessions are hidden and counted."""
    path = session_at(tmp_path, "s1", said("u1", None), answered("a1", "u1"))
    session_at(tmp_path, "s2")
    write_file(Path(path).with_suffix("") / "sub.jsonl", header("sub"), said("u1", None))
    write_file(tmp_path / "sessions" / FOLDER / "other.jsonl", {"hello": "world"})
    with Catalog(PosixFilesystem(), str(tmp_path / "cache"), AGENTS) as catalog:
        caught = catalog.catch_up([place(tmp_path)])
        listing = catalog.list()
        assert caught.files == 4
        assert [row.id for row in listing.rows] == ["s1"]
        assert listing.hidden == {"empty": 1, "sub_agent": 1, "unreadable": 1}
        assert listing.total == 1
        one_shot = catalog.list(Filter(hide=("one_shot", "empty", "sub_agent", "unreadable")))
        assert not one_shot.rows and one_shot.hidden["one_shot"] == 1


def test_each_reason_hides_what_it_is_a_reason_for(tmp_path: Path) -> None:
    """A row that is hidden for two reasons is counted once, with any filter."""
    path = session_at(tmp_path, "s1", said("u1", None))
    write_file(Path(path).with_suffix("") / "sub.jsonl", header("sub"))
    with Catalog(PosixFilesystem(), None, AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)])
        assert catalog.list().hidden == {"sub_agent": 1}
        assert catalog.list(Filter(hide=("empty",))).hidden == {"empty": 1}
        assert catalog.list(Filter(hide=())).hidden == {}
        assert catalog.list(Filter(pinned=["sub"], sort="cost", offset=5)).hidden == {"sub_agent": 1}
        with pytest.raises(InvalidQuery):
            catalog.list(Filter(hide=("boring",)))


def test_filters_choose_rows(tmp_path: Path) -> None:
    """Rows are filtered by project, time, words, names, ids, models and content."""
    some_sessions(tmp_path)
    session_at(tmp_path, "d", said("u1", None), said("u2", None), said("u3", "u1"), title="Écrire")
    os.utime(session_at(tmp_path, "old", said("u1", None)), (1000, 1000))

    def ids(**filters: Any) -> set[str | None]:
        return {row.id for row in rows_of(tmp_path, Filter(**filters))}

    assert ids(project="/other") == {"b"}
    assert ids(project="/") == {"a", "b", "c", "d", "old"}
    assert ids(project="app") == ids(project="work") == {"a", "c", "d", "old"}
    assert ids(project="ap") == ids(project="/app") == set()
    assert ids(below=[f"{place(tmp_path)}/--other--/"]) == {"b"}
    assert ids(below=[f"{place(tmp_path)}/--oth", "/elsewhere"]) == ids(below=[]) == set()
    then, first, last = (datetime(year, 1, 1, 1, tzinfo=UTC) for year in (1970, 1, 9999))
    assert ids(until=then) == {"old"}
    assert "old" not in ids(since=then)
    assert ids(since=last) == ids(until=first) == ids(offset=10**30) == set()
    assert ids(until=last, since=first, limit=10**30) == ids()
    assert ids(named=True) == {"a", "d"}
    assert ids(words=["ecrire"]) == {"d"}
    assert ids(words=["会话"]) == {"b"}
    assert ids(words=["ALPHA", "beta"]) == {"a"}
    assert ids(model="P/m") == {"a", "b"}
    assert ids(has=["branch"]) == {"d"}
    assert ids(id_prefix="ol") == {"old"}
    assert ids(id_prefix="old") == {"old"}
    assert ids(id_prefix="older") == set()
    assert ids(pinned=["a", "old", "nobody"]) == {"a", "old"}
    assert ids(pinned=[]) == set()
    with pytest.raises(InvalidQuery):
        ids(has=["legs"])


def test_newest_come_first_and_a_limit_says_how_many_there_are(tmp_path: Path) -> None:
    """Rows are ordered by last change, newest first; a limited listing returns the total."""
    for number in range(5):
        os.utime(session_at(tmp_path, f"s{number}", said("u1", None)), (1000 + number, 1000 + number))
    with Catalog(PosixFilesystem(), None, AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)])
        listing = catalog.list(Filter(limit=2))
        assert [row.id for row in listing.rows] == ["s4", "s3"]
        assert listing.total == 5


def priced(root: Path, name: str, cost: float | None, words: int = 1) -> str:
    """Create a session with one answer of this cost, or of unknown cost."""
    usage = None if cost is None else {"totalTokens": int(cost * 100), "cost": {"total": cost}}
    reply = entry("message", "a1", "u1", message=assistant("x" * 100 * words) | {"usage": usage})
    return session_at(root, name, said("u1", None), reply, timestamp=f"2026-01-0{words}T00:00:00.000Z")


def test_rows_can_be_sorted_and_what_is_unknown_comes_last(tmp_path: Path) -> None:
    """The largest values come first, equal ones are ordered newest first, and unknown ones come last."""
    sessions = {"free": (None, 2), "cheap": (0.5, 1), "dear": (2.0, 3), "twin": (0.5, 4)}
    for age, (name, (cost, words)) in enumerate(sessions.items()):
        os.utime(priced(tmp_path, name, cost, words), (1000 + age, 1000 + age))
    os.utime(session_at(tmp_path, "mute", said("u1", None), timestamp="long ago"), (2000, 2000))

    def ids(sort: str) -> list[str | None]:
        return [row.id for row in rows_of(tmp_path, Filter(sort=sort))]

    assert ids("recent") == ["mute", "twin", "dear", "cheap", "free"]
    assert ids("started") == ["twin", "dear", "free", "cheap", "mute"]
    assert ids("cost") == ["dear", "twin", "cheap", "mute", "free"]
    assert ids("tokens") == ["dear", "twin", "cheap", "mute", "free"]
    assert ids("messages") == ["twin", "dear", "cheap", "free", "mute"]
    assert ids("size") == ["twin", "dear", "free", "cheap", "mute"]
    with pytest.raises(InvalidQuery):
        ids("beauty")


def test_of_equals_the_one_that_changed_last_comes_first(tmp_path: Path) -> None:
    """Of rows with equal values, the last changed one comes first, even if it was cataloged earlier."""
    older = priced(tmp_path, "older", 1.0)
    os.utime(older, (1000, 1000))
    priced(tmp_path, "newer", 1.0)
    with Catalog(PosixFilesystem(), None, AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)], depth="count")
        assert [row.id for row in catalog.list(Filter(sort="cost")).rows] == ["newer", "older"]
        append_raw(older, said("u9", None))
        os.utime(older, (time.time() + 60,) * 2)
        catalog.catch_up([place(tmp_path)], depth="count")
        assert [row.id for row in catalog.list(Filter(sort="cost")).rows] == ["older", "newer"]


@pytest.mark.parametrize("sort", SORTS)
def test_pages_show_everything_once(tmp_path: Path, sort: str) -> None:
    """Pages keep the order of the full listing, also with equal and unknown values, and each returns the total."""
    for number in range(11):
        os.utime(priced(tmp_path, f"s{number}", [None, 1.0, 2.0][number % 3]), (1000 + number // 4, 1000))
    with Catalog(PosixFilesystem(), None, AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)], depth="count")
        whole = catalog.list(Filter(sort=sort)).rows
        pages = [catalog.list(Filter(sort=sort, limit=3, offset=offset)) for offset in range(0, 15, 3)]
        assert [row for page in pages for row in page.rows] == whole and len(whole) == 11
        assert {page.total for page in pages} == {11}
        assert catalog.list(Filter(sort=sort, offset=9)).rows == whole[9:]


def test_rows_that_cannot_be_judged_are_counted(tmp_path: Path) -> None:
    """A filter that needs counts returns the number of sessions without counts."""
    some_sessions(tmp_path)
    with Catalog(PosixFilesystem(), None, AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)])
        listing = catalog.list(Filter(has=["branch"]))
        assert (listing.rows, listing.unjudged) == ([], 1)


# -- usage


def test_usage_is_that_of_the_sessions_that_a_filter_lets_through(tmp_path: Path) -> None:
    """Usage covers the filtered sessions, sub-agents included, and returns the number of hidden and uncounted ones."""
    path = priced(tmp_path, "s1", 1.0)
    sub = entry("message", "b1", None, message=assistant("x") | {"usage": USAGE})
    write_file(Path(path).with_suffix("") / "sub.jsonl", header("sub", cwd="/other"), sub)
    session_at(tmp_path, "silent", said("u1", None))
    session_at(tmp_path, "large", *(answered(f"a{n}", None) for n in range(2000)))
    with Catalog(PosixFilesystem(), None, AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)])
        usage = catalog.usage()
        assert {session.id for session in usage.sessions} == {"s1", "sub"}
        assert (usage.hidden, usage.uncounted) == ({}, 1)
        assert by_project(usage).total.cost == 1.25
        assert [session.id for session in catalog.usage(Filter(project="/other", hide=())).sessions] == ["sub"]
        assert catalog.usage(Filter()).hidden["sub_agent"] == 1
        catalog.catch_up([place(tmp_path)], depth="count")
        assert (len(catalog.usage().sessions), catalog.usage().uncounted) == (3, 0)


def test_usage_that_is_out_of_date_is_not_told(tmp_path: Path) -> None:
    """A session that grew a lot is uncounted until its new lines are read."""
    path = priced(tmp_path, "s1", 1.0)
    with Catalog(PosixFilesystem(), None, AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)])
        assert (len(catalog.usage().sessions), catalog.usage().uncounted) == (1, 0)
        append_raw(path, *(answered(f"b{n}", None) for n in range(2000)))
        catalog.catch_up([place(tmp_path)])
        assert (len(catalog.usage().sessions), catalog.usage().uncounted) == (0, 1)
        catalog.catch_up([place(tmp_path)], depth="count")
        assert by_model(catalog.usage()).total.answers == 2001


def test_a_range_of_time_is_about_what_was_used_and_not_about_files(tmp_path: Path) -> None:
    """`since` and `until` select usage by quarter-hours, whatever the times of the files are."""
    moments = ["10:14:59", "10:15:00", "10:29:59", "10:30:00"]
    replies = [
        entry("message", f"a{n}", None, message=assistant("x")) | {"timestamp": f"2026-02-16T{moment}.000Z"}
        for n, moment in enumerate(moments)
    ]
    os.utime(session_at(tmp_path, "s1", *replies), (1000, 1000))
    with Catalog(PosixFilesystem(), None, AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)], depth="count")

        def answers(since: str | None, until: str | None) -> int | None:
            times = [t and datetime.fromisoformat(f"2026-02-16T{t}+00:00") for t in (since, until)]
            return by_model(catalog.usage(Filter(since=times[0] or None, until=times[1] or None))).total.answers

        assert answers(None, None) == 4
        assert answers("10:15:00", None) == answers("10:20:00", None) == 3
        assert answers("10:15:00", "10:30:00") == answers("10:29:59", "10:15:01") == 2
        assert answers(None, "10:15:00") == 1
        assert answers("10:45:00", None) == 0


# -- catching up


class Watched(PosixFilesystem):
    """Records which files are opened and how many bytes of them are read."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.bytes = 0

    def open(self, path: str, flags: int) -> int:
        self.opened.append(os.path.basename(path))
        assert flags & os.O_ACCMODE == os.O_RDONLY
        return super().open(path, flags)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        data = os.pread(fd, size, offset)
        self.bytes += len(data)
        return data


def test_unchanged_files_are_not_opened(tmp_path: Path) -> None:
    """A second catch-up only checks size, times, inode and device."""
    some_sessions(tmp_path)
    time.sleep(SETTLED)
    rows_of(tmp_path, depth="index")
    fs = Watched()
    with Catalog(fs, str(tmp_path / "cache"), AGENTS) as catalog:
        caught = catalog.catch_up([place(tmp_path)], depth="index")
        assert (caught.changed, caught.removed, fs.opened) == (0, 0, [])
        append_raw(tmp_path / "sessions" / FOLDER / "a.jsonl", said("u9", "a1", "gamma"))
        assert catalog.catch_up([place(tmp_path)]).changed == 1
        assert fs.opened == ["a.jsonl"]


def test_a_session_that_grew_is_read_from_where_it_was_left(tmp_path: Path) -> None:
    """Counting and indexing continue after the bytes that were already read. Those are only compared, by their hash."""
    path = session_at(tmp_path, "s1", *(said(f"e{n}", None, "word " * 1000) for n in range(200)))
    fs = Watched()
    with Catalog(fs, str(tmp_path / "cache"), AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)], depth="index")
        assert fs.bytes > os.stat(path).st_size
        fs.bytes = 0
        append_raw(path, said("new", "e1", "sesame"))
        (before,) = catalog.list().rows
        catalog.catch_up([place(tmp_path)], depth="index")
        assert fs.bytes < os.stat(path).st_size * 1.2
        assert [row.number for row in catalog.list().rows] == [before.number]
        assert [hit.entry_id for hit in catalog.search("sesame").hits] == ["new"]
        assert facts(catalog, "sesame", "word") == fresh_facts(tmp_path, "sesame", "word")


def test_a_rewritten_session_is_read_anew(tmp_path: Path) -> None:
    """After a change in place, a truncation or a replacement the whole file is read again."""
    path = session_at(
        tmp_path, "s1", said("u1", None, "alpha"), said("u2", "u1", "omega"), said("u3", "u2", "x" * 9000)
    )
    with Catalog(PosixFilesystem(), str(tmp_path / "cache"), AGENTS) as catalog:
        for old, new in (("alpha", "gamma"), ("omega", "end"), ("end", "end of it")):
            catalog.catch_up([place(tmp_path)], depth="index")
            Path(path).write_text(Path(path).read_text().replace(old, new))
            os.utime(path, ns=(time.time_ns(), time.time_ns()))
            catalog.catch_up([place(tmp_path)], depth="index")
            assert facts(catalog, "alpha", "gamma", "end", "omega") == fresh_facts(
                tmp_path, "alpha", "gamma", "end", "omega"
            )


def _edit(path: str, old: str, new: str, more: str = "") -> None:
    """Edit a file as a program that keeps its inode and its modification time."""
    before = os.stat(path)
    with open(path, "r+") as file:
        file.write(Path(path).read_text().replace(old, new) + more)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(path).st_ino == before.st_ino


@pytest.mark.promise("P45")
@pytest.mark.parametrize("more", ["", encode(said("new", "u3", "sesame")).decode() + "\n"])
@pytest.mark.parametrize(
    ("old", "new"), [("alpha", "gamma"), ("Named", "Other"), (CWD, CWD[:-1] + "X"), ('"u1"', '"u2"')]
)
def test_an_edit_that_restores_the_time_is_noticed(tmp_path: Path, old: str, new: str, more: str) -> None:
    """Text, title, folder and ids far from the end of a file are read again, whether or not the file has grown."""
    filler = (said(f"e{n}", "u1", "x" * 900) for n in range(20))
    path = session_at(tmp_path, "s1", said("u1", None, "alpha"), said("u3", "u1"), *filler, title="Named")
    time.sleep(SETTLED)
    with Catalog(PosixFilesystem(), str(tmp_path / "cache"), AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)], depth="index")
        _edit(path, old, new, more)
        catalog.catch_up([place(tmp_path)], depth="index")
        words = ("alpha", "gamma", "Named", "Other", "sesame")
        assert facts(catalog, *words) == fresh_facts(tmp_path, *words)


@pytest.mark.promise("P45")
def test_an_edit_within_one_tick_of_the_clock_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may give two changes the same time; a file that was just changed is read again the next time."""
    now = 1_771_237_230_123_456_789
    monkeypatch.setattr(time, "time_ns", lambda: now)
    fs = MemoryFilesystem(clock=lambda: now - 1000)
    atomic.make_folders(fs, "/s/p")
    put(fs, "/s/p/a.jsonl", encode(header("a")) + b"\n" + encode(said("u1", None, "alpha")) + b"\n")
    with Catalog(fs, None, AGENTS) as catalog:
        catalog.catch_up(["/s"], depth="count")
        fd = fs.open("/s/p/a.jsonl", os.O_RDWR)
        content = bytes(fs.read(fd, 10_000, 0))
        fs.truncate(fd, 0)
        fs.write(fd, content.replace(b"alpha", b"gamma"))
        fs.close(fd)
        catalog.catch_up(["/s"], depth="count")
        assert [row.first_text for row in catalog.list(EVERYTHING).rows] == ["gamma"]
        now += 10**9
        assert catalog.catch_up(["/s"], depth="count").changed == 1
        assert catalog.catch_up(["/s"], depth="count").changed == 0


def test_a_file_that_is_only_touched_or_copied_is_not_counted_again(tmp_path: Path) -> None:
    """Its row stays, with the new time."""
    path = session_at(tmp_path, "s1", *(said(f"e{n}", None, "word " * 100) for n in range(50)))
    with Catalog(PosixFilesystem(), str(tmp_path / "cache"), AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)], depth="index")
        (before,) = catalog.list().rows
        os.utime(path, ns=(5, 5))
        catalog.catch_up([place(tmp_path)], depth="index")
        assert catalog.list().rows == [before._replace(modified_ns=5)]
        shutil.copy2(path, f"{path}.new")
        os.replace(f"{path}.new", path)
        catalog.catch_up([place(tmp_path)], depth="index")
        assert catalog.list().rows == [before._replace(modified_ns=5)]
        assert facts(catalog, "word") == fresh_facts(tmp_path, "word")


@pytest.mark.promise("P45")
def test_lines_that_changed_between_counting_and_indexing_are_read_again(tmp_path: Path) -> None:
    """Words are read later than counts; if the file has changed in between, the counts are not kept."""
    path = session_at(tmp_path, "s1", *(said(f"e{n}", None, "alpha " * 100) for n in range(50)))

    class Meddled(PosixFilesystem):
        """Edits the file when it is opened for the second time."""

        def open(self, path: str, flags: int) -> int:
            if path.endswith("s1.jsonl"):
                _edit(path, '"role":"user"', '"role":"uxer"')
            return super().open(path, flags)

    cache = str(tmp_path / "cache")
    with Catalog(PosixFilesystem(), cache, AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)], depth="count")
    time.sleep(SETTLED)
    with Catalog(PosixFilesystem(), cache, AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)], depth="count")
    with Catalog(Meddled(), cache, AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)], depth="index")
    append_raw(path, said("new", "e1", "alpha"))
    with Catalog(PosixFilesystem(), cache, AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)], depth="index")
        assert facts(catalog, "alpha") == fresh_facts(tmp_path, "alpha")


def test_rows_of_other_places_stay(tmp_path: Path) -> None:
    """One catalog serves many roots; catching up with one does not touch the others."""
    some_sessions(tmp_path / "one")
    some_sessions(tmp_path / "two")
    time.sleep(SETTLED)
    with Catalog(PosixFilesystem(), str(tmp_path / "cache"), AGENTS) as catalog:
        catalog.catch_up([place(tmp_path / "one"), place(tmp_path / "two")])
        assert len(catalog.list().rows) == 6
        assert catalog.catch_up([place(tmp_path / "one")]).removed == 0
        assert len(catalog.list().rows) == 3
        assert catalog.catch_up([place(tmp_path / "two")]).changed == 0


def test_a_line_without_its_newline_is_shown_and_read_again(tmp_path: Path) -> None:
    """An unterminated last line is counted and found, and it is not counted twice when the file grows."""
    path = session_at(tmp_path, "s1", said("u1", None))
    whole = Path(path).read_bytes()
    Path(path).write_bytes(
        whole + b'{"type":"message","id":"u2","parentId":"u1","message":{"role":"user","content":"loose"}}'
    )
    with Catalog(PosixFilesystem(), str(tmp_path / "cache"), AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)], depth="index")
        assert [hit.entry_id for hit in catalog.search("loose").hits] == ["u2"]
        append_raw(path, "", said("u3", "u2", "loose too"))
        catalog.catch_up([place(tmp_path)], depth="index")
        assert [row.counts.entries for row in catalog.list(EVERYTHING).rows if row.counts] == [3]
        assert {hit.entry_id for hit in catalog.search("loose").hits} == {"u2", "u3"}


def test_a_file_that_becomes_readable_is_read(tmp_path: Path) -> None:
    """A file that could not be opened is tried again, even if its size and time are unchanged."""
    path = session_at(tmp_path, "s1", said("u1", None))
    target = tmp_path / "elsewhere.jsonl"
    os.rename(path, target)
    os.symlink(target, path)
    with Catalog(PosixFilesystem(), str(tmp_path / "cache"), AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)])
        (row,) = catalog.list(EVERYTHING).rows
        assert row.format is None and row.problem and catalog.list().hidden["unreadable"] == 1
        os.unlink(path)
        os.rename(target, path)
        catalog.catch_up([place(tmp_path)])
        assert [row.id for row in catalog.list().rows] == ["s1"]


def test_it_can_be_interrupted_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline or Ctrl-C stops between two batches, and finished work is kept."""
    for number in range(20):
        session_at(tmp_path, f"s{number}", *(said(f"e{n}", None, "word " * 100) for n in range(40)))
    monkeypatch.setattr(catch_up, "_BATCH", 0.0)
    with Catalog(PosixFilesystem(), str(tmp_path / "cache"), AGENTS) as catalog:
        caught = catalog.catch_up([place(tmp_path)], depth="count", deadline=time.monotonic())
        assert caught.uncounted == 19 and len(catalog.list().rows) == 20

        def interrupt(progress: catch_up.Progress) -> None:
            if progress.doing == "index" and progress.done > progress.total / 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            catalog.catch_up([place(tmp_path)], depth="index", progress=interrupt)
        assert 0 < catalog.search("word").pending < 20
        progress: list[catch_up.Progress] = []
        assert not catalog.catch_up([place(tmp_path)], depth="index", progress=progress.append).unindexed
        assert progress[-1].done == progress[-1].total
        assert facts(catalog, "word") == fresh_facts(tmp_path, "word")


def test_a_memory_store_has_a_catalog_in_memory() -> None:
    """The catalog reads sessions through the filesystem interface, so it also works in memory."""
    fs = MemoryFilesystem()
    store = store_at("/memory", fs=fs)
    session = begun(store)
    say(session, "hello sesame")
    answer(session, "yes")
    with Catalog(fs, None, AGENTS) as catalog:
        catalog.catch_up([store.layout.sessions], depth="index")
        assert [row.id for row in catalog.list().rows] == [session.id]
        assert len(catalog.search("sesame").hits) == 1


@pytest.mark.promise("P13")
def test_reading_changes_no_journal(tmp_path: Path) -> None:
    """Reading keeps the bytes, inode and time of every session file."""
    some_sessions(tmp_path)
    before = snapshot(tmp_path)
    rows_of(tmp_path, depth="index")
    assert snapshot(tmp_path) == before


def test_the_cache_is_private(tmp_path: Path) -> None:
    """Cache files are 0600 in a folder that is 0700."""
    some_sessions(tmp_path)
    rows_of(tmp_path, depth="index")
    assert stat.S_IMODE(os.stat(tmp_path / "cache").st_mode) == 0o700
    names = sorted(os.listdir(tmp_path / "cache"))
    assert names == ["catalog.db", "catalog.lock", "catalog.seal"]
    assert {stat.S_IMODE(os.stat(tmp_path / "cache" / name).st_mode) for name in names} == {0o600}


# -- damage


def caught_up(root: Path) -> tuple[list[Any], list[Any]]:
    with Catalog(PosixFilesystem(), str(root / "cache"), AGENTS) as catalog:
        catalog.catch_up([place(root)], depth="index")
        assert not catalog.notices
        return facts(catalog, *QUERIES)


@pytest.mark.promise("P12")
@pytest.mark.parametrize("sizes", [25, pytest.param(100, marks=pytest.mark.long)])
def test_a_truncated_or_deleted_catalog_is_made_anew(tmp_path: Path, sizes: int) -> None:
    """A catalog that is truncated at any of many sizes, or lacks its database or seal, is rebuilt."""
    some_sessions(tmp_path)
    fresh = fresh_facts(tmp_path, *QUERIES)
    database, seal = tmp_path / "cache" / "catalog.db", tmp_path / "cache" / "catalog.seal"
    assert caught_up(tmp_path) == fresh
    for step in range(sizes):
        os.truncate(database, os.stat(database).st_size * step // sizes)
        assert caught_up(tmp_path) == fresh
    for file in (database, seal):
        file.unlink()
        assert caught_up(tmp_path) == fresh
    seal.write_bytes(b"{}")
    database.write_bytes(b"this is no database" * 1000)
    assert caught_up(tmp_path) == fresh
    measured("P12", "catalogs cut short or deleted", catalogs=sizes + 3, wrong_answers=0)


def test_a_catalog_that_a_writer_left_is_not_believed_where_its_lock_cannot_be_had(tmp_path: Path) -> None:
    """Without the lock it is unknown whether the writer is still active, so the catalog is not used."""
    some_sessions(tmp_path)
    fresh = caught_up(tmp_path)
    seal, lock = tmp_path / "cache" / "catalog.seal", tmp_path / "cache" / "catalog.lock"
    left = seal.read_bytes().replace(b"false", b"true")
    assert left != seal.read_bytes()
    seal.write_bytes(left)
    lock.unlink()
    lock.mkdir()
    with Catalog(PosixFilesystem(), str(tmp_path / "cache"), AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)], depth="index")
        assert "cannot be used" in catalog.notices[0]
        assert {row.path for row in catalog.list(Filter()).rows} == {row.path for row in fresh[0]}


@pytest.mark.promise("P12")
@pytest.mark.parametrize("times", [50, pytest.param(1_000, marks=pytest.mark.long)])
def test_flipped_bytes_are_never_believed(tmp_path: Path, times: int) -> None:
    """A flipped byte in the database or its seal never changes a result."""
    some_sessions(tmp_path)
    fresh = fresh_facts(tmp_path, *QUERIES)
    random = Random(12)
    for step in range(times):
        if step % 25 == 0:
            assert caught_up(tmp_path) == fresh
            database, seal = (tmp_path / "cache" / name for name in ("catalog.db", "catalog.seal"))
            good = {file: file.read_bytes() for file in (database, seal)}
        for file in (database, seal):
            file.write_bytes(good[file])
        file = seal if step % 10 == 0 else database
        data = bytearray(good[file])
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        file.write_bytes(data)
        assert caught_up(tmp_path) == fresh
    measured("P12", "flipped bytes in the catalog", flips=times, wrong_answers=0)


@pytest.mark.promise("P12")
def test_damage_that_leaves_no_trace_in_the_folder_is_noticed_when_it_is_met(tmp_path: Path) -> None:
    """Damage found during a query rebuilds the catalog, and the query returns the right result."""
    some_sessions(tmp_path)
    fresh = fresh_facts(tmp_path, *QUERIES)
    caught_up(tmp_path)
    with Catalog(PosixFilesystem(), str(tmp_path / "cache"), AGENTS) as catalog:
        catalog.catch_up([place(tmp_path)], depth="index")
        database = catalog._file._db
        assert database is not None
        database.execute("DROP TABLE titles")
        catalog._file._mark = catalog._file._look()
        assert facts(catalog, *QUERIES) == fresh


def test_a_catalog_of_another_version_is_made_anew(tmp_path: Path) -> None:
    """A catalog of another version is rebuilt, whatever its tables are."""
    some_sessions(tmp_path)
    old = ("CREATE TABLE sessions (number INTEGER PRIMARY KEY, path BLOB, title TEXT)",)
    previous = catalog_file.CatalogFile(str(tmp_path / "cache"), old, "sessions", VERSION - 1)
    with previous.writing() as database:
        database.execute("INSERT INTO sessions VALUES (1, 'x', 'an old row')")
    previous.close()
    assert caught_up(tmp_path) == fresh_facts(tmp_path, *QUERIES)


@pytest.mark.promise("P12")
def test_a_lying_catalog_is_not_believed(tmp_path: Path) -> None:
    """Rows that another program wrote into the database are discarded."""
    some_sessions(tmp_path)
    fresh = fresh_facts(tmp_path, *QUERIES)
    caught_up(tmp_path)
    with sqlite3.connect(tmp_path / "cache" / "catalog.db") as database:
        database.execute("UPDATE sessions SET title = 'a lie', first_text = 'alpha'")
    database.close()
    assert caught_up(tmp_path) == fresh


KILLED = """
import os, sys
from sessile.agents.registry import AGENTS
from sessile.storage import catch_up
from sessile.storage.catalog import Catalog
from sessile.storage.filesystem import PosixFilesystem
steps = int(sys.argv[3])
catch_up._BATCH = 0.0 if steps % 2 else 0.25
catch_up._LOOKS = 1
class Dying(PosixFilesystem):
    left = steps
    def read(self, fd, size, offset):
        Dying.left -= 1
        if not Dying.left:
            os._exit(9)
        return os.pread(fd, size, offset)
with Catalog(Dying(), sys.argv[2], AGENTS) as catalog:
    catalog.catch_up([sys.argv[1]], depth="index")
"""


@pytest.mark.promise("P12")
@pytest.mark.parametrize(
    "steps", [pytest.param(step, marks=[] if step in (2, 7, 12, 17) else pytest.mark.long) for step in range(1, 31)]
)
def test_a_killed_catch_up_loses_nothing(tmp_path: Path, steps: int) -> None:
    """The next catch-up continues and returns the same as a new catalog."""
    some_sessions(tmp_path)
    fresh = fresh_facts(tmp_path, *QUERIES)
    command = [sys.executable, "-c", KILLED, place(tmp_path), str(tmp_path / "cache"), str(steps)]
    died = subprocess.run(command).returncode
    assert died in (9, 0)
    assert caught_up(tmp_path) == fresh
    measured("P12", "kills of a catch-up", kills=int(died == 9), wrong_answers=0)


def test_a_killed_catch_up_is_continued(tmp_path: Path) -> None:
    """Work that the killed writer committed is not repeated."""
    for number in range(10):
        session_at(tmp_path, f"s{number}", said("u1", None))
    command = [sys.executable, "-c", KILLED, place(tmp_path), str(tmp_path / "cache"), "15"]
    assert subprocess.run(command).returncode == 9
    with Catalog(PosixFilesystem(), str(tmp_path / "cache"), AGENTS) as catalog:
        assert 0 < catalog.catch_up([place(tmp_path)]).changed < 10


# -- an unusable cache


def fallback(root: Path) -> None:
    """Assert that listing and searching return current results and a notice that the catalog was not used."""
    with Catalog(PosixFilesystem(), str(root / "cache"), AGENTS) as catalog:
        catalog.catch_up([place(root)], depth="index")
        rows, found = facts(catalog, *QUERIES)
        assert catalog.notices
        fresh_rows, fresh_found = fresh_facts(root, *QUERIES)
        assert [row._replace(searchable=True) for row in rows] == fresh_rows
        assert found == fresh_found


def test_a_locked_catalog_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process writes the catalog, its rows are used and changed files are read directly."""
    monkeypatch.setattr(catalog_file, "PATIENCE", 0.05)
    some_sessions(tmp_path)
    caught_up(tmp_path)
    append_raw(tmp_path / "sessions" / FOLDER / "a.jsonl", said("u9", "a1", "alpha again"))
    os.unlink(tmp_path / "sessions" / "--other--" / "b.jsonl")
    other = CatalogHolder(tmp_path)
    with other:
        fallback(tmp_path)
    assert caught_up(tmp_path) == fresh_facts(tmp_path, *QUERIES)


class CatalogHolder:
    """Holds the writer's lock."""

    def __init__(self, root: Path) -> None:
        self._fs = PosixFilesystem()
        self._fd = self._fs.open(str(root / "cache" / "catalog.lock"), os.O_RDWR | os.O_CREAT)

    def __enter__(self) -> None:
        assert self._fs.lock(self._fd)

    def __exit__(self, *exception: object) -> None:
        self._fs.close(self._fd)


def test_a_cache_folder_that_is_none_is_done_without(tmp_path: Path) -> None:
    """A file in place of the cache folder, or a link in place of the database, is left unchanged."""
    some_sessions(tmp_path)
    (tmp_path / "cache").write_text("mine")
    fallback(tmp_path)
    assert (tmp_path / "cache").read_text() == "mine"
    (tmp_path / "cache").unlink()
    (tmp_path / "cache").mkdir()
    (tmp_path / "target").write_text("mine")
    (tmp_path / "cache" / "catalog.db").symlink_to(tmp_path / "target")
    fallback(tmp_path)
    assert (tmp_path / "target").read_text() == "mine"


def test_a_full_disk_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing works even if the database cannot grow."""
    some_sessions(tmp_path)
    connect = catalog_file.CatalogFile._connect

    def tight(self: catalog_file.CatalogFile) -> sqlite3.Connection:
        database = connect(self)
        database.execute("PRAGMA max_page_count = 20")
        return database

    monkeypatch.setattr(catalog_file.CatalogFile, "_connect", tight)
    for number in range(40):
        session_at(tmp_path, f"more{number}", said("u1", None, "alpha " * 50), answered("a1", "u1"))
    fallback(tmp_path)
