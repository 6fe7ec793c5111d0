"""Going from one session to another: the order of the steps, and who wins."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from myagents_folder import asked, begun, folder, ids, told
from sessile.errors import SessionBusy, SessionNotFound
from sessile.stores.myagents.store import MyAgentsStore
from sessile.stores.myagents.switching import Steps, Switcher

pytestmark = pytest.mark.mission("M7")


def noted(notes: list[str], *, ends: bool = True, at_reset: Callable[[], object] = lambda: None) -> Steps:
    """Steps that write down when they are taken."""

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
    """Abort, empty the queue, await the end, reset; then the id, with what is stored and the next number."""
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
    """Claude Code's id of the session; without one a new run under the same id."""
    active = Switcher(two_sessions(), noted([])).switch(session_id)
    assert active is not None and (active.resume, active.next_message_id) == (resume, number)


def test_the_writer_of_a_session_writes_into_no_other() -> None:
    """Also after a switch away from it."""
    store = two_sessions()
    switcher = Switcher(store, noted([]))
    first = switcher.switch("a")
    second = switcher.switch("b")
    assert first is not None and second is not None
    first.writer.append([asked(2)])
    second.writer.save([asked(7), told(8)])
    assert (ids(store, "a"), ids(store, "b")) == (["0", "1", "2"], ["7", "8"])


def test_an_unknown_session_changes_nothing() -> None:
    """What runs goes on."""
    notes: list[str] = []
    switcher = Switcher(two_sessions(), noted(notes))
    with pytest.raises(SessionNotFound):
        switcher.switch("none")
    assert notes == [] and switcher.active is None


def test_a_session_that_does_not_end_is_not_left() -> None:
    """Nothing is reset, and it is said."""
    notes: list[str] = []
    switcher = Switcher(two_sessions(), noted(notes, ends=False), patience=0.5)
    with pytest.raises(SessionBusy):
        switcher.switch("a")
    assert notes == ["abort", "empty", "wait 0.5"] and switcher.active is None


def test_the_latest_request_wins() -> None:
    """One that was overtaken while it waited takes over nothing."""
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
    """Whatever the order in which their loads finish."""
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
