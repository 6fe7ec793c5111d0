"""Kills, power cuts and failing disks before every file system call while MyAgents' sessions are written in place."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from random import Random

import pytest

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import Fail, FaultyFilesystem, Kill, Killed
from faults.processes import Child, Tell, fast_folder, killed_after
from faults.striding import calls
from myagents_folder import NOW_MS, ROOT, Time, asked, content, put, stamps, told
from sessile import Session, Store
from sessile.agents.myagents.store import MyAgentsStore
from sessile.errors import SessileError
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.filesystem import PosixFilesystem

Act = Callable[[Filesystem], object]

OURS = "/home/.sessile"
FOLDER = f"{ROOT}/sessions"
PATH = f"{FOLDER}/s.jsonl"
CALL = {"role": "assistant", "content": [{"type": "toolCall", "id": "t", "name": "n", "arguments": {}}]}
RESULT = {"role": "toolResult", "toolCallId": "t", "content": [{"type": "text", "text": "r"}]}


def agent(fs: Filesystem) -> MyAgentsStore:
    """Return MyAgents' own store, for which holders of locks and notes are dead."""
    time = Time(NOW_MS + 60_000)
    return MyAgentsStore(fs, ROOT, OURS, clock=time, pause=time.pause, alive=lambda pid: False, stamp=stamps())


def prepared() -> CrashableFilesystem:
    """Return a durable session with two messages, an attachment and an index row, and an empty native store."""
    fs = CrashableFilesystem(clock=Time())
    atomic.make_folders(fs, OURS)
    writer = agent(fs)
    writer.create("s", "/work")
    writer.append("s", [asked(0), told(1)])
    writer.attachments.save("s", "a", "a.png", "image/png", b"picture")
    return fs


def store(fs: Filesystem) -> Store:
    return Store(OURS, fs=fs, clock=lambda: NOW_MS / 1000 + 60)


def opened(fs: Filesystem) -> Session:
    return store(fs).open(PATH, in_place=True)


def say(session: Session, text: str) -> str:
    return session.append_message({"role": "user", "content": text}).id


def append(fs: Filesystem) -> None:
    with opened(fs) as session:
        say(session, "E")


def append_results(fs: Filesystem) -> None:
    with opened(fs) as session:
        session.append_many([{"type": "message", "message": message} for message in (CALL, RESULT)])


def rename(fs: Filesystem) -> None:
    with opened(fs) as session:
        session.set_session_name("T")


ACTS: dict[str, Act] = {"append": append, "append_results": append_results, "rename": rename}
ROWS = {"append": 1, "append_results": 1, "rename": 0}


def survivors(act: Act) -> Iterator[tuple[CrashableFilesystem, bool, bool]]:
    """Yield the disk after a kill before each call, and after a power cut (`True`), and whether the act was completed."""
    for number in calls():
        fs = prepared()
        try:
            act(FaultyFilesystem(fs, plan=[Kill(at=number)]))
        except Killed:
            done = False
        else:
            assert number > 10, "a rig that kills nobody proves nothing"
            done = True
        yield fs.kill(), False, done
        for model in CrashModel:
            yield fs.crash(Random(f"{number} {model.value}"), model), True, done
        if done:
            return


@pytest.mark.mission("B1", "M5")
@pytest.mark.parametrize("act", ACTS)
def test_a_kill_in_a_write_in_place_leaves_their_rows_and_all_or_none_of_ours(act: str) -> None:
    """Existing rows do not change, acknowledged rows are there, both agents continue, and the index can be repaired."""
    old = content(agent(prepared()), PATH)
    written, titles = set(), set()
    for fs, cut, done in survivors(ACTS[act]):
        now = atomic.read_all(fs, PATH)
        assert now.startswith(old)
        lines = now[len(old) :].split(b"\n")[:-1]
        whole = [line for line in lines if line.startswith(b"{") and line.endswith(b"}")]
        written.add(len(whole))
        assert not done or len(whole) == ROWS[act]
        row = agent(fs).get("s")
        assert row is not None
        titles.add(row.title)
        assert not done or act != "rename" or row.title == "T"
        with opened(fs) as session:
            said = say(session, "next")
            assert session.get_branch()[-1].id == said
            assert len(session.get_heads()) == 1
        agent(fs).append("s", [asked(9, "theirs")])
        agent(fs).settle()
        if cut:  # the note of an unfinished write may be lost in a power cut
            agent(fs).repair_stats("s")
        row = agent(fs).get("s")
        assert row is not None and row.stats == agent(fs).recount("s")
        with store(fs).open(PATH, readonly=True) as session:
            assert said in {entry.id for entry in session.get_branch()}
    assert written == {0, ROWS[act]}
    assert titles == ({"New Chat", "T"} if act == "rename" else {"New Chat"})


@pytest.mark.mission("B6")
def test_a_kill_while_a_session_goes_to_our_trash_or_comes_back_loses_nothing() -> None:
    """The session is listed and in place, or in the trash, from where one undo restores everything with its row."""
    old = content(agent(prepared()), PATH)
    known = agent(prepared()).get("s")
    assert known is not None

    def there_and_back(fs: Filesystem) -> None:
        deletion = store(fs).delete(PATH, below=FOLDER)
        store(fs).undo(deletion.token, roots=[FOLDER])

    gone = set()
    for fs, _, _ in survivors(there_and_back):
        gone.add(atomic.exists(fs, PATH))
        for deletion in store(fs).deletions():
            store(fs).undo(deletion.token, roots=[FOLDER])
        assert atomic.read_all(fs, PATH) == old
        assert atomic.read_all(fs, f"{ROOT}/attachments/s/a.png") == b"picture"
        row = agent(fs).get("s")
        assert row is not None and row.value == known.value
        assert store(fs).deletions() == ()
    assert gone == {True, False}


@pytest.mark.mission("B1")
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("act", ACTS)
def test_a_disk_that_fails_at_any_call_is_told_and_costs_nothing(act: str, code: int, forever: bool) -> None:
    """Only our errors are raised, they name a file, and the next process can continue."""
    old = content(agent(prepared()), PATH)
    for number in calls():
        inner = prepared()
        fs = FaultyFilesystem(inner, plan=[Fail(code, at=number, forever=forever)])
        try:
            ACTS[act](fs)
        except SessileError as error:
            assert error.path is not None
        assert atomic.read_all(inner, PATH).startswith(old)
        if not fs.struck:
            assert number > 10
            return
        with opened(inner) as session:
            said = say(session, "next")
            assert session.get_branch()[-1].id == said
        agent(inner).settle()
        row = agent(inner).get("s")
        assert row is not None and row.stats == agent(inner).recount("s")


@pytest.mark.mission("M6")
def test_a_kill_while_an_old_session_is_opened_for_writing_loses_no_message() -> None:
    """The session is readable in the old or the new form, and the next process can continue."""
    legacy = f"{FOLDER}/old.json"

    def act(fs: Filesystem) -> None:
        with store(fs).open(legacy, in_place=True) as session:
            say(session, "E")

    for number in calls():
        fs = prepared()
        put(fs, legacy, json.dumps({"messages": [asked(0, "first")]}).encode())
        try:
            act(FaultyFilesystem(fs, plan=[Kill(at=number)]))
            done = True
        except Killed:
            done = False
        left = fs.kill()
        assert [said.text for said in agent(left).load("old").messages] in (["first"], ["first", "E"])
        path = legacy if atomic.exists(left, legacy) else f"{FOLDER}/old.jsonl"
        with store(left).open(path, in_place=True) as session:
            say(session, "next")
        assert agent(left).load("old").messages[-1].text == "next"
        if done:
            assert number > 10
            return


# -- real processes


def ours_in(root: str) -> Session:
    return Store(f"{root}/ours", durability="process").open(f"{root}/home/sessions/s.jsonl", in_place=True)


def begun(root: str) -> MyAgentsStore:
    theirs = MyAgentsStore(PosixFilesystem(), f"{root}/home", f"{root}/ours")
    theirs.create("s", "/work")
    theirs.append("s", [asked(0)])
    return theirs


def write_ours(root: str, number: int, tell: Tell) -> None:
    with ours_in(root) as session:
        for n in range(number):
            tell(say(session, "x" * Random(n).choice((0, 100, 9000))))


@pytest.mark.mission("B4")
def test_many_processes_write_at_once_and_lose_nothing() -> None:
    """Every acknowledged entry is there once, on one line, and every row has its own id."""
    with fast_folder() as root:
        theirs = begun(root)
        children = [Child(partial(write_ours, root, 25)) for _ in range(3)]
        said = {name for child in children for name in child.finish()}
        with ours_in(root) as session:
            entries = session.get_entries()
            assert said == {entry.id for entry in entries[1:]}
            assert len(session.get_branch()) == len(entries) == 76
            assert session.findings == []
        ids = [message.id for message in theirs.load("s").messages]
        assert ids == [str(number) for number in range(76)]
        theirs.settle()
        row = theirs.get("s")
        assert row is not None and row.stats == theirs.recount("s")


def write_for_ever(root: str, tell: Tell) -> None:
    with ours_in(root) as session:
        tell("begin")
        for n in count():
            tell(say(session, "x" * Random(n).choice((0, 1_000, 20_000))))


@pytest.mark.mission("B4")
def test_killed_writers_lose_nothing_that_they_acknowledged() -> None:
    """After kills at random moments, every acknowledged entry is there, and the next process can continue."""
    rng = Random(7)
    with fast_folder() as root:
        begun(root)
        acknowledged: list[str] = []
        kills = 0
        while kills < 15 or (len(acknowledged) <= 10 and kills < 150):
            patience = 0.03 * (1 + kills // 15)  # a busy machine writes little before a kill
            acknowledged += killed_after(rng.uniform(0, patience), partial(write_for_ever, root))[1:]
            kills += 1
        with ours_in(root) as session:
            last = say(session, "last")
            present = {entry.id for entry in session.get_branch()}
        assert len(acknowledged) > 10
        assert {*acknowledged, last} <= present
