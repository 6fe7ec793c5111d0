"""Kills, power cuts and failing disks at every step of binding maintenance and its undo."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import cache
from random import Random
from typing import NamedTuple

import pytest

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import Fail, FaultyFilesystem, Kill, Killed
from faults.striding import calls
from sessile import Store
from sessile.config import Maintenance
from sessile.core.resets import ResetConfig, ResetRule
from sessile.errors import Conflict, SessileError
from sessile.gateway.conversations.maintenance import apply_maintenance, plan_maintenance, undo_maintenance
from sessile.gateway.conversations.registry import Conversations
from sessile.gateway.conversations.removed import Archives
from sessile.storage.base import Filesystem
from sessions import Clock, numbered, say
from yoyoclaw import NOW

pytestmark = pytest.mark.mission("Y2", "B4")


@pytest.fixture(autouse=True)
def _open_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process has files in memory open, and checking every process would be slower than the test."""
    for module in ("gateway.conversations.maintenance", "upkeep.prune"):
        monkeypatch.setattr(f"sessile.{module}.open_files", frozenset)


DAY = 24 * 60 * 60_000
LATER = NOW + 90 * DAY
KEYS = [f"agent:main:telegram:direct:{name}" for name in "abc"]
RULES = Maintenance(mode="enforce", max_disk_bytes=1)  # removes every conversation and its session


def conversations(fs: Filesystem, seed: str, now: int = LATER) -> Conversations:
    store = Store("/ours", fs=fs, clock=Clock(now / 1000), random=numbered(seed))
    never = ResetConfig(base=ResetRule(mode="none"))
    return Conversations(store, workspace=lambda agent: f"/work/{agent}", resets=never, hold=None)


class Before(NamedTuple):
    """A disk with conversations, their session ids, and the token of an archive, if there is one."""

    disk: CrashableFilesystem
    ids: dict[str, str]
    token: str | None


@cache
def before(archived: bool) -> Before:
    """Return the cached start state. Copy the disk before changing it."""
    disk = CrashableFilesystem()
    all_ = conversations(disk, "before", NOW)
    ids = {}
    for key in KEYS:
        bound = all_.resolve(key)
        ids[key] = bound.session_id
        with all_.internals.store.open(bound.path) as session:
            say(session, key)
    token = None
    if archived:
        later = conversations(disk, "archived")
        token = apply_maintenance(later, plan_maintenance(later, "main", RULES)).token
    return Before(disk, ids, token)


Act = Callable[[Conversations, Before], int]


def maintain(all_: Conversations, start: Before) -> int:
    """Archive all conversations. Return the number of sessions moved to the trash."""
    return len(apply_maintenance(all_, plan_maintenance(all_, "main", RULES)).deletions)


def take_back(all_: Conversations, start: Before) -> int:
    """Restore all conversations. Return their number."""
    return len(undo_maintenance(all_, start.token or "").keys)


ACTS = [(maintain, False), (take_back, True)]


def check(disk: Filesystem, start: Before) -> None:
    """Check that each conversation is bound or archived, and has its session again after all undos."""
    all_ = conversations(disk, "after")
    archives = Archives(all_.internals.store, all_.internals.home)
    for archive in archives.list("main"):
        assert undo_maintenance(all_, archive.token) == (tuple(archive.entries), (), ())
    assert archives.list("main") == []
    for deletion in all_.internals.store.deletions():
        try:
            all_.internals.store.undo(deletion.token)  # a session whose move to the trash was interrupted
        except Conflict:
            pass
    for key, session_id in start.ids.items():
        bound = all_.resolve(key)
        assert (bound.session_id, bound.is_new) == (session_id, False)
        with all_.internals.store.open(bound.path, readonly=True) as session:
            assert [message["content"] for message in session.context().messages] == [key]


@pytest.mark.parametrize(("act", "archived"), ACTS)
def test_a_death_before_any_call_loses_no_conversation(act: Act, archived: bool) -> None:
    """A kill or a power cut before any call loses no conversation."""
    for number in calls():
        start = before(archived)._replace(disk=before(archived).disk.kill())
        faulty = FaultyFilesystem(start.disk, plan=[Kill(at=number)])
        try:
            done = act(conversations(faulty, f"act {number}"), start)
        except Killed:
            done = 0
        check(start.disk.kill(), start)
        for model in CrashModel:
            check(start.disk.crash(Random(f"{number} {model}"), model), start)
        if not faulty.struck:
            break
    assert number > 40 and done == len(KEYS)


@pytest.mark.parametrize("code", [errno.EIO, pytest.param(errno.ENOSPC, marks=pytest.mark.long)])
@pytest.mark.parametrize(("act", "archived"), ACTS)
def test_a_failing_disk_is_told_and_loses_no_conversation(act: Act, archived: bool, code: int) -> None:
    """A failing call raises an error with a path and loses no conversation."""
    for number in calls():
        start = before(archived)._replace(disk=before(archived).disk.kill())
        faulty = FaultyFilesystem(start.disk, plan=[Fail(code, at=number)])
        try:
            act(conversations(faulty, f"failing {number}"), start)
        except SessileError as error:
            assert error.path is not None
        except OSError as error:
            raise AssertionError(f"call {number}, {faulty.calls[number - 1]}") from error
        check(start.disk.kill(), start)
        if not faulty.struck:
            break
    assert number > 40
