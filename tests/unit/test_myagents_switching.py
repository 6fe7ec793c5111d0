"""Switching between sessions: the order of the steps, and which request wins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from myagents_folder import asked, begun, folder, ids, told
from sessile.agents.myagents.store import MyAgentsStore
from sessile.agents.myagents.switching import Steps, Switcher
from sessile.errors import SessionBusy, SessionNotFound

pytestmark = pytest.mark.mission("M7")


def noted(notes: list[str], *, ends: bool = True, at_reset: Callable[[], object] = lambda: None) -> Steps:
    """Return steps that record when they run."""

    def wait(seconds: float) -> bool:
        notes.append(f"wait {seconds:g}")
        return ends

    def reset() -> None:
        notes.append("reset")
        at_reset()

    return Steps(lambda: notes.append("abort"), lambda: notes.append("empty"), wait, reset)


def two_sessions() -> MyAgentsStore:
    store = begun(begun(begun(folder(), "a", sdkSessionId="x"), "b"), "c", sdkSessionId="c", unifiedSession=True)
    store.save("a", [asked(0), told(1)])
    store.save("b", [asked(7)])
    return store


def test_the_steps_come_in_order_and_the_messages_are_loaded() -> None:
    """Abort, empty the queue, wait for the end, reset; then the id, with the stored messages and the next number."""
    notes: list[str] = []
    store = two_sessions()
    switcher = Switcher(store, noted(notes))
    active = switcher.switch("a")
    assert notes == ["abort", "empty", "wait 10", "reset"]
    assert active is not None and active is switcher.active
    assert (active.session_id, active.next_message_id, active.resume, active.agent_dir) == ("a", "2", "x", "/work/app")
    assert [message.id for message in active.messages] == ["0", "1"]


@pytest.mark.parametrize(("session_id", "resume", "number"), [("a", "x", "2"), ("b", None, "8"), ("c", "c", "0")])
def test_what_is_resumed(session_id: str, resume: str | None, number: str) -> None:
    """Claude Code's id of the session is resumed; without one, a new run starts under the same id."""
    active = Switcher(two_sessions(), noted([])).switch(session_id)
    assert active is not None and (active.resume, active.next_message_id) == (resume, number)


def test_the_writer_of_a_session_writes_into_no_other() -> None:
    """The writer keeps its session after switching away from it."""
    store = two_sessions()
    switcher = Switcher(store, noted([]))
    first = switcher.switch("a")
    second = switcher.switch("b")
    assert first is not None and second is not None
    first.writer.append([asked(2)])
    second.writer.save([asked(7), told(8)])
    assert (ids(store, "a"), ids(store, "b")) == (["0", "1", "2"], ["7", "8"])


def test_an_unknown_session_changes_nothing() -> None:
    """The running session continues."""
    notes: list[str] = []
    switcher = Switcher(two_sessions(), noted(notes))
    with pytest.raises(SessionNotFound):
        switcher.switch("none")
    assert notes == [] and switcher.active is None


def test_a_session_that_does_not_end_is_not_left() -> None:
    """Nothing is reset, and it raises."""
    notes: list[str] = []
    switcher = Switcher(two_sessions(), noted(notes, ends=False), patience=0.5)
    with pytest.raises(SessionBusy):
        switcher.switch("a")
    assert notes == ["abort", "empty", "wait 0.5"] and switcher.active is None


def test_the_latest_request_wins() -> None:
    """A request that was overtaken while it waited takes over nothing."""
    notes: list[str] = []
    later: list[object] = []

    def click_again() -> None:
        if not later:
            later.append(None)
            later.append(switcher.switch("b"))

    switcher = Switcher(two_sessions(), noted(notes, at_reset=click_again))
    assert switcher.switch("a") is None
    assert switcher.active is not None and switcher.active.session_id == "b"
    assert switcher.active is later[1]


def test_of_many_threads_the_last_request_is_the_one_that_stays() -> None:
    """The order in which the loads finish does not matter."""
    store = two_sessions()
    gate = threading.Event()
    steps = Steps(lambda: None, lambda: None, lambda seconds: gate.wait(5), lambda: None)
    switcher = Switcher(store, steps)
    started = []
    results: dict[str, object] = {}
    for session_id in ("a", "b", "c"):
        thread = threading.Thread(target=lambda name: results.update({name: switcher.switch(name)}), args=(session_id,))
        thread.start()
        started.append(thread)
        while switcher._latest < len(started):  # the requests are made in this order
            pass
    gate.set()
    for thread in started:
        thread.join()
    assert results["a"] is None and results["b"] is None
    assert switcher.active is not None and switcher.active.session_id == "c"


def in_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_a_request_that_was_made_first_does_not_win_because_its_look_up_was_slow() -> None:
    """The order is that of the requests."""
    store = two_sessions()
    looking, go_on = threading.Event(), threading.Event()
    find = store.get

    def slow(session_id: str) -> Any:
        if session_id == "a":
            looking.set()
            go_on.wait(5)
        return find(session_id)

    store.get = slow  # type: ignore[method-assign]
    notes: list[str] = []
    switcher = Switcher(store, noted(notes))
    results: list[object] = []
    thread = in_thread(lambda: results.append(switcher.switch("a")))
    looking.wait(5)
    assert switcher.switch("b") is not None
    go_on.set()
    thread.join()
    assert results == [None] and switcher.active is not None and switcher.active.session_id == "b"
    assert notes == ["abort", "empty", "wait 10", "reset"]


@pytest.mark.parametrize("slow_step", ["abort", "empty", "reset"])
def test_no_step_of_an_overtaken_request_comes_after_those_of_a_later_one(slow_step: str) -> None:
    """It would abort or reset what the later one has just started."""
    notes: list[str] = []
    inside, go_on = threading.Event(), threading.Event()

    def step(name: str) -> Callable[[], None]:
        def act() -> None:
            if name == slow_step and not inside.is_set():
                inside.set()
                go_on.wait(5)
            notes.append(f"{threading.current_thread().name} {name}")

        return act

    steps = Steps(step("abort"), step("empty"), lambda seconds: True, step("reset"))
    switcher = Switcher(two_sessions(), steps)
    first = threading.Thread(target=lambda: switcher.switch("a"), name="first")
    first.start()
    inside.wait(5)
    second = threading.Thread(target=lambda: switcher.switch("b"), name="second")
    second.start()
    while switcher._latest < 2:
        pass
    go_on.set()
    first.join()
    second.join()
    assert [note for note in notes if note.startswith("first")][-1] == f"first {slow_step}"
    assert notes[-3:] == ["second abort", "second empty", "second reset"]
    assert switcher.active is not None and switcher.active.session_id == "b"


def test_an_unknown_target_does_not_overtake_a_request_that_runs() -> None:
    """An unknown target changes nothing."""

    def click_on_nothing() -> None:
        with pytest.raises(SessionNotFound):
            switcher.switch("none")

    switcher = Switcher(two_sessions(), noted([], at_reset=click_on_nothing))
    active = switcher.switch("a")
    assert active is not None and active is switcher.active


def test_one_that_was_overtaken_while_it_waited_for_an_end_that_did_not_come_fails_silently() -> None:
    """Its failure no longer matters."""
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) > 1:
            return True
        later.append(switcher.switch("b"))
        return False

    later: list[object] = []
    switcher = Switcher(two_sessions(), Steps(lambda: None, lambda: None, wait, lambda: None))
    assert switcher.switch("a") is None and later == [switcher.active]


def test_the_resume_choice_is_that_of_the_moment_of_the_switch() -> None:
    """The session that just ended may be the target, and may have got its Claude Code id at its end."""
    store = two_sessions()
    active = Switcher(store, noted([], at_reset=lambda: store.record_run("b", "sdk-b"))).switch("b")
    assert active is not None and active.resume == "sdk-b"
    known = store.get("b")
    assert known is not None and not known.unified
    store.record_run("b", "b")
    known = store.get("b")
    assert known is not None and known.unified and known.value["unifiedSession"] is True


def test_a_target_that_is_deleted_meanwhile_is_not_taken_over() -> None:
    """There is no session to switch to."""
    store = two_sessions()
    switcher = Switcher(store, noted([], at_reset=lambda: store.delete("b")))
    with pytest.raises(SessionNotFound):
        switcher.switch("b")
    assert switcher.active is None


def test_what_a_switch_loads_can_be_saved_with_what_comes_next() -> None:
    """Messages are saved by count, so the loaded ones must be in the list."""
    store = two_sessions()
    active = Switcher(store, noted([])).switch("a")
    assert active is not None
    assert active.writer.save([*active.messages, asked(int(active.next_message_id))]).appended == 1
    assert ids(store, "a") == ["0", "1", "2"]
