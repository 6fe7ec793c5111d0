"""Hooks: what programs want to be asked or told about a session.

    hooks = Hooks()
    hooks.on("session_before_compact", lambda event: {"cancel": True})

    session_before_compact   asked before a compaction: `{"cancel": True}`, or `{"compaction": {…}}` to supply one
    session.compacting       asked before a model is: `{"context": [lines], "prompt": …, "preserveData": …}`
    session_compact          told after a compaction
    session_before_tree      asked before the leaf moves: `{"cancel": True}`, or `{"summary": {"summary": …, "details": …}}`
    session_tree             told after the leaf has moved

Rules: hooks get values, never handles. They are called in the order in which they came. One that raises before something
happens stops it, with its name in the error; one that raises afterwards is remembered in `failures`, because what happened has
happened. Answers that make no sense are errors too.
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
    """The hooks of one program."""

    def __init__(self) -> None:
        self.failures: list[HookFailed] = []
        self._hooks: dict[str, list[Hook]] = {}

    def on(self, name: HookName, hook: Hook) -> None:
        """Call a hook whenever this happens."""
        if name not in get_args(HookName):
            raise Invalid(f"there is no hook {name!r}", hint=f"there are {', '.join(get_args(HookName))}")
        self._hooks.setdefault(name, []).append(hook)

    def ask(self, name: HookName, event: Event) -> list[Mapping[str, Any]]:
        """What the hooks answer; those that say nothing are left out."""
        return [answer for hook in self._hooks.get(name, ()) if (answer := _called(name, hook, event))]

    def tell(self, name: HookName, event: Event) -> None:
        """Call the hooks, whatever they answer."""
        for hook in self._hooks.get(name, ()):
            try:
                _called(name, hook, event)
            except HookFailed as failure:
                self.failures.append(failure)


def _called(name: str, hook: Hook, event: Event) -> Mapping[str, Any] | None:
    who = getattr(hook, "__qualname__", type(hook).__name__)
    try:
        answer = hook(dict(event))
    except Exception as error:
        raise HookFailed(f"the hook {who} for {name} has failed: {error}") from error
    if answer is not None and not isinstance(answer, Mapping):
        raise HookFailed(f"the hook {who} for {name} answered {type(answer).__name__}, not a mapping")
    return answer
