"""Kills before every call to the file system while Claude Code's files are written, and many writers on one file."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from random import Random

import pytest

from claude_rows import (
    CONFIG,
    CWD,
    FOLDER,
    HOME,
    NOW_SECONDS,
    OTHER,
    PATH,
    SESSION,
    STAMP,
    assistant,
    rows_in,
    system,
    transcript,
    uid,
    user,
)
from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import Fail, FaultyFilesystem, Kill, Killed
from faults.processes import Child, Tell, fast_folder, killed_after
from faults.striding import calls
from sessile.agents.claude.mutations import Mutations
from sessile.agents.claude.paths import Current
from sessile.agents.claude.remote import hydrate_session
from sessile.agents.claude.transcript import Transcript
from sessile.errors import SessileError
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.filesystem import PosixFilesystem

Act = Callable[[Filesystem], object]

MESSAGES = [user("A"), assistant("B"), user("C", "x" * 700), assistant("D")]
REMOTE = [user("R1"), user("R2", "y" * 700)]


def prepared(torn: bytes = b"") -> CrashableFilesystem:
    """Return a session with four durable messages, and our folder."""
    fs = CrashableFilesystem()
    atomic.make_folders(fs, HOME)
    transcript(fs).record_transcript(MESSAGES)
    if torn:
        fd = fs.open(PATH, os.O_WRONLY | os.O_APPEND)
        fs.write(fd, torn)
        fs.sync(fd)
        fs.close(fd)
    return fs


def killed(
    act: Act, prepare: Callable[[], CrashableFilesystem] = prepared
) -> Iterator[tuple[CrashableFilesystem, bool]]:
    """Yield the file system after a kill before each call in turn, and whether the action completed."""
    for number in calls():
        fs = prepare()
        try:
            act(FaultyFilesystem(fs, plan=[Kill(at=number)]))
        except Killed:
            yield fs, False
        else:
            assert number > 3, "a rig that kills nobody proves nothing"
            yield fs, True
            return


def survivors(
    act: Act, prepare: Callable[[], CrashableFilesystem] = prepared
) -> Iterator[tuple[CrashableFilesystem, bool]]:
    """Yield what is left after each kill, and after a power cut at the same moment in each model."""
    for number, (fs, done) in enumerate(killed(act, prepare)):
        yield fs.kill(), done
        for model in CrashModel:
            yield fs.crash(Random(f"{number} {model.value}"), model), done


def data(fs: Filesystem, path: str = PATH) -> bytes:
    return atomic.read_all(fs, path)


def uuids(fs: Filesystem, path: str = PATH) -> list[str]:
    """Return the uuids of all readable rows, each on its own line."""
    found = []
    for line in data(fs, path).split(b"\n"):
        try:
            found.append(str(json.loads(line).get("uuid")))
        except ValueError:
            continue  # a torn row, or what a power cut left of one
    return found


OLD = [uid(name) for name in "ABCD"]


@pytest.mark.mission("C8")
@pytest.mark.parametrize("torn", [b"", b'{"type":"user","uuid":"to'])
def test_a_kill_in_an_append_leaves_the_old_rows_or_the_new_ones(torn: bytes) -> None:
    """Existing rows do not change, acknowledged rows are there, and the next append starts on its own line."""
    old = data(prepared(torn))

    def act(fs: Filesystem) -> None:
        transcript(fs).record_transcript([*MESSAGES, user("E")])

    states = 0
    for fs, done in survivors(act, partial(prepared, torn)):
        assert data(fs).startswith(old)
        assert uuids(fs) in (OLD, [*OLD, uid("E")])
        assert not done or uuids(fs) == [*OLD, uid("E")]
        assert transcript(fs).record_transcript([*MESSAGES, user("E"), user("F")]) == uid("F")
        assert uuids(fs) == [*OLD, uid("E"), uid("F")]
        states += 1
    assert states > 30


@pytest.mark.mission("C8")
def test_a_kill_while_a_file_is_made_leaves_none_or_a_whole_one() -> None:
    """Waiting metadata is written with the first message or not at all, and the session can be started again."""

    def act(fs: Filesystem) -> None:
        writer = transcript(fs, session_id=OTHER)
        writer.set_title("T")
        writer.record_transcript([system("S")])
        writer.record_transcript([system("S"), user("A")])

    path = f"{FOLDER}/{OTHER}.jsonl"
    for fs, done in survivors(act):
        left = data(fs, path) if atomic.exists(fs, path) else b""
        if done:
            assert [row["type"] for row in rows_in(left)] == ["custom-title", "system", "user"]
        writer = transcript(fs, session_id=OTHER)
        assert writer.record_transcript([system("S"), user("A"), user("B")]) == uid("B")
        assert uuids(fs, path)[-1] == uid("B")
        assert {uid("S"), uid("A")} <= set(uuids(fs, path))


@pytest.mark.mission("C7")
@pytest.mark.parametrize("name", "ABCD")
def test_a_kill_in_a_removal_leaves_the_row_or_all_but_the_row(name: str) -> None:
    """Every other row stays byte for byte; a removed row is saved in our own root."""
    old = data(prepared())
    row = old.split(b"\n")["ABCD".index(name)]
    new = old.replace(row + b"\n", b"")
    outcomes = set()
    for fs, done in survivors(lambda fs: transcript(fs).remove_transcript_message(uid(name))):
        assert data(fs) in (old, new)
        assert not done or data(fs) == new
        outcomes.add(data(fs))
        if data(fs) == new:
            (kept,) = fs.names(f"{HOME}/tombstones/{SESSION}")
            assert data(fs, f"{HOME}/tombstones/{SESSION}/{kept}").split(b"\n")[1] == row
    assert outcomes == {old, new}


@pytest.mark.mission("C9")
def test_a_kill_while_hydrating_leaves_the_local_rows_or_the_remote_ones() -> None:
    """The file is never empty or a mixture, and the old content is saved when it is replaced."""
    old = data(prepared())
    outcomes = set()

    def act(fs: Filesystem) -> None:
        assert hydrate_session(transcript(fs, session_id=OTHER), SESSION, lambda _: REMOTE)

    for fs, done in survivors(act):
        assert data(fs) == old or rows_in(data(fs)) == REMOTE
        assert not done or data(fs) != old
        outcomes.add(data(fs))
        if data(fs) != old:
            (kept,) = fs.names(f"{HOME}/originals/{SESSION}")
            assert data(fs, f"{HOME}/originals/{SESSION}/{kept}") == old
    assert len(outcomes) == 2


@pytest.mark.mission("C13")
def test_a_kill_in_a_fork_leaves_no_fork_or_a_whole_one() -> None:
    """The source never changes, and no listing sees a part of a fork."""
    old = data(prepared())
    forked = f"{FOLDER}/{OTHER}.jsonl"

    def act(fs: Filesystem) -> None:
        mutations(fs).fork(SESSION)

    whole = set()
    for fs, done in survivors(act):
        assert data(fs) == old
        if atomic.exists(fs, forked):
            assert len(rows_in(data(fs, forked))) == 5
        assert not done or atomic.exists(fs, forked)
        whole.add(atomic.exists(fs, forked))
        assert {name for name in fs.names(FOLDER) if name.endswith(".jsonl")} <= {f"{SESSION}.jsonl", f"{OTHER}.jsonl"}
    assert whole == {True, False}


@pytest.mark.mission("C13")
@pytest.mark.parametrize("verb", ["rename", "tag", "archive", "delete"])
def test_a_kill_in_any_other_change_leaves_the_conversation_whole(verb: str) -> None:
    """The rows are in place, or in the trash, from where one call restores them."""
    old = data(prepared())

    def act(fs: Filesystem) -> None:
        values = {"rename": ["T"], "tag": ["t"]}.get(verb, [])
        getattr(mutations(fs), verb)(SESSION, *values)

    def prepare() -> CrashableFilesystem:
        fs = prepared()
        transcript(fs).record_sidechain_transcript([user("S")], "a1")
        return fs

    agent = f"{FOLDER}/{SESSION}/subagents/agent-a1.jsonl"
    for fs, done in survivors(act, prepare):
        if done and verb == "delete":
            assert not atomic.exists(fs, PATH)
            assert not atomic.exists(fs, agent)
        for deletion in mutations(fs).trash.list():
            mutations(fs).undo(deletion.token)
        assert data(fs).startswith(old)
        assert uuids(fs, agent) == [uid("S")]


def mutations(fs: Filesystem) -> Mutations:
    return Mutations(fs, CONFIG, HOME, clock=lambda: NOW_SECONDS, new_id=lambda: OTHER)


@pytest.mark.mission("C8")
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("verb", ["record", "remove", "fork", "rename", "delete"])
def test_a_disk_that_fails_at_any_call_is_told_and_costs_nothing(verb: str, code: int, forever: bool) -> None:
    """Only our errors are raised, they name a file, every row is still there, and the next process can continue."""
    acts: dict[str, Act] = {
        "record": lambda fs: transcript(fs).record_transcript([*MESSAGES, user("E")]),
        "remove": lambda fs: transcript(fs).remove_transcript_message(uid("B")),
        "fork": lambda fs: mutations(fs).fork(SESSION),
        "rename": lambda fs: mutations(fs).rename(SESSION, "T"),
        "delete": lambda fs: mutations(fs).delete(SESSION),
    }
    for number in calls():
        inner = prepared()
        fs = FaultyFilesystem(inner, plan=[Fail(code, at=number, forever=forever)])
        try:
            acts[verb](fs)
        except SessileError as error:
            assert error.path is not None
        if not fs.struck:
            assert number > 3
            return
        for deletion in mutations(inner).trash.list():
            mutations(inner).undo(deletion.token)
        assert set(uuids(inner)) >= set(OLD) - {uid("B")}
        assert verb == "remove" or data(inner).startswith(data(prepared()))
        assert transcript(inner).record_transcript([*MESSAGES, user("Z")]) is not None
        assert {*OLD, uid("Z")} <= set(uuids(inner))


# -- real processes


def writer_in(root: str) -> Transcript:
    current = Current(SESSION, CWD)
    return Transcript(PosixFilesystem(), root, f"{root}/ours", current, stamp=STAMP, power=False)


def write_many(root: str, writer: int, number: int, tell: Tell) -> None:
    """Record messages as one of many processes, with titles in between, and report each."""
    out = writer_in(root)
    last = None
    for n in range(number):
        name = f"{writer}-{n}"
        last = out.record_transcript([user(name, "x" * Random(name).choice((0, 100, 9000)))], starting_parent_hint=last)
        tell(last)
        if n % 10 == 0:
            out.set_title(name)


@pytest.mark.mission("C8")
def test_many_processes_append_to_one_file_and_lose_nothing() -> None:
    """Every acknowledged row is there once, on its own line, and a child of the row that its process wrote before."""
    with fast_folder() as root:
        children = [Child(partial(write_many, root, n, 60)) for n in range(4)]
        told = [child.finish() for child in children]
        with open(writer_in(root).transcript_path(), "rb") as file:
            rows = [row for row in rows_in(file.read()) if "uuid" in row]
        parents = {row["uuid"]: row["parentUuid"] for row in rows}
        assert len(parents) == len(rows) == 4 * 60
        for acknowledged in told:
            assert [parents[name] for name in acknowledged] == [None, *acknowledged[:-1]]


@pytest.mark.mission("C4")
def test_processes_that_record_the_same_messages_write_each_once() -> None:
    """Rows of other processes are read under the lock."""
    messages = [user(f"m{n}") for n in range(40)]

    def record(root: str, tell: Tell) -> None:
        out = writer_in(root)
        for n in range(1, 41):
            tell(out.record_transcript(messages[:n]))

    with fast_folder() as root:
        for child in [Child(partial(record, root)) for _ in range(4)]:
            assert child.finish() == [message["uuid"] for message in messages]
        with open(writer_in(root).transcript_path(), "rb") as file:
            rows = rows_in(file.read())
        assert [row["uuid"] for row in rows] == [message["uuid"] for message in messages]
        assert [row["parentUuid"] for row in rows] == [None, *(message["uuid"] for message in messages[:-1])]


@pytest.mark.mission("C7")
def test_rows_are_removed_and_recorded_at_once_without_loss() -> None:
    """A process that removes its rows never removes one of another."""

    def remove(root: str, tell: Tell) -> None:
        out = writer_in(root)
        for n in range(30):
            out.record_transcript([user(f"r{n}")])
            removed = out.remove_transcript_message(uid(f"r{n}"))
            assert removed is not None
            tell(1)

    with fast_folder() as root:
        remover = Child(partial(remove, root))
        writers = [Child(partial(write_many, root, n, 60)) for n in range(2)]
        told = {name for child in writers for name in child.finish()}
        remover.finish()
        with open(writer_in(root).transcript_path(), "rb") as file:
            rows = [row["uuid"] for row in rows_in(file.read()) if "uuid" in row]
        assert set(rows) == told
        assert len(rows) == len(told)


def write_for_ever(root: str, tell: Tell) -> None:
    out = writer_in(root)
    rng = Random(os.getpid())
    tell("begin")
    for n in count():
        name = f"{os.getpid():x}.{n}"
        row = {"type": "user", "uuid": name, "message": {"content": "x" * rng.choice((0, 1_000, 20_000))}}
        tell(out.record_transcript([row]))


@pytest.mark.mission("C8")
def test_killed_writers_lose_nothing_that_they_acknowledged() -> None:
    """Processes that are killed in the middle of an append leave every acknowledged row on its own line."""
    rng = Random(7)
    with fast_folder() as root:
        told: list[str] = []
        for _ in range(60):
            told += killed_after(rng.uniform(0, 0.01), partial(write_for_ever, root))[1:]
        writer = writer_in(root)
        assert writer.record_transcript([user("last")]) == uid("last")
        present = uuids(PosixFilesystem(), writer.transcript_path())
        assert len(told) > 30
        assert set(told) <= set(present)
        assert present[-1] == uid("last")
        assert len(present) == len(set(present))
