"""A session writes only to its own file, with fifty sessions that are opened, closed and switched in turn."""

from __future__ import annotations

from random import Random

import pytest

from faults.ledger import CWD, OTHER, message, store_on, text_of
from figures import measured
from sessile import Session
from sessile.storage.memory import MemoryFilesystem

SESSIONS = 50


def check_steps(steps: int, seed: int) -> None:
    """Work on many sessions in turn. Raise if any of them holds a line that was meant for another."""
    rng = Random(seed)
    store = store_on(MemoryFilesystem(), "/store", seed, "process")
    handles: list[Session] = [store.create(rng.choice((CWD, OTHER)), publish=True) for _ in range(SESSIONS)]
    said: dict[str, list[str]] = {handle.id: [] for handle in handles}
    paths = {handle.id: handle.path for handle in handles}
    for number in range(steps):
        place = rng.randrange(SESSIONS)
        handle = handles[place]
        match rng.choices(["say", "resume", "switch", "continue"], [90, 4, 4, 2])[0]:
            case "say":
                text = f"{handle.id} {number}"
                handle.append_message(message(text))
                said[handle.id].append(text)
            case "resume":
                handle.close()
                handles[place] = store.open(rng.choice((handle.id, handle.path)))
            case "switch":
                handle.set_session_file(paths[rng.choice(list(paths))])
            case "continue":
                handle.close()
                handles[place] = store.continue_recent(rng.choice((CWD, OTHER)))
    for session_id, texts in said.items():
        fresh = store.open(session_id, readonly=True)
        assert fresh.path == paths[session_id]
        assert sorted(text_of(entry) for entry in fresh.get_entries() if entry.type == "message") == sorted(texts)
        assert not fresh.findings
        fresh.close()
    measured("P22", "fifty sessions at once", steps=steps, lines_in_a_wrong_file=0)


@pytest.mark.promise("P22")
def test_a_session_writes_into_its_own_file_only() -> None:
    """This also holds after a handle was resumed, continued or switched to another session."""
    check_steps(1_000, seed=0)


@pytest.mark.promise("P22")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 21))
def test_a_session_writes_into_its_own_file_only_for_long(seed: int) -> None:
    """The long form: twenty times 10,000 steps."""
    check_steps(10_000, seed)
