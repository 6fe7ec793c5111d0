"""The table of entry kinds.

A row says three things about a kind: its flags (stored in every index), how it changes the state of a path, and which message it
adds to the context. Entries of unknown kinds stay in the tree and contribute nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from sessile.core.lines import Head
from sessile.core.text import parse_timestamp

# Flags of entries. They are stored in index files: never change one, only add.
CHAIN = 1  # may be a parent
MARKER = 2  # stores the leaf; not an entry for users
STATE = 4  # changes the state of its path
BOUNDARY = 8  # the context starts here
LABEL = 16  # names another entry
TITLE = 32  # names the session
MESSAGE = 64  # a `message` entry, as listings count them
TALK = 128  # part of the conversation; a draft with such an entry is kept

LEAF_MARKER = "sessile.leaf"
IMPORT_MARKER = "sessile.import"  # names the bytes that a session was imported from
# Custom entries that are not shown to users. A tuple, because the type in a file may be unhashable.
MARKERS = (LEAF_MARKER, IMPORT_MARKER)
TAG = "sessile.tag"  # custom entry with the tag of a session
DEFAULT_ROLE = "default"

Json = Mapping[str, Any]


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """The settings made by the entries of a path, from the root to one entry."""

    thinking_level: Any = "off"
    models: dict[str, str] = {}
    explicit_model: bool = False
    mode: str = "none"
    mode_data: Any = None
    injected_ttsr_rules: tuple[str, ...] = ()
    service_tier: Any = None
    selected_mcp_tools: tuple[str, ...] | None = None
    active_context: dict[str, Any] | None = None


Fold = Callable[[State, Json], State]
Project = Callable[[Json], dict[str, Any] | None]


class Kind(NamedTuple):
    """One row of the table."""

    flags: int
    fold: Fold | None = None
    project: Project | None = None


def _fold_message(state: State, entry: Json) -> State:
    """Take the model of an answer as the default model until one is chosen explicitly."""
    message = entry.get("message")
    if state.explicit_model or not isinstance(message, Mapping) or message.get("role") != "assistant":
        return state
    provider, model = message.get("provider"), message.get("model")
    if not (isinstance(provider, str) and isinstance(model, str)) or model == "<synthetic>":  # a text of the program
        return state
    return replace(state, models={**state.models, DEFAULT_ROLE: f"{provider}/{model}"})


def _fold_thinking_level(state: State, entry: Json) -> State:
    level = entry.get("thinkingLevel")
    return replace(state, thinking_level="off" if level is None else level)


def _fold_model(state: State, entry: Json) -> State:
    model, role = entry.get("model"), entry.get("role") or DEFAULT_ROLE
    if not model and isinstance(entry.get("provider"), str) and isinstance(entry.get("modelId"), str):
        model = f"{entry['provider']}/{entry['modelId']}"
    if not (isinstance(model, str) and model and isinstance(role, str)):
        return state
    explicit = state.explicit_model or role == DEFAULT_ROLE
    return replace(state, models={**state.models, role: model}, explicit_model=explicit)


def _fold_mode(state: State, entry: Json) -> State:
    mode = entry.get("mode")
    return replace(state, mode=mode if isinstance(mode, str) else "none", mode_data=entry.get("data"))


def _fold_rules(state: State, entry: Json) -> State:
    rules = dict.fromkeys(state.injected_ttsr_rules)
    rules.update(dict.fromkeys(_strings(entry.get("injectedRules"))))
    return replace(state, injected_ttsr_rules=tuple(rules))


def _fold_service_tier(state: State, entry: Json) -> State:
    return replace(state, service_tier=entry.get("serviceTier"))


def _fold_mcp_tools(state: State, entry: Json) -> State:
    return replace(state, selected_mcp_tools=_strings(entry.get("selectedToolNames")))


def _fold_context(state: State, entry: Json) -> State:
    return replace(state, active_context={name: entry.get(name) for name in ("contextName", "tenant", "namespace")})


def _project_message(entry: Json) -> dict[str, Any] | None:
    message = entry.get("message")
    return message if isinstance(message, dict) else None


def _project_custom_message(entry: Json) -> dict[str, Any]:
    named = ("customType", "content", "display", "details", "attribution", "extra")
    message = {"role": "developer" if entry.get("role") == "developer" else "custom", **_present(entry, *named)}
    message["timestamp"] = parse_timestamp(entry.get("timestamp"))
    return message


def _project_branch_summary(entry: Json) -> dict[str, Any] | None:
    if not entry.get("summary"):
        return None
    message = {"role": "branchSummary", **_present(entry, "summary", "fromId")}
    message["timestamp"] = parse_timestamp(entry.get("timestamp"))
    return message


def _project_compaction(entry: Json) -> dict[str, Any]:
    message = {"role": "compactionSummary", **_present(entry, "summary", "tokensBefore", "shortSummary")}
    message["timestamp"] = parse_timestamp(entry.get("timestamp"))
    remote = remote_compaction(entry)
    if remote is not None:
        payload = {"type": "openaiResponsesHistory", "provider": remote["provider"]}
        message["providerPayload"] = payload | {"items": remote["replacementHistory"]}
    return message


def remote_compaction(entry: Json) -> Json | None:
    """Return the provider's own replacement of the history, if a compaction has one."""
    preserved = entry.get("preserveData")
    remote = preserved.get("openaiRemoteCompaction") if isinstance(preserved, Mapping) else None
    if not isinstance(remote, Mapping) or not isinstance(remote.get("replacementHistory"), list):
        return None
    provider = remote.get("provider")
    return remote if isinstance(provider, str) and provider else None


def _present(entry: Json, *names: str) -> dict[str, Any]:
    return {name: entry[name] for name in names if name in entry}


def _strings(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


UNKNOWN = Kind(CHAIN)

KINDS: dict[str, Kind] = {
    "message": Kind(CHAIN | MESSAGE | TALK, _fold_message, _project_message),
    "custom_message": Kind(CHAIN | TALK, None, _project_custom_message),
    "branch_summary": Kind(CHAIN | TALK, None, _project_branch_summary),
    "compaction": Kind(CHAIN | BOUNDARY | TALK, None, _project_compaction),
    "reset_boundary": Kind(CHAIN | BOUNDARY),
    "thinking_level_change": Kind(CHAIN | STATE, _fold_thinking_level),
    "model_change": Kind(CHAIN | STATE, _fold_model),
    "mode_change": Kind(CHAIN | STATE, _fold_mode),
    "ttsr_injection": Kind(CHAIN | STATE, _fold_rules),
    "service_tier_change": Kind(CHAIN | STATE, _fold_service_tier),
    "mcp_tool_selection": Kind(CHAIN | STATE, _fold_mcp_tools),
    "context_change": Kind(CHAIN | STATE, _fold_context),
    "label": Kind(CHAIN | LABEL),
    "session_info": Kind(CHAIN | TITLE),
    "title_change": Kind(CHAIN | TITLE),
    "session_init": Kind(CHAIN),
    "context_edit": Kind(CHAIN),
    "custom": Kind(CHAIN),
    "usage": Kind(CHAIN),
    "model_usage": Kind(CHAIN),
    "credential_pin": Kind(CHAIN),
}


def kind_of(entry_type: object) -> Kind:
    """Return the row of an entry type."""
    return KINDS.get(entry_type, UNKNOWN) if isinstance(entry_type, str) else UNKNOWN


def flags_of(head: Head) -> int:
    """Return the flags of an entry, from its head alone."""
    if head.type == "custom" and head.customType in MARKERS:
        return MARKER
    flags = kind_of(head.type).flags
    if flags & MESSAGE and head.message is not None and head.message.role == "assistant":
        flags |= STATE
    return flags


def fold_label(labels: dict[str, str], entry: Json) -> None:
    """Apply a label entry: set or remove the label of its target. The last label in the file counts."""
    target, text = entry.get("targetId"), entry.get("label")
    if isinstance(target, str):
        labels.pop(target, None)
        if isinstance(text, str) and text:
            labels[target] = text


def fold(state: State, entry: Json) -> State:
    """Return the state after an entry."""
    step = kind_of(entry.get("type")).fold
    return step(state, entry) if step else state
