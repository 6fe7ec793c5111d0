"""Rig R4: every sequence of up to three verbs, with a power cut after every call of the last verb, in every crash model.

Interrupting an earlier verb is the same as a shorter sequence, so only the last verb is interrupted. Sequences that make no
sense, such as appending to a deleted session, are left out.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from functools import cache
from itertools import count
from random import Random

import pytest

from faults import scenarios
from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import FaultyFilesystem, Kill, Killed
from faults.ledger import Ledger, Run, message, session_id, store_on, verify
from faults.scenarios import ROOT, Act
from figures import measured
from sessile.errors import NotFound, SessionNotFound
from sessile.testing.filesystem_contract import put
from sessile.upkeep.check import repair

AT_THE_END = 10_000  # no verb makes that many calls

State = tuple[CrashableFilesystem, Ledger]


def compact(run: Run) -> None:
    session = run.open(session_id(run))
    receipt = session.append_compaction("What was said so far.", session.leaf_id, 100)
    run.note("said", session.id, receipt.id, "compaction")
    session.close()


def rewrite(run: Run) -> None:
    session = run.open(session_id(run))
    texts = run.ledger.texts[session.id].items()
    new = {entry_id: text.upper() for entry_id, text in texts if text != "compaction"}
    for entry_id, text in new.items():
        run.note("rewriting", session.id, entry_id, text)
    session.rewrite_entries(
        lambda entry: {**entry.body, "message": message(new[entry.id])} if entry.id in new else None
    )
    run.note("rewritten", session.id)
    session.close()


def damage_and_repair(run: Run) -> None:
    path = run.store.find(session_id(run))
    if path is None:
        raise SessionNotFound(session_id(run))
    put(run.store.fs, path, b'{"type":"message","id":"torn","par\n')
    repair(run.store, path)


VERBS: dict[str, Act] = {
    "create": scenarios.create_published,
    "append": scenarios.append,
    "branch": scenarios.branch,
    "fork": scenarios.fork,
    "compact": compact,
    "name": scenarios.name,
    "move": scenarios.move,
    "rewrite": rewrite,
    "repair": damage_and_repair,
    "delete": scenarios.delete,
    "undo": scenarios.undo,
}


@cache
def after(story: tuple[str, ...]) -> State | None:
    """Return the store and its promises after a sequence of verbs, or None if the sequence makes no sense."""
    if not story:
        filesystem, ledger = CrashableFilesystem(), Ledger()
        filesystem.mkdir(ROOT)
        filesystem.sync_directory("/")
        scenarios.one_session(Run(store_on(filesystem, ROOT, 1), ledger))
        return filesystem, ledger
    before = after(story[:-1])
    if before is None:
        return None
    filesystem, ledger = before[0].kill(), copy.deepcopy(before[1])
    try:
        VERBS[story[-1]](Run(store_on(filesystem, ROOT, 10 + len(story)), ledger))
    except NotFound:
        return None
    return filesystem, ledger


def cut_off(story: tuple[str, ...], *, first: int, step: int, without: Collection[str]) -> Iterator[State]:
    """Yield the states after killing the last verb at some of its calls, and last without a kill."""
    before = after(story[:-1])
    if before is None:
        raise AssertionError(f"{story} makes no sense")
    for number in count(first, step):
        filesystem, ledger = before[0].kill(), copy.deepcopy(before[1])
        ledger.leaves.clear()  # the last verb may move the leaf before it reports the move
        faulty = FaultyFilesystem(filesystem, plan=[Kill(at=number)], without=without)
        try:
            VERBS[story[-1]](Run(store_on(faulty, ROOT, 10 + len(story)), ledger))
        except Killed:
            yield filesystem, ledger
        else:
            yield filesystem, ledger
            return


def check_story(story: tuple[str, ...], *, samples: int = 1, step: int = 1, without: Collection[str] = ()) -> int:
    """Verify sampled states after power cuts in a sequence. Return the number of states."""
    states = 0
    if after(story) is None:
        return 0
    first = step if step == AT_THE_END else 1 + Random(" ".join(story)).randrange(step)
    for number, (filesystem, ledger) in enumerate(cut_off(story, first=first, step=step, without=without)):
        for model in CrashModel:
            for sample in range(samples):
                name = f"{' '.join(story)}, call {first + number * step}, {model.value} {sample}"
                try:
                    verify(store_on(filesystem.crash(Random(name), model), ROOT, 3), ledger, whole=False)
                except Exception as error:
                    raise AssertionError(f"power cut in {name}") from error
                states += 1
    return states


def stories(longest: int) -> Iterator[tuple[str, ...]]:
    """Yield all sequences of verbs up to a length."""
    level: list[tuple[str, ...]] = [()]
    for _ in range(longest):
        level = [(*story, verb) for story in level for verb in VERBS]
        yield from level


@pytest.mark.promise("P2")
@pytest.mark.promise("P11")
def test_a_power_cut_in_any_story_of_two_verbs_loses_nothing() -> None:
    """After a power cut at some calls of two verbs, acknowledged entries are there and every file is whole."""
    states = [check_story(story, step=100) for story in stories(2)]
    assert sum(map(bool, states)) > 90
    measured("P2", "power cuts in short scenarios", stories=sum(map(bool, states)), states=sum(states), lost=0)


@pytest.mark.promise("P2")
@pytest.mark.promise("P11")
@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
def test_a_power_cut_at_any_call_of_any_story_of_three_verbs_loses_nothing(verb: str) -> None:
    """The long form covers three verbs, every call and every crash model."""
    states = [check_story(story) for story in stories(3) if story[-1] == verb]
    assert sum(states) > 1_000
    measured("P2", "power cuts in short scenarios", stories=sum(map(bool, states)), states=sum(states), lost=0)
    measured("P11", "files replaced across power cuts", states=sum(states), half_files=0)


@pytest.mark.promise("P2")
@pytest.mark.parametrize("story", [("append",), ("fork", "append"), ("move", "append"), ("delete", "undo")])
def test_without_syncs_the_states_show_a_loss(story: tuple[str, ...]) -> None:
    """Without syncs, the rig reports a loss."""
    with pytest.raises(AssertionError, match="power cut in"):
        check_story(story, samples=8, step=AT_THE_END, without={"sync", "sync_directory"})
