"""A library: how sessions are found by the names that people give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import said
from sessile import Library, Session, SessionRow, Store
from sessile.errors import Ambiguous, EntryNotFound, SessionNotFound
from sessile.library import find_entry, find_leaf

from .test_catalog import session_at


def names(tmp_path: Path, name: str) -> list[str]:
    """The files that a name means: one, none, or the candidates of an ambiguous one."""
    with Library(Store(tmp_path)) as library:
        try:
            return [Path(library.find(name)).name]
        except SessionNotFound:
            return []
        except Ambiguous as error:
            return sorted(Path(str(candidate["path"])).name for candidate in error.candidates)


def test_a_session_is_found_by_id_by_its_beginning_and_by_words(tmp_path: Path) -> None:
    """A whole id means one session, four characters may mean some; anything else is words; a whole title comes first."""
    first = session_at(tmp_path, "0199aaaa", said("u1", None, "retry the webhook"))
    second = session_at(tmp_path, "0199aaaa-2", said("u1", None, "something else"), title="Webhook queue")
    third = session_at(tmp_path, "0199bbbb", said("u1", None, "x"), title="Webhook")
    a, b, c = (Path(path).name for path in (first, second, third))
    assert names(tmp_path, "0199aaaa") == [a]
    assert names(tmp_path, "0199aaa") == sorted([a, b])
    assert names(tmp_path, "019") == []  # too short for an id, and in no text
    assert names(tmp_path, "queue webhook") == [b]
    assert names(tmp_path, "WEBHOOK") == [c]
    assert names(tmp_path, "retry") == [a]
    assert names(tmp_path, "nothing like it") == []


def test_a_whole_id_is_found_however_short_it_is(tmp_path: Path) -> None:
    """Others make shorter ones than we do; of several files with one id each is named by its path."""
    short = session_at(tmp_path, "c", said("u1", None, "x"))
    session_at(tmp_path, "cccc", said("u1", None, "c"))
    assert names(tmp_path, "c") == [Path(short).name]
    Path(short).with_name("again.jsonl").write_bytes(Path(short).read_bytes())
    with Library(Store(tmp_path)) as library, pytest.raises(Ambiguous) as raised:
        library.find("c")
    assert len(raised.value.candidates) == 2 and raised.value.hint == "name its file"


def test_the_last_and_those_before(tmp_path: Path) -> None:
    """@last counts backwards, @here only looks at one folder."""
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
    """A label names the tip of a branch; what means several entries is ambiguous."""
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
    """Whoever asks over the network may send one."""
    with Library(Store(tmp_path)) as library, pytest.raises(SessionNotFound):
        library.find(name)
