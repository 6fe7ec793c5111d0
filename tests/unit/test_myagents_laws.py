"""Invariants of a MyAgents session under any sequence of operations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myagents_folder import ROOT, Time, asked, begun, content, folder, line, put, told
from sessile.agents.myagents.store import MyAgentsStore
from sessile.storage import atomic
from sessile.storage.memory import MemoryFilesystem

pytestmark = [pytest.mark.mission("M3"), pytest.mark.mission("M4")]

FILE = f"{ROOT}/sessions/s.jsonl"
LOCK = f"{ROOT}/sessions.lock"
GARBAGE = (b"{bad\n", b"\n", b"[1]\n", b"\0\0\0\n", b'{"id":"torn","role":"us', b"\xff\xfe\n")

tokens = st.integers(0, 2000)
steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3), tokens),
    st.tuples(st.just("save"), st.integers(0, 3), tokens),
    st.tuples(st.just("late"), st.integers(1, 8), tokens),
    st.tuples(st.just("update"), st.integers(0, 30), tokens),
    st.tuples(st.just("garbage"), st.integers(0, len(GARBAGE) - 1), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
    st.tuples(st.just("busy"), st.just(0), st.just(0)),
    st.tuples(st.just("free"), st.just(0), st.just(0)),
)


class Life:
    """A session and its expected content."""

    def __init__(self) -> None:
        self.time = Time()
        self.fs = MemoryFilesystem(clock=self.time)
        self.store = begun(folder(self.fs, self.time))
        self.messages: list[dict[str, Any]] = []

    def take(self, name: str, number: int, used: int) -> None:
        getattr(self, f"_{name}")(number, used)

    def _new(self, number: int, used: int) -> list[dict[str, Any]]:
        at = len(self.messages)
        return [asked(at + n) if (at + n) % 2 == 0 else told(at + n, used) for n in range(number)]

    def _append(self, number: int, used: int) -> None:
        new = self._new(number, used)
        self.store.append("s", new)
        self.messages += new

    def _save(self, number: int, used: int) -> None:
        self.messages += self._new(number, used)
        self.store.save("s", self.messages)

    def _late(self, back: int, used: int) -> None:
        if len(self.messages) >= back:
            self.messages[-back] = self.messages[-back] | {"usage": {"inputTokens": used}, "durationMs": used}
            self.store.save("s", self.messages)

    def _update(self, number: int, used: int) -> None:
        if number < len(self.messages):
            members = {"usage": {"inputTokens": used, "outputTokens": 3}}
            self.messages[number] = self.messages[number] | members
            self.store.update("s", str(number), members)

    def _garbage(self, number: int, used: int) -> None:
        if atomic.exists(self.fs, FILE):
            put(self.fs, FILE, content(self.store, FILE) + GARBAGE[number])

    def _restart(self, number: int, used: int) -> None:
        self.store = folder(self.fs, self.time)

    def _busy(self, number: int, used: int) -> None:
        if not atomic.exists(self.fs, LOCK):
            self.fs.mkdir(LOCK)

    def _free(self, number: int, used: int) -> None:
        if atomic.exists(self.fs, LOCK):
            self.fs.rmdir(LOCK)


def stats_of(store: MyAgentsStore) -> object:
    known = store.get("s")
    return known.stats if known else None


@given(st.lists(steps, max_size=25))
def test_every_message_is_read_as_it_was_given_and_the_statistics_catch_up(taken: list[tuple[str, int, int]]) -> None:
    """Messages are in order and read once, despite damaged lines, a busy index, and also from another process."""
    life = Life()
    for name, number, used in taken:
        life.take(name, number, used)
        assert [each.value for each in life.store.load("s").messages] == life.messages
        assert life.store.files.count("s") == len(life.messages)
    life.take("free", 0, 0)
    later = folder(life.fs, life.time)
    later.settle()
    if life.messages:
        assert stats_of(later) == later.recount("s")
    assert later.pending() == []
    for message in life.messages:
        assert content(later, FILE).count(line(message).rstrip(b"\n")) >= 1
