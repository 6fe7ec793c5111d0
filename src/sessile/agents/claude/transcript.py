"""Writing the transcript of a session as Claude Code writes it.

Rules:

- Every call is one write, in the file when the call returns; there is no queue that a crash could take. With `power` it also
  survives a power cut, without it `flush` makes it durable.
- Session id and project folder are one value that is switched at once, and every path is made from it when it is needed: no
  row can land in the file of another session.
- Metadata waits until the first user or assistant row makes the file. The last title, tag and the like are written again with
  the rows that would push them out of the last 64 KB, which is all that a listing reads; what another process has written
  meanwhile is what counts.
- Rows also go to the mirror, once there is one, after they are on the disk; a mirror that fails is told by a code and stops
  nobody.

Where other people's rows that were removed are kept is an argument (`home`). It does not know how transcripts are read.

What recording a conversation writes: which messages are new, what each hangs from, and what it is stamped with.

Rules:

- A message whose uuid the file holds is not written again. While all messages so far are known, the last of them that may
  be a parent is the one that the first new message hangs from; known messages behind a new one do not move it, nor do those
  behind a known compaction that were recorded before it. That is what keeps a message after a compaction from pointing at
  what the compaction took away, when it is new and in every later call.
- Progress is written, and nobody's parent.
- A compaction begins a new root: no parent, the place where it happened in `logicalParentUuid`.
- The result of a tool hangs from the row with its call, if that is there and not before a compaction of the same batch.
- Every row is stamped anew with its session: a resumed or forked message brings the stamps of another one.

It does not know files, clocks or locks: what is recorded and what time it is are arguments.

Filling the local transcript of a session from a remote copy.

The order is the documented one: switch to the session, fetch, write the file, and whatever happened let new rows go to the remote
side from then on, never before. But where the documents truncate, nothing is lost here: an empty answer or a failure leaves the
local file as it is, and an answer takes its place at once while the old file stays in our own root.

Nothing is raised for what goes wrong on the way: it is told by a code and numbers, which never hold any content. Where rows
come from is the caller's choice (`remote` makes sources for URLs, folders and stores).
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

# --- recording


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What every row says of the process that wrote it; what is None is not written."""

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


class Chain(NamedTuple):
    """Where rows go: the session, the agent if they are a sidechain, and what is said of all of them."""

    session_id: str
    stamp: Stamp
    agent_id: str | None = None
    team: Team | None = None
    prompt_id: str | None = None


class Recorded(Protocol):
    """The uuids that a file holds, in the order in which they were written."""

    def __contains__(self, uuid: object, /) -> bool: ...

    def position(self, uuid: str) -> int:
        """A number that is larger than those of all uuids that were written before."""
        ...


class Recording(NamedTuple):
    """The rows to write, and the uuid that the next message hangs from."""

    rows: Sequence[dict[str, Any]]
    last: str | None


# What a message that comes from elsewhere says of its place and its writer there.
_ELSEWHERE = frozenset(
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


def plan_recording(
    recorded: Recorded, messages: Iterable[Row], chain: Chain, *, now: str, hint: str | None = None
) -> Recording:
    """The rows for those of `messages` that are not in `recorded`.

    The first hangs from `hint`, unless messages that are recorded precede it. The answer tells what the next one hangs from
    also when nothing is new, so that a caller who rewinds or resumes keeps his place.
    """
    parent = hint
    rows: list[dict[str, Any]] = []
    written: set[str] = set()
    visible: set[str] = set()  # what was written since the last compaction of this batch
    compacted = False
    since = -1  # the position of the last compaction among what is recorded
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
    """The uuid of a message that can be recorded."""
    uuid = uuid_of(message)
    if not (is_transcript_message(message) or is_progress(message)):
        raise InvalidEntry(
            f"a row of type {type_of(message)!r} is no message",
            hint="record user, assistant, attachment, system and progress rows; others have calls of their own",
        )
    if not uuid:
        raise InvalidEntry("a message without a uuid cannot be recorded: it would be written again and again")
    return uuid


def _boundary(message: Row, before: str | None, chain: Chain, now: str) -> dict[str, Any]:
    """The row that a compaction begins with: a root that says where it happened."""
    row = _row(message, None, chain, now)
    logical = before or text_of(message, "logicalParentUuid")
    return {"parentUuid": None, "logicalParentUuid": logical} | {
        name: value for name, value in row.items() if name != "logicalParentUuid"
    }


def _row(message: Row, parent: str | None, chain: Chain, now: str) -> dict[str, Any]:
    """A message with its place before it and its stamps behind it: readers look for `parentUuid` as the first member."""
    place: dict[str, Any] = {"parentUuid": parent, "isSidechain": chain.agent_id is not None}
    if chain.team is not None:
        place |= _given(teamName=chain.team.team_name, agentName=chain.team.agent_name)
    if type_of(message) == USER:
        place |= _given(promptId=chain.prompt_id)
    place |= _given(agentId=chain.agent_id)
    body = {name: value for name, value in message.items() if name not in _ELSEWHERE and name not in place}
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


# --- transcript

REACH = WINDOW // 2  # bytes from the end: another program may append as much before we write again


Mirror = Callable[[str, str | None, Sequence[bytes]], None]
"""Takes the rows that were written: the session id, the id of the agent or None, and the lines."""


class Diagnostic(NamedTuple):
    """Something that went wrong beside the way: a code and a number, never any content."""

    code: str
    rows: int | None = None
    kind: str | None = None  # the class of the error


class Transcript:
    """The transcript of the session that is current, and those of its agents."""

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
        self.transcript_path()  # raises if the id is none

    # -- where

    @property
    def current(self) -> Current:
        """The session that is written, and where."""
        return self._current

    def transcript_path(self, session_id: str | None = None) -> str:
        """The file of the current session, or of another one that was begun in the same place."""
        return transcript_path(self._config_home, self._current, session_id)

    def hook_payload(self, event: str, **members: Any) -> dict[str, Any]:
        """What a hook is told: the event, the session, and the one path that its transcript has."""
        current = self._current
        place = {"session_id": current.session_id, "transcript_path": transcript_path(self._config_home, current)}
        return {**place, "cwd": self.stamp.cwd, "hook_event_name": event, **members}

    def agent_path(self, agent_id: str) -> str:
        """The file of an agent of the current session."""
        return self._agent_path(self._current, agent_id)

    def switch_session(self, session_id: str, project_dir: str | None = None) -> Current:
        """Make another session the current one, in its project folder or in that of the working directory; both at once."""
        current = self._current._replace(session_id=session_id, project_dir=project_dir)
        transcript_path(self._config_home, current)  # raises if the id is none, before anything changes
        with self._mutex:
            self._current = current
            self._subdirs.clear()
            self.reset_session_file_pointer()
        return current

    def reset_session_file_pointer(self) -> None:
        """Forget what is known of the current file: the next row looks at the one that has its name then."""
        with self._mutex:
            self._file(self.transcript_path()).reset()

    def set_agent_subdir(self, agent_id: str, subdir: str | None) -> None:
        """Group the files of an agent in a folder below `subagents`, before it runs; `None` when it has ended."""
        with self._mutex:
            if subdir is None:
                self._subdirs.pop(agent_id, None)
            else:
                subagent_path("", self._current.session_id, agent_id, subdir)  # raises if that is no safe name
                self._subdirs[agent_id] = subdir

    def mirror_to(self, mirror: Mirror | None) -> None:
        """From now on give every row that is written to `mirror` too."""
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
        """Write the messages that are new; gives the uuid that the next one hangs from, `None` if there is none."""
        return self._record(messages, starting_parent_hint, team=team, prompt_id=prompt_id)

    def record_sidechain_transcript(
        self, messages: Iterable[Row], agent_id: str, *, starting_parent: str | None = None
    ) -> str | None:
        """Write the messages of an agent that are new in its own file."""
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
        """Remove a row of the current file by its uuid, keeping it in our own root; `None` if there is no such row."""
        path = self.transcript_path()
        try:
            return remove_row(self.fs, self._file(path), uuid, self._tombstones)
        except SessionNotFound:
            return None

    def kept_messages(self) -> list[KeptRow]:
        """The rows that were removed from the current file and are kept in our own root, by when they lay in it."""
        path = self.transcript_path()
        return [kept for kept in kept_rows(self.fs, self._tombstones) if kept.path == path]

    def restore_transcript_message(self, kept: KeptRow) -> bool:
        """Put a removed row back into the file that it was in; false if the file has a row with its uuid again."""
        return restore_row(self._file(kept.path), kept)

    # -- rows beside the conversation

    def insert_queue_operation(self, operation: str, content: Any = None) -> None:
        """Note what happened to the queue of prompts."""
        now = self._now()
        self._note(lambda session_id: side_rows.queue_operation_row(session_id, operation, content, now))

    def insert_file_history_snapshot(
        self, message_id: str, snapshot: Mapping[str, Any], *, is_update: bool = False
    ) -> None:
        """Note the backups of files at a message."""
        self._note(lambda _: side_rows.file_history_snapshot_row(message_id, snapshot, is_update=is_update))

    def insert_attribution_snapshot(self, snapshot: Mapping[str, Any]) -> None:
        """Note who wrote what."""
        self._note(lambda _: side_rows.attribution_snapshot_row(snapshot))

    def insert_content_replacement(
        self, replacements: Sequence[Mapping[str, Any]], agent_id: str | None = None
    ) -> None:
        """Note what stands in the place of large contents, in the agent's file if it is about an agent."""
        self._note(lambda session_id: side_rows.content_replacement_row(session_id, replacements, agent_id), agent_id)

    def set_title(self, title: str) -> None:
        """Name the session."""
        self._note(lambda session_id: side_rows.title_row(session_id, title))

    def set_tag(self, tag: str | None) -> None:
        """Tag the session; `None` clears the tag."""
        self._note(lambda session_id: side_rows.tag_row(session_id, tag))

    def set_value(self, kind: str, value: Any) -> None:
        """Note a value of which the last counts, such as `mode`, `last-prompt` or `agent-name`."""
        self._note(lambda session_id: side_rows.value_row(session_id, kind, value))

    def reappend_metadata(self) -> None:
        """Write title, tag and the like once more if they are about to leave the part of the file that listings read.

        Who has only added notes has pushed nothing away, and a large file is not read for it.
        """
        if self._file(self.transcript_path()).looked_at:
            self._append(lambda known, session_id: Batch(()), None)

    # -- agents

    def write_agent_metadata(
        self, agent_id: str, agent_type: str, *, worktree_path: str | None = None, description: str | None = None
    ) -> None:
        """Note what an agent is, so that it can be resumed as that."""
        path = self.agent_path(agent_id)
        write_sidecar(self.fs, path, agent_type, worktree_path=worktree_path, description=description)

    def read_agent_metadata(self, agent_id: str) -> dict[str, Any]:
        """All that the sidecar of an agent says; raises if it is missing or broken."""
        return read_sidecar(self.fs, self.agent_path(agent_id))

    def resume_agent(self, agent_id: str) -> Agent:
        """What an agent is and where it works, for going on with it; raises if its sidecar is missing or broken."""
        return read_agent(self.fs, agent_id, self.agent_path(agent_id))

    # -- the end

    def flush(self) -> None:
        """Make everything durable that was written."""
        with self._mutex:
            files = list(self._files.values())
        for file in files:
            file.flush()

    def close(self) -> None:
        """Bring title and tag near the end, if there is a file, and make everything durable."""
        self.reappend_metadata()
        self.flush()

    # -- inside

    @property
    def _tombstones(self) -> str:
        return f"{self.home}/{TOMBSTONES}"

    def _note(self, make: Callable[[str], dict[str, Any]], agent_id: str | None = None) -> None:
        self._append(lambda known, session_id: Batch([make(session_id)]), agent_id, look=False)

    def _append(self, plan: Callable[[Known, str], Batch], agent_id: str | None, *, look: bool = True) -> Any:
        """Write what `plan` says into the file of the session that is current now, or of its agent."""
        current = self._current
        if agent_id is None:
            file = self._file(transcript_path(self._config_home, current))
        else:
            file = self._file(self._agent_path(current, agent_id))
        appended = file.append(lambda known: plan(known, current.session_id), look=look)
        if appended.rows and self._mirror is not None:
            self._send(self._mirror, current.session_id, agent_id, appended.rows)
        return appended.answer

    def _agent_path(self, current: Current, agent_id: str) -> str:
        folder = current_project_dir(self._config_home, current)
        return subagent_path(folder, current.session_id, agent_id, self._subdirs.get(agent_id))

    def _send(self, mirror: Mirror, session_id: str, agent_id: str | None, rows: Sequence[bytes]) -> None:
        try:
            outside(lambda: mirror(session_id, agent_id, rows))
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


def outside(call: Callable[[], Any]) -> Any:
    """Call what somebody else has written; whatever it raises becomes an error of ours, which says nothing of contents."""
    try:
        return call()
    except Exception as error:
        raise ExtensionFailed(f"the remote side failed with {type(error).__name__}") from error
