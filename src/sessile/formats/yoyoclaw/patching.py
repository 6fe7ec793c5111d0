"""What a person may change in the entry of a conversation: toggles, overrides and names.

Rules: documented members only, with documented values; what a chat command sets too has the values that the command takes.
`None` clears a member. What the gateway keeps by itself (ids, times, counters, routes) is refused. `model` is short for the
override: "provider/id", or an id alone. A label is at most 64 characters long; that no other conversation has it, and that who
spawned a sub-agent never changes, is checked against the entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sessile.core.chat_commands import CHOICES
from sessile.core.text import utf16_length
from sessile.errors import Conflict, Invalid
from sessile.formats.yoyoclaw.entries import FIELDS, MAX_LABEL, SessionEntry, fits

PATCHABLE = frozenset(
    (
        *("label", "displayName", "subject", "category", "autoLabel", "incognito", "spawnedBy", "spawnDepth"),
        *("pinnedAt", "archivedAt", "archivedReason", "lastReadAt", "markedUnreadAt", "goal"),
        *("thinkingLevel", "verboseLevel", "reasoningLevel", "elevatedLevel", "ttsAuto", "responseUsage"),
        *("execHost", "execSecurity", "execAsk", "execNode", "sendPolicy"),
        *("groupActivation", "groupActivationNeedsSystemIntro"),
        *("queueMode", "queueDebounceMs", "queueCap", "queueDrop"),
        *("model", "providerOverride", "modelOverride", "authProfileOverride", "contextWindow"),
    )
)


def model_override(model: str | None) -> dict[str, Any]:
    """The members that make a conversation use a model from now on; of `None`, those that end that."""
    if model is None:
        return {"providerOverride": None, "modelOverride": None, "modelOverrideSource": None}
    provider, slash, name = model.strip().partition("/")
    if not provider or (slash and not name):
        raise Invalid(f"{model[:80]!r} is no model", hint="write it as provider/model")
    override = (provider, name) if slash else (None, provider)
    return {"providerOverride": override[0], "modelOverride": override[1], "modelOverrideSource": "user"}


def checked_patch(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The members that a patch sets; raises `Invalid` for one that nobody may set, or not to that value."""
    patch: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in PATCHABLE:
            raise Invalid(f"{name[:80]!r} cannot be changed", hint=f"what can: {', '.join(sorted(PATCHABLE))}")
        field = FIELDS[name]
        if value is None:
            patch |= model_override(None) if name == "model" else {name: None}
            continue
        if not fits(field, value):
            raise Invalid(f"{name} cannot be {str(value)[:80]!r}", hint=f"a {field.type.__name__} is expected")
        if (values := _values(name)) and value not in values:
            raise Invalid(f"{name} cannot be {str(value)[:80]!r}", hint=f"use one of {', '.join(values)}")
        if name == "label":
            value = _label(value)
        patch |= model_override(value) if name == "model" else {name: value}
    return patch


def patchable() -> dict[str, tuple[str, ...]]:
    """The members that a patch of a conversation may set, each with its values; with none if any of its type will do."""
    return {name: _values(name) for name in sorted(PATCHABLE)}


def _values(name: str) -> tuple[str, ...]:
    return CHOICES.get(name, FIELDS[name].values)


def _label(text: str) -> str:
    label = text.strip()
    if not label:
        raise Invalid("a label is not empty", hint="to remove it, set it to null")
    if utf16_length(label) > MAX_LABEL:
        raise Invalid(f"a label has at most {MAX_LABEL} characters", hint="shorten it")
    return label


def check_against(patch: Mapping[str, Any], name: str, kind: str, entries: Mapping[str, SessionEntry]) -> None:
    """Raise if what a patch of the entry `name` sets does not go with what is there."""
    entry = entries.get(name, SessionEntry({}))
    label = patch.get("label")
    other = next(
        (key for key, e in entries.items() if label is not None and key != name and e.get("label") == label), None
    )
    if other is not None:
        raise Conflict(f"the label {label!r} is that of {other[:120]!r}", hint="choose another one")
    if "spawnedBy" in patch:
        if kind != "subagent":
            raise Invalid("only sub-agents are spawned", hint="leave spawnedBy out")
        if entry.get("spawnedBy") not in (None, patch["spawnedBy"]):
            raise Invalid("who spawned a sub-agent does not change", hint="leave spawnedBy out")


def check_expected(entry: SessionEntry | None, expected: Mapping[str, Any] | None) -> None:
    """Raise `Conflict` if some members are not what somebody thinks they are; `None` means that there is none."""
    held: Mapping[str, Any] = {} if entry is None else entry
    for name, value in (expected or {}).items():
        if held.get(name) != value:
            raise Conflict(
                f"{name[:80]} is {str(held.get(name))[:80]!r} by now", hint="read it again, then decide again"
            )
