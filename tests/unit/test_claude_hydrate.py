"""Filling a transcript from a remote copy never loses local data."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import pytest

from claude_rows import CWD, FOLDER, HOME, OTHER, PATH, SESSION, Json, rows_in, transcript, uid, user
from faults.failing import Fail, FaultyFilesystem
from sessile.agents.claude.remote import Fetch, Hydration, hydrate_session
from sessile.agents.claude.transcript import Diagnostic, Transcript
from sessile.errors import InvalidId
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.memory import MemoryFilesystem

LOCAL = b'{"type":"user","uuid":"local"}\n'
REMOTE = [user("A"), user("B", "Grüße \u2028")]


def with_local_file(fs: Filesystem | None = None) -> Transcript:
    writer = transcript(fs, session_id=OTHER)
    inner = fs.inner if isinstance(fs, FaultyFilesystem) else writer.fs
    atomic.make_folders(inner, FOLDER)
    atomic.replace(inner, PATH, (LOCAL,))
    return writer


def content(writer: Transcript, path: str = PATH) -> bytes:
    return atomic.read_all(writer.fs, path)


@pytest.mark.mission("C9")
def test_remote_rows_become_the_local_file_and_the_old_one_is_kept() -> None:
    """The session is switched, the rows are in order, one per line, and the old file is saved in our own root."""
    writer = with_local_file()
    hydration = hydrate_session(writer, SESSION, lambda session_id: REMOTE, project_dir=FOLDER)
    assert (hydration.code, hydration.rows, bool(hydration)) == ("hydrated", 2, True)
    assert writer.current == (SESSION, CWD, FOLDER)
    assert rows_in(content(writer)) == REMOTE
    assert hydration.kept is not None
    assert hydration.kept.startswith(f"{HOME}/originals/{SESSION}/")
    assert not hydration.kept.endswith(".jsonl")
    assert content(writer, hydration.kept) == LOCAL
    assert writer.diagnostics == []


@pytest.mark.mission("C9")
def test_a_session_that_is_not_here_is_made() -> None:
    """There is nothing to save, and lines are copied byte for byte."""
    writer = transcript(session_id=OTHER)
    lines = [b'{"type": "user",  "uuid":"x"}', b'{"type":"tag"}\n']
    hydration = hydrate_session(writer, SESSION, lambda _: lines)
    assert hydration == Hydration("hydrated", 2, None)
    assert content(writer) == b'{"type": "user",  "uuid":"x"}\n{"type":"tag"}\n'


@pytest.mark.mission("C9")
def test_the_same_rows_change_nothing() -> None:
    """A file that equals the answer is neither written nor saved."""
    writer = with_local_file()
    before = writer.fs.lstat(PATH)
    assert hydrate_session(writer, SESSION, lambda _: [LOCAL]) == Hydration("unchanged", 1)
    assert writer.fs.lstat(PATH) == before


def broken(_: str) -> Iterator[Mapping[str, Any]]:
    yield user("A")
    raise KeyError("the secret text of a row")


def refused(_: str) -> None:
    raise PermissionError("the secret text of a row")


@pytest.mark.mission("C9")
@pytest.mark.parametrize(
    ("fetch", "code", "kind"),
    [
        (lambda _: None, "remote_empty", None),
        (lambda _: [], "remote_empty", None),
        (refused, "remote_failed", "PermissionError"),
        (broken, "remote_failed", "KeyError"),
        (lambda _: 5, "remote_failed", "TypeError"),
        (lambda _: [user("A"), "secret"], "remote_invalid", "InvalidEntry"),
        (lambda _: [b"secret\nsecret"], "remote_invalid", "InvalidEntry"),
        (lambda _: [{"secret": float("nan")}], "remote_invalid", "InvalidEntry"),
    ],
)
def test_an_empty_or_failed_answer_leaves_the_local_file_alone(fetch: Fetch, code: str, kind: str | None) -> None:
    """The result is false, nothing is raised, and the diagnostic is a code without content."""
    writer = with_local_file()
    before = writer.fs.lstat(PATH)
    hydration = hydrate_session(writer, SESSION, fetch, project_dir=FOLDER)
    assert (hydration, bool(hydration)) == (Hydration(code, kind=kind), False)
    assert content(writer) == LOCAL
    assert writer.fs.lstat(PATH) == before
    assert not atomic.exists(writer.fs, HOME)
    assert writer.diagnostics == [Diagnostic(code, 0, kind)]
    assert "secret" not in repr((hydration, writer.diagnostics))


@pytest.mark.mission("C9")
def test_a_disk_that_fails_leaves_the_local_file_alone() -> None:
    """Whichever call fails, the file is the complete old or new one, and the result says which."""
    for number in count(1):
        fs = FaultyFilesystem(MemoryFilesystem(), plan=[Fail(errno.EIO, at=number)])
        writer = with_local_file(fs)
        hydration = hydrate_session(writer, SESSION, lambda _: REMOTE, project_dir=FOLDER)
        fs.heal()
        new = rows_in(content(writer)) == REMOTE
        assert new or content(writer) == LOCAL
        assert new or not hydration
        if not fs.struck:
            assert hydration
            return


@pytest.mark.mission("C9")
@pytest.mark.parametrize("fetch", [lambda _: REMOTE, refused, lambda _: None])
def test_rows_go_to_the_remote_side_only_after_the_attempt(fetch: Fetch) -> None:
    """Nothing is sent before or during the attempt; after it, even if it failed, every new row is."""
    writer = with_local_file()
    sent: list[Json] = []
    during: list[bool] = []
    writer.mirror_to(lambda *_: during.append(True))

    def fetched(session_id: str) -> Any:
        writer.record_transcript([user("M")])
        return fetch(session_id)

    hydrate_session(writer, SESSION, fetched, mirror=lambda sid, agent, rows: sent.append({sid: len(rows)}))
    assert (sent, during) == ([], [])
    writer.record_transcript([user("N")])
    assert sent == [{SESSION: 1}]


@pytest.mark.mission("C9")
def test_the_switch_comes_first_and_may_raise() -> None:
    """An invalid id is an error of the caller: nothing is fetched or switched."""
    writer = transcript()

    def unexpected(_: str) -> None:
        raise AssertionError("fetched")

    with pytest.raises(InvalidId):
        hydrate_session(writer, "nonsense", unexpected)
    assert writer.current.session_id == SESSION


@pytest.mark.mission("C9")
def test_what_was_hydrated_is_known_to_the_writer() -> None:
    """Messages from the remote copy are not recorded again."""
    writer = with_local_file()
    writer.switch_session(SESSION)
    writer.record_transcript([user("X")])
    hydrate_session(writer, SESSION, lambda _: REMOTE)
    assert writer.record_transcript([user("A"), user("B"), user("X")]) == uid("X")
    assert [row["uuid"] for row in rows_in(content(writer))] == [uid(name) for name in "ABX"]
