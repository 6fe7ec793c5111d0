"""Digest: what a catalog stores about the entries of a session, counted line by line and resumable.

Rules:
- Unknown values are `None`, never zero: tokens without a `usage`, the cost of a model without a price.
- Counts cover all branches.
- A digest holds heads, labels and markers, not all ids, so it stays small for a session of any size. In a journal with duplicate
  ids or forward parents its number of branches is an estimate.
- Usage is in `spending`, by quarter-hour.

The header (title, id, folder) is not part of a digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sessile.core.kinds import LABEL, MARKERS, MESSAGE, TITLE, fold_label, kind_of
from sessile.core.text import clean_name, without_surrogates
from sessile.core.usage import Spending, identity_of, is_answer, model_of, quarter_of

Json = Mapping[str, Any]

_REMEMBERED = 64  # calls and answers that later rows may belong to
NO_TITLE = "(no title)"
FIRST_TEXT = 240  # characters: more than any listing shows
_SHELLS = {"bashExecution": "bash", "pythonExecution": "python"}  # what a user runs, by role


class Counts(msgspec.Struct, frozen=True):
    """The counts of a session whose lines were all read; `None` is unknown."""

    entries: int
    messages: int
    user_messages: int
    roles: dict[str, int]  # messages by role
    branches: int  # entries without children
    labels: int
    compactions: int
    models: dict[str, int]  # answers by "provider/model"
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    total_tokens: int | None
    cost: float | None
    unpriced: int  # answers without a known cost
    tool_calls: int
    tool_failures: int
    errors: int  # answers that failed
    images: int
    findings: int  # damaged or irregular lines, or parts of lines


class Digest(msgspec.Struct, omit_defaults=True):
    """The counts so far, and what is needed to continue counting."""

    entries: int = 0
    roles: dict[str, int] = {}
    heads: dict[str, None] = {}
    rootless: int = 0  # 1 if there are entries of version 1, which have no ids and form one chain
    labels: dict[str, str] = {}
    markers: dict[str, str | None] = {}
    compactions: int = 0
    spending: Spending = msgspec.field(default_factory=Spending)
    errors: int = 0
    images: int = 0
    findings: int = 0
    named: bool = False  # an entry has set or removed the name of the session
    name: str | None = None
    first_text: str | None = None
    last_role: str | None = None
    last_status: str | None = None
    responses: dict[str, tuple[str, str, int]] = {}  # the last ones: an answer may be stored in several rows
    calls: dict[str, str] = {}  # the tools of the last calls: many agents name the tool only there
    translator: Any = None  # state of the translator of another agent's rows

    def add(self, entry: Json) -> None:
        """Count the next entry."""
        kind = entry.get("type")
        if kind == "custom" and entry.get("customType") in MARKERS:
            self._mark(entry)
            return
        if kind == "session_info" and "id" not in entry:  # a row of another agent, outside its conversation
            self.named, self.name = True, name_in(entry)
            return
        if kind == "usage" and "id" not in entry:  # the same, with the usage of the answer before it
            self._add_usage(entry)
            return
        self.entries += 1
        self._place(entry)
        flags = kind_of(kind).flags
        if flags & MESSAGE:
            self._add_message(entry, entry.get("message"))
        elif flags & LABEL:
            fold_label(self.labels, entry)
        elif flags & TITLE:
            self.named, self.name = True, name_in(entry)
        elif kind == "compaction":
            self.compactions += 1
        elif kind == "custom_message":
            self.images += _images(entry.get("content"))

    def _mark(self, entry: Json) -> None:
        """Note a leaf marker, which is not an entry; its children are children of the entry that it marks."""
        marker = _string(entry.get("id"))
        if marker is not None:
            self.markers[marker] = self._parent_of(entry)

    def _parent_of(self, entry: Json) -> str | None:
        parent = _string(entry.get("parentId"))
        return self.markers.get(parent, parent) if parent is not None and self.markers else parent

    def _place(self, entry: Json) -> None:
        entry_id = _string(entry.get("id"))
        if entry_id is None:
            self.rootless = 1
            return
        parent = self._parent_of(entry)
        if parent is not None and parent != entry_id:
            self.heads.pop(parent, None)
        self.heads[entry_id] = None

    def _add_message(self, entry: Json, message: object) -> None:
        if not isinstance(message, dict) or message.get("role") == "system":
            return  # the system prompt is not part of the conversation
        self.last_role, self.last_status = standing_of(message)
        role = self.last_role or "unknown"
        self.roles[role] = self.roles.get(role, 0) + 1
        content = message.get("content")
        if role == "assistant":
            self._add_answer(entry, message, content)
            return
        self.images += _images(content)
        if role == "toolResult":
            if message.get("isError") is True:
                tool = tool_of(message, self.calls) or ""
                self.spending.add_failure(tool, quarter_of(entry, message), identity_of(entry, message))
        elif role == "user":
            if self.first_text is None:
                self.first_text = spoken(content) or None
        elif role in _SHELLS:
            self.spending.add_run(_SHELLS[role], quarter_of(entry, message), _failed(message.get("exitCode")))

    def _add_answer(self, entry: Json, message: Json, content: object) -> None:
        tools = []
        for block in _blocks(content):
            kind = _kind(block)
            if kind == "toolCall":
                name = _string(block.get("name")) or ""
                tools.append(name)
                self.calls[str(block.get("id"))] = name
            elif kind == "image":
                self.images += 1
        self.errors += message.get("stopReason") == "error"
        _forget(self.calls)
        if not is_answer(message) and not tools:
            return
        model, quarter, usage = model_of(message) or "", quarter_of(entry, message), message.get("usage")
        response = _string(message.get("responseId"))
        if response is not None and response in self.responses:
            model, quarter, identity = self.responses[response]
            self.spending.add_row(model, quarter, usage, tools, identity)
            return
        identity = identity_of(entry, message)
        self.spending.add_answer(model, quarter, usage, tools, identity)
        if response is not None:
            self.responses[response] = (model, quarter, identity)
            _forget(self.responses)

    def _add_usage(self, entry: Json) -> None:
        """Count the usage of an answer that was counted before, or of one without content."""
        model, quarter, identity = model_of(entry) or "", quarter_of(entry, entry), identity_of(entry, entry)
        response = _string(entry.get("responseId"))
        if response is not None and response in self.responses:
            model, quarter, identity = self.responses[response]
            self.spending.add_row(model, quarter, entry.get("usage"), [], identity)
        else:
            self.spending.add_answer(model, quarter, entry.get("usage"), [], identity)

    def counts(self) -> Counts:
        """Return the current counts."""
        spent = self.spending.total()
        return Counts(
            entries=self.entries,
            messages=sum(self.roles.values()),
            user_messages=self.roles.get("user", 0),
            roles=dict(self.roles),
            branches=len(self.heads) + self.rootless,
            labels=len(self.labels),
            compactions=self.compactions,
            models=self.spending.models(),
            input_tokens=spent.input,
            output_tokens=spent.output,
            cache_read_tokens=spent.cache_read,
            cache_write_tokens=spent.cache_write,
            total_tokens=spent.total,
            cost=None if spent.cost is None else round(spent.cost, 9),
            unpriced=spent.unpriced,
            tool_calls=spent.calls,
            tool_failures=self.spending.failures(),
            errors=self.errors,
            images=self.images,
            findings=self.findings,
        )


def standing_of(message: Json) -> tuple[str | None, str | None]:
    """Return the role of a message and its status: the stop reason of an answer, or whether a tool failed."""
    role = _string(message.get("role"))
    if role == "toolResult":
        return role, "error" if message.get("isError") is True else "ok"
    return role, _string(message.get("stopReason"))


def tool_of(result: Json, calls: Mapping[str, str]) -> str | None:
    """Return the tool that a result is from; `calls` are the tools of earlier calls by the ids of the calls."""
    return _string(result.get("toolName")) or calls.get(str(result.get("toolCallId"))) or None


def _forget(known: dict[str, Any]) -> None:
    """Keep only the latest values."""
    while len(known) > _REMEMBERED:
        del known[next(iter(known))]


def name_in(entry: Json) -> str | None:
    """Return the session name that an entry sets, on one line."""
    name = entry.get("name") if entry.get("type") == "session_info" else entry.get("title")
    return shown(name)


def shown(value: object) -> str | None:
    """Return a text as listings show it: on one line, without lone surrogates; `None` if nothing is left."""
    if not isinstance(value, str):
        return None
    if value.isprintable() and "  " not in value:  # the usual case; controls and surrogates are not printable
        return value.strip() or None
    return clean_name(without_surrogates(value)) or None


def title_of(title: object, first_text: object) -> str:
    """Return the title of a session as it is shown everywhere: its title, else its first prompt, else `NO_TITLE`."""
    return shown(title) or shown(first_text) or NO_TITLE


def spoken(content: object) -> str:
    """Return the start of the text in the content of a message, on one line."""
    if isinstance(content, str):
        text = content
    else:
        texts = [block.get("text") for block in _blocks(content) if _kind(block) == "text"]
        text = " ".join(part[: 2 * FIRST_TEXT] for part in texts if isinstance(part, str))
    start = text[:FIRST_TEXT]
    if shown(start) == start:  # the usual case: nothing is removed from it
        return start
    return (shown(text[: 2 * FIRST_TEXT]) or "")[:FIRST_TEXT]


def _images(content: object) -> int:
    return len([block for block in _blocks(content) if _kind(block) == "image"])  # faster than a sum


def _blocks(content: object) -> list[Any]:
    return content if isinstance(content, list) else []


def _kind(block: object) -> object:
    return block.get("type") if isinstance(block, dict) else None


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _failed(exit_code: object) -> bool:
    """Return whether a run failed; a cancelled run has no exit code."""
    return isinstance(exit_code, int | float) and exit_code != 0
