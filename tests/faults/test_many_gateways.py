"""Many gateways on one database, killed and paused: no acknowledged message is lost or duplicated, every turn has one reply."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from faults.many_gateways_rig import Plan, Weakness, check, nothing, talk
from faults.processes import fast_folder
from faults.test_teeth import reports_loss
from sessile.gateway.turns.lanes import SharedQueue
from sessile.gateway.turns.turn import Job, Message
from sessile.storage.postgres.turn_queue import Entered, TurnTable

pytestmark = pytest.mark.mission("B8")

Urls = Callable[[], str]


def rig(urls: Urls, plan: Plan, weakness: Weakness = nothing) -> Counter[str]:
    """Run gateways with the faults of a plan while clients talk. Return how the turns ended."""
    with fast_folder() as folder:
        run = talk(folder, urls(), plan, weakness=weakness)
        ends = check(run)
        print(f"{plan}: {sum(ends.values())} turns in {run.seconds:.1f} s, {dict(ends)}")
        return ends


def test_killed_gateways_lose_and_double_nothing(postgres_urls: Urls) -> None:
    """Turns of a killed gateway are marked as interrupted once; its waiting messages are answered by another gateway."""
    ends = rig(postgres_urls, Plan(seed=1, kills=5))
    assert ends["complete"] > 10 and ends["interrupted"]


def test_gateways_that_stood_still_write_nothing_late(postgres_urls: Urls) -> None:
    """After a takeover, a paused gateway writes no second reply, and clients receive the reply in the session."""
    ends = rig(postgres_urls, Plan(seed=2, pauses=2))
    assert ends["complete"] > 10 and ends["interrupted"]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 20))
def test_hundreds_of_killed_and_paused_gateways_lose_and_double_nothing(postgres_urls: Urls, seed: int) -> None:
    """The long form of the tests above, with three gateways: 400 kills and 100 pauses."""
    ends = rig(postgres_urls, Plan(seed, kills=40, pauses=10, nodes=3))
    assert ends["complete"] > 100 and ends["interrupted"] > 10


# -- teeth


def without_names() -> None:
    """Make gateways unable to recognize a repeated message."""
    made = Job.__init__

    def init(self: Job, bound: object, message: Message, name: str, *rest: object) -> None:
        made(self, bound, message, os.urandom(8).hex(), *rest)  # type: ignore[arg-type]

    Job.__init__ = init  # type: ignore[method-assign, assignment]


def without_lanes() -> None:
    """Make gateways start every turn at once."""
    enter = TurnTable.enter

    def always(self: TurnTable, *what: object, **how: bool) -> Entered | None:
        entered = enter(self, *what, **how)  # type: ignore[arg-type]
        return entered and entered._replace(has_lane=True)

    TurnTable.enter = always  # type: ignore[method-assign, assignment]


def without_taking_over() -> None:
    """Make gateways ignore the turns of dead ones."""
    TurnTable.adopt = lambda self: False  # type: ignore[method-assign]


def without_fencing() -> None:
    """Make gateways not check whether they were overtaken."""
    SharedQueue.check = lambda self, job: None  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("weakness", "plan"),
    [
        (without_names, Plan(0, kills=2)),
        (without_lanes, Plan(0)),
        pytest.param(without_taking_over, Plan(0, kills=3, waits=False), marks=pytest.mark.long),
        pytest.param(without_fencing, Plan(0, pauses=2), marks=pytest.mark.long),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_without_one_of_its_protections_the_rig_reports_it(postgres_urls: Urls, weakness: Weakness, plan: Plan) -> None:
    """The rig reports loss if any one protection is removed."""
    plans = [plan._replace(seed=seed) for seed in range(3)]
    assert any(reports_loss(lambda plan=plan: rig(postgres_urls, plan, weakness)) for plan in plans)  # type: ignore[misc]
