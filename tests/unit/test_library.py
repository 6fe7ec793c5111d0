"""A library: finding sessions by name, listing, searching, and catching up."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from builders import said
from sessile import Filter, Library, Session, SessionRow, Store
from sessile.errors import Ambiguous, EntryNotFound, InvalidQuery, SessionNotFound
from sessile.library import find_entry, find_leaf
from sessile.storage.search import Needle

from .test_catalog import session_at


def names(tmp_path: Path, name: str) -> list[str]:
    """Return the files that a name matches: one, none, or the candidates of an ambiguous name."""
    with Library(Store(tmp_path)) as library:
        try:
            return [Path(library.find(name)).name]
        except SessionNotFound:
            return []
        except Ambiguous as error:
            return sorted(Path(str(candidate["path"])).name for candidate in error.candidates)


def test_a_session_is_found_by_id_by_its_beginning_and_by_words(tmp_path: Path) -> None:
    """A name is a full id, a prefix of at least four characters, a full title, or words."""
    first = session_at(tmp_path, "0199aaaa", said("u1", None, "retry the webhook"))
    second = session_at(tmp_path, "0199aaaa-2", said("u1", None, "something else"), title="Webhook queue")
    third = session_at(tmp_path, "0199bbbb", said("u1", None, "x"), title="Webhook")
    a, b, c = (Path(path).name for path in (first, second, third))
    assert names(tmp_path, "0199aaaa") == [a]
    assert names(tmp_path, "0199aaa") == sorted([a, b])
    assert names(tmp_path, "019") == []  # too short for an id, and not in any text
    assert names(tmp_path, "queue webhook") == [b]
    assert names(tmp_path, "WEBHOOK") == [c]
    assert names(tmp_path, "retry") == [a]
    assert names(tmp_path, "nothing like it") == []


def test_a_whole_id_is_found_however_short_it_is(tmp_path: Path) -> None:
    """Short ids of other programs are found; if several files have the same id, the hint is to use the path."""
    short = session_at(tmp_path, "c", said("u1", None, "x"))
    session_at(tmp_path, "cccc", said("u1", None, "c"))
    assert names(tmp_path, "c") == [Path(short).name]
    Path(short).with_name("again.jsonl").write_bytes(Path(short).read_bytes())
    with Library(Store(tmp_path)) as library, pytest.raises(Ambiguous) as raised:
        library.find("c")
    assert len(raised.value.candidates) == 2 and raised.value.hint == "use the path"


def test_an_unknown_id_is_not_looked_for_in_titles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That would read every line of every session."""
    session_at(tmp_path, "0199aaaa", said("u1", None, "x"))
    with Library(Store(tmp_path)) as library:
        depths: list[str] = []
        catch_up = library.catch_up

        def watched(depth: Any = "look", **more: Any) -> Any:
            depths.append(depth)
            return catch_up(depth, **more)

        monkeypatch.setattr(library, "catch_up", watched)
        with pytest.raises(SessionNotFound):
            library.find("01a1e65d-bcc0-773f-b312-9275900bf453")
        assert depths == ["look"]


def test_the_last_and_those_before(tmp_path: Path) -> None:
    """@last counts backwards; @here looks only at one folder."""
    paths = [session_at(tmp_path, f"s{n}00", said("u1", None, "x")) for n in range(3)]
    with Library(Store(tmp_path)) as library:
        newest = [row.path for row in _rows(library)]
        assert [library.find("@last"), library.find("@last-1"), library.find("@last-2")] == newest
        assert set(newest) == {str(path) for path in paths}
        with pytest.raises(SessionNotFound):
            library.find("@last-3")
        with pytest.raises(SessionNotFound):
            library.find("@here", "/nowhere")


def _rows(library: Library) -> list[SessionRow]:
    library.catch_up()
    return list(library.list().rows)


def test_entries_and_labels_are_found_by_their_beginning() -> None:
    """A prefix or a label finds an entry; a prefix of several entries is ambiguous."""
    session = Session.in_memory("/work")
    at = session.append_message({"role": "user", "content": "x"}).id
    session.append_label_change(at, "here")
    assert find_entry(session, at[:6]) == at == find_leaf(session, "here")
    with pytest.raises(EntryNotFound):
        find_leaf(session, "nowhere")
    with pytest.raises(Ambiguous):
        find_entry(session, "")


@pytest.mark.parametrize("name", ["/work/\0", "./\0.jsonl", "a/\0/agent-1", "\0", "ab\0cd"])
def test_a_name_that_no_file_can_have_means_no_session(tmp_path: Path, name: str) -> None:
    """A request over the network may contain an invalid name."""
    with Library(Store(tmp_path)) as library, pytest.raises(SessionNotFound):
        library.find(name)


class TestCatchingUp:
    """`list` and `search` read changed files automatically and return the ones they had no time for."""

    def test_a_fresh_library_lists_and_finds_what_is_on_the_disk(self, tmp_path: Path) -> None:
        """New sessions and later entries are found without a call of `catch_up`, and nothing is left unread."""
        path = session_at(tmp_path, "0199aaaa", said("u1", None, "retry the webhook"))
        with Library(Store(tmp_path)) as library:
            results = library.search("webhook")
            assert ([hit.entry_id for hit in results.hits], list(results.unread)) == (["u1"], [])
            listing = library.list()
            assert ([row.path for row in listing.rows], list(listing.unread)) == ([str(path)], [])
            with Store(tmp_path).open(str(path)) as session:
                later = session.append_message({"role": "user", "content": "an aardvark"}).id
            assert [hit.entry_id for hit in library.search("aardvark").hits] == [later]
            assert [found.row.path for found in library.scan(Needle("aardvark"), notices=[])] == [str(path)]
            assert library.usage().uncounted == 0 and library.facets().project

    def test_what_the_time_was_too_short_for_is_named(self, tmp_path: Path) -> None:
        """Files that were not read before the deadline are in `unread`."""
        paths = {str(session_at(tmp_path, f"s{n}00", said("u1", None, "x" * 5_000 + " webhook"))) for n in range(3)}
        with Library(Store(tmp_path)) as library:
            results = library.search("webhook", timeout=0)
            found = {hit.path for hit in results.hits}  # one file is always read
            assert results.unread and set(results.unread) == paths - found and results.pending == len(results.unread)
            listing = library.list(timeout=0)
            assert {row.path for row in listing.rows} == paths
            assert list(listing.unread) == [row.path for row in listing.rows if row.counts is None]
        with Library(Store(tmp_path)) as library:
            unbranched = library.list(Filter(has=("branch",), limit=1), timeout=0)
            assert (unbranched.rows, unbranched.unjudged) == ([], len(unbranched.unread)) and unbranched.unread
            assert {hit.path for hit in library.search("webhook", directly=True, timeout=0).hits} == paths
        with Library(Store(tmp_path)) as library:
            one = library.search("webhook", Filter(id_prefix="s1"), timeout=0)
            assert one.hits or [Path(path).stem for path in one.unread] == ["s100"]
            assert {hit.path for hit in library.search("webhook", timeout=None).hits} == paths

    def test_a_caller_may_catch_up_itself(self, tmp_path: Path) -> None:
        """Without `auto_catch_up`, queries use the last catch-up."""
        session_at(tmp_path, "0199aaaa", said("u1", None, "retry the webhook"))
        with Library(Store(tmp_path), auto_catch_up=False) as library:
            assert (library.list().rows, library.search("webhook").hits) == ([], [])
            library.catch_up("index")
            assert len(library.list().rows) == len(library.search("webhook").hits) == 1

    def test_progress_is_reported(self, tmp_path: Path) -> None:
        """The callback is called while files are read."""
        session_at(tmp_path, "0199aaaa", said("u1", None, "x" * 5_000))
        with Library(Store(tmp_path)) as library:
            listed: list[Any] = []
            searched: list[Any] = []
            library.list(progress=listed.append)
            library.search("x", progress=searched.append)
        assert listed and searched


def test_times_of_a_row_and_a_filter_are_aware_datetimes(tmp_path: Path) -> None:
    """Rows have UTC times; a filter accepts any time zone and refuses a naive time."""
    path = session_at(tmp_path, "0199aaaa", said("u1", None, "x"))
    os.utime(path, ns=(0, 1_771_237_230_123_456_789))
    modified = datetime(2026, 2, 16, 10, 20, 30, 123456, tzinfo=UTC)
    with Library(Store(tmp_path)) as library:
        (row,) = library.list().rows
        assert (row.modified, row.modified_ns) == (modified, 1_771_237_230_123_456_789)
        assert row.created == datetime(2026, 2, 16, 10, 20, 30, tzinfo=UTC)
        berlin = modified.astimezone(timezone(timedelta(hours=1)))
        assert library.list(Filter(since=berlin)).total == 1
        assert library.list(Filter(until=berlin)).total == 0
        assert library.list(Filter(until=berlin + timedelta(microseconds=1))).total == 1
        for extreme in (datetime.min, datetime.max):
            library.list(Filter(since=extreme.replace(tzinfo=UTC), until=extreme.replace(tzinfo=UTC)))
        for naive in (Filter(since=datetime(2026, 1, 1)), Filter(until=datetime(2026, 1, 1))):
            with pytest.raises(InvalidQuery, match="must have a time zone"):
                library.list(naive)
            with pytest.raises(InvalidQuery, match="must have a time zone"):
                library.usage(naive)


def test_a_notebook_shows_tables_in_which_nothing_runs(tmp_path: Path) -> None:
    """Titles, projects and excerpts are escaped."""
    hostile = "<script>alert(1)</script> & <img src=x onerror=y>"
    session_at(tmp_path, "0199aaaa", said("u1", None, hostile), title=hostile)
    with Library(Store(tmp_path)) as library:
        shown = [library.list()._repr_html_(), library.search("alert")._repr_html_()]
        assert repr(library) == f"<Library of {str(tmp_path)!r} with sessions of sessile>"
    for html in shown:
        assert set(re.findall(r"</?(\w+)", html)) == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
        assert "&lt;script&gt;" in html
    assert "1 of 1 sessions" in shown[0] and "1 hits" in shown[1]
