"""Paths in MyAgents' folder, and in our folder for what we save of it.

    <root>/sessions.json             the index
    <root>/sessions.lock/            a folder that exists while the index is being written
    <root>/sessions/<id>.jsonl       one message per line; `<id>.json` is the older form, `<id>.jsonl.gz` an archive
    <root>/sessions-v2/<id>.jsonl    v2 transcripts, read-only
    <root>/session-locks/            created by later versions, which name the owner of a lock in it
    <root>/attachments/<id>/<file>

    <ours>/originals/    <ours>/trash/    <ours>/pending/

No path is built from an id that breaks MyAgents' rule. Nothing is created or read here.
"""

from __future__ import annotations

import posixpath
import re
import secrets
import time

import msgspec

from sessile.agents.myagents.types import check_session_id, is_session_id
from sessile.errors import Invalid, InvalidId
from sessile.storage.layout import stem_of

_ATTACHMENT_ID = re.compile(r"[A-Za-z0-9_-]{1,99}")
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._+-]{0,199}")  # the first version takes the extension from the MIME type


def new_stamp() -> str:
    """Return a unique name, for saved files and deletions."""
    return f"{time.time_ns() // 1_000_000}-{secrets.token_hex(3)}"


def session_at(path: str) -> tuple[str, str] | None:
    """Return MyAgents' folder and the session id of a file, in whatever form; `None` if it cannot be a session."""
    folder, session_id = posixpath.dirname(path), stem_of(path)
    if posixpath.basename(folder) != "sessions" or not is_session_id(session_id):
        return None
    return posixpath.dirname(folder), session_id


class Places(msgspec.Struct, frozen=True):
    """The paths of one MyAgents folder; `ours` is our folder for it."""

    root: str
    ours: str

    def __post_init__(self) -> None:
        for path in (self.root, self.ours):
            if not posixpath.isabs(path):
                raise Invalid(f"invalid folder {path!r}: use an absolute path")

    @property
    def index(self) -> str:
        return f"{self.root}/sessions.json"

    @property
    def index_lock(self) -> str:
        return f"{self.root}/sessions.lock"

    @property
    def sessions(self) -> str:
        return f"{self.root}/sessions"

    @property
    def session_locks(self) -> str:
        return f"{self.root}/session-locks"

    @property
    def transcripts_v2(self) -> str:
        return f"{self.root}/sessions-v2"

    @property
    def attachments(self) -> str:
        return f"{self.root}/attachments"

    @property
    def originals(self) -> str:
        return f"{self.ours}/originals"

    @property
    def trash(self) -> str:
        return f"{self.ours}/trash"

    @property
    def pending(self) -> str:
        return f"{self.ours}/pending"

    def session(self, session_id: str) -> str:
        return f"{self.sessions}/{check_session_id(session_id)}.jsonl"

    def legacy(self, session_id: str) -> str:
        return f"{self.sessions}/{check_session_id(session_id)}.json"

    def archive(self, session_id: str) -> str:
        return f"{self.sessions}/{check_session_id(session_id)}.jsonl.gz"

    def transcript_v2(self, session_id: str) -> str:
        return f"{self.transcripts_v2}/{check_session_id(session_id)}.jsonl"

    def session_lock(self, session_id: str) -> str:
        return f"{self.session_locks}/{check_session_id(session_id)}.jsonl.lock"

    def pending_note(self, session_id: str) -> str:
        """Return the note that the statistics of a session are pending."""
        return f"{self.pending}/{check_session_id(session_id)}"

    def replaced_rows(self, session_id: str) -> str:
        """Return the file with the rows of a session before they were replaced."""
        return f"{self.originals}/{check_session_id(session_id)}.replaced"

    def attachments_of(self, session_id: str) -> str:
        return f"{self.attachments}/{check_session_id(session_id)}"

    def attachment(self, session_id: str, attachment_id: str, extension: str) -> str:
        """Return the path of a new attachment."""
        if not _ATTACHMENT_ID.fullmatch(attachment_id):
            raise InvalidId(
                f"invalid attachment id {attachment_id[:80]!r}", hint="use at most 99 letters, digits, - and _"
            )
        return f"{self.attachments_of(session_id)}/{attachment_id}.{extension}"

    def attachment_at(self, relative: str) -> str:
        """Return the path of the attachment that a message names."""
        session_id, slash, name = relative.partition("/")
        if not slash or not _FILE.fullmatch(name):
            raise InvalidId(f"invalid attachment path {relative[:80]!r}", hint="use <session id>/<file>")
        return f"{self.attachments_of(session_id)}/{name}"
