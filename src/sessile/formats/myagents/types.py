"""MyAgents' values: metadata, messages, usage and attachments, read tolerantly.

Each class is a view of one decoded JSON object. Whatever the object holds is kept: members that later versions added survive,
because a change copies the object and replaces what it names. A member that is absent or of another type is `None`, never 0.

It knows nothing of files, clocks or how anything is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from sessile.core.codec import decode_exactly
from sessile.core.text import iso_timestamp, parse_timestamp
from sessile.errors import InvalidId

Json = dict[str, Any]
Content = str | list[Any]

_SESSION_ID = re.compile(r"[A-Za-z0-9-]{1,99}")


def is_session_id(session_id: object) -> bool:
    """Whether MyAgents would accept an id."""
    return isinstance(session_id, str) and _SESSION_ID.fullmatch(session_id) is not None


def check_session_id(session_id: str) -> str:
    """The id itself, if MyAgents would accept it; nothing else may become part of a path."""
    if not is_session_id(session_id):
        raise InvalidId(
            f"{str(session_id)[:80]!r} cannot be a session id of MyAgents",
            hint="use letters, digits and -, at most 99 of them",
        )
    return session_id


class Usage(NamedTuple):
    """What one answer used, or one model's part in it."""

    value: Mapping[str, Any]

    @property
    def input_tokens(self) -> int | None:
        return count_of(self.value.get("inputTokens"))

    @property
    def output_tokens(self) -> int | None:
        return count_of(self.value.get("outputTokens"))

    @property
    def cache_read_tokens(self) -> int | None:
        return count_of(self.value.get("cacheReadTokens"))

    @property
    def cache_creation_tokens(self) -> int | None:
        return count_of(self.value.get("cacheCreationTokens"))

    @property
    def model(self) -> str | None:
        """The model that used the most tokens."""
        return _text(self.value.get("model"))

    @property
    def provider_id(self) -> str | None:
        return _text(self.value.get("providerId"))

    @property
    def by_model(self) -> dict[str, Usage]:
        """The part of each model, where the answer says so."""
        parts = self.value.get("modelUsage")
        if not isinstance(parts, Mapping):
            return {}
        return {str(model): Usage(part) for model, part in parts.items() if isinstance(part, Mapping)}


class Attachment(NamedTuple):
    """A file that a message carries; how large it is, the message does not say."""

    value: Mapping[str, Any]

    @property
    def id(self) -> str | None:
        return _text(self.value.get("id"))

    @property
    def name(self) -> str | None:
        return _text(self.value.get("name"))

    @property
    def mime_type(self) -> str | None:
        return _text(self.value.get("mimeType"))

    @property
    def path(self) -> str | None:
        """`<session id>/<file>`, below the folder of attachments."""
        return _text(self.value.get("path"))


class Message(NamedTuple):
    """One message: a row of a session file."""

    value: Mapping[str, Any]

    @property
    def id(self) -> str | None:
        return _text(self.value.get("id"))

    @property
    def role(self) -> str | None:
        return _text(self.value.get("role"))

    @property
    def content(self) -> Content | None:
        """The text, or the blocks that the text encodes."""
        return decode_content(self.value.get("content"))

    @property
    def timestamp(self) -> str | None:
        return _text(self.value.get("timestamp"))

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        found = self.value.get("attachments")
        return tuple(Attachment(item) for item in found if isinstance(item, Mapping)) if isinstance(found, list) else ()

    @property
    def usage(self) -> Usage | None:
        found = self.value.get("usage")
        return Usage(found) if isinstance(found, Mapping) else None

    @property
    def tool_count(self) -> int | None:
        return count_of(self.value.get("toolCount"))

    @property
    def duration_ms(self) -> int | None:
        return count_of(self.value.get("durationMs"))

    @property
    def sdk_uuid(self) -> str | None:
        """The last row of the turn in the transcript of Claude Code, where a version has noted it."""
        return _text(self.value.get("sdkUuid"))

    @property
    def text(self) -> str:
        """What a person reads of it."""
        content = self.content
        if isinstance(content, str):
            return content
        parts = (block.get("text") for block in content or () if isinstance(block, Mapping))
        return "\n".join(part for part in parts if isinstance(part, str))


class Metadata(NamedTuple):
    """One row of the index."""

    value: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.value.get("id"))

    @property
    def agent_dir(self) -> str | None:
        return _text(self.value.get("agentDir"))

    @property
    def title(self) -> str | None:
        return _text(self.value.get("title"))

    @property
    def title_source(self) -> str | None:
        """`default`, `auto` or `user` in later versions."""
        return _text(self.value.get("titleSource"))

    @property
    def created_at(self) -> str | None:
        return _text(self.value.get("createdAt"))

    @property
    def last_active_at(self) -> str | None:
        return _text(self.value.get("lastActiveAt"))

    @property
    def last_active_ms(self) -> int | None:
        return parse_timestamp(self.value.get("lastActiveAt"))

    @property
    def sdk_session_id(self) -> str | None:
        return _text(self.value.get("sdkSessionId")) or None

    @property
    def unified(self) -> bool:
        """Whether Claude Code runs the session under the same id."""
        return self.value.get("unifiedSession") is True

    @property
    def stats(self) -> Mapping[str, Any] | None:
        found = self.value.get("stats")
        return found if isinstance(found, Mapping) else None

    @property
    def pinned(self) -> bool:
        """Whether a person has said that the session is to stay at hand."""
        return any(self.value.get(name) for name in ("pinnedAt", "pinned", "favorite", "favoritedAt"))

    def changed(self, **members: Any) -> Metadata:
        """The row with some members replaced, in their places; what is `None` is left out."""
        value = {**self.value, **members}
        return Metadata({name: item for name, item in value.items() if name not in members or item is not None})

    def touched(self, milliseconds: int) -> Metadata:
        """The row as active at a moment: the time never goes back, and a time that cannot be read is replaced."""
        known = self.last_active_ms
        if known is not None and known >= milliseconds:
            return self
        return self.changed(lastActiveAt=iso_timestamp(milliseconds))


def decode_content(stored: object) -> Content | None:
    """A text that begins with `[` and is a JSON array stands for its blocks; any other text for itself."""
    if isinstance(stored, list):
        return stored
    if not isinstance(stored, str):
        return None
    if not stored.startswith("["):
        return stored
    try:
        value = decode_exactly(stored)
    except ValueError:
        return stored
    return value if isinstance(value, list) else stored


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def count_of(value: object) -> int | None:
    """A number as JavaScript would add it up; anything else is unknown."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
