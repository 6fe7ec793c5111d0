"""What can be appended to a session: one verb for each kind of entry.

A verb checks what it is given, makes the members of its kind and hands them to `append_many`. Kinds without a verb are
appended there as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from sessile.batch import OnLeafMoved, Receipt
from sessile.core import entries as make
from sessile.core.entries import Content, Payload
from sessile.core.kinds import TAG
from sessile.core.text import clean_tag
from sessile.errors import Invalid, InvalidEntry
from sessile.view import SessionView


class AppendVerbs(SessionView, ABC):
    """A session that can be appended to, once somebody says how."""

    @abstractmethod
    def append_many(
        self,
        entries: Iterable[Payload],
        expected_leaf: str | None = None,
        key: str | None = None,
        on_leaf_moved: OnLeafMoved = "branch",
    ) -> list[Receipt]:
        """Append entries as a chain."""

    def append_message(self, message: Payload) -> Receipt:
        """Append a user, assistant, tool result or other message."""
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidEntry("a message is a dict with a role", path=self.path)
        return self._append(make.message(message))

    def append_thinking_level_change(self, level: str | None) -> Receipt:
        return self._append(make.thinking_level_change(level))

    def append_model_change(self, model: str, role: str | None = None) -> Receipt:
        """`model` is "provider/id"; without a role it is the default model."""
        return self._append(make.model_change(model, role))

    def append_compaction(
        self,
        summary: str,
        first_kept_entry_id: str | None,
        tokens_before: int,
        *,
        short_summary: str | None = None,
        details: Any = None,
        from_extension: bool | None = None,
        preserve_data: Any = None,
    ) -> Receipt:
        """From here on the model sees the summary, the entries from the first kept one, and what follows."""
        payload = make.compaction(
            summary,
            first_kept_entry_id,
            tokens_before,
            short_summary=short_summary,
            details=details,
            from_extension=from_extension,
            preserve_data=preserve_data,
        )
        return self._append(payload)

    def append_custom_entry(self, custom_type: str, data: Any = None) -> Receipt:
        """An extension's own data; not in the context."""
        return self._append(make.custom(custom_type, data))

    def append_custom_message_entry(
        self, custom_type: str, content: Content, display: bool = True, details: Any = None, attribution: str = "agent"
    ) -> Receipt:
        """An extension's message; in the context, shown to people only if `display` is true."""
        return self._append(make.custom_message(custom_type, content, display, details, attribution))

    def append_label_change(self, target_id: str, label: str | None) -> Receipt:
        """Name an entry; `None` takes the name away."""
        self._row(target_id)
        return self._append(make.label(target_id, label))

    def append_mode_change(self, mode: str, data: Any = None) -> Receipt:
        return self._append(make.mode_change(mode, data))

    def append_ttsr_injection(self, injected_rules: Sequence[str]) -> Receipt:
        return self._append(make.ttsr_injection(injected_rules))

    def append_session_init(
        self, system_prompt: str, task: str, tools: Sequence[str], output_schema: Any = None
    ) -> Receipt:
        return self._append(make.session_init(system_prompt, task, tools, output_schema))

    def append_context_edit(self, target_id: str, content: Content | None) -> Receipt:
        """Change what an entry puts into the context, or with `None` take it out; the entry itself stays."""
        self._row(target_id)
        return self._append(make.context_edit(target_id, content))

    def append_reset_boundary(self) -> Receipt:
        """From here on the model sees only what follows."""
        return self._append(make.reset_boundary())

    def set_tag(self, tag: str | None) -> str | None:
        """Tag the session; `None` takes the tag away. Gives the tag as it is kept."""
        cleaned = None if tag is None else clean_tag(tag)
        if cleaned == "":
            raise Invalid("a tag needs a visible character", path=self.path, hint="use None to take the tag away")
        self._append(make.custom(TAG, {"tag": cleaned}))
        return cleaned

    def _append(self, payload: Payload) -> Receipt:
        return self.append_many((payload,))[0]
