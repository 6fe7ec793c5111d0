"""Kills before every file system call while other agents' sessions are written in place, and many writers on one file."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from random import Random

import pytest

from claude_rows import (
    CONFIG,
    CWD,
    NOW_SECONDS,
    PATH,
    PROJECTS,
    SESSION,
    STAMP,
    assistant,
    rows_in,
    transcript,
    uid,
    user,
)
from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import Fail, FaultyFilesystem, Kill, Killed
from faults.processes import Child, Tell, fast_folder, killed_after
from faults.striding import calls
from sessile import Session, Store
from sessile.agents.claude.paths import Current
from sessile.agents.claude.transcript import Transcript
from sessile.errors import SessileError
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.filesystem import PosixFilesystem

Act = Callable[[Filesystem], object]

OURS = "/ours"
MESSAGES = [user("A"), assistant("B"), user("C", "x" * 700), assistant("D")]
OLD = [uid(name) for name in "ABCD"]


def prepared() -> CrashableFilesystem:
    """Return a durable session of Claude Code with four messages and a sub-agent, and an empty native store."""
    fs = CrashableFilesystem()
    atomic.make_folders(fs, OURS)
    writer = transcript(fs)
    writer.record_transcript(MESSAGES)
    writer.record_sidechain_transcript([user("S")], "a1")
    return fs


def store(fs: Filesystem) -> Store:
    return Store(OURS, fs=fs, clock=lambda: NOW_SECONDS)


def opened(fs: Filesystem) -> Session:
    return store(fs).open(PATH, in_place=True)


def say(session: Session, text: str) -> str:
    return session.append_message({"role": "user", "content": text}).id


def append(fs: Filesystem) -> None:
    with opened(fs) as session:
        say(session, "E")


def compact(fs: Filesystem) -> None:
    with opened(fs) as session:
        session.append_compaction("summary", uid("C"), 100)


def rename(fs: Filesystem) -> None:
    with opened(fs) as session:
        session.set_session_name("T")


ACTS: dict[str, Act] = {"append": append, "compact": compact, "rename": rename}
ROWS = {"append": 1, "compact": 2, "rename": 1}


def data(fs: Filesystem, path: str = PATH) -> bytes:
    return atomic.read_all(fs, path)


def survivors(act: Act) -> Iterator[tuple[CrashableFilesystem, bool]]:
    """Yield the disk after a kill before each call, and after a power cut at that point, and whether the act was completed."""
    for number in calls():
        fs = prepared()
        try:
            act(FaultyFilesystem(fs, plan=[Kill(at=number)]))
        except Killed:
            done = False
        else:
            assert number > 3, "a rig that kills nobody proves nothing"
            done = True
        yield fs.kill(), done
        for model in CrashModel:
            yield fs.crash(Random(f"{number} {model.value}"), model), done
        if done:
            return


@pytest.mark.mission("B1", "C8")
@pytest.mark.parametrize("act", ACTS)
def test_a_kill_in_a_write_in_place_leaves_their_rows_and_all_or_none_of_ours(act: str) -> None:
    """Existing rows do not change, acknowledged rows are there, and both agents can continue."""
    old = data(prepared())
    written = set()
    for fs, done in survivors(ACTS[act]):
        now = data(fs)
        assert now.startswith(old)
        whole = [line for line in now[len(old) :].split(b"\n")[:-1] if line.startswith(b"{") and line.endswith(b"}")]
        written.add(len(whole))
        assert not done or len(whole) == ROWS[act]
        with opened(fs) as session:
            said = say(session, "next")
            assert [entry.id for entry in session.get_branch()][:4] == OLD
            assert session.get_branch()[-1].id == said
        assert transcript(fs).record_transcript([user("F")], starting_parent_hint=said) == uid("F")
        with store(fs).open(PATH, readonly=True) as session:
            assert session.leaf_id == uid("F") and said in {entry.id for entry in session.get_branch()}
    assert {0, ROWS[act]} <= written


@pytest.mark.mission("C13", "B6")
def test_a_kill_while_a_transcript_goes_to_our_trash_or_comes_back_loses_nothing() -> None:
    """The transcript is in place or in the trash, from where one undo restores everything."""
    old = data(prepared())
    agent = f"{PATH.removesuffix('.jsonl')}/subagents/agent-a1.jsonl"

    def there_and_back(fs: Filesystem) -> None:
        deletion = store(fs).delete(PATH, below=PROJECTS)
        store(fs).undo(deletion.token, roots=[PROJECTS])

    gone = set()
    for fs, _ in survivors(there_and_back):
        gone.add(atomic.exists(fs, PATH))
        for deletion in store(fs).deletions():
            store(fs).undo(deletion.token, roots=[PROJECTS])
        assert data(fs) == old
        assert [row["uuid"] for row in rows_in(data(fs, agent))] == [uid("S")]
        assert store(fs).deletions() == ()
    assert gone == {True, False}


@pytest.mark.mission("B1")
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("act", ACTS)
def test_a_disk_that_fails_at_any_call_is_told_and_costs_nothing(act: str, code: int, forever: bool) -> None:
    """Only our errors are raised, they name a file, and the next process can continue."""
    old = data(prepared())
    for number in calls():
        inner = prepared()
        fs = FaultyFilesystem(inner, plan=[Fail(code, at=number, forever=forever)])
        try:
            ACTS[act](fs)
        except SessileError as error:
            assert error.path is not None
        assert data(inner).startswith(old)
        if not fs.struck:
            assert number > 3
            return
        with opened(inner) as session:
            said = say(session, "next")
            assert session.get_branch()[-1].id == said


# -- real processes


def claude_in(root: str) -> Transcript:
    """Return Claude Code's writer."""
    current = Current(SESSION, CWD)
    return Transcript(PosixFilesystem(), f"{root}{CONFIG}", f"{root}/theirs", current, stamp=STAMP, power=False)


def ours_in(root: str) -> Session:
    return Store(f"{root}/ours", durability="process").open(claude_in(root).transcript_path(), in_place=True)


def write_ours(root: str, writer: int, number: int, tell: Tell) -> None:
    """Append messages in place, with a name now and then, and report each."""
    with ours_in(root) as session:
        for n in range(number):
            tell(say(session, f"{writer}-{n} " + "x" * Random(n).choice((0, 100, 9000))))
            if n % 10 == 0:
                session.set_session_name(f"{writer}-{n}")


def write_theirs(root: str, number: int, tell: Tell) -> None:
    out, last = claude_in(root), None
    for n in range(number):
        last = out.record_transcript([user(f"t{n}", "y" * 300)], starting_parent_hint=last)
        tell(last)


@pytest.mark.mission("B4")
def test_many_processes_and_the_agent_itself_write_at_once_and_lose_nothing() -> None:
    """Every acknowledged row is there once, on its own line, and a child of the row that its process wrote before."""
    with fast_folder() as root:
        claude_in(root).record_transcript([user("first")])
        children = [Child(partial(write_ours, root, n, 40)) for n in range(3)]
        children.append(Child(partial(write_theirs, root, 40)))
        told = [child.finish() for child in children]
        with open(claude_in(root).transcript_path(), "rb") as file:
            rows = [row for row in rows_in(file.read()) if "uuid" in row]
        parents = {row["uuid"]: row["parentUuid"] for row in rows}
        assert len(parents) == len(rows) == 4 * 40 + 1
        for acknowledged in told:
            assert [parents[name] for name in acknowledged][1:] == acknowledged[:-1]
        with ours_in(root) as session:
            assert {name for names in told for name in names} <= {entry.id for entry in session.get_entries()}
            assert session.findings == []


def write_for_ever(root: str, tell: Tell) -> None:
    with ours_in(root) as session:
        tell("begin")
        for n in count():
            tell(say(session, "x" * Random(n).choice((0, 1_000, 20_000))))


@pytest.mark.mission("B4")
def test_killed_writers_lose_nothing_that_they_acknowledged() -> None:
    """After kills at random moments, every acknowledged row is on its own line, and the next process can continue."""
    rng = Random(7)
    with fast_folder() as root:
        claude_in(root).record_transcript([user("first")])
        told: list[str] = []
        for _ in range(25):
            told += killed_after(rng.uniform(0, 0.02), partial(write_for_ever, root))[1:]
        with ours_in(root) as session:
            last = say(session, "last")
        present = []
        with open(claude_in(root).transcript_path(), "rb") as file:
            for line in file.read().split(b"\n"):
                try:
                    present.append(json.loads(line).get("uuid"))
                except ValueError:
                    continue  # a row torn by a kill
        assert len(told) > 20
        assert set(told) <= set(present)
        assert present[-1] == last
