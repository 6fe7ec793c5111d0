"""When an agent deletes its sessions by itself: one row an agent, and the arithmetic of the deadline.

Rules: an agent that is not in the table deletes nothing that we know of. A period that cannot be told is `None` and comes with
the reason, never with a guess: what is unknown must not look safe. Of several settings the shortest period counts, because
which file an agent obeys depends on the folder that it is started in, and the sweep takes the sessions of all folders.

It reads no file and no clock: the bytes of the settings and the times are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from sessile.core.codec import decode

DAY = 24 * 3600 * 1000  # milliseconds
_SHORTEST = 1  # day; Claude Code refuses less, and older releases deleted everything or wrote nothing then


class Rule(NamedTuple):
    """How long an agent keeps a session that nobody changes, and where a person may say otherwise."""

    settings: tuple[
        str, ...
    ]  # files below the root of the agent; without the first, or without a word in it, `days` counts
    member: str
    days: int


RULES = {
    # At its start Claude Code removes each transcript that was not changed for so long.
    "claude": Rule(("settings.json", "settings.local.json"), "cleanupPeriodDays", 30),
}


class Period(NamedTuple):
    """How long a session is kept after its last change, in milliseconds; if that is unknown, why."""

    length: int | None
    problem: str | None = None


def period_of(rule: Rule, settings: Mapping[str, bytes]) -> Period:
    """The period that these settings leave; files that are not there are left out of `settings`."""
    said: list[float] = []
    for number, name in enumerate(rule.settings):
        try:
            value = _said(settings.get(name), rule.member)
        except ValueError as error:
            return Period(None, f"{name}, {error}")
        if value is None and not number:
            value = rule.days
        if value is not None:
            said.append(value)
    return Period(int(min(said) * DAY))


def deadline(modified: int, period: Period) -> int | None:
    """The moment from which on the owner deletes a session that was changed last at `modified`; `None` if unknown."""
    return None if period.length is None else modified + period.length


def _said(data: bytes | None, member: str) -> float | None:
    """The days that a file of settings says, if it says any."""
    if data is None:
        return None
    try:
        settings = decode(data)
    except ValueError as error:
        raise ValueError("which is not JSON") from error
    if not isinstance(settings, dict):
        raise ValueError("which is no JSON object")
    days = settings.get(member)
    if days is None:
        return None
    if isinstance(days, bool) or not isinstance(days, int | float) or not _SHORTEST <= days < math.inf:
        raise ValueError(f"whose {member} is not a number of days from {_SHORTEST} on")
    return days
