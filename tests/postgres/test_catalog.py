"""The catalog of a store in a database gives the same answers as that of a folder, and reads only what is new."""

from __future__ import annotations

import gzip
import multiprocessing
import os
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import answered, assistant, entry, said, user
from postgres.twins import EVERYTHING, ROOT, Twins, facts, journal, write
from sessile.agents.registry import AGENTS
from sessile.core.codec import encode
from sessile.core.kinds import LEAF_MARKER
from sessile.demo.corpus import demo_sessions
from sessile.errors import InvalidQuery
from sessile.library import Library
from sessile.storage import atomic
from sessile.storage.catch_up import Progress
from sessile.storage.filters import HAS, SORTS, Filter
from sessile.storage.layout import artifacts_of
from sessile.storage.postgres import listings
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.listings import PostgresCatalog, Stretch, stretches_of
from sessile.storage.search import Needle
from sessile.storage.trash import Trash
from sessions import CWD, FOLDER, START, answer, begun, say, store_at

pytestmark = pytest.mark.mission("B8")

QUERIES = ("alpha", "beta", "话树", "First", "x*", '"alpha 7"', "omega")
Step = tuple[str, int, str]


@pytest.fixture
def twins(database: Database, leases: Leases) -> Iterator[Twins]:
    """An empty database and an empty folder with the same paths."""
    made = Twins(database, leases)
    yield made
    made.close()


def some_sessions(twins: Twins) -> tuple[str, str, str]:
    a = journal("a", said("u1", None, "alpha beta"), answered("a1", "u1"), title="First things")
    b = journal("b", said("u1", None, "beta 会话树"), answered("a1", "u1"), cwd="/other")
    c = journal("c", *(said(f"e{n}", f"e{n - 1}" if n else None, f"alpha {n} " + "x" * 300) for n in range(60)))
    return (
        twins.put(twins.path("a"), a),
        twins.put(twins.path("b", "--other--"), b),
        twins.put(twins.path("c"), c),
    )


# -- the same answers


@pytest.mark.parametrize("depth", ["look", "count", "index"])
def test_a_catalog_says_what_that_of_a_folder_says(twins: Twins, depth: str) -> None:
    """Rows, their order, words, usage and facets are the same at every depth."""
    some_sessions(twins)
    assert twins.catch_up(depth).changed == 3
    twins.assert_same(*QUERIES)
    assert twins.catch_up(depth).changed == 0
    twins.assert_same(*QUERIES)


def test_the_demo_is_the_same(twins: Twins) -> None:
    """The demo has sessions with branches, labels, sub-agents and images, some of them as files of bytes."""
    for number, session in enumerate(demo_sessions(START * 1000)):
        path = twins.path(session.file_name.removesuffix(".jsonl"), f"--{session.cwd.strip('/').replace('/', '-')}--")
        twins.put(path, b"".join(session.content()), take_in=number % 3 > 0)
        for name, content in session.artifacts.items():
            twins.put(f"{artifacts_of(path)}/{name}", content, take_in=False)
    twins.catch_up("look")
    twins.assert_same()
    twins.catch_up("index")
    twins.assert_same("webhook", "retry", "the", "error", "re*", '"the same"', "npm test", "Tests", "日本", "é")


WANTED = [
    *(Filter(sort=sort, hide=()) for sort in SORTS),
    *(Filter(has=(name,)) for name in HAS),
    Filter(project="/other"),
    Filter(project="app"),
    Filter(project="/work/app", worktrees=("/other",)),
    Filter(model="P/M"),
    Filter(model="nobody"),
    Filter(words=("FIRST", "ál")),
    Filter(words=("会话",)),
    Filter(named=True),
    Filter(id_prefix="a"),
    Filter(pinned=("b", "x\0\ud800")),
    Filter(pinned=()),
    Filter(below=[f"{ROOT}/sessions/{FOLDER}"]),
    Filter(hide=("one_shot", "empty")),
    Filter(limit=1, offset=1, hide=()),
    Filter(limit=0),
]


@pytest.mark.parametrize("depth", ["look", "index"])
def test_a_filter_lets_the_same_through(twins: Twins, depth: str) -> None:
    """Every filter gives the same rows, order, total, hidden and unjudged counts, facets and usage."""
    some_sessions(twins)
    usage = {"input": 10, "totalTokens": 18, "cost": {"total": 0.25}}
    used = entry("message", "a2", "u1", message=assistant("x", model="M2") | {"usage": usage, "stopReason": "error"})
    label = entry("label", "l", None, targetId="u1", label="x")
    twins.put(twins.path("d"), journal("d", said("u1", None, "first Ál"), used, label))
    twins.put(twins.path("e"), journal("e", timestamp="no date"))
    twins.put(twins.path("f"), b"nothing of ours\n")
    twins.catch_up(depth)
    for wanted in WANTED:
        found, expected = twins.catalog.list(wanted), twins.twin.list(wanted)
        assert [row.path for row in found.rows] == [row.path for row in expected.rows], wanted
        assert found[1:] == expected[1:], wanted
        assert twins.catalog.facets(wanted, {"all": [ROOT]}) == twins.twin.facets(wanted, {"all": [ROOT]}), wanted
        ours, theirs = twins.catalog.usage(wanted), twins.twin.usage(wanted)
        assert ours._replace(sessions=[]) == theirs._replace(sessions=[]), wanted


def test_times_choose_sessions(twins: Twins) -> None:
    """Filters by time use the modification times of the database."""
    some_sessions(twins)
    twins.catch_up()
    first, *_, last = sorted(row.modified for row in twins.catalog.list(EVERYTHING).rows)
    assert len(twins.catalog.list(Filter(since=last)).rows) == 1
    assert len(twins.catalog.list(Filter(until=first)).rows) == 0
    assert abs(last.timestamp() - time.time()) < 60


@pytest.mark.parametrize("wanted", [Filter(sort="colour"), Filter(hide=("blue",)), Filter(has=("wings",))], ids=repr)
def test_a_filter_that_means_nothing_is_refused(twins: Twins, wanted: Filter) -> None:
    """A filter with an unknown name raises `InvalidQuery`."""
    with pytest.raises(InvalidQuery):
        twins.catalog.list(wanted)


def lines_of(number: int, text: str) -> list[dict[str, Any]]:
    """Return entries of the next kind."""
    kinds: list[dict[str, Any]] = [
        said(f"e{number}", f"e{number - 1}", text),
        entry("message", f"e{number}", f"e{number // 2}", message=assistant(text, model=f"m{number % 2}")),
        entry("session_info", f"e{number}", None, name=text),
        entry("label", f"e{number}", None, targetId="e1", label=text),
        entry("custom", f"e{number}", f"e{number // 3}", customType=LEAF_MARKER),
        entry("compaction", f"e{number}", f"e{number - 1}", summary=text),
    ]
    return [kinds[number % len(kinds)]]


def apply(twins: Twins, step: Step, number: int) -> None:
    """Apply a step to both stores."""
    how, which, text = step
    path = twins.path(f"s{which}")
    known = twins.known.get(path)
    if how == "delete":
        twins.delete(path)
        twins.known.pop(path, None)
    elif how == "rename" and known is not None:
        other = twins.path(f"s{(which + 1) % 4}")
        twins.rename(path, other)
        twins.known[other] = twins.known.pop(path)
    elif how in ("append", "grow") and known is not None:
        several = 40 if how == "grow" else 1
        twins.append(path, *(line for n in range(several) for line in lines_of(1000 * number + n, text)))
        twins.known[path] = b"changed"
    elif how not in ("rename", "append", "grow"):
        data = journal(f"s{which}", *lines_of(number, text), *lines_of(number + 1, "alpha"))
        data += {"torn": b'{"type":"mess', "damaged": b"garbage\n" + data[-9:], "bytes": b""}.get(how, b"")
        twins.put(path, data, take_in=how != "bytes")
        twins.known.pop(path, None)
        if how != "torn":  # an append would end the torn line first
            twins.known[path] = data


steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "append", "append", "append", "grow", "torn", "damaged", "bytes", "delete", "rename"]),
        st.integers(0, 3),
        st.sampled_from(["alpha", "beta gamma", "会话树", "x" * 5000, "", "a\0b\ud800"]),
    ),
    max_size=10,
)


def test_a_catalog_that_followed_says_the_same(database: Database, leases: Leases) -> None:
    """The answers stay the same while sessions are created, appended to, replaced, damaged, renamed and deleted."""
    numbers = count()

    @settings(max_examples=12)
    @given(st.lists(st.tuples(steps, st.sampled_from(["look", "count", "index"])), max_size=4))
    def story(told: list[tuple[list[Step], Any]]) -> None:
        twins = Twins(database, leases, f"story{next(numbers)}")
        for happened, depth in told:
            for number, step in enumerate(happened):
                apply(twins, step, number)
            twins.catch_up(depth)
            twins.assert_same()
        twins.catch_up("index")
        twins.assert_same("alpha", "gamma beta", "话树", "x*", "a")
        twins.close()

    story()


# -- only what is new


def test_a_catalog_that_is_up_to_date_asks_little(twins: Twins) -> None:
    """A catch-up without changes takes two queries for any number of sessions."""
    for number in range(30):
        twins.put(twins.path(f"s{number}"), journal(f"s{number}", said("u1", None, "alpha")))
    twins.catch_up()
    before = twins.database.count
    twins.catalog.catch_up([twins.place], depth="index")
    assert twins.database.count - before == 2


def test_only_new_rows_are_read(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an append to one of many sessions, a catch-up takes few queries and reads only the end of that session."""
    long = [said(f"e{n}", f"e{n - 1}" if n else None, f"alpha {n} " + "x" * 300) for n in range(3000)]
    path = twins.put(twins.path("long"), journal("long", *long))
    for number in range(30):
        twins.put(twins.path(f"s{number}"), journal(f"s{number}", said("u1", None, "alpha")))
    twins.catch_up()
    twins.append(path, said("new", "e2999", "omega"))
    read: list[Stretch] = []

    def spied(*arguments: Any) -> dict[int, Stretch]:
        found = stretches_of(*arguments)
        read.extend(found.values())
        return found

    monkeypatch.setattr(listings, "stretches_of", spied)
    before = twins.database.count
    twins.catalog.catch_up([twins.place], depth="index")
    assert twins.database.count - before <= 16
    assert sum(len(stretch.data) for stretch in read) < 12_000  # of more than a million bytes
    twins.twin.catch_up([twins.place], depth="index")
    twins.assert_same("omega", "alpha")


def test_appending_writes_nothing_to_the_catalog(twins: Twins) -> None:
    """The catalog is updated when it is queried, not by appends."""
    path, *_ = some_sessions(twins)
    twins.catch_up()
    before = dump(twins.database)
    twins.append(path, said("new", "a1", "omega"))
    assert dump(twins.database) == before


def dump(database: Database) -> list[Any]:
    """Return the contents of the catalog's tables, except which process is working."""
    rows = database.query("SELECT * FROM (SELECT * FROM catalog ORDER BY path) c")
    return [rows, database.query("SELECT * FROM passage ORDER BY number, start, field")]


def test_a_long_session_is_read_in_steps(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is stored, and an interrupted catch-up continues there."""
    monkeypatch.setattr(listings, "_STEP", 2000)
    some_sessions(twins)
    told: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        told.append(progress)
        if progress.doing == "index":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        twins.catalog.catch_up([twins.place], depth="index", progress=interrupt)
    assert twins.catalog.catch_up([twins.place], depth="look", deadline=0).changed == 0
    caught = twins.catalog.catch_up([twins.place], depth="index", progress=told.append)
    assert (caught.uncounted, caught.unindexed) == (0, 0)
    assert told[-1].done == told[-1].total
    twins.twin.catch_up([twins.place], depth="index")
    twins.assert_same(*QUERIES)


def test_a_deadline_leaves_the_rest_for_later(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated catch-ups with an expired deadline complete the catalog, and index no word twice."""
    monkeypatch.setattr(listings, "_GROUP", 1)
    some_sessions(twins)
    for _ in range(3):
        caught = twins.catalog.catch_up([twins.place], depth="index", deadline=time.monotonic() - 1)
    assert (caught.files, caught.uncounted, caught.unindexed) == (3, 0, 0)
    twins.twin.catch_up([twins.place], depth="index")
    twins.assert_same(*QUERIES)


# -- several processes


def _follow(url: str, place: str, ready: Any) -> None:
    database = Database(url)
    leases = Leases(database)
    twins = Twins(database, leases)
    ready.wait()
    for depth in ("look", "count", "index", "index"):
        twins.catalog.catch_up([place], depth=depth)
    leases.close()
    database.close()


@pytest.mark.parametrize("step", [2000, 1 << 20])
def test_processes_that_catch_up_at_once_double_nothing(
    twins: Twins, postgres_url: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three processes that catch up at once, in small or large steps, index and count everything once."""
    monkeypatch.setattr(listings, "_STEP", step)
    monkeypatch.setattr(listings, "_GROUP", 20_000)
    monkeypatch.setattr(listings, "_LOOKS", 3)
    some_sessions(twins)
    for number in range(40):
        entries = [said(f"e{n}", f"e{n - 1}" if n else None, f"alpha beta {n}") for n in range(number)]
        twins.put(twins.path(f"s{number}"), journal(f"s{number}", *entries))
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    others = [context.Process(target=_follow, args=(postgres_url, twins.place, ready)) for _ in range(3)]
    for other in others:
        other.start()
    ready.set()
    for other in others:
        other.join(60)
    assert [other.exitcode for other in others] == [0, 0, 0]
    assert twins.catalog.catch_up([twins.place], depth="index")[1:] == (0, 0, 0, 0)
    twins.twin.catch_up([twins.place], depth="index")
    twins.assert_same(*QUERIES)
    ((doubled,),) = twins.database.query(
        "SELECT count(*) FROM (SELECT 1 FROM passage GROUP BY number, start, field HAVING count(*) > 1) d"
    )
    assert doubled == 0


def test_what_another_has_written_meanwhile_is_not_written_again(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow process finds the row at another revision and does not write it."""
    some_sessions(twins)
    other = PostgresCatalog(twins.fs, twins.database, ROOT, AGENTS)
    busy: list[bool] = []

    def overtaken(*arguments: Any) -> dict[int, Stretch]:
        found = stretches_of(*arguments)
        if not busy:
            busy.append(True)
            other.catch_up([twins.place], depth="index")
        return found

    monkeypatch.setattr(listings, "stretches_of", overtaken)
    twins.catch_up()
    assert busy
    twins.assert_same(*QUERIES)
    ((passages,),) = twins.database.query("SELECT count(*) FROM passage")
    assert passages == 2 + 2 + 60


# -- deleting, renaming and restoring


def test_deleted_renamed_and_restored_sessions_are_followed(twins: Twins) -> None:
    """The catalog follows sessions to the trash and back, and forgets the words of deleted ones."""
    a, b, c = some_sessions(twins)
    twins.catch_up()
    for fs in (twins.fs, twins.folder):
        Trash(fs, f"{ROOT}/trash").move([a], "token")
    assert twins.catch_up().removed == 1
    twins.assert_same(*QUERIES)
    assert not twins.catalog.search('"alpha beta"').hits
    for fs in (twins.fs, twins.folder):
        Trash(fs, f"{ROOT}/trash").undo("token")
    assert twins.catch_up().changed == 1
    twins.assert_same(*QUERIES)
    assert twins.catalog.search('"alpha beta"').hits
    twins.rename(b, twins.path("b", "--moved--"))
    assert twins.catch_up()[1:3] == (1, 1)
    twins.assert_same(*QUERIES)
    twins.put(c, journal("c2", said("u1", None, "omega")))
    twins.catch_up()
    twins.assert_same(*QUERIES)


def test_tables_that_are_gone_are_made_again(twins: Twins) -> None:
    """After the tables were dropped, the next query finds everything without an explicit catch-up."""
    some_sessions(twins)
    twins.catch_up()
    for table in ("catalog", "passage"):
        twins.database.query(f"DROP TABLE {table}")
        twins.assert_same(*QUERIES)
    twins.database.query("DROP TABLE catalog, passage")
    twins.database.query("DROP SEQUENCE catalog_number")
    assert twins.catalog.catch_up([twins.place], depth="index").changed == 3
    twins.assert_same(*QUERIES)


def test_sub_agents_and_archives_are_known_as_such(twins: Twins) -> None:
    """Files in a session's folder are its sub-agents, and a session is preferred to its archive."""
    path, *_ = some_sessions(twins)
    deep = journal("agent", said("u1", None, "alpha of an agent"))
    twins.put(f"{artifacts_of(path)}/agent-1.jsonl", deep)
    twins.put(f"{artifacts_of(path)}/subagents/agent-2.jsonl", deep)
    twins.put(f"{artifacts_of(path)}/elsewhere/agent-3.jsonl", deep)
    twins.put(f"{artifacts_of(path)}/spilled.json", b"{}", take_in=False)
    twins.put(f"{twins.path('z')}.gz", gzip.compress(deep), take_in=False)
    twins.put(f"{twins.path('a')}.gz", gzip.compress(deep), take_in=False)
    twins.put(twins.path(".hidden"), deep)
    twins.catch_up()
    twins.assert_same(*QUERIES)
    assert sum(row.sub_agent for row in twins.catalog.list(EVERYTHING).rows) == 2


def test_what_lies_outside_is_not_listed_and_said_to_be_missing(twins: Twins) -> None:
    """Other agents' folders are not in the database, as a notice reports; kept copies in the database are listed."""
    some_sessions(twins)
    kept = f"{ROOT}/kept/claude"
    twins.put(f"{kept}/x.jsonl", journal("x", said("u1", None, "alpha kept")))
    caught = twins.catalog.catch_up(
        [twins.place, "/home/me/.claude"], depth="index", copies={kept: ["/home/me/.claude"]}
    )
    assert caught.files == 4
    assert [notice for notice in twins.catalog.notices if "/home/me/.claude" in notice]
    assert not twins.catalog.copies
    assert "x" in {row.id for row in twins.catalog.list().rows}
    twins.catalog.catch_up([twins.place])
    assert not twins.catalog.notices
    assert "x" not in {row.id for row in twins.catalog.list().rows}


def test_a_file_of_bytes_is_read_on_too(twins: Twins) -> None:
    """A file of bytes that is not a journal yet is read on after an append."""
    path = twins.put(
        twins.path("a"), journal("a", *(said(f"e{n}", None, f"alpha {n}") for n in range(50))), take_in=False
    )
    twins.catch_up()
    (before,) = twins.catalog.list().rows
    for fs in (twins.fs, twins.folder):
        write(fs, path, encode(entry("message", "n", None, message=user("omega"))) + b"\n" + b'{"type":"mes')
    twins.catch_up()
    twins.assert_same(*QUERIES)
    (after,) = twins.catalog.list().rows
    assert after.number == before.number


@pytest.mark.parametrize("more", [b"", encode(said("n", None, "beta")) + b"\n"])
def test_a_file_that_was_rewritten_in_place_is_read_anew(twins: Twins, more: bytes) -> None:
    """A file rewritten in place is read again, even if it has the same size or grew."""
    data = journal("a", *(said(f"e{n}", None, f"alpha {n}") for n in range(50)))
    path = twins.put(twins.path("a"), data, take_in=False)
    twins.catch_up()
    for fs in (twins.fs, twins.folder):
        fd = fs.open(path, os.O_WRONLY | os.O_TRUNC)
        atomic.write_all(fs, fd, data.replace(b"alpha", b"omega") + more)
        fs.close(fd)
    twins.catch_up()
    twins.assert_same(*QUERIES)
    assert not twins.catalog.search("alpha").hits


def test_a_fact_can_differ(twins: Twins) -> None:
    """The comparison in these tests would notice a missing session."""
    some_sessions(twins)
    twins.catch_up()
    twins.folder.unlink(twins.path("a"))
    twins.twin.catch_up([twins.place], depth="index")
    assert facts(twins.catalog, "alpha") != facts(twins.twin, "alpha")


def test_a_library_stands_on_it(postgres_url: str) -> None:
    """A library on a database lists, finds, searches and scans as one on a folder does."""
    with store_at(postgres_url) as store:
        session = begun(store)
        say(session, "about sesame")
        answer(session, "alpha")
        session.set_session_name("Open Sesame")
        session.close()
        with Library(store) as library:
            library.catch_up("index")
            (row,) = library.list().rows
            assert row.title == "Open Sesame" and row.counts is not None and row.counts.messages == 2
            assert library.find("open sesame") == library.find(row.id or "") == library.find("@last") == session.path
            assert [hit.field for hit in library.search("sesame about").hits] == ["text"]
            assert library.facets().project == {CWD: 1}
            notices: list[str] = []
            assert [found.row.path for found in library.scan(Needle("out ses"), notices=notices)] == [session.path]
            assert not notices
