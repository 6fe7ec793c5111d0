"""Common uses of a store: small scenarios that every rig interrupts, fails and repeats.

Each scenario has a part that prepares a healthy store and a part that is tested. Both use only public names and record the
promises that they receive.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from faults import caring
from faults.crashing import CrashableFilesystem
from faults.ledger import CWD, OTHER, Ledger, Run, message, session_id, store_on, text_of
from sessile.storage import atomic
from sessile.upkeep.disk import undo_last

ROOT = "/store"
LARGE = "All work and no play. " * 25_000  # over 500,000 characters: the full text becomes a blob

Act = Callable[[Run], None]


class Scenario(NamedTuple):
    """A use of a store."""

    name: str
    prepare: Act
    act: Act


def nothing(run: Run) -> None:
    """An empty store."""


def one_session(run: Run) -> None:
    """A session with a question and an answer, and a folder of artifacts."""
    session = run.create()
    run.say(session, "question")
    run.say(session, "answer", "assistant")
    run.say(session, "one more thing")
    atomic.make_folders(run.store.fs, session.artifacts)
    atomic.replace(run.store.fs, f"{session.artifacts}/1.txt", (b"tool output",))
    session.close()
    run.note("spilled", session.id, "tool output")
    run.note("moved", session.id, CWD)


def a_draft(run: Run) -> None:
    """A draft whose process ended before the first answer."""
    session = run.create()
    run.say(session, "question")
    run.say(session, "never answered")


def a_long_session(run: Run) -> None:
    """A session with more entries than may be missing from the index."""
    session = run.create(publish=True)
    for number in range(70):
        run.say(session, f"line {number}")


def an_old_session(run: Run) -> None:
    """A file of version 1, without ids."""
    records = [
        {"type": "session", "id": "old-session", "timestamp": "2025-01-01T00:00:00.000Z", "cwd": CWD},
        *(
            {"type": "message", "timestamp": "2025-01-01T00:00:01.000Z", "message": {"role": "user", "content": text}}
            for text in ("one", "two", "three")
        ),
    ]
    folder = run.store.layout.folder(CWD)
    atomic.make_folders(run.store.fs, folder)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    atomic.replace(run.store.fs, f"{folder}/2025-01-01T00-00-00-000Z_old-session.jsonl", (lines.encode(),))
    run.note("listed", "old-session")
    session = run.open("old-session", readonly=True)
    for entry in session.get_entries():
        run.note("said", session.id, entry.id, text_of(entry))


def a_deleted_session(run: Run) -> None:
    """A session in the trash."""
    one_session(run)
    delete(run)


def create(run: Run) -> None:
    session = run.create()
    run.say(session, "first")
    session.close()


def create_published(run: Run) -> None:
    session = run.create(publish=True)
    run.say(session, "first")
    session.close()


def publish(run: Run) -> None:
    session = run.create()
    run.say(session, "first")
    run.say(session, "answer", "assistant")
    run.say(session, "second")
    session.close()


def append(run: Run) -> None:
    session = run.open(session_id(run))
    run.say(session, "second")
    run.say(session, "third")
    session.close()


def branch(run: Run) -> None:
    session = run.open(session_id(run))
    first = next(iter(run.ledger.texts[session.id]))
    last = session.leaf_id or ""
    run.note("leaving", session.id, last)
    run.note("leaving", session.id, first)
    session.branch(first)
    session.close()
    run.note("left", session.id, first)


def fork(run: Run) -> None:
    source = run.open(session_id(run))
    run.copy(source.fork, source.id, set(run.ledger.texts[source.id].values())).close()
    source.close()


def fork_from(run: Run) -> None:
    path = run.store.find(session_id(run)) or ""
    source = session_id(run)
    run.copy(lambda: run.store.fork_from(path, OTHER), source, set(run.ledger.texts[source].values())).close()


def branch_off(run: Run) -> None:
    source = run.open(session_id(run))
    ids = list(run.ledger.texts[source.id])
    texts = {run.ledger.texts[source.id][entry_id] for entry_id in ids[:2]}
    run.copy(lambda: source.create_branched_session(ids[1]), source.id, texts).close()
    source.close()


def name(run: Run) -> None:
    session = run.open(session_id(run))
    run.note("naming", session.id, "Plan")
    session.set_session_name("Plan")
    run.note("named", session.id, "Plan")
    session.close()


def move(run: Run) -> None:
    session = run.open(session_id(run))
    run.note("moving", session.id)
    session.move_to(OTHER)
    run.note("moved", session.id, OTHER)
    session.close()


def rewrite(run: Run) -> None:
    session = run.open(session_id(run))
    said = [entry.id for entry in session.get_entries() if entry["type"] == "message"]
    new = {entry_id: run.ledger.texts[session.id][entry_id].upper() for entry_id in said}
    for entry_id, text in new.items():
        run.note("rewriting", session.id, entry_id, text)
    session.rewrite_entries(
        lambda entry: {**entry.body, "message": {"role": "user", "content": new[entry.id]}} if entry.id in new else None
    )
    run.note("rewritten", session.id)
    session.close()


def delete(run: Run) -> None:
    target = session_id(run)
    run.note("moving", target)
    run.note("trash", target, "may")
    run.store.delete(target)
    run.note("trash", target, "must")


def undo(run: Run) -> None:
    target = session_id(run)
    run.note("trash", target, "may")
    undo_last(run.store)
    run.note("back", target)


def an_edited_session(run: Run) -> None:
    """A session with artifacts, an original and a blob."""
    one_session(run)
    with run.store.open(session_id(run)) as session:
        run.say(session, LARGE)
        session.rewrite_entries(lambda entry: {**entry, "x": 1})


def erase(run: Run) -> None:
    target = session_id(run)
    run.note("erasing", target)
    run.store.erase(target, confirm=True)
    run.note("erased", target)


def large(run: Run) -> None:
    session = run.open(session_id(run))
    run.say(session, LARGE)
    session.close()


def migrate(run: Run) -> None:
    session = run.open("old-session")
    run.say(session, "four")
    session.close()


def resume(run: Run) -> None:
    session = run.continue_recent()
    run.say(session, "back again")
    session.close()


def save_index(run: Run) -> None:
    session = run.open(session_id(run))
    session.get_entries()
    run.say(session, "indexed")
    session.close()
    run.open(session_id(run), readonly=True).close()


def many(run: Run) -> None:
    session = run.open(session_id(run))
    receipts = session.append_many([{"type": "message", "message": {"role": "user", "content": t}} for t in "abc"])
    for receipt, text in zip(receipts, "abc", strict=True):
        run.note("said", session.id, receipt.id, text)
    session.close()


def messages(run: Run) -> None:
    session = run.open(session_id(run))
    receipts = session.append_messages([message("several"), message("at once", "assistant")])
    for receipt, text in zip(receipts, ("several", "at once"), strict=True):
        run.note("said", session.id, receipt.id, text)
    session.close()


def invented(run: Run) -> None:
    session = run.open(session_id(run))
    for entry in (
        {"type": "invented", "a": 1},
        {"type": "message", "message": {"role": "invented", "content": "heard"}},
    ):
        run.appended(session, session.append_entry(entry).id)
    session.close()


SCENARIOS = [
    Scenario("create", nothing, create),
    Scenario("create_published", nothing, create_published),
    Scenario("publish", nothing, publish),
    Scenario("append", one_session, append),
    Scenario("append_many", one_session, many),
    Scenario("append_messages", one_session, messages),
    Scenario("append_entry", one_session, invented),
    Scenario("branch", one_session, branch),
    Scenario("fork", one_session, fork),
    Scenario("fork_from", one_session, fork_from),
    Scenario("branch_off", one_session, branch_off),
    Scenario("name", one_session, name),
    Scenario("move", one_session, move),
    Scenario("rewrite", one_session, rewrite),
    Scenario("delete", one_session, delete),
    Scenario("undo", a_deleted_session, undo),
    Scenario("erase", an_edited_session, erase),
    Scenario("large", one_session, large),
    Scenario("migrate", an_old_session, migrate),
    Scenario("resume_draft", a_draft, resume),
    Scenario("resume", one_session, resume),
    Scenario("save_index", a_long_session, save_index),
    Scenario("kinds", one_session, caring.every_kind),
    Scenario("summary", one_session, caring.branch_with_a_summary),
    Scenario("publish_early", nothing, caring.publish_early),
    Scenario("switch", one_session, caring.switch),
    Scenario("obtain", nothing, caring.obtain),
    Scenario("terminal", nothing, caring.create_in_a_terminal),
    Scenario("tool_call", caring.a_tool_call, caring.rewrite_tool_call),
    Scenario("compact", caring.a_talk, caring.compact),
    Scenario("import", caring.a_session_of_another_agent, caring.import_it),
    Scenario("repair", caring.a_damaged_session, caring.mend),
    Scenario("blob", nothing, caring.put_a_blob),
    Scenario("sync", one_session, caring.bring_to_another_store),
]

# Scenarios with syncs that no caller waits for: of another process's draft, an index or a breadcrumb.
WITH_UNPROMISED_SYNCS = {"resume_draft", "save_index", "terminal"}


@cache
def _prepared(number: int) -> tuple[CrashableFilesystem, Ledger]:
    filesystem, ledger = CrashableFilesystem(), Ledger()
    filesystem.mkdir(ROOT)
    filesystem.sync_directory("/")
    SCENARIOS[number].prepare(Run(store_on(filesystem, ROOT, 1), ledger))
    return filesystem, ledger


def prepared(scenario: Scenario) -> tuple[CrashableFilesystem, Ledger]:
    """Return a fresh copy of the scenario's prepared store in memory, and its promises."""
    filesystem, ledger = _prepared(SCENARIOS.index(scenario))
    return filesystem.kill(), copy.deepcopy(ledger)


def is_root() -> bool:
    return os.geteuid() == 0
