"""What removed messages from a context."""

from __future__ import annotations

import pytest

from sessile import Session
from sessile.core.context import Absence, absences

pytestmark = pytest.mark.mission("B5")


def say(session: Session, *texts: str) -> list[str]:
    return [session.append_message({"role": "user", "content": text}).id for text in texts]


def absent(session: Session) -> list[Absence]:
    return absences((entry.body for entry in session.iter_branch()), set(session.context().sources))


def test_each_absence_names_who_took_the_messages_and_which_they_are() -> None:
    """Two compactions, an edit and a reset are named with the messages that each removed."""
    with Session.in_memory("/work") as session:
        a, b, c, d = say(session, "a", "b", "c", "d")
        assert absent(session) == []
        first = session.append_compaction("one", c, 10).id
        assert absent(session) == [Absence(first, "compaction", 2, a, b)]
        e, f = say(session, "e", "f")
        edit = session.append_context_edit(f, None).id
        changed = session.append_context_edit(e, "shorter").id
        assert absent(session)[1:] == [
            Absence(changed, "context_edit", 1, e, e, changed=True),
            Absence(edit, "context_edit", 1, f, f),
        ]
        second = session.append_compaction("two", e, 10).id
        assert absent(session)[:2] == [
            Absence(first, "compaction", 2, a, b),
            Absence(second, "compaction", 2, c, d),
        ]
        reset = session.append_reset_boundary().id
        g = say(session, "g")
        assert [each.by for each in absent(session)] == [first, second, reset] and session.context().sources == g


def test_a_compaction_that_keeps_nothing_takes_everything_before_it() -> None:
    """This holds for any value of its first kept entry."""
    with Session.in_memory("/work") as session:
        a, b = say(session, "a", "b")
        by = session.append_compaction("all", None, 10).id
        assert absent(session) == [Absence(by, "compaction", 2, a, b)]


def test_what_a_provider_sealed_away_is_told_too() -> None:
    """A provider's own compaction has its own history, so its kept entries are not sent."""
    with Session.in_memory("/work") as session:
        a, b = say(session, "a", "b")
        sealed = {"openaiRemoteCompaction": {"provider": "openai", "replacementHistory": []}}
        by = session.append_compaction("all", b, 10, preserve_data=sealed).id
        assert session.context().sources == [by]
        assert absent(session) == [Absence(by, "compaction", 2, a, b)]
