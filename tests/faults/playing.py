"""Scenarios that are played in processes of their own, on real files, and what these were promised."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from faults.ledger import Ledger, Run, store_on
from faults.processes import Child, Tell
from faults.scenarios import Act, Scenario

BEGIN, END = "begin", "end"


def play(root: str, ledger: Ledger, act: Act, durability: str, tell: Tell) -> None:
    """Play a part of a scenario, telling what was promised."""
    tell(BEGIN)
    act(Run(store_on(None, root, 2, durability), ledger, tell))
    tell(END)


def prepared_at(root: str, scenario: Scenario) -> Ledger:
    """Make a folder with a store on which the scenario can be played; gives what was promised so far."""

    def prepare(tell: Tell) -> None:
        scenario.prepare(Run(store_on(None, root, 1), Ledger(), tell))

    os.mkdir(root)
    # In a process of its own: it leaves locked drafts behind, which end with it.
    return noted(Ledger(), Child(partial(prepare)).finish())


def noted(ledger: Ledger, events: list[Any]) -> Ledger:
    """The ledger with what a process has told."""
    for event in events:
        if event not in (BEGIN, END):
            ledger.note(*event)
    return ledger
