"""Every verb that writes has a scenario, so that every rig tests it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from faults.failing import FaultyFilesystem
from faults.ledger import Run, store_on
from faults.scenarios import ROOT, SCENARIOS, prepared
from sessile import Session, Store, export, library, transfer
from sessile.agents.openclaw import importing
from sessile.demo import corpus as demo
from sessile.gateway.conversations import bindings, presence
from sessile.session import SessionView
from sessile.upkeep import check, disk, keep, prune, sweep

MODULES = (export, library, transfer, importing, demo, bindings, presence, check, disk, keep, prune, sweep)
# Read-only verbs, and verbs of sessions that have no file.
LOOKING = {
    *("Store.in_memory", "Store.close", "Store.now", "Store.find", "Store.list", "Store.list_all", "Store.deletions"),
    *("Session.in_memory",),
    *(
        "check",
        "check_all",
        "plan_repair",
        "disk_usage",
        "trash_contents",
        "plan_empty_trash",
        "plan_prune",
        "plan_blob_sweep",
        "plan_leftovers",
        "plan_originals",
        "leftovers",
    ),
    *(
        "added_sources",
        "agent_files",
        "conversation_keys",
        "find_in_session",
        "shared_turns",
        "sub_agents",
    ),
}
MADE_UP = {"make_demo", "bind_demo"}  # demo data, which promises nothing
CHANGING = {"write", "truncate", "mkdir", "rename", "link", "unlink", "rmdir", "set_modified"}
# Verbs that other rigs test, because their promises are not in a ledger, and the names of those rigs.
ELSEWHERE = {
    "apply_prune": "test_repair",
    "apply_file_plan": "test_leftovers",
    "apply_blob_sweep": "test_repair",
    "empty_trash": "test_repair",
    "import_state": "test_yoyoclaw_faults",
    "import_bindings": "test_yoyoclaw_faults",
    "sync_bindings": "test_conversations_faults",
}


def verbs_of(kind: type, *readers: type) -> Iterator[tuple[str, CodeType]]:
    """Yield the public methods of a class that its reading bases do not have."""
    for name, member in inspect.getmembers(kind, lambda member: inspect.isfunction(member) or inspect.ismethod(member)):
        if not name.startswith("_") and not any(hasattr(reader, name) for reader in readers):
            yield f"{kind.__name__}.{name}", member.__code__


def functions() -> Iterator[tuple[str, CodeType]]:
    """Yield the functions that take a store or a session."""
    for module in MODULES:
        for name, member in vars(module).items():
            if isinstance(member, FunctionType) and member.__module__ == module.__name__ and not name.startswith("_"):
                first = next(iter(inspect.signature(member).parameters.values()), None)
                if first is not None and first.annotation in ("Store", "Session"):
                    yield name, member.__code__


def played() -> set[CodeType]:
    """Return the code that ran while all scenarios were played."""
    seen: set[CodeType] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code)

    for scenario in SCENARIOS:
        inner, ledger = prepared(scenario)
        run = Run(store_on(inner, ROOT, 2), ledger)
        before = sys.getprofile()
        sys.setprofile(watch)
        try:
            scenario.act(run)
        finally:
            sys.setprofile(before)
    return seen


@pytest.mark.promise("P1")
@pytest.mark.promise("P8")
def test_every_verb_that_writes_has_a_scenario() -> None:
    """A public verb of stores and sessions has a scenario, has its own rig, or is known to be read-only."""
    verbs = dict([*verbs_of(Store), *verbs_of(Session, SessionView), *functions()])
    seen = played()
    known = LOOKING | MADE_UP | ELSEWHERE.keys()
    missing = {name for name, code in verbs.items() if code not in seen} - known
    assert not missing, f"write a scenario for {sorted(missing)}"
    assert known <= verbs.keys(), f"there are no verbs {sorted(known - verbs.keys())}"


@pytest.mark.promise("P13")
def test_the_verbs_of_a_store_that_only_look_change_nothing() -> None:
    """Read-only verbs without a scenario make no call that changes a file."""
    inner, ledger = prepared(next(scenario for scenario in SCENARIOS if scenario.name == "undo"))
    faulty = FaultyFilesystem(inner)
    store = store_on(faulty, ROOT, 2)
    session_id = next(iter(ledger.texts))
    looks = [lambda: store.find(session_id), lambda: store.list("/"), store.list_all, store.deletions, store.now]
    for look in looks:
        look()
    store.close()
    assert not {call.method for call in faulty.calls} & CHANGING


def test_scenarios_have_names_of_their_own() -> None:
    """Names of scenarios are unique, because rigs are selected by name."""
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
