"""Rows that were removed from a transcript are listed and can be restored."""

from __future__ import annotations

import pytest

from claude_rows import CONFIG, HOME, OTHER, PATH, SESSION, Json, assistant, rows_in, transcript, uid, user
from sessile.agents.claude.mutations import Mutations
from sessile.agents.claude.transcript import Transcript
from sessile.errors import Damaged
from sessile.storage import atomic

pytestmark = pytest.mark.mission("C7")

TALK = [user("A"), assistant("B"), user("C")]


def content(writer: Transcript) -> bytes:
    return atomic.read_all(writer.fs, PATH)


def changes(writer: Transcript) -> Mutations:
    return Mutations(writer.fs, CONFIG, HOME)


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_a_removed_row_comes_back_where_it_was(name: str) -> None:
    """The file is the same as before, byte for byte, and the writer knows the row again."""
    writer = transcript()
    writer.record_transcript(TALK)
    before = content(writer)
    tombstone = writer.remove_transcript_message(uid(name))
    assert tombstone is not None
    (kept,) = writer.kept_messages()
    assert (kept.uuid, kept.path, kept.kept) == (uid(name), PATH, tombstone.kept)
    assert kept.row in before
    assert writer.restore_transcript_message(kept)
    assert content(writer) == before
    writer.record_transcript(TALK)
    assert content(writer) == before


def test_rows_are_listed_in_the_order_in_which_they_lay() -> None:
    """They are listed for one session or for all, also without the writer; restoring keeps the saved copy."""
    writer = transcript()
    writer.record_transcript(TALK)
    writer.remove_transcript_message(uid("C"))
    writer.remove_transcript_message(uid("A"))
    writer.switch_session(OTHER)
    writer.record_transcript([user("O")])
    writer.remove_transcript_message(uid("O"))
    listed = changes(writer).kept_rows()
    assert [kept.uuid for kept in listed] == [uid("A"), uid("C"), uid("O")]
    assert [kept.uuid for kept in changes(writer).kept_rows(SESSION)] == [uid("A"), uid("C")]
    assert changes(writer).restore(listed[0])
    assert len(changes(writer).kept_rows()) == 3
    assert changes(transcript()).kept_rows() == []


def test_a_row_that_is_there_again_is_not_put_back_twice() -> None:
    """Recording a message again is as good as restoring it."""
    writer = transcript()
    writer.record_transcript(TALK)
    writer.remove_transcript_message(uid("C"))
    writer.record_transcript(TALK)
    before = content(writer)
    (kept,) = writer.kept_messages()
    assert not writer.restore_transcript_message(kept)
    assert content(writer) == before


def test_a_place_that_is_no_line_any_more_sends_the_row_to_the_end() -> None:
    """Other rows are never split: if the file has changed, the row is appended on its own line."""
    writer = transcript()
    writer.record_transcript(TALK)
    writer.remove_transcript_message(uid("B"))
    (kept,) = writer.kept_messages()
    other: Json = {"type": "user", "uuid": "z", "text": "z" * 500}
    atomic.replace(writer.fs, PATH, (b'{"type":"user","uuid":"z","text":"' + b"z" * 5000 + b'"}',))
    assert writer.restore_transcript_message(kept)
    first, second = rows_in(content(writer))
    assert (first["uuid"], second["uuid"]) == (other["uuid"], uid("B"))


def test_a_note_that_cannot_be_read_is_told() -> None:
    """A damaged saved row is an error with its path, not a shorter list."""
    writer = transcript()
    writer.record_transcript(TALK)
    tombstone = writer.remove_transcript_message(uid("B"))
    assert tombstone is not None
    atomic.replace(writer.fs, tombstone.kept, (b"not a note\nrow\n",))
    with pytest.raises(Damaged) as caught:
        writer.kept_messages()
    assert caught.value.path == tombstone.kept
