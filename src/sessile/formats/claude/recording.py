"""What recording a conversation writes: which messages are new, what each hangs from, and what it is stamped with.

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
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from sessile.errors import InvalidEntry
from sessile.formats.claude.rows import (
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
