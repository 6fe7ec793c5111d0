"""Play scenarios in separate processes, on real files, and collect their promises."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from faults.ledger import Ledger, Run, store_on
from faults.processes import Child, Tell
from faults.scenarios import Act, Scenario

BEGIN, END = "begin", "end"


def play(root: str, ledger: Ledger, act: Act, durability: str, tell: Tell) -> None:
    """Play a part of a scenario and report its promises."""
    tell(BEGIN)
    act(Run(store_on(None, root, 2, durability), ledger, tell))
    tell(END)


def prepared_at(root: str, scenario: Scenario) -> Ledger:
    """Create a folder with a prepared store for the scenario. Return the promises so far."""

    def prepare(tell: Tell) -> None:
        scenario.prepare(Run(store_on(None, root, 1), Ledger(), tell))

    os.mkdir(root)
    # In its own process, because it leaves locked drafts behind; their locks end with the process.
    return noted(Ledger(), Child(partial(prepare)).finish())


def noted(ledger: Ledger, events: list[Any]) -> Ledger:
    """Return the ledger with the reported events of a process."""
    for event in events:
        if event not in (BEGIN, END):
            ledger.note(*event)
    return ledger
