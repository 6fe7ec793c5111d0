"""Read Claude Code's sessions with the calls and answers of its SDKs.

Rules:

- Nothing is written.
- Listing reads 64 KB at each end of a file. Reading messages loads the heads of all rows once, in bounded memory, and
  decodes only the rows of the requested page. There is no maximum file size.
- A missing session is an empty answer, as in the SDKs. A file that cannot be read is skipped by listings and added to
  `problems`; asking for it by its id raises.
- `view` chooses between the answers of the TypeScript SDK and of the Python SDK.
- A directory is a path with its links resolved. The caller provides worktrees; this layer does not run `git`.

Queued prompts are those typed while the agent worked. The TypeScript SDK shows them as follows, the Python SDK not at
all:

- A queued prompt in the chain is shown if the agent continued after it, with an assistant row, a tool result or a
  notice that it was interrupted. If the next row is a prompt of the user, the queued one was sent again there. Meta
  rows, compact summaries and local commands do not count. A delivery recorded in the queue takes precedence.
- After the leaf, all queued prompts below it are shown, children by time and before the next sibling, except where the
  main conversation continued elsewhere.
- A prompt that was sent under another uuid is shown with that uuid, and only once. Meta prompts are shown only of
  sub-agents, unless other people wrote them.
"""

from __future__ import annotations

import posixpath
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from sessile.agents.claude import rows as kinds
from sessile.agents.claude.chain import (
    ABSENT,
    ASSISTANT,
    META,
    OFF_MAIN,
    QUEUED,
    RESULT,
    SUMMARY,
    SYSTEM,
    USER,
    Conversation,
    Heads,
    Times,
    conversation,
    is_true,
    subagent_conversation,
)
from sessile.agents.claude.listing import (
    NO_NOTES,
    Folder,
    Notes,
    Places,
    Problems,
    SessionInfo,
    Worktrees,
    has_conversation,
    read_ends,
    read_notes,
    session_info,
)
from sessile.agents.claude.paths import (
    Agent,
    hyphenated,
    is_uuid,
    read_agent,
    remote_agents_dir,
    remote_task_of,
    session_path,
    sidecar_path,
    subagents_dir,
)
from sessile.agents.claude.rows import STATE_TYPES, Row, TranscriptState, View, mapping_of, read_row, text_of, type_of
from sessile.core.codec import decode
from sessile.core.lines import Line, Scanner
from sessile.errors import NotFound, SessileError
from sessile.storage.base import Filesystem
from sessile.storage.session_bytes import RawFile

_LONGEST_SIDECAR = 1 << 20  # bytes; a sidecar is a few hundred
PLAIN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")  # valid ids of calls and runs in the TypeScript SDK
AGENT_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

_NOTIFICATION = "task-notification"

Contents = Callable[[int], Row]
"""Return a row with all its members."""

_NO_COMMAND = ""
_CAVEAT = "<local-command-caveat>"
_COMMAND = "<command-name>"
_OUTPUTS = ("<local-command-stdout>", "<local-command-stderr>")
_INTERRUPTIONS = (
    "[Request interrupted by user]",
    "[Request interrupted by user for tool use]",
    "[Request interrupted: the session ended",
    "[Agent call interrupted: the process",
    "[Tool call did not complete: the turn",
    "[Tool call interrupted: the session ended",
    "[Tool call result not in this copy: ",
    "[Tool call skipped: the turn",
    "The user doesn't want to take this action right now.",
)


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """One message of a conversation; members that its row does not have are None."""

    type: str
    uuid: str
    session_id: Any
    message: Any
    parent_tool_use_id: str | None = None
    parent_agent_id: str | None = None
    timestamp: Any = None
    origin: Any = None
    is_meta: bool = False  # not typed here: a compact summary, or from elsewhere
    is_compact_summary: bool = False
    is_queued_command: bool = False


def no_worktrees(directory: str) -> Sequence[str]:
    """Return no worktrees, as for a directory outside of any repository."""
    return ()


class ClaudeSessions:
    """The sessions below one config home (`~/.claude`)."""

    def __init__(
        self,
        fs: Filesystem,
        config_home: str,
        *,
        worktrees: Worktrees = no_worktrees,
        problems: Problems | None = None,
    ) -> None:
        self._fs = fs
        self._places = Places(fs, config_home, worktrees, problems)
        self._problems: Problems = [] if problems is None else problems

    def list_sessions(
        self,
        directory: str | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        include_worktrees: bool = True,
        include_programmatic: bool = True,
        view: View = "ts",
    ) -> list[SessionInfo]:
        """Return the sessions of a directory and its worktrees, or of all, newest first; the newest file of each id."""
        places = self._places
        folders = places.folders_to_list(directory, include_worktrees, view) if directory else places.all_folders()
        newest: dict[str, SessionInfo] = {}
        for folder in folders:
            for info in self._infos(folder, view):
                known = newest.get(info.session_id)
                if known is None or info.last_modified > known.last_modified:
                    newest[info.session_id] = info
        found = [info for info in newest.values() if include_programmatic or not info.is_programmatic]
        if view == "ts":  # the greater id first if they have the same time
            found.sort(key=lambda info: info.session_id, reverse=True)
        found.sort(key=lambda info: info.last_modified, reverse=True)
        found = found[max(offset, 0) :]
        return found[:limit] if limit is not None and limit > 0 else found

    def get_session_info(
        self, session_id: str, directory: str | None = None, *, view: View = "ts"
    ) -> SessionInfo | None:
        """Return what a listing shows of one session, from the first folder that has it."""
        for folder, path in self._candidates(session_id, directory, view):
            file = read_ends(self._fs, path)
            if file is not None:
                return session_info(session_id, file, folder.directory, view, self._notes(path, view))
        return None

    def get_session_messages(
        self,
        session_id: str,
        directory: str | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        include_system: bool = False,
        view: View = "ts",
    ) -> list[SessionMessage]:
        """Return the conversation of a session from its root to its leaf, or a page of it."""
        path = self.find(session_id, directory, view=view)
        return [] if path is None else list(self.iter_messages(path, limit, offset, include_system, view))

    def iter_messages(
        self,
        path: str,
        limit: int | None = None,
        offset: int = 0,
        include_system: bool = False,
        view: View = "ts",
    ) -> Iterator[SessionMessage]:
        """Yield the messages of a transcript, decoding one at a time."""
        with RawFile(self._fs, path) as file:
            rows = _Rows(file, view)
            found = conversation(rows.heads, rows.time)
            shown = shown_rows(rows.heads, found, rows.time, rows.row, include_system=include_system)
            yield from rows.messages(shown, limit, offset)

    def list_subagents(self, session_id: str, directory: str | None = None, *, view: View = "ts") -> list[str]:
        """Return the ids of a session's sub-agents; an id in two sub-folders is listed twice."""
        return [agent_id for agent_id, _ in self._agents(session_id, directory, view)]

    def get_subagent_messages(
        self,
        session_id: str,
        agent_id: str,
        directory: str | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        view: View = "ts",
    ) -> list[SessionMessage]:
        """Return the conversation of a sub-agent; each message names the call and agent that started it."""
        agents = self._agents(session_id, directory, view) if agent_id else ()
        path = next((path for found, path in agents if found == agent_id), None)
        if path is None:
            return []
        with RawFile(self._fs, path) as file:
            rows = _Rows(file, view)
            shown = shown_subagent_rows(rows.heads, subagent_conversation(rows.heads), rows.row)
            messages = list(rows.messages(shown, limit, offset))
        sidecar = self._sidecar(path)
        call, agent = text_of(sidecar, "toolUseId"), text_of(sidecar, "parentAgentId")
        if view == "ts":
            call = call if call and PLAIN_ID.fullmatch(call) else None
            agent = agent if agent and AGENT_ID.fullmatch(agent) else None
        return [replace(message, parent_tool_use_id=call, parent_agent_id=agent) for message in messages]

    def list_remote_agents(self, session_id: str, directory: str | None = None) -> list[str]:
        """Return the ids of the tasks that a session runs remotely; only their identity is stored here."""
        path = self.find(session_id, directory)
        if path is None:
            return []
        names = self._places.names(remote_agents_dir(posixpath.dirname(path), session_id))
        return [task for task in map(remote_task_of, names) if task is not None]

    def resume_agent(self, session_id: str, agent_id: str, directory: str | None = None) -> Agent:
        """Return what is needed to resume a sub-agent: its type and where it works. Raise if that is unknown."""
        for found, path in self._agents(session_id, directory, "ts"):
            if found == agent_id:
                return read_agent(self._fs, agent_id, path)
        raise NotFound(f"agent not found in session {session_id}: {agent_id!r}", hint="call list_subagents")

    def get_session_state(self, session_id: str, directory: str | None = None) -> TranscriptState:
        """Return the state that the rows beside the conversation set: queue, snapshots, titles, replacements."""
        path = self.find(session_id, directory)
        state = TranscriptState()
        if path is None:
            return state
        with RawFile(self._fs, path) as file:
            for line in _lines(file):
                if line.head.type in STATE_TYPES:
                    state.apply(decode(line.raw))
        return state

    def find(self, session_id: str, directory: str | None = None, *, view: View = "ts") -> str | None:
        """Return the first transcript with this id that is not empty, or None."""
        for _, path in self._candidates(session_id, directory, view):
            try:
                if self._fs.lstat(path).st_size > 0:
                    return path
            except FileNotFoundError:
                continue
        return None

    def _candidates(self, session_id: str, directory: str | None, view: View) -> Iterator[tuple[Folder, str]]:
        if is_uuid(session_id):
            for folder in self._places.folders_to_search(directory or None, view):
                yield folder, session_path(folder.path, session_id)

    def _agents(self, session_id: str, directory: str | None, view: View) -> Iterator[tuple[str, str]]:
        path = self.find(session_id, directory, view=view)
        if path is not None:
            yield from self._places.agents(subagents_dir(posixpath.dirname(path), session_id), view)

    def _infos(self, folder: Folder, view: View) -> Iterator[SessionInfo]:
        for session_id, path in self._places.transcripts(folder):
            try:
                file = read_ends(self._fs, path)
            except SessileError as error:
                self._problems.append(error)
                continue
            info = file and session_info(session_id, file, folder.directory, view, self._notes(path, view))
            if info and not self._is_continued(info, folder) and not self._is_elsewhere(info, folder):
                yield info

    def _notes(self, path: str, view: View) -> Notes:
        return read_notes(self._fs, path) if view == "ts" else NO_NOTES

    def _is_continued(self, info: SessionInfo, folder: Folder) -> bool:
        """Return whether another file beside this session continues it and is listed instead."""
        if info.continued_in is None or not is_uuid(info.continued_in):
            return False
        return has_conversation(self._fs, session_path(folder.path, info.continued_in))

    def _is_elsewhere(self, info: SessionInfo, folder: Folder) -> bool:
        """Return whether a session belongs to another existing directory that has the same slug."""
        begun, directory = info.begun_in, folder.directory
        if begun is None or directory is None or begun == directory or hyphenated(begun) != hyphenated(directory):
            return False
        if any(begun == tree or begun.startswith(f"{tree.rstrip('/')}/") for tree in folder.worktrees):
            return False
        try:
            return stat.S_ISDIR(self._fs.lstat(begun).st_mode)
        except OSError:
            return False

    def _sidecar(self, transcript: str) -> Any:
        """Return the sidecar of a sub-agent's transcript; None if it is missing or broken, as in the SDKs."""
        path = sidecar_path(transcript)
        try:
            with RawFile(self._fs, path) as file:
                return read_row(file.peek(0, min(file.size, _LONGEST_SIDECAR)))
        except SessileError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                self._problems.append(error)
            return None


class _Time(msgspec.Struct, gc=False):
    timestamp: Any = None


_decode_time = msgspec.json.Decoder(_Time).decode


class _Rows:
    """The heads of an open transcript, and its rows on demand."""

    def __init__(self, file: RawFile, view: View) -> None:
        self._file = file
        self._view: View = view
        self.heads = Heads(view)
        for chunk in file.chunks():
            self.heads.feed(chunk)
        self.heads.finish()

    def messages(self, shown: Shown, limit: int | None, offset: int) -> Iterator[SessionMessage]:
        """Yield the messages of a page of rows."""
        for row in _page(shown.rows, limit, offset):
            yield message_of(self.row(row), self._view, shown.sent_as.get(row))

    def row(self, row: int) -> dict[str, Any]:
        """Return a row with all its members."""
        return read_row(self._raw(row), self._view) or {}

    def time(self, row: int) -> str:
        """Return the timestamp of a row as it is written."""
        raw = self._raw(row)
        try:
            written = _decode_time(raw).timestamp
        except (msgspec.DecodeError, ValueError, RecursionError):
            written = (read_row(raw, self._view) or {}).get("timestamp")
        return written if isinstance(written, str) else ""

    def _raw(self, row: int) -> bytes:
        offset, length = self.heads.place(row)
        return self._file.peek(offset, length)


def _page(rows: Sequence[int], limit: int | None, offset: int) -> Sequence[int]:
    """Return a page as both SDKs do: a limit of zero or less is ignored, a negative offset counts only with a limit."""
    if limit is not None and limit > 0:
        return rows[offset : offset + limit]
    return rows[max(offset, 0) :]


def _lines(file: RawFile) -> Iterator[Line]:
    scanner = Scanner()
    for chunk in file.chunks():
        yield from (item for item in scanner.feed(chunk) if isinstance(item, Line))
    yield from (item for item in scanner.finish() if isinstance(item, Line))


# -- the rows that are shown


class Shown(NamedTuple):
    """The rows to show, in order, and the uuids of queued prompts that were sent under another one."""

    rows: list[int]
    sent_as: dict[int, str]


def shown_rows(
    heads: Heads, found: Conversation, times: Times, contents: Contents, *, include_system: bool = False
) -> Shown:
    """Return the rows of a session to show."""
    kind, flags = heads.kind, heads.flags
    if heads.view == "python-sdk":
        return Shown([row for row in found.rows if kind[row] <= ASSISTANT and not flags[row] & (OFF_MAIN | META)], {})
    last = SYSTEM if include_system else ASSISTANT
    everything, prompts = found.rows, set[int]()
    if heads.queued:
        after = queued_after_leaf(heads, found.leaf, found.rows, times) if found.rows else []
        prompts = shown_prompts(heads, found.rows, after, contents)
        everything = [*found.rows, *after]
    rows = [
        row
        for row in everything
        if not flags[row] & OFF_MAIN
        and (row in prompts or (kind[row] <= last and (not flags[row] & META or row in heads.forwarded)))
    ]
    return Shown(rows, heads.queued)


def shown_subagent_rows(heads: Heads, found: Conversation, contents: Contents) -> Shown:
    """Return the rows of a sub-agent to show: every message, regardless of its flags."""
    prompts = set[int]()
    if heads.queued and heads.view == "ts":
        prompts = shown_prompts(heads, found.rows, (), contents, of_subagent=True)
    return Shown([row for row in found.rows if heads.kind[row] <= ASSISTANT or row in prompts], heads.queued)


def message_of(row: Row, view: View, uuid: str | None = None) -> SessionMessage:
    """Return the message of a row, with its own uuid unless it was sent under another one."""
    kind = text_of(row, "type") or ""
    own = text_of(row, "uuid") or ""
    if view == "python-sdk":
        return SessionMessage(kind, own, row.get("sessionId", ""), row.get("message"))
    if kind == kinds.ATTACHMENT:
        return _queued_message(row, uuid or own)
    is_summary = row.get("isCompactSummary") is True
    meta = (is_summary, row.get("isMeta") is True, row.get("isVisibleInTranscriptOnly") is True)
    return SessionMessage(
        kind,
        own,
        row.get("sessionId"),
        row.get("message"),
        timestamp=row.get("timestamp"),
        origin=_origin(row.get("origin")) if is_true(row.get("origin"), view) else None,
        is_meta=any(meta),
        is_compact_summary=is_summary,
    )


def _queued_message(row: Row, uuid: str) -> SessionMessage:
    attachment = mapping_of(row, "attachment")
    given = attachment.get("origin")
    origin: Any = _origin(given) if text_of(given, "kind") is not None else None
    if origin is None and attachment.get("commandMode") == _NOTIFICATION:
        origin = {"kind": _NOTIFICATION}
    if text_of(origin, "kind") == _NOTIFICATION and "runId" not in origin and _is_plain(attachment.get("runId")):
        origin = {**origin, "runId": attachment["runId"]}
    return SessionMessage(
        kinds.USER,
        uuid,
        row.get("sessionId"),
        {"role": "user", "content": attachment.get("prompt")},
        timestamp=row.get("timestamp"),
        origin=origin,
        is_meta=is_true(attachment.get("isMeta"), "ts"),
        is_queued_command=True,
    )


def _origin(origin: Any) -> Any:
    """Return the origin of a message; of a notification only the members meant for readers."""
    if text_of(origin, "kind") != _NOTIFICATION:
        return origin
    public = {name: value for name, value in origin.items() if name in ("kind", "subkind", "fireReason", "producer")}
    if _is_plain(origin.get("runId")):
        public["runId"] = origin["runId"]
    return public | {"taskKind": "mcp-task"} if origin.get("taskKind") == "mcp-task" else public


def _is_plain(text: Any) -> bool:
    return isinstance(text, str) and PLAIN_ID.fullmatch(text) is not None


# -- queued prompts


def shown_prompts(
    heads: Heads, chain: Sequence[int], after: Sequence[int], contents: Contents, *, of_subagent: bool = False
) -> set[int]:
    """Return the queued prompts to show, of a chain and of the rows after its leaf."""
    everything = [*chain, *after]
    continued = _continued(heads, chain, contents) | set(after)
    noted = {} if of_subagent else heads.deliveries.verdicts(heads.uuid[row] for row in everything)
    known = {heads.uuid[row] for row in everything}
    shown = set()
    for row in everything:
        own, sent_as = heads.uuid[row], heads.source[row]
        if not heads.flags[row] & QUEUED or not noted.get(own, row in continued):
            continue
        if heads.flags[row] & META and not of_subagent:
            continue
        if sent_as != ABSENT:
            if sent_as != own and sent_as in known:
                continue
            known.add(sent_as)
        shown.add(row)
    return shown


def _continued(heads: Heads, chain: Sequence[int], contents: Contents) -> set[int]:
    """Return the queued prompts of a chain after which the agent continued."""
    commands = _local_commands(heads, chain, contents)
    found = set()
    continued = False
    for row in reversed(chain):
        flags = heads.flags[row]
        if heads.kind[row] == ASSISTANT:
            continued = True
        elif heads.kind[row] == USER:
            answered = flags & RESULT and heads.parent[row] != ABSENT
            if answered or _is_interruption(contents(row)):
                continued = True
            elif not flags & (META | SUMMARY) and row not in commands:
                continued = False
        elif flags & QUEUED and continued:
            found.add(row)
    return found


def _local_commands(heads: Heads, chain: Sequence[int], contents: Contents) -> set[int]:
    """Return the rows of local commands: after a caveat the command, then its output."""
    found = set()
    state = _NO_COMMAND
    for row in chain:
        if heads.kind[row] == ASSISTANT:
            state = _NO_COMMAND
        if heads.kind[row] != USER:
            continue
        text = _terminal_text(contents(row))
        if heads.flags[row] & META:
            state = _CAVEAT if text.startswith(_CAVEAT) else state
        elif (state == _CAVEAT and text.startswith(_COMMAND)) or (state == _COMMAND and text.startswith(_OUTPUTS)):
            state = _COMMAND
            found.add(row)
        else:
            state = _NO_COMMAND
    return found


def _terminal_text(row: Row) -> str:
    """Return the last text of a row, or "" if it was typed as a prompt."""
    if "promptSource" in row:
        return ""
    content = mapping_of(row, "message").get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    texts = [block for block in content if type_of(block) == "text"]
    return (text_of(texts[-1], "text") if texts else None) or ""


def _is_interruption(row: Row) -> bool:
    """Return whether a row contains nothing but a notice that the agent was interrupted."""
    content = mapping_of(row, "message").get("content")
    if isinstance(content, str):
        return content.startswith(_INTERRUPTIONS)
    return isinstance(content, list) and bool(content) and all(_is_interruption_block(block) for block in content)


def _is_interruption_block(block: object) -> bool:
    kind = type_of(block)
    failed = isinstance(block, Mapping) and kind == "tool_result" and block.get("is_error") is True
    text = text_of(block, "text") if kind == "text" else text_of(block, "content") if failed else None
    return text is not None and text.startswith(_INTERRUPTIONS)


def queued_after_leaf(heads: Heads, leaf: int, chain: Sequence[int], times: Times) -> list[int]:
    """Return the queued prompts below the leaf, in the order to show them; replaced rows count too."""
    on_chain = {heads.uuid[row] for row in chain}
    waiting = [row for row in heads.queued if heads.uuid[row] not in on_chain]
    below = _children_toward(heads, leaf, waiting) if waiting else {}
    if not below:
        return []
    left = _continued_elsewhere(heads, on_chain)
    shown = []
    stack = [leaf]
    seen = set(on_chain)
    while stack:
        row = stack.pop()
        if row != leaf:
            if heads.uuid[row] in seen:
                continue
            seen.add(heads.uuid[row])
            if heads.flags[row] & QUEUED and heads.uuid[row] not in left:
                shown.append(row)
        children = sorted(below.get(heads.uuid[row], ()))
        stack.extend(reversed(sorted(children, key=times) if len(children) > 1 else children))
    return shown


def _named_parent(heads: Heads, row: int) -> int:
    """Return the number of the parent's uuid in the row itself, before a compaction changed it."""
    return heads.named.get(row, heads.parent[row])


def _children_toward(heads: Heads, leaf: int, waiting: Sequence[int]) -> dict[int, set[int]]:
    """Return the children by the uuid of their parent, on the ways from the leaf to `waiting`, without messages."""
    replaced: dict[int, list[int]] = {}
    for row in range(len(heads)):
        if heads.row_of[heads.uuid[row]] != row:
            replaced.setdefault(heads.uuid[row], []).append(row)
    below: dict[int, set[int]] = {}
    seen = set()
    stack = list(waiting)
    while stack:
        row = stack.pop()
        if row in seen or heads.kind[row] in (USER, ASSISTANT):
            continue
        seen.add(row)
        live = heads.row_of[heads.uuid[row]]
        for number in {_named_parent(heads, row), heads.parent[live]} - {ABSENT}:
            below.setdefault(number, set()).add(row)
            stack.extend(replaced.get(number, ()))
            if heads.row_of[number] != ABSENT:
                stack.append(heads.row_of[number])
    return below if heads.uuid[leaf] in below else {}


def _continued_elsewhere(heads: Heads, on_chain: set[int]) -> set[int]:
    """Return the uuids below which the main conversation continued outside of the chain."""
    left: set[int] = set()
    for row in range(len(heads)):
        if heads.kind[row] not in (USER, ASSISTANT) or heads.flags[row] & OFF_MAIN:
            continue
        number = _named_parent(heads, row) if heads.uuid[row] not in on_chain else ABSENT
        while number != ABSENT and heads.row_of[number] != ABSENT and number not in left and number not in on_chain:
            left.add(number)
            number = _named_parent(heads, heads.row_of[number])
    return left
