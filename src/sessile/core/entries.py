"""Entries: the value that readers get, and the payloads that writers make.

An `Entry` is a read-only mapping over one line. It keeps the bytes as they were read, decodes them on first access, and fetches
what is in blobs when a member that may contain it is first used.

The functions below it return the members of each kind in the order in which they are written. Members with the value `None`
are left out, as JavaScript leaves out undefined members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sessile.core.codec import decode
from sessile.core.kinds import DEFAULT_ROLE, LEAF_MARKER
from sessile.core.large import CUT, may_hold_refs
from sessile.core.text import parse_timestamp, utc_datetime
from sessile.core.visible import html_fields, visible_line

Payload = dict[str, Any]
Restore = Callable[[Payload, bool], Payload]
"""Returns a decoded line with the texts that are in blobs and, if the second argument says so, with images and other media."""
Content = str | list[dict[str, Any]]

BASE = ("type", "id", "parentId", "timestamp")
ROOT = "root"  # means "before the first entry" in a branch summary


class Entry(Mapping[str, Any]):
    """One entry of a session: a read-only mapping over one line.

    The bytes are kept as they were read, and decoded when they are first used. Images and long texts, which are stored in
    blobs, are fetched when a member other than `type`, `id`, `parentId` and `timestamp` is first used. `stored` is the line
    without them, and `readable` has the texts only. Two entries are equal if their bodies are.

    Args:
        id: The id of the entry.
        parent_id: The id of the entry above it; `None` for a root.
        raw: The line as it is stored, without its newline.
        body: The whole entry, if it is known already.
        restore: Returns a decoded line with the content of its blobs; `None` if there are none.

    Attributes:
        id (str): The id of the entry.
        parent_id (str | None): The id of the entry above it; `None` for a root.
        raw (bytes): The line as it is stored.

    Example:
        ```python
        for entry in session.get_branch():
            if entry.type == "message":
                print(entry.timestamp, entry["message"]["role"])
        ```
    """

    __slots__ = ("_body", "_restore", "_stored", "id", "parent_id", "raw")

    def __init__(
        self,
        id: str,  # noqa: A002
        parent_id: str | None,
        raw: bytes,
        body: Payload | None = None,
        restore: Restore | None = None,
    ) -> None:
        self.id = id
        self.parent_id = parent_id
        self.raw = raw
        self._body = body
        self._restore = restore
        self._stored: Payload | None = None

    @property
    def body(self) -> Payload:
        """The entry as it was appended, with images and long texts. It is shared: do not change it.

        What a missing blob contains stays as it is in the line, and becomes a finding of the session.
        """
        if self._body is None:
            stored, restore = self.stored, self._restore
            if self._body is None:  # the line is not the whole entry
                self._body = stored if restore is None else restore(stored, True)
        return self._body

    @property
    def stored(self) -> Payload:
        """The decoded line: images are references to blobs, and long texts are cut. It is shared: do not change it."""
        if self._stored is None:
            self._stored = decode(self.raw)
            if self._body is None and (self._restore is None or not may_hold_refs(self.raw)):
                self._body = self._stored
        return self._stored

    @property
    def readable(self) -> Payload:
        """The entry with its long texts, but with references to images: what is read or searched, not looked at."""
        if self._restore is None or self.raw.find(CUT) < 0:
            return self.stored
        return self._restore(self.stored, False)

    @property
    def type(self) -> str:
        """The kind of entry, such as "message" or "compaction"."""
        return str(self._known()["type"])

    @property
    def timestamp(self) -> datetime | None:
        """When the entry was appended, in UTC; `None` if that is missing or invalid. `body` has the stored text."""
        milliseconds = parse_timestamp(self._known().get("timestamp"))
        return None if milliseconds is None else utc_datetime(milliseconds * 1000)

    def _known(self) -> Payload:
        """The entry or its line, for members that are the same in both."""
        return self.stored if self._body is None else self._body

    def __getitem__(self, name: str) -> Any:
        body = self._body
        if body is None:
            body = self.stored if name in BASE else self.body
        return body[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.body)

    def __len__(self) -> int:
        return len(self.body)

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        return self.body == other.body if isinstance(other, Entry) else self.body == other

    def __reduce__(self) -> tuple[Any, ...]:
        return Entry, (self.id, self.parent_id, self.raw, self.body)  # a copy has no way to the blobs

    def __repr__(self) -> str:
        return visible_line(f"<Entry {self._kind()} {self.id} parent={self.parent_id} {len(self.raw)} bytes>")

    def _repr_html_(self) -> str:
        from sessile.core.words import pieces  # only notebooks need it

        text = next((text for _, text in pieces(self._known()) if text.strip()), None)
        at = None if self.timestamp is None else f"{self.timestamp:%Y-%m-%d %H:%M:%S} UTC"
        values = {"id": self.id, "parent": self.parent_id, "time": at, "size": f"{len(self.raw):,} bytes", "text": text}
        return html_fields(f"Entry {self._kind()}", values)

    def _kind(self) -> str:
        """The type, with what else tells entries of that type apart."""
        known = self._known()
        message, custom = known.get("message"), known.get("customType")
        detail = message.get("role") if isinstance(message, dict) else custom
        return f"{self.type}:{detail[:40]}" if isinstance(detail, str) else self.type


def header(session_id: str, timestamp: str, cwd: str, **members: Any) -> Payload:
    """Return the header, the first line of a session."""
    base = {"type": "session", "version": 3, "id": session_id, "timestamp": timestamp, "cwd": cwd}
    return base | _given(**members)


def with_base(payload: Payload, entry_id: str, parent_id: str | None, timestamp: str) -> Payload:
    """Return the payload as an entry: base members first, then the others in their order."""
    base = {"type": payload["type"], "id": entry_id, "parentId": parent_id, "timestamp": timestamp}
    return base | payload | base


ROLES = (
    *("user", "assistant", "toolResult", "system", "developer"),
    *("bashExecution", "pythonExecution", "custom", "hookMessage", "fileMention", "branchSummary", "compactionSummary"),
)
"""The roles of stored messages: those of a conversation, and those of the pi family that become one of them."""
PARTS = ("text", "thinking", "toolCall", "image", "document", "audio", "other", "redactedThinking")
"""The types of the parts of a stored message."""
# Members that messages or parts of providers' APIs have and stored ones do not.
_FOREIGN = frozenset(
    (
        *("type", "parts", "tool_calls", "function_call", "refusal", "audio", "name", "output_config", "stop_reason"),
        *("reasoning_content", "reasoning", "reasoning_text", "reasoning_details", "output", "choices", "candidates"),
    )
)
_FOREIGN_IN_PARTS = frozenset(("cache_control", "citations", "signature", "source", "prompt_cache_breakpoint"))
_TOOLS = frozenset(("toolsAdded", "toolsRemoved"))
_WITH_CONTENT = ("user", "assistant", "toolResult", "developer")


def message(value: Payload) -> Payload:
    return {"type": "message", "message": value}


def is_ours(message: object) -> bool:
    """Return whether a message has the shape in which messages are stored. `core.messages.neutral` translates any other."""
    if type(message) is not dict:
        return False
    role = message.get("role")
    if role not in ROLES or not _FOREIGN.isdisjoint(message):
        return False
    if role == "system" and not _TOOLS.isdisjoint(message):  # these are checked there
        return False
    content = message.get("content")
    if type(content) is str:
        return True
    if type(content) is not list:
        return content is None and role not in _WITH_CONTENT
    for part in content:
        if type(part) is not dict or part.get("type") not in PARTS or not _FOREIGN_IN_PARTS.isdisjoint(part):
            return False
    return True


def thinking_level_change(level: str | None) -> Payload:
    return {"type": "thinking_level_change", "thinkingLevel": level}


def model_change(model: str, role: str | None = None) -> Payload:
    """Return the change to a model, given as "provider/id". The default role is also written in pi's form."""
    payload = {"type": "model_change", "model": model} | _given(role=role)
    provider, slash, model_id = model.partition("/")
    if slash and role in (None, DEFAULT_ROLE):
        payload |= {"provider": provider, "modelId": model_id}
    return payload


def compaction(
    summary: str,
    first_kept_entry_id: str | None,
    tokens_before: int,
    *,
    short_summary: str | None = None,
    details: Any = None,
    from_extension: bool | None = None,
    preserve_data: Any = None,
) -> Payload:
    return {"type": "compaction", "summary": summary} | _given(
        shortSummary=short_summary,
        firstKeptEntryId=first_kept_entry_id,
        tokensBefore=tokens_before,
        details=details,
        fromExtension=from_extension,
        preserveData=preserve_data,
    )


def branch_summary(from_id: str, summary: str, details: Any = None, from_extension: bool | None = None) -> Payload:
    payload = {"type": "branch_summary", "fromId": from_id, "summary": summary}
    return payload | _given(details=details, fromExtension=from_extension)


def custom(custom_type: str, data: Any = None) -> Payload:
    return {"type": "custom", "customType": custom_type} | _given(data=data)


def leaf_marker() -> Payload:
    return custom(LEAF_MARKER)


def custom_message(
    custom_type: str, content: Content, display: bool, details: Any = None, attribution: str = "agent"
) -> Payload:
    payload = {"type": "custom_message", "customType": custom_type, "content": content, "display": display}
    return payload | _given(details=details) | {"attribution": attribution}


def label(target_id: str, text: str | None) -> Payload:
    """Return a label; an absent or empty text clears the previous one."""
    return {"type": "label", "targetId": target_id} | _given(label=text or None)


def mode_change(mode: str, data: Any = None) -> Payload:
    return {"type": "mode_change", "mode": mode} | _given(data=data)


def ttsr_injection(rules: Sequence[str]) -> Payload:
    return {"type": "ttsr_injection", "injectedRules": list(rules)}


def session_init(system_prompt: str, task: str, tools: Sequence[str], output_schema: Any = None) -> Payload:
    payload = {"type": "session_init", "systemPrompt": system_prompt, "task": task, "tools": list(tools)}
    return payload | _given(outputSchema=output_schema)


def session_info(name: str, previous: str | None = None, source: str = "user") -> Payload:
    """Return a name of the session. As in pi, a name given by the user has no source."""
    given = _given(previousTitle=previous, source=None if source == "user" else source)
    return {"type": "session_info", "name": name} | given


def context_edit(target_id: str, content: Content | None) -> Payload:
    """Return an edit that replaces the content of an entry in the context, or removes it if `None`; the entry stays."""
    replacement = None if content is None else {"content": content}
    return {"type": "context_edit", "targetId": target_id, "replacement": replacement}


def reset_boundary() -> Payload:
    return {"type": "reset_boundary"}


def _given(**members: Any) -> Payload:
    return {name: value for name, value in members.items() if value is not None}
