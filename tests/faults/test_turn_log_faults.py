"""Storage failures while turns run: a refused message leaves nothing behind, no other is lost, and the lane continues."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import anyio
import httpx
import pytest

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import METHODS, Fail, FaultyFilesystem, Kill, Killed
from faults.gateway_points import ROOT, SAID, gateway_on, going_on, prepared
from faults.test_teeth import reports_loss
from gateways import Scripted, ask, gateway_in, lines, running, scripted
from http_rig import BASE, BEARER, NEVER, TOKEN, check_problem
from sessile import Store
from sessile.core.secret import Secret
from sessile.errors import SessileError, StorageFull
from sessile.gateway.http.asgi import make_app
from sessile.gateway.service import Gateway
from sessile.gateway.turns.lanes import LocalQueue
from sessile.gateway.turns.replies import INTERRUPTED, Records
from sessile.gateway.turns.turn import Message, Turn
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.turn_log import TurnLog

pytestmark = [pytest.mark.mission("Y13"), pytest.mark.promise("P41")]

SESSION = "0198c0de-0000-7000-8000-000000000001"
LOG, JOURNAL = "/gateway/turns/", "/sessions/"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# -- the log by itself


def keep_three(fs: Filesystem, kept: list[str]) -> None:
    """Note a running turn and keep three waiting ones, forgetting the session after the first."""
    log = TurnLog(fs, ROOT)
    log.note(SESSION, {"name": "runs"})
    for number, name in enumerate("abc"):
        if number == 1:
            log.forget(SESSION)
            kept.clear()
        log.keep(SESSION, {"name": name, "text": name * 3_000})
        kept.append(name)
    log.close()


def left_on(disk: Filesystem) -> list[str]:
    return [turn["name"] for _, turns in TurnLog(disk, ROOT).left() for turn in turns if "text" in turn]


def check_kept(*, without: Collection[str] = ()) -> int:
    """Kill before each call and cut the power there: kept turns survive. Return the number of states."""
    states = 0
    for number in count(1):
        disk, kept = CrashableFilesystem(), list[str]()
        disk.mkdir(ROOT)
        disk.sync_directory("/")
        try:
            keep_three(FaultyFilesystem(disk, plan=[Kill(at=number)], without=without), kept)
        except Killed:
            done = False
        else:
            done = True
        crashes = [disk.crash(Random(f"{number} {sample}"), model) for model in CrashModel for sample in range(4)]
        for survivor in (disk.kill(), *crashes):
            left = left_on(survivor)
            assert set(kept) <= set(left), f"{kept} were kept, {left} are left, killed before call {number}"
            assert sorted(left) == left and len(set(left)) == len(left)
            states += 1
        if done:
            return states
    raise AssertionError("not reached")


def test_what_was_kept_survives_a_kill_and_a_power_cut_before_any_call() -> None:
    """Waiting turns survive, each once and in order."""
    assert check_kept() > 300


@pytest.mark.parametrize("missing", ["sync", "sync_directory"])
def test_without_a_sync_the_rig_of_the_log_reports_loss(missing: str) -> None:
    """Without either sync, the rig reports a loss."""
    assert reports_loss(lambda: check_kept(without={missing}))


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_log_that_fails_at_any_call_holds_what_was_kept_and_nothing_that_was_refused(code: int) -> None:
    """After a failing call the log holds the kept turns and no refused one, and the error names a file."""
    for number in count(1):
        disk, kept = CrashableFilesystem(), list[str]()
        disk.mkdir(ROOT)
        # A synced entry is not undone if its descriptor could not be closed.
        faulty = FaultyFilesystem(disk, plan=[Fail(code, at=number, on=METHODS - {"close"})])
        try:
            keep_three(faulty, kept)
        except SessileError as error:
            assert error.path is not None
        left = left_on(disk)
        assert left == kept or (left, kept) == (["a"], []), (
            f"call {number}, {faulty.calls[-1]}"
        )  # "a" could not be removed
        if not faulty.struck:
            break
    assert number > 20


# -- a disk that is full for some files


class FullFor(FaultyFilesystem):
    """A disk that is full for files whose paths contain `where`; None disables it."""

    def __init__(self) -> None:
        super().__init__(PosixFilesystem())
        self.where: str | None = None
        self._paths: dict[int, str] = {}

    def open(self, path: str, flags: int) -> int:
        fd = super().open(path, flags)
        self._paths[fd] = path
        return fd

    def write(self, fd: int, data: bytes) -> int:
        if self.where is not None and self.where in self._paths.get(fd, ""):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, data)


class Rig:
    """A gateway on a disk that can be full, and its scripted runner."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = FullFor()
        store = Store(folder, fs=self.disk, durability="process", patience=2.0)
        self.gateway: Gateway = gateway_in(folder, NEVER, store=store)
        self.runner: Scripted = scripted(self.gateway)

    async def send(self, text: str) -> Turn:
        """Send a message with its text as idempotency key."""
        return await self.gateway.turns.send(Message(text=text, source="main", idempotency_key=text))

    @property
    def waiting(self) -> list[str]:
        """Return the waiting messages in the log."""
        left = TurnLog(PosixFilesystem(), str(self.folder)).left()
        return [turn["text"] for _, turns in left for turn in turns if "text" in turn]


@pytest.mark.anyio
async def test_a_message_that_finds_no_room_is_refused_with_507_and_leaves_nothing(tmp_path: Path) -> None:
    """Over HTTP, the lane is free afterwards, and the same message can be sent when there is space again."""
    rig = Rig(tmp_path)
    transport = httpx.ASGITransport(make_app(rig.gateway, Secret(TOKEN)))
    async with running(rig.gateway), httpx.AsyncClient(transport=transport, base_url=BASE, headers=BEARER) as client:
        await ask(rig.gateway, "before")
        path = rig.gateway.conversations.path_of("main")
        assert path is not None
        before = Path(path).read_bytes()
        body = {"key": "main", "message": "a", "idempotencyKey": "a", "wait": True}
        for where in (LOG, JOURNAL):
            rig.disk.where = where
            response = await client.post("/v1/chat/send", json=body)
            assert response.status_code == 507
            check_problem(response)
            assert Path(path).read_bytes() == before and rig.waiting == []
            assert rig.gateway.turns.live() == []
        rig.disk.where = None
        response = await client.post("/v1/chat/send", json=body)
        assert response.status_code == 200 and response.json()["reply"]["text"] == "re: a"
        assert lines(rig.gateway)[2:] == [("user", "a"), ("assistant", "re: a")]
    assert os.listdir(tmp_path / "gateway/turns") == []


@pytest.mark.anyio
async def test_a_message_that_would_wait_and_finds_no_room_is_refused_and_never_answered(tmp_path: Path) -> None:
    """The refused message is not answered after a restart either; running and waiting turns are not affected."""
    rig = Rig(tmp_path)
    rig.runner.gate = anyio.Event()
    async with running(rig.gateway):
        first, second = await rig.send("a"), await rig.send("b")
        rig.disk.where = LOG
        with pytest.raises(StorageFull):
            await rig.send("c")
        assert rig.waiting == ["b"]
        rig.disk.where = None
        rig.runner.gate.set()
        assert [(await turn.wait()).text for turn in (first, second)] == ["re: a", "re: b"]
    async with running(gateway_in(tmp_path)) as again:
        assert again.turns.live() == [] and len(lines(again)) == 4


@pytest.mark.anyio
async def test_a_reply_that_finds_no_room_is_told_and_the_next_turn_says_that_it_is_missing(tmp_path: Path) -> None:
    """The turn reports the error, and the next turn marks the missing reply as interrupted."""
    rig = Rig(tmp_path)
    rig.runner.gate = anyio.Event()
    async with running(rig.gateway):
        turn = await rig.send("a")
        await anext(turn.deltas())
        rig.disk.where = JOURNAL
        rig.runner.gate.set()
        reply = await turn.wait()
        assert (reply.stop, reply.entry_id) == ("error", None) and "No space" in (reply.error or "")
        rig.disk.where = None
        assert (await ask(rig.gateway, "b")).text == "re: b"
        assert lines(rig.gateway) == [("user", "a"), ("assistant", ""), ("user", "b"), ("assistant", "re: b")]
        with rig.gateway.store.open(turn.session_id, readonly=True) as session:
            assert session.get_entries()[1]["message"]["errorMessage"] == INTERRUPTED
    assert os.listdir(tmp_path / "gateway/turns") == []


@pytest.mark.anyio
@pytest.mark.parametrize("restart", [False, True])
async def test_a_message_that_waited_and_then_finds_no_room_is_not_lost(tmp_path: Path, restart: bool) -> None:
    """It was acknowledged, so it is appended before the next message or answered after a restart, once."""
    rig = Rig(tmp_path)
    rig.runner.gate = anyio.Event()
    async with running(rig.gateway):
        first, second = await rig.send("a"), await rig.send("b")
        await anext(first.deltas())
        rig.disk.where = JOURNAL
        rig.runner.gate.set()
        assert "No space" in ((await second.wait()).error or "")
        rig.disk.where = None
        if not restart:
            assert (await ask(rig.gateway, "c")).text == "re: c"
            assert (await rig.send("b")).id == second.id
    async with running(gateway_in(tmp_path)) as again:
        while again.turns.live():
            await anyio.sleep(0.001)
        said = [("user", "a"), ("assistant", ""), ("user", "b")]
        tail = [("assistant", "b")] if restart else [("assistant", ""), ("user", "c"), ("assistant", "re: c")]
        assert lines(again) == said + tail
    assert os.listdir(tmp_path / "gateway/turns") == []


@pytest.mark.anyio
@pytest.mark.parametrize("fails", [False, True])
async def test_a_message_that_is_slow_to_be_kept_does_not_begin_before(tmp_path: Path, fails: bool) -> None:
    """A message that is still being stored does not start, even if the turn before it ends; a refused one never does."""
    rig = Rig(tmp_path)
    rig.runner.gate = anyio.Event()
    line = rig.gateway.turns._queue
    assert isinstance(line, LocalQueue)
    log = line._log
    keep, arrived, goes_on = log.keep, anyio.Event(), threading.Event()

    def slow(session_id: str, turn: Mapping[str, Any]) -> None:
        rig.gateway.call_on_loop(arrived.set)
        goes_on.wait()
        if fails:
            raise StorageFull("the disk is full")
        keep(session_id, turn)

    log.keep = slow  # type: ignore[method-assign]
    async with running(rig.gateway):
        first = await rig.send("a")
        async with anyio.create_task_group() as group:
            group.start_soon(send_or_not, rig, "b")
            await arrived.wait()
            rig.runner.gate.set()
            await first.wait()
            await anyio.sleep(0.02)
            assert len(rig.runner.asked) == 1
            goes_on.set()
        while rig.gateway.turns.live():
            await anyio.sleep(0.001)
        assert len(lines(rig.gateway)) == (2 if fails else 4)
        assert len(rig.runner.asked) == (1 if fails else 2)
        assert (await ask(rig.gateway, "c")).text == "re: c"
    assert os.listdir(tmp_path / "gateway/turns") == []


async def send_or_not(rig: Rig, text: str) -> None:
    """Send a message that may be refused."""
    try:
        await rig.send(text)
    except StorageFull:
        pass


# -- every call


def check_failures(code: int, *, forever: bool, step: int = 1) -> int:
    """Let each call fail in turn while two messages arrive. Return the number of the last call."""
    disk = prepared()
    for number in count(1, step):
        copy = disk.kill()
        faulty = FaultyFilesystem(copy, plan=[Fail(code, at=number, forever=forever)])
        try:
            acknowledged, asked = anyio.run(_messages_on_failing_disk, faulty, forever)
            unknown = [text for text in SAID[1:-1] if text not in acknowledged]
            asked += anyio.run(_go_on, copy, unknown)
            _check_all(copy, asked)
        except Exception as error:
            call = faulty.calls[min(number, len(faulty.calls)) - 1]
            raise AssertionError(f"{errno.errorcode[code]} at call {number}, {call}") from error
        if not faulty.struck:
            return number
    raise AssertionError("not reached")


async def _messages_on_failing_disk(fs: FaultyFilesystem, forever: bool) -> tuple[list[str], list[str]]:
    """Send two messages. After a single failure, send another one to the same gateway."""
    gateway, runner = gateway_on(fs, "failing")
    acknowledged: list[str] = []
    try:
        async with running(gateway):
            runner.gate = anyio.Event()
            turns = []
            for text in SAID[1:-1]:
                try:
                    turns.append(await gateway.turns.send(Message(text=text, source="main", idempotency_key=text)))
                    acknowledged.append(text)
                except SessileError as error:
                    assert error.path is not None
            runner.gate.set()
            for turn in turns:
                await turn.wait()
            if not forever:
                fs.heal()
                await going_on([text for text in SAID[1:-1] if text not in acknowledged])(gateway, runner, [])
                acknowledged = SAID[1:]
    except* SessileError as errors:  # it did not start, or could not write its counters at the end
        assert errors.exceptions
    return acknowledged, _texts(runner)


async def _go_on(fs: Filesystem, unknown: list[str]) -> list[str]:
    gateway, runner = gateway_on(fs, "after")
    async with running(gateway):
        await going_on(unknown)(gateway, runner, [])
    return _texts(runner)


def _texts(runner: Scripted) -> list[str]:
    return [request.messages[-1]["content"][0]["text"] for request in runner.asked]


def _check_all(disk: Filesystem, asked: list[str]) -> None:
    """Check that every message is there once with one reply, and the runner was asked at most once for each."""
    gateway, _ = gateway_on(disk, "reader")
    said = lines(gateway)
    assert sorted(text for role, text in said if role == "user") == sorted(SAID)
    assert [role for role, _ in said] == ["user", "assistant"] * len(SAID)
    assert [text for text, times in Counter(asked).items() if times > 1] == []
    assert disk.names(f"{ROOT}/gateway/turns") == []
    stored = json.loads(atomic.read_all(disk, f"{ROOT}/agents/main/sessions/sessions.json"))
    assert list(stored) == ["agent:main:main"]


@pytest.mark.parametrize("forever", [False, True])
def test_a_disk_that_fails_at_any_call_loses_and_doubles_nothing(forever: bool) -> None:
    """The disk recovers at once or only for the next gateway; every third call fails here."""
    assert check_failures(errno.ENOSPC, forever=forever, step=3) > 80


@pytest.mark.long
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_a_disk_that_fails_at_every_call_loses_and_doubles_nothing(code: int, forever: bool) -> None:
    """The long form of the test above."""
    assert check_failures(code, forever=forever) > 80


def test_without_what_is_owed_the_failing_disk_reports_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """If messages that could not be appended are not remembered, the rig reports a loss."""
    monkeypatch.setattr(Records, "postpone", lambda self, job: None)
    assert reports_loss(lambda: check_failures(errno.ENOSPC, forever=False, step=3))
