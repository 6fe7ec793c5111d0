"""Properties of an import: nothing is lost or duplicated, everything is accounted for, and repeating it changes
nothing.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Json, said
from sessile import Store
from sessile.agents.openclaw.binding_store import own_bindings
from sessile.agents.openclaw.importing import ImportReport, import_state
from sessile.agents.openclaw.names import archive_name, read_name, transcript_name
from sessile.agents.openclaw.paths import StateFolder
from sessile.storage import atomic
from sessile.storage.memory import MemoryFilesystem
from sessions import store_at
from yoyoclaw import lines, stored, talk

pytestmark = pytest.mark.mission("Y2")

SESSIONS = "/state/agents/main/sessions"
IDS = ["s1", "s2"]
KEYS = [
    "agent:main:main",
    "agent:main:telegram:group:-1",
    "agent:main:telegram:group:-1:topic:7",
    "cron:nightly",
    "agent:main:cron:nightly:run:3",
    "hook:gmail:m1",
    "agent:",
    "agent:main:half \ud83d",
]


class State(NamedTuple):
    """The files in the folder of a gateway."""

    files: dict[str, bytes]
    entries: dict[str, Json]


@st.composite
def states(draw: st.DrawFn) -> State:
    """Return transcripts with topics and archives, some torn or without a header, and keys with any target."""
    files = {}
    for _ in range(draw(st.integers(0, 5))):
        name = transcript_name(draw(st.sampled_from(IDS)), draw(st.sampled_from([None, None, 7, "a/b"])))
        reason: Any = draw(st.sampled_from([None, None, "reset", "deleted", "bak"]))
        if reason is not None:
            name = archive_name(name, reason, draw(st.sampled_from(["2026-01-01T00:00:00.000Z", "2026-02-02"])))
        files[name] = lines(*draw(transcripts()))
    members = {
        "sessionId": st.sampled_from([*IDS, "gone", 5]),
        "updatedAt": st.integers(1, 9),
        "contextTokens": st.just(9),
    }
    entry: Any = st.fixed_dictionaries({}, optional={**members, "sessionFile": st.sampled_from([*files, "../x", ""])})
    return State(files, draw(st.dictionaries(st.sampled_from(KEYS), entry, max_size=4)))


@st.composite
def transcripts(draw: st.DrawFn) -> list[Json | str]:
    """Return the lines of one file; files of one session share some of their entries."""
    names = draw(st.lists(st.sampled_from("abcdef"), max_size=4, unique=True))
    head, *rest = talk("s", *names)
    odd: list[Json | str] = draw(
        st.sampled_from([[], [], ["{torn"], [said(draw(st.sampled_from("ab")), None, "changed")]])
    )
    return [*([head] if draw(st.integers(0, 4)) else []), *rest, *odd]


def put(fs: MemoryFilesystem, state: State) -> None:
    atomic.make_folders(fs, SESSIONS)
    for name, data in {**state.files, "sessions.json": stored(state.entries)}.items():
        atomic.replace(fs, f"{SESSIONS}/{name}", (data,))


def content(fs: MemoryFilesystem, folder: str) -> dict[str, bytes]:
    """Return every file below a folder with its content."""
    found: dict[str, bytes] = {}
    for name in fs.names(folder) if atomic.exists(fs, folder) else ():
        path = f"{folder}/{name}"
        if atomic.is_folder(fs, path):
            found |= content(fs, path)
        else:
            found[path] = atomic.read_all(fs, path)
    return found


def run(store: Store, deleted: bool) -> ImportReport:
    return import_state(store, StateFolder("/state"), deleted=deleted)


def ids(data: bytes) -> set[str]:
    """Return the ids of the entries of a file."""
    found = set()
    for line in data.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        found |= {record["id"]} if record["type"] != "session" else set()
    return found


@given(states(), st.booleans())
def test_an_import_accounts_for_every_file_key_and_entry(state: State, deleted: bool) -> None:
    """Each file is in one session or skipped with a reason, each key is bound, and each entry is counted and present."""
    fs = MemoryFilesystem()
    put(fs, state)
    before = content(fs, "/state")
    report = run(store := store_at("/ours", fs=fs), deleted)
    assert content(fs, "/state") == before
    [agent] = report.agents
    used = [path for a in agent.sessions for path in (a.live, *(x.path for x in a.archives)) if path is not None]
    left = {item.name for item in agent.left_out}
    assert len(used) == len(set(used))
    empty = {f"{SESSIONS}/{name}" for name, data in state.files.items() if not ids(data)}
    assert {f"{SESSIONS}/{name}" for name in state.files} <= {*used, *left, *empty}
    for account in agent.sessions:
        assert account.read == account.written + account.present + account.differing
        sources = [path for path in (account.live, *(x.path for x in account.archives)) if path is not None]
        assert ids(atomic.read_all(fs, account.path)) == set().union(*(ids(before[path]) for path in sources))
    assert [binding.key for binding in agent.bindings] == list(state.entries)
    bound = own_bindings(store, "main").read()
    assert list(bound) == list(state.entries)
    for key, entry in state.entries.items():
        was = bound[key]["sessile.import"].get("was", {})
        assert {**bound[key].members, **was}.items() >= entry.items()


@given(states(), states(), st.booleans())
def test_importing_again_changes_nothing_and_importing_more_keeps_what_was_there(
    state: State, later: State, deleted: bool
) -> None:
    """No imported entry is removed, however the source has changed."""
    fs = MemoryFilesystem()
    put(fs, state)
    store = store_at("/ours", fs=fs)
    run(store, deleted)
    first = content(fs, "/ours")
    second = run(store, deleted)
    assert content(fs, "/ours") == first
    assert sum(account.written for account in second.sessions) == 0
    assert {binding.state for agent in second.agents for binding in agent.bindings} <= {"present"}
    put(fs, later)
    run(store, deleted)
    third = content(fs, "/ours")
    for path, data in first.items():
        if path.endswith(".jsonl"):
            assert third[path].startswith(data)
    run(store, deleted)
    assert content(fs, "/ours") == third


names = st.sampled_from(["s1", "0192aaaa-bbbb", "boot-17", "a_b", "probe-x", "Ä"])


@given(
    names,
    st.none() | st.integers(0, 99) | st.text(min_size=1, max_size=6),
    st.none() | st.sampled_from(["reset", "deleted", "bak"]),
)
def test_a_name_of_a_transcript_survives_being_written_and_read(
    session_id: str, topic: str | int | None, reason: Any
) -> None:
    """Id, topic and reason of the archive are restored for any topic."""
    name = transcript_name(session_id, topic)
    assert "/" not in name
    whole = name if reason is None else archive_name(name, reason, "2026-02-03T10:00:00.000Z")
    found = read_name(f"/f/{whole}")
    assert found is not None
    assert (found.live, found.session_id, found.reason) == (name, session_id, reason)
    assert found.topic == (None if topic is None else str(topic))
