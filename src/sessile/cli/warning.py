"""The warning of sessions that their agent is about to delete.

It is part of listings, which are fast: where no agent deletes anything, nothing is imported or read for it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sessile.cli.app import App
from sessile.core.expiry import RULES
from sessile.render.wording import many

if TYPE_CHECKING:
    from sessile import Outlook

SOON = 7  # days that a warning looks ahead


def soon(app: App) -> Sequence[Outlook]:
    """The sessions to warn of, by the folders of agents that delete theirs."""
    if not any(source.agent in RULES for source in app.library.given):
        return ()
    from sessile import expiring

    return expiring(app.library, now=app.store.now(), within_days=SOON, follow=os.path.realpath)


def warn(app: App) -> None:
    """Say how many sessions will be gone soon, a folder a line, and what to do."""
    for outlook in soon(app):
        say_problem(app, outlook)
        count, agent = len(outlook.sessions), outlook.source.agent
        if count:
            told = many(count, f"session of {agent} expires", f"sessions of {agent} expire")
            app.out.note(f"{told} within {SOON} days; keep {'it' if count == 1 else 'them'}: {app.command} keep")


def say_problem(app: App, outlook: Outlook) -> None:
    """Say why it is unknown when an agent deletes its sessions, and what is safe then."""
    if outlook.problem is not None:
        where = app.tilde(outlook.source.root)
        told = f"it is unknown when {outlook.source.agent} deletes sessions, because of {where}/{outlook.problem}"
        app.out.note(f"note: {told}; keep all: {app.command} keep --all")


def say_copies(app: App) -> None:
    """Say how many copies are not listed because their originals are."""
    if app.library.copies:
        told = many(len(app.library.copies), "kept copy is", "kept copies are")
        app.out.note(
            f"… {told} not listed: {'its original is' if len(app.library.copies) == 1 else 'the originals are'}"
        )
