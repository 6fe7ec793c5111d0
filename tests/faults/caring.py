"""Scenarios of the less common verbs: entries of every kind, summaries, imports, repairs and others."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable

from faults.ledger import CWD, Run, beside, message, session_id, text_of
from sessile import Receipt, Store
from sessile.core import entries as make
from sessile.core.compaction import CompactionSettings
from sessile.storage import atomic
from sessile.storage.layout import file_name
from sessile.transfer import import_session, sync
from sessile.upkeep.check import repair
from sessile.upkeep.compactor import Compactor

FOREIGN = "11111111-1111-4111-8111-111111111111"
SOURCE = f"claude/projects/-home-ada-project/{FOREIGN}.jsonl"
SMALL = CompactionSettings(reserve_tokens=100, keep_recent_tokens=300, reserve_tokens_floor=0)
TORN = b'{"type":"message","id":"torn","message":{"role":"us\n'


def every_kind(run: Run) -> None:
    """Append one entry with each verb that appends."""
    session = run.open(session_id(run))
    first = next(iter(run.ledger.texts[session.id]))
    verbs: list[Callable[[], Receipt]] = [
        lambda: session.append_thinking_level_change("high"),
        lambda: session.append_model_change("p/m"),
        lambda: session.append_custom_entry("note", {"a": 1}),
        lambda: session.append_custom_message_entry("note", "for the model"),
        lambda: session.append_label_change(first, "start"),
        lambda: session.append_mode_change("plan"),
        lambda: session.append_ttsr_injection(["rule"]),
        lambda: session.append_session_init("be brief", "task", ["read"]),
        lambda: session.append_context_edit(first, None),
        lambda: session.append_compaction("the story so far", None, 10),
        lambda: session.append_reset_boundary(),
    ]
    for verb in verbs:
        run.appended(session, verb().id)
    session.set_tag("later")
    run.appended(session, session.leaf_id)
    session.close()


def branch_with_a_summary(run: Run) -> None:
    """Branch with a summary, reset the leaf, and continue."""
    session = run.open(session_id(run))
    first = next(iter(run.ledger.texts[session.id]))
    run.appended(session, session.branch_with_summary(first, "what was learned").id)
    session.reset_leaf(durable=True)
    session.follow()
    run.say(session, "from the start")
    session.close()


def publish_early(run: Run) -> None:
    """Publish a draft before the first answer, flush it, and reopen it."""
    session = run.create()
    run.say(session, "first")
    session.publish()
    run.note("listed", session.id)
    session.flush()
    session.reopen()
    run.say(session, "second")
    session.close()


def switch(run: Run) -> None:
    """Create a new session next to an open one, then switch the new object back to the first session."""
    old = run.store.open(session_id(run))
    new = old.new_session()
    run.sessions.append(new)
    run.say(new, "elsewhere")
    old.close()
    new.set_session_file(old.path)
    run.say(new, "back")
    new.close()


def obtain(run: Run) -> None:
    """Obtain a session by its path, which creates it."""
    at = "2026-01-01T00:00:00.000Z"
    name = file_name(at, "obtained")
    path = f"{run.store.layout.folder(CWD)}/{name}"
    run.note("obtaining", "obtained", name)
    session = run.store.obtain(path, make.header("obtained", at, CWD))
    run.sessions.append(session)
    run.note("listed", session.id)
    run.say(session, "first")
    session.close()


def create_in_a_terminal(run: Run) -> None:
    """Create a session that is remembered for its terminal."""
    store = run.store
    here = Store(store.layout.root, fs=store.fs, terminal="tty", clock=lambda: store.now() / 1000, random=store.random)
    session = here.create(CWD, publish=True)
    run.sessions.append(session)
    run.note("listed", session.id)
    run.say(session, "first")
    session.close()


def a_tool_call(run: Run) -> None:
    """A session with a tool call."""
    session = run.create(publish=True)
    run.say(session, "question")
    call = {"type": "toolCall", "id": "call-1", "name": "read", "arguments": {"path": "a"}}
    answer = message("let me see", "assistant")
    run.appended(session, session.append_message({**answer, "content": [*answer["content"], call]}).id)
    session.close()


def rewrite_tool_call(run: Run) -> None:
    session = run.open(session_id(run))
    session.rewrite_tool_call("call-1", {"path": "b"})
    run.say(session, "and then")
    session.close()


def a_talk(run: Run) -> None:
    """A session with enough text to compact."""
    session = run.create(publish=True)
    for number in range(6):
        run.say(session, f"request {number} " + "x" * 400)
        run.say(session, f"answer {number} " + "y" * 400, "assistant")
    session.close()


def compact(run: Run) -> None:
    session = run.open(session_id(run))
    outcome = Compactor(session, window=2000, settings=SMALL).compact()
    assert outcome.receipt is not None, outcome
    run.appended(session, outcome.receipt.id)
    run.say(session, "go on")
    session.close()


def a_session_of_another_agent(run: Run) -> None:
    """A transcript of Claude Code."""
    rows = [
        {
            "type": role,
            "uuid": f"{role[0]}{number}",
            "parentUuid": None if number == 0 else f"{'au'[number % 2]}{number - 1}",
            "sessionId": FOREIGN,
            "timestamp": f"2026-01-01T00:00:0{number}.000Z",
            "cwd": CWD,
            "message": message(f"{role} {number}", role),
        }
        for number, role in enumerate(("user", "assistant", "user", "assistant"))
    ]
    path = f"{run.store.layout.root}/{SOURCE}"
    atomic.make_folders(run.store.fs, os.path.dirname(path))
    atomic.replace(run.store.fs, path, ("".join(json.dumps(row) + "\n" for row in rows).encode(),))


def import_it(run: Run) -> None:
    texts = ["user 0", "assistant 1", "user 2", "assistant 3"]
    run.note("importing", FOREIGN, SOURCE, *texts)
    done = import_session(run.store, f"{run.store.layout.root}/{SOURCE}")
    session = run.open(done.id)
    run.note("listed", session.id)
    for entry in session.get_entries():
        run.note("said", session.id, entry.id, text_of(session.get_full_entry(entry.id)))
    session.close()


def a_damaged_session(run: Run) -> None:
    """A session with a torn line in the middle."""
    session = run.create(publish=True)
    run.say(session, "before")
    session.close()
    with_damage = atomic.read_all(run.store.fs, session.path) + TORN
    atomic.replace(run.store.fs, session.path, (with_damage,))
    run.note("damaged", session.id)
    session = run.open(session.id)
    run.say(session, "after")
    session.close()


def mend(run: Run) -> None:
    target = session_id(run)
    repair(run.store, target)
    run.note("mended", target)
    session = run.open(target)
    run.say(session, "mended")
    session.close()


def put_a_blob(run: Run) -> None:
    content = "large " * 1000
    blob = run.store.blobs.put(content.encode())
    assert blob.hash == hashlib.sha256(content.encode()).hexdigest()
    run.note("blob", "", blob.hash, content)


def bring_to_another_store(run: Run) -> None:
    target = session_id(run)
    run.note("syncing", target)
    for done in sync(run.store, beside(run.store)):
        if done.error is not None:
            raise done.error
