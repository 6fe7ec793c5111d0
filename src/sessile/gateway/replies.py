"""What those who wait for a turn are told: the reply, with notices before it and remarks behind it.

Rules: a notice is told once. One that came up while nothing was delivered, because the model stayed silent or the send policy
held its reply back, waits for the next reply of the session.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from sessile.core.llm import joined_text
from sessile.core.silence import is_silent
from sessile.gateway.answer import Json, deliverable, reasoning_of
from sessile.gateway.records import INTERRUPTED
from sessile.gateway.toggles import usage_line
from sessile.gateway.turn import Reply

if TYPE_CHECKING:
    from sessile.gateway.job import Job
    from sessile.gateway.records import Stored

_SESSIONS = 1024  # of which notices are remembered
_LONGEST = 8  # notices of one session


class Pending:
    """Notices that wait for the next reply of their session."""

    def __init__(self) -> None:
        self._notices: OrderedDict[str, list[str]] = OrderedDict()

    def add(self, session_id: str, *notices: str) -> None:
        """Tell something with the next reply."""
        if not notices:
            return
        waiting = self._notices.setdefault(session_id, [])
        waiting += [notice for notice in notices if notice not in waiting]
        del waiting[:-_LONGEST]
        self._notices.move_to_end(session_id)
        while len(self._notices) > _SESSIONS:
            self._notices.popitem(last=False)

    def take(self, session_id: str) -> tuple[str, ...]:
        """What is to be told now."""
        return tuple(self._notices.pop(session_id, ()))


def reply_of(job: Job, message: Json, entry_id: str | None, pending: Pending) -> Reply:
    """The reply of a turn whose answer is this message."""
    pending.add(job.session_id, *job.notices)
    silent = is_silent(joined_text(message.get("content")))
    heard = not silent and job.withheld is None
    aborted = message.get("stopReason") == "aborted"
    line = usage_line(message.get("usage"), job.toggles.usage)
    return Reply(
        text="" if not heard else job.turn.said if aborted else deliverable(message),
        stop=str(message.get("stopReason", "stop")),
        notices=pending.take(job.session_id) if heard else (),
        silent=silent,
        withheld=job.withheld,
        error=message.get("errorMessage"),
        entry_id=entry_id,
        usage=message.get("usage"),
        model=job.answerer.model or message.get("model"),
        reasoning=reasoning_of(message) if heard and job.toggles.reasoning != "off" else None,
        remarks=(line,) if heard and line is not None and message.get("usage") is not None else (),
    )


def stored_reply(stored: Stored, withheld: str | None) -> Reply:
    """The reply of a turn as its session holds it; without one it was interrupted. `withheld` says why it may not be told."""
    if stored.reply is None:
        return Reply("", "aborted", error=INTERRUPTED)
    message = stored.reply.get("message") or {}
    return Reply(
        text="" if withheld else deliverable(message),
        stop=str(message.get("stopReason", "stop")),
        silent=is_silent(joined_text(message.get("content"))),
        withheld=withheld,
        error=message.get("errorMessage"),
        entry_id=stored.reply.id,
        usage=message.get("usage"),
        model=message.get("model"),
    )
