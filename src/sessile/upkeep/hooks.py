"""Hooks that are called before and after a session is compacted or its leaf moves.

    hooks = Hooks()
    hooks.on("session_before_compact", lambda event: {"cancel": True})

    session_before_compact   before a compaction; may return `{"cancel": True}`, or `{"compaction": {…}}` to supply one
    session.compacting       before the summarizer is called; may return `{"context": [lines], "prompt": …, "preserveData": …}`
    session_compact          after a compaction
    session_before_tree      before the leaf moves; may return `{"cancel": True}`, or
                             `{"summary": {"summary": …, "details": …}}`
    session_tree             after the leaf has moved

Rules:

- Hooks get values, never handles. They are called in the order in which they were added.
- A hook that raises before the action stops it; the error names the hook. A hook that raises afterwards cannot stop anything:
  its error is added to `failures`.
- An invalid result is an error too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from sessile.errors import HookFailed, Invalid

Event = Mapping[str, Any]
Hook = Callable[[Event], Mapping[str, Any] | None]
HookName = Literal[
    "session_before_compact", "session.compacting", "session_compact", "session_before_tree", "session_tree"
]


class Hooks:
    """Functions that a program adds to compactions and moves of the leaf; the module lists the names and results.

    Attributes:
        failures (list[HookFailed]): Errors of hooks that were called after the action.

    Example:
        ```python
        hooks = Hooks()
        hooks.on("session_before_compact", lambda event: {"cancel": True} if busy else None)
        Compactor(session, hooks=hooks, window=200_000).compact()
        ```
    """

    def __init__(self) -> None:
        self.failures: list[HookFailed] = []
        self._hooks: dict[str, list[Hook]] = {}

    def on(self, name: HookName, hook: Hook) -> None:
        """Add a hook.

        Args:
            name: "session_before_compact", "session.compacting", "session_compact", "session_before_tree" or "session_tree".
            hook: Called with a dict that describes the event; returns a mapping or `None`.

        Raises:
            Invalid: The name is unknown.
        """
        if name not in get_args(HookName):
            raise Invalid(f"invalid hook name {name!r}", hint=f"use one of {', '.join(get_args(HookName))}")
        self._hooks.setdefault(name, []).append(hook)

    def ask(self, name: HookName, event: Event) -> list[Mapping[str, Any]]:
        """Call the hooks and return their results; empty ones are left out."""
        return [answer for hook in self._hooks.get(name, ()) if (answer := _called(name, hook, event))]

    def tell(self, name: HookName, event: Event) -> None:
        """Call the hooks and ignore their results; errors are added to `failures`."""
        for hook in self._hooks.get(name, ()):
            try:
                _called(name, hook, event)
            except HookFailed as failure:
                self.failures.append(failure)


def _called(name: str, hook: Hook, event: Event) -> Mapping[str, Any] | None:
    label = getattr(hook, "__qualname__", type(hook).__name__)
    try:
        answer = hook(dict(event))
    except Exception as error:
        raise HookFailed(f"the hook {label} for {name} failed: {error}") from error
    if answer is not None and not isinstance(answer, Mapping):
        raise HookFailed(f"the hook {label} for {name} must return a mapping or None, not {type(answer).__name__}")
    return answer
