"""Write the transcript of a session as Claude Code writes it.

Rules:

- Every call is one write that is in the file when the call returns; there is no queue. With `power` it also survives a
  power cut, otherwise call `flush` to make it durable.
- Session id and project folder are one value that changes at once, and every path is computed from it when it is
  needed, so no row can end up in the file of another session.
- Metadata waits until the first user or assistant row creates the file. The last title, tag and so on are written again
  when new rows would push them out of the last 64 KB, which is all that a listing reads. Values that another process
  has written since are respected.
- Rows go to the mirror, if there is one, after they are on disk. A failing mirror is reported in `diagnostics` and
  stops nothing.
- Rows that are removed are saved in `home`, our own folder.

Recording:

- A message whose uuid is in the file is not written again. While all messages so far are in the file, the last one that
  may be a parent is the parent of the first new message. Later known messages do not change that, nor do messages
  recorded before a known compaction, so a message after a compaction never points to what was compacted.
- Progress is written, but is never a parent.
- A compaction starts a new root: no parent, and `logicalParentUuid` names the row before it.
- A tool result is a child of the row with its call, if that is in the file and not before a compaction of the same
  batch.
- Every row gets the stamp of this session, because a resumed or forked message has the stamp of another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from sessile.agents.claude import rows as side_rows
from sessile.agents.claude.listing import WINDOW
from sessile.agents.claude.paths import (
    Agent,
    Current,
    current_project_dir,
    read_agent,
    read_sidecar,
    subagent_path,
    transcript_path,
    write_sidecar,
)
from sessile.agents.claude.rows import (
    USER,
    Row,
    is_chain_participant,
    is_compact_boundary,
    is_progress,
    is_transcript_message,
    text_of,
    type_of,
    uuid_of,
)
from sessile.agents.claude.transcript_file import (
    TOMBSTONES,
    Batch,
    KeptRow,
    Known,
    Tombstone,
    TranscriptFile,
    kept_rows,
    remove_row,
    restore_row,
)
from sessile.core.text import iso_timestamp
from sessile.errors import ExtensionFailed, InvalidEntry, SessionNotFound
from sessile.storage.base import Filesystem

REACH = WINDOW // 2  # bytes from the end: other programs may append as much before our next write

# Members of a message about the session and process that it comes from.
_FOREIGN_MEMBERS = frozenset(
    [
        "parentUuid",
        "isSidechain",
        "agentId",
        "sessionId",
        "userType",
        "entrypoint",
        "cwd",
        "version",
        "gitBranch",
        "slug",
    ]
)

Mirror = Callable[[str, str | None, Sequence[bytes]], None]
"""Receive the rows that were written: the session id, the agent id or None, and the lines."""


class Diagnostic(NamedTuple):
    """A problem that did not stop the call: a code and a number, never content."""

    code: str
    rows: int | None = None
    kind: str | None = None  # the class of the error


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """The members of every row that describe the process that writes it; None values are not written."""

    cwd: str
    version: str | None = None
    git_branch: str | None = None
    user_type: str | None = "external"
    entrypoint: str | None = None
    slug: str | None = None


class Team(NamedTuple):
    """The team that an agent belongs to, and its name there."""

    team_name: str | None = None
    agent_name: str | None = None


class Transcript:
    """The transcript of the current session, and those of its agents."""

    def __init__(
        self,
        fs: Filesystem,
        config_home: str,
        home: str,
        current: Current,
        *,
        stamp: Stamp,
        power: bool = True,
        patience: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.stamp = stamp
        self.diagnostics: list[Diagnostic] = []
        self.fs = fs
        self.home = home
        self._power = power
        self._patience = patience
        self._clock = clock
        self._mutex = threading.RLock()
        self._files: dict[str, TranscriptFile] = {}
        self._subdirs: dict[str, str] = {}
        self._mirror: Mirror | None = None
        self._config_home = config_home
        self._current = current
        self.transcript_path()  # raises for an invalid id

    # -- paths

    @property
    def current(self) -> Current:
        """The session that is written, and its folder."""
        return self._current

    def transcript_path(self, session_id: str | None = None) -> str:
        """Return the file of the current session, or of another one that started in the same directory."""
        return transcript_path(self._config_home, self._current, session_id)

    def hook_payload(self, event: str, **members: Any) -> dict[str, Any]:
        """Return the payload of a hook: the event, the session and the path of its transcript."""
        current = self._current
        place = {"session_id": current.session_id, "transcript_path": transcript_path(self._config_home, current)}
        return {**place, "cwd": self.stamp.cwd, "hook_event_name": event, **members}

    def agent_path(self, agent_id: str) -> str:
        """Return the file of an agent of the current session."""
        return self._agent_path(self._current, agent_id)

    def switch_session(self, session_id: str, project_dir: str | None = None) -> Current:
        """Make another session the current one, in the given project folder or in that of the working directory."""
        current = self._current._replace(session_id=session_id, project_dir=project_dir)
        transcript_path(self._config_home, current)  # raises for an invalid id before anything changes
        with self._mutex:
            self._current = current
            self._subdirs.clear()
            self.reset_session_file_pointer()
        return current

    def reset_session_file_pointer(self) -> None:
        """Forget what is known about the current file, so the next call reads it again."""
        with self._mutex:
            self._file(self.transcript_path()).reset()

    def set_agent_subdir(self, agent_id: str, subdir: str | None) -> None:
        """Put an agent's files in a folder below `subagents`; call it before the agent runs, with None afterwards."""
        with self._mutex:
            if subdir is None:
                self._subdirs.pop(agent_id, None)
            else:
                subagent_path("", self._current.session_id, agent_id, subdir)  # raises for an unsafe name
                self._subdirs[agent_id] = subdir

    def mirror_to(self, mirror: Mirror | None) -> None:
        """Send every row that is written from now on to `mirror` too."""
        self._mirror = mirror

    # -- the conversation

    def record_transcript(
        self,
        messages: Iterable[Row],
        *,
        team: Team | None = None,
        starting_parent_hint: str | None = None,
        prompt_id: str | None = None,
    ) -> str | None:
        """Write the messages that are new; return the uuid of the next message's parent, or `None`."""
        return self._record(messages, starting_parent_hint, team=team, prompt_id=prompt_id)

    def record_sidechain_transcript(
        self, messages: Iterable[Row], agent_id: str, *, starting_parent: str | None = None
    ) -> str | None:
        """Write the new messages of an agent to its own file."""
        return self._record(messages, starting_parent, agent_id=agent_id)

    def _record(
        self,
        messages: Iterable[Row],
        hint: str | None,
        *,
        agent_id: str | None = None,
        team: Team | None = None,
        prompt_id: str | None = None,
    ) -> str | None:
        messages = list(messages)
        now = self._now()

        def plan(known: Known, session_id: str) -> Batch:
            chain = Chain(session_id, self.stamp, agent_id, team, prompt_id)
            return Batch(*plan_recording(known, messages, chain, now=now, hint=hint))

        answer: str | None = self._append(plan, agent_id)
        return answer

    def remove_transcript_message(self, uuid: str) -> Tombstone | None:
        """Remove a row of the current file and save it in `home`; return `None` if there is no such row."""
        path = self.transcript_path()
        try:
            return remove_row(self.fs, self._file(path), uuid, self._tombstones)
        except SessionNotFound:
            return None

    def kept_messages(self) -> list[KeptRow]:
        """Return the rows that were removed from the current file, in file order."""
        path = self.transcript_path()
        return [kept for kept in kept_rows(self.fs, self._tombstones) if kept.path == path]

    def restore_transcript_message(self, kept: KeptRow) -> bool:
        """Put a removed row back into its file; return false if the file has a row with its uuid again."""
        return restore_row(self._file(kept.path), kept)

    # -- rows beside the conversation

    def insert_queue_operation(self, operation: str, content: Any = None) -> None:
        """Record an operation on the queue of prompts."""
        now = self._now()
        self._note(lambda session_id: side_rows.queue_operation_row(session_id, operation, content, now))

    def insert_file_history_snapshot(
        self, message_id: str, snapshot: Mapping[str, Any], *, is_update: bool = False
    ) -> None:
        """Record the backups of files at a message."""
        self._note(lambda _: side_rows.file_history_snapshot_row(message_id, snapshot, is_update=is_update))

    def insert_attribution_snapshot(self, snapshot: Mapping[str, Any]) -> None:
        """Record the attribution of changes."""
        self._note(lambda _: side_rows.attribution_snapshot_row(snapshot))

    def insert_content_replacement(
        self, replacements: Sequence[Mapping[str, Any]], agent_id: str | None = None
    ) -> None:
        """Record the replacements of large contents, in the agent's file if `agent_id` is given."""
        self._note(lambda session_id: side_rows.content_replacement_row(session_id, replacements, agent_id), agent_id)

    def set_title(self, title: str) -> None:
        """Set the title of the session."""
        self._note(lambda session_id: side_rows.title_row(session_id, title))

    def set_tag(self, tag: str | None) -> None:
        """Tag the session; `None` clears the tag."""
        self._note(lambda session_id: side_rows.tag_row(session_id, tag))

    def set_value(self, kind: str, value: Any) -> None:
        """Set a value of which only the last counts, such as `mode`, `last-prompt` or `agent-name`."""
        self._note(lambda session_id: side_rows.value_row(session_id, kind, value))

    def reappend_metadata(self) -> None:
        """Write title, tag and so on again if they are about to leave the part of the file that listings read.

        If only notes were added, nothing is pushed out, and a large file is not read.
        """
        if self._file(self.transcript_path()).is_loaded:
            self._append(lambda known, session_id: Batch(()), None)

    # -- agents

    def write_agent_metadata(
        self, agent_id: str, agent_type: str, *, worktree_path: str | None = None, description: str | None = None
    ) -> None:
        """Write the sidecar of an agent, which is needed to resume it."""
        path = self.agent_path(agent_id)
        write_sidecar(self.fs, path, agent_type, worktree_path=worktree_path, description=description)

    def read_agent_metadata(self, agent_id: str) -> dict[str, Any]:
        """Return all members of an agent's sidecar; raise if it is missing or broken."""
        return read_sidecar(self.fs, self.agent_path(agent_id))

    def resume_agent(self, agent_id: str) -> Agent:
        """Return what is needed to resume an agent; raise if its sidecar is missing or broken."""
        return read_agent(self.fs, agent_id, self.agent_path(agent_id))

    # -- closing

    def flush(self) -> None:
        """Make everything that was written durable."""
        with self._mutex:
            files = list(self._files.values())
        for file in files:
            file.flush()

    def close(self) -> None:
        """Write title and tag near the end if needed, and make everything durable."""
        self.reappend_metadata()
        self.flush()

    @property
    def _tombstones(self) -> str:
        return f"{self.home}/{TOMBSTONES}"

    def _note(self, make: Callable[[str], dict[str, Any]], agent_id: str | None = None) -> None:
        self._append(lambda known, session_id: Batch([make(session_id)]), agent_id, catch_up=False)

    def _append(self, plan: Callable[[Known, str], Batch], agent_id: str | None, *, catch_up: bool = True) -> Any:
        """Append the rows of `plan` to the file of the current session, or of its agent."""
        current = self._current
        if agent_id is None:
            file = self._file(transcript_path(self._config_home, current))
        else:
            file = self._file(self._agent_path(current, agent_id))
        appended = file.append(lambda known: plan(known, current.session_id), catch_up=catch_up)
        if appended.rows and self._mirror is not None:
            self._send(self._mirror, current.session_id, agent_id, appended.rows)
        return appended.answer

    def _agent_path(self, current: Current, agent_id: str) -> str:
        folder = current_project_dir(self._config_home, current)
        return subagent_path(folder, current.session_id, agent_id, self._subdirs.get(agent_id))

    def _send(self, mirror: Mirror, session_id: str, agent_id: str | None, rows: Sequence[bytes]) -> None:
        try:
            call_remote(lambda: mirror(session_id, agent_id, rows))
        except ExtensionFailed as error:
            self.diagnostics.append(Diagnostic("mirror_failed", len(rows), type(error.__cause__).__name__))

    def _file(self, path: str) -> TranscriptFile:
        with self._mutex:
            if path not in self._files:
                self._files[path] = TranscriptFile(
                    self.fs, path, power=self._power, patience=self._patience, reach=REACH
                )
            return self._files[path]

    def _now(self) -> str:
        return iso_timestamp(int(self._clock() * 1000))


def call_remote(call: Callable[[], Any]) -> Any:
    """Call code of the caller; convert what it raises into our own error without its content."""
    try:
        return call()
    except Exception as error:
        raise ExtensionFailed(f"the remote side failed: {type(error).__name__}") from error


# -- recording


class Chain(NamedTuple):
    """The session of rows, the agent if they are a sidechain, and members of all of them."""

    session_id: str
    stamp: Stamp
    agent_id: str | None = None
    team: Team | None = None
    prompt_id: str | None = None


class Recorded(Protocol):
    """The uuids in a file, in the order in which they were written."""

    def __contains__(self, uuid: object, /) -> bool: ...

    def position(self, uuid: str) -> int:
        """Return a number that grows with each uuid that is written."""
        ...


class Recording(NamedTuple):
    """The rows to write, and the parent of the next message."""

    rows: Sequence[dict[str, Any]]
    last: str | None


def plan_recording(
    recorded: Recorded, messages: Iterable[Row], chain: Chain, *, now: str, hint: str | None = None
) -> Recording:
    """Return rows for the messages that are not in `recorded`.

    The first is a child of `hint`, unless recorded messages precede it. The parent of the next message is returned even
    if nothing is new, so that a caller who rewinds or resumes keeps the position.
    """
    parent = hint
    rows: list[dict[str, Any]] = []
    written: set[str] = set()
    visible: set[str] = set()  # rows written since the last compaction of this batch
    compacted = False
    since = -1  # the position of the last recorded compaction
    for message in messages:
        uuid = _uuid(message)
        if uuid in recorded or uuid in written:
            if not rows and is_chain_participant(message):
                position = recorded.position(uuid)
                since = position if is_compact_boundary(message) else since
                parent = uuid if position >= since else parent
            continue
        if is_compact_boundary(message):
            rows.append(_boundary(message, parent, chain, now))
            visible.clear()
            compacted = True
        else:
            caller = text_of(message, "sourceToolAssistantUUID") if type_of(message) == USER else None
            known = caller in visible or (not compacted and caller in recorded)
            rows.append(_row(message, caller if caller and known else parent, chain, now))
        written.add(uuid)
        if is_chain_participant(message):
            visible.add(uuid)
            parent = uuid
    return Recording(rows, parent)


def _uuid(message: object) -> str:
    """Return the uuid of a message, or raise if it cannot be recorded."""
    uuid = uuid_of(message)
    if not (is_transcript_message(message) or is_progress(message)):
        raise InvalidEntry(
            f"cannot record a row of type {type_of(message)!r}",
            hint="record user, assistant, attachment, system and progress rows; use the insert_* and set_* methods for others",
        )
    if not uuid:
        raise InvalidEntry("cannot record a message without a uuid: it would be written again by each call")
    return uuid


def _boundary(message: Row, before: str | None, chain: Chain, now: str) -> dict[str, Any]:
    """Return the first row of a compaction: a root that names the row before it."""
    row = _row(message, None, chain, now)
    logical = before or text_of(message, "logicalParentUuid")
    return {"parentUuid": None, "logicalParentUuid": logical} | {
        name: value for name, value in row.items() if name != "logicalParentUuid"
    }


def _row(message: Row, parent: str | None, chain: Chain, now: str) -> dict[str, Any]:
    """Return a row: links, message, stamp. Readers expect `parentUuid` as the first member."""
    place: dict[str, Any] = {"parentUuid": parent, "isSidechain": chain.agent_id is not None}
    if chain.team is not None:
        place |= _given(teamName=chain.team.team_name, agentName=chain.team.agent_name)
    if type_of(message) == USER:
        place |= _given(promptId=chain.prompt_id)
    place |= _given(agentId=chain.agent_id)
    body = {name: value for name, value in message.items() if name not in _FOREIGN_MEMBERS and name not in place}
    stamp = chain.stamp
    stamps = {
        "userType": stamp.user_type,
        "entrypoint": stamp.entrypoint,
        "cwd": stamp.cwd,
        "sessionId": chain.session_id,
        "version": stamp.version,
        "gitBranch": stamp.git_branch,
        "slug": stamp.slug,
    }
    return place | {"timestamp": now, **body} | _given(**stamps)


def _given(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
