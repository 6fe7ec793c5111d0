"""Rigs R2 and R4: kills and power cuts before every single file system call."""

from __future__ import annotations

from random import Random

import pytest

from faults.crashing import CrashableFilesystem, CrashModel
from faults.ledger import CWD, message, store_on, text_of
from faults.rigs import check_kills, check_power_cuts, check_successors
from faults.scenarios import ROOT, SCENARIOS, Scenario
from figures import measured

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
STEPS = {
    "save_index": 12,
    "large": 4,
    "import": 12,
    "kinds": 12,
    "compact": 6,
    "erase": 12,
}  # steps of the default run, larger where verifying is slow
ONLY_AFTER = {"undo": {"delete", "undo"}}
SAMPLES = 5
SUCCESSORS = (
    "create",
    "create_published",
    "publish",
    "append",
    "branch",
    "name",
    "fork",
    "delete",
    "large",
    "resume",
    "undo",
)
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


def default_step(scenario: Scenario) -> int:
    return STEPS.get(scenario.name, 3)


@pytest.mark.promise("P1")
@every_scenario
def test_kill_before_any_call_loses_nothing_acknowledged(scenario: Scenario) -> None:
    """After kill -9 before some calls in turn, the store opens, lists everything and holds every acknowledged entry."""
    kills = check_kills(scenario, step=default_step(scenario))
    measured("P1", "kills before calls, simulated", kills=kills, lost=0)
    assert kills > 5


@pytest.mark.promise("P2")
@every_scenario
def test_power_cut_before_any_call_loses_nothing_acknowledged(scenario: Scenario) -> None:
    """After a power cut before some calls in turn, in each crash model, acknowledged entries and names are there."""
    states = check_power_cuts(scenario, samples=1, step=default_step(scenario))
    measured("P2", "power cuts, simulated", states=states, lost=0)
    assert states > 15


@pytest.mark.promise("P1")
@pytest.mark.long
@every_scenario
def test_kill_before_every_call_loses_nothing_acknowledged(scenario: Scenario) -> None:
    """The long form strikes at every call."""
    kills = check_kills(scenario)
    measured("P1", "kills before calls, simulated", kills=kills, lost=0)
    assert kills > 10


@pytest.mark.promise("P2")
@pytest.mark.promise("P11")
@pytest.mark.long
@every_scenario
@pytest.mark.parametrize("seed", range(4))
def test_power_cut_in_many_states_loses_nothing_acknowledged(scenario: Scenario, seed: int) -> None:
    """The long form samples enough states for 100,000 over all scenarios."""
    states = check_power_cuts(scenario, samples=SAMPLES, seed=seed + 1)
    measured("P2", "power cuts, simulated", states=states, lost=0)
    assert states > 200


@pytest.mark.promise("P2")
@pytest.mark.parametrize("successor", ["create", "append", "resume", "large"])
@pytest.mark.parametrize("scenario", ["create_published", "publish", "large", "fork", "resume_draft"])
def test_power_cut_after_the_successor_of_a_killed_process_loses_nothing(scenario: str, successor: str) -> None:
    """Unsynced changes of a killed process cannot make entries of the next process disappear."""
    states = check_successors(BY_NAME[scenario], BY_NAME[successor], step=8)
    measured("P2", "power cuts after a successor, simulated", states=states, lost=0)


@pytest.mark.promise("P2")
@pytest.mark.long
@pytest.mark.parametrize("successor", SUCCESSORS)
@every_scenario
def test_power_cut_after_any_successor_of_a_killed_process_loses_nothing(scenario: Scenario, successor: str) -> None:
    """The long form combines every scenario with everything that the next process may do."""
    if successor in ONLY_AFTER and scenario.name not in ONLY_AFTER[successor]:
        pytest.skip("there is nothing for the successor to work on")
    if scenario.name == successor == "branch":
        pytest.skip("who moves the leaf to where a dead process has moved it writes nothing, so nothing is promised")
    states = check_successors(scenario, BY_NAME[successor], step=2)
    measured("P2", "power cuts after a successor, simulated", states=states, lost=0)


@pytest.mark.promise("P12")
@pytest.mark.parametrize("model", [CrashModel.ORDERED, CrashModel.WEAK], ids=lambda model: str(model.value))
def test_an_index_that_outlived_its_journal_is_not_believed(model: CrashModel) -> None:
    """If a power cut takes a part of the journal but not of its index, the rest is read and nothing is invented."""
    for seed in range(12):
        inner = CrashableFilesystem()
        store = store_on(inner, ROOT, 1, "process")
        session = store.create(CWD, publish=True)
        texts = {session.append_message(message(f"{n} " + "x" * 200)).id: f"{n} " + "x" * 200 for n in range(100)}
        assert len(session.get_entries()) == 100
        session.close()
        inner = inner.crash(Random(seed), model)
        for readonly in (True, False):
            session = store_on(inner, ROOT, 2).open(session.path, readonly=readonly)
            left = {entry.id: text_of(entry) for entry in session.get_entries()}
            assert left.items() <= texts.items()
            assert {entry_id for entry_id in texts if session.get_entry(entry_id)} == left.keys()
            assert len(session.get_tree()) <= len(left)
            session.context()
            session.close()
