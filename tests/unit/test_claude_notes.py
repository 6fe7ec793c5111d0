"""What a listing takes from outside of a transcript: notes in its folder, where it continues, its directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from claude_trees import SESSION, lines, row
from sessile.agents.claude.listing import NO_NOTES, Archived, SessionInfo, notes_of
from sessile.agents.claude.mutations import Mutations
from sessile.agents.claude.sdk import ClaudeSessions
from sessile.storage.filesystem import PosixFilesystem

pytestmark = [pytest.mark.mission("C11"), pytest.mark.mission("C13")]

OTHER = "99999999-2222-4333-8444-555555555555"
LATER = "2026-03-01T00:00:00.000Z"


class Home:
    """A config home on disk with one project folder."""

    def __init__(self, path: Path, slug: str = "-w") -> None:
        self.path = path
        self.folder = path / "projects" / slug
        self.folder.mkdir(parents=True)
        self.sessions = ClaudeSessions(PosixFilesystem(), str(path))

    def put(self, *rows: dict[str, Any], session: str = SESSION) -> None:
        (self.folder / f"{session}.jsonl").write_bytes(lines(list(rows)))

    def note(self, name: str, text: str) -> None:
        (self.folder / SESSION).mkdir(exist_ok=True)
        (self.folder / SESSION / name).write_text(text)

    def info(self) -> SessionInfo:
        (info,) = self.sessions.list_sessions()
        assert info == self.sessions.get_session_info(SESSION)
        return info


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path)
    made.put(row("user", "a", cwd="/w"))
    return made


def test_a_title_beside_the_transcript_counts_unless_its_end_tells_a_newer_one(home: Home) -> None:
    """Newer releases write the title to the folder of the session; it is one line, and the Python SDK ignores it."""
    home.note("custom-title.json", json.dumps({"customTitle": " From\nthe\u200b note "}))
    assert home.info().custom_title == "From the  note"
    listed = home.sessions.list_sessions(view="python-sdk")
    assert [each.custom_title for each in listed] == [None]
    home.put(row("user", "a"), {"type": "custom-title", "customTitle": "In the file"})
    assert home.info().custom_title == "In the file"


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"customTitle":5}', '{"title":"x"}', '{"customTitle":" "}'])
def test_a_note_of_another_shape_is_none(home: Home, text: str) -> None:
    """It changes nothing, and nothing is raised."""
    home.note("custom-title.json", text)
    home.note("archived.json", text)
    assert (home.info().custom_title, home.info().archived) == (None, None)
    assert notes_of(text.encode(), text.encode()) == NO_NOTES
    assert notes_of(None, b'{"archived":true,"at":"1970-01-01T00:00:01.000Z"}').archived == Archived(True, 1000)


def test_a_note_that_is_too_large_is_none(home: Home) -> None:
    """Large files are not read for a title."""
    home.note("custom-title.json", json.dumps({"customTitle": "x" * 5000}))
    assert home.info().custom_title is None


def test_what_was_archived_is_listed_as_such_until_its_user_comes_back(home: Home) -> None:
    """We and the SDK write the same note; a later prompt cancels it, rows of programs do not."""
    changes = Mutations(PosixFilesystem(), str(home.path), str(home.path / "ours"))
    assert home.info().archived is None
    changes.archive(SESSION)
    assert home.info().archived is True
    changes.unarchive(SESSION)
    assert home.info().archived is False
    home.note("archived.json", '{"archived":true,"at":"2026-02-01T00:00:00.000Z"}')
    home.put(row("user", "a"), row("assistant", "b", "a", timestamp=LATER))
    assert home.info().archived is True
    home.put(row("user", "a"), row("user", "b", "a", timestamp=LATER, origin={"kind": "channel"}))
    assert home.info().archived is True
    home.put(row("user", "a"), row("user", "b", "a", timestamp=LATER))
    assert home.info().archived is False


def test_a_session_that_goes_on_elsewhere_is_listed_there(home: Home) -> None:
    """The other session must exist and have a conversation, and nothing may have been added here since."""
    note = {"type": "continued-in", "continuedInSessionId": OTHER}
    home.put(row("user", "a"), note)
    assert [info.session_id for info in home.sessions.list_sessions()] == [SESSION]
    home.put(row("user", "b"), session=OTHER)
    assert [info.session_id for info in home.sessions.list_sessions()] == [OTHER]
    assert home.sessions.get_session_info(SESSION) is not None
    home.put(row("user", "a"), note, row("user", "c", "a"))
    assert {info.session_id for info in home.sessions.list_sessions()} == {SESSION, OTHER}


def test_a_session_that_moved_tells_where_it_is(home: Home) -> None:
    """The last directory counts, not the one in which it started."""
    home.put(row("user", "a", cwd="/w"), {"type": "relocated", "relocatedCwd": "/elsewhere", "sessionId": SESSION})
    assert home.info().cwd == "/elsewhere"


def test_a_session_without_words_is_named_after_what_it_shows(home: Home) -> None:
    """An image alone is a session; the Python SDK does not list it."""
    home.put(row("user", "a", message={"role": "user", "content": [{"type": "image", "source": {}}]}))
    assert (home.info().summary, home.info().first_prompt) == ("Image", None)
    assert home.sessions.list_sessions(view="python-sdk") == []


def test_a_directory_is_not_given_the_sessions_of_another_with_the_same_slug(tmp_path: Path) -> None:
    """`/x/a-b` and `/x/a/b` share a project folder; each has only its own sessions, if the other still exists."""
    mine, theirs = tmp_path / "a-b", tmp_path / "a" / "b"
    home = Home(tmp_path / "claude", "".join(char if char.isalnum() else "-" for char in str(mine)))
    home.put(row("user", "a", cwd=str(theirs)))
    assert [info.session_id for info in home.sessions.list_sessions(str(mine))] == [SESSION]
    theirs.mkdir(parents=True)
    assert home.sessions.list_sessions(str(mine)) == []
    assert [info.session_id for info in home.sessions.list_sessions(str(theirs))] == [SESSION]
    assert len(home.sessions.list_sessions()) == 1


def test_sessions_of_the_same_moment_come_by_their_ids(home: Home) -> None:
    """Pages do not depend on the file system."""
    home.put(row("user", "b"), session=OTHER)
    for path in home.folder.glob("*.jsonl"):
        os.utime(path, (1000, 1000))
    assert [info.session_id for info in home.sessions.list_sessions()] == [OTHER, SESSION]
    assert [info.session_id for info in home.sessions.list_sessions(limit=1, offset=1)] == [SESSION]
