"""The entries of `sessions.json`: what each key's session is called, how it is set, what it has used.

An entry is a plain object and stays one: members that nobody here has heard of survive every change. The documented ones are
rows of `FIELDS`; older releases called some of them otherwise (`OLDER_NAMES`), and an entry keeps the name that it has. A
member of the wrong type is told and read as unknown, never repaired.

The text of the file, and what may be wrong with it, is `document`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sessile.core.ids import check_session_id
from sessile.core.text import utf16_length
from sessile.errors import InvalidId

Json = dict[str, Any]

OLDER_NAMES = {"channel": "provider", "lastChannel": "lastProvider", "groupChannel": "room"}

MAX_LABEL = 64

_OTHER_NAMES = OLDER_NAMES | {older: newer for newer, older in OLDER_NAMES.items()}


class Field(NamedTuple):
    """One documented member: its type, and the values that it may have."""

    name: str
    type: type
    values: tuple[str, ...] = ()


def _fields(kind: type, *names: str) -> tuple[Field, ...]:
    return tuple(Field(name, kind) for name in names)


FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        # who and where
        *_fields(str, "sessionId", "sessionFile", "label", "displayName", "channel", "groupId", "subject"),
        *_fields(str, "groupChannel", "space", "lastChannel", "lastTo", "lastAccountId", "spawnedBy"),
        *_fields(str, "parentSessionKey", "category", "autoLabel", "archivedReason"),
        *_fields(dict, "origin", "deliveryContext", "route"),
        *_fields(bool, "systemSent", "abortedLastRun", "forkedFromParent", "incognito"),
        Field("chatType", str, ("direct", "dm", "group", "channel", "room")),
        Field("status", str, ("running", "done", "failed", "killed", "timeout")),
        # when
        *_fields(int, "updatedAt", "sessionStartedAt", "lastInteractionAt", "lastActivityAt", "archivedAt"),
        *_fields(int, "pinnedAt", "lastReadAt", "markedUnreadAt", "startedAt", "endedAt", "runtimeMs"),
        # toggles
        *_fields(str, "thinkingLevel", "verboseLevel", "reasoningLevel", "elevatedLevel", "ttsAuto", "execNode"),
        *_fields(bool, "groupActivationNeedsSystemIntro"),
        *_fields(int, "queueDebounceMs", "queueCap"),
        Field("responseUsage", str, ("on", "off", "tokens", "full")),
        Field("execHost", str, ("sandbox", "gateway", "node")),
        Field("execSecurity", str, ("deny", "allowlist", "full")),
        Field("execAsk", str, ("off", "on-miss", "always")),
        Field("groupActivation", str, ("mention", "always")),
        Field("sendPolicy", str, ("allow", "deny")),
        Field(
            "queueMode",
            str,
            ("steer", "followup", "collect", "steer-backlog", "steer+backlog", "queue", "interrupt"),
        ),
        Field("queueDrop", str, ("old", "new", "summarize")),
        # the model
        *_fields(str, "providerOverride", "modelOverride", "authProfileOverride", "modelProvider", "model"),
        *_fields(str, "fallbackNoticeSelectedModel", "fallbackNoticeActiveModel", "fallbackNoticeReason"),
        *_fields(int, "authProfileOverrideCompactionCount"),
        Field("authProfileOverrideSource", str, ("auto", "user")),
        Field("modelOverrideSource", str, ("auto", "user")),
        # counters
        *_fields(int, "inputTokens", "outputTokens", "totalTokens", "cacheRead", "cacheWrite", "contextTokens"),
        *_fields(int, "contextWindow"),  # ours: elsewhere `contextTokens` is the window
        *_fields(float, "estimatedCostUsd"),
        *_fields(bool, "totalTokensFresh"),
        # housekeeping
        *_fields(int, "compactionCount", "memoryFlushAt", "memoryFlushCompactionCount", "lastHeartbeatSentAt"),
        *_fields(int, "spawnDepth", "lifecycleRevision", "abortCutoffTimestamp"),
        *_fields(str, "lastHeartbeatText", "claudeCliSessionId", "abortCutoffMessageSid", "usageFamilyKey"),
        *_fields(dict, "skillsSnapshot", "systemPromptReport", "cliSessionIds", "acp", "memoryFlush"),
        *_fields(list, "usageFamilySessionIds"),
        *_fields(object, "lastThreadId", "goal", "contextBudgetStatus", "quotaSuspension", "pluginExtensions"),
    )
}


class SessionEntry(Mapping[str, Any]):
    """The entry of one key, read-only: `entry["model"]`, `entry.session_id`, `entry.get("queueCap")`.

    Documented members are found under their older names too. Equality is that of the members as they are written.
    """

    __slots__ = ("_members",)

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = dict(members)

    def __getitem__(self, name: str) -> Any:
        return self._members[name if name in self._members else OLDER_NAMES.get(name, name)]

    def get(self, name: str, default: Any = None) -> Any:
        """As every mapping has it, but without raising and catching: a turn asks for dozens of members that are not there."""
        return self._members.get(name if name in self._members else OLDER_NAMES.get(name, name), default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SessionEntry) and self._members == other._members

    def __hash__(self) -> int:
        return hash(frozenset(self._members))

    def __repr__(self) -> str:
        return f"<SessionEntry {self._members.get('sessionId')} with {len(self)} members>"

    @property
    def members(self) -> Json:
        """A copy of the members as they are written."""
        return dict(self._members)

    def known(self, name: str) -> Any:
        """A documented member; `None` if it is missing or has the wrong type: then nothing is known."""
        value = self.get(name)
        return value if fits(FIELDS[name], value) else None

    @property
    def session_id(self) -> str | None:
        value = self.known("sessionId")
        return None if value is None else str(value)

    @property
    def session_file(self) -> str | None:
        value = self.known("sessionFile")
        return None if value is None else str(value)

    @property
    def updated_at(self) -> int | None:
        """Milliseconds since 1970; `None` if unknown."""
        value = self.known("updatedAt")
        return None if value is None else int(value)

    def changed(self, patch: Mapping[str, Any]) -> SessionEntry:
        """The entry with other values for some members; `None` removes one.

        A member is written under the name that the entry already has for it, so that its other readers see the change.
        """
        members = dict(self._members)
        for name, value in patch.items():
            older = OLDER_NAMES.get(name)
            present = [spelling for spelling in (name, older) if spelling is not None and spelling in members]
            for spelling in present or [name]:
                if value is None:
                    members.pop(spelling, None)
                else:
                    members[spelling] = value
        return SessionEntry(members)

    def touched(self, patch: Mapping[str, Any], now: int) -> SessionEntry:
        """The entry with a patch; its time of change never goes back."""
        times = [self.updated_at, patch.get("updatedAt"), now]
        return self.changed({**patch, "updatedAt": max(time for time in times if isinstance(time, int | float))})


class Misfit(NamedTuple):
    """A documented member that is not what it should be."""

    name: str
    detail: str


def fits(field: Field, value: Any) -> bool:
    """Whether a value can be that of a documented member. Values beyond the documented ones are other releases' business."""
    if field.type in (int, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, field.type)


def misfits(entry: SessionEntry) -> list[Misfit]:
    """The documented members of an entry that have another type or value than documented."""
    found = []
    for name, value in entry.members.items():
        field = FIELDS.get(name) or FIELDS.get(_OTHER_NAMES.get(name, ""))
        if field is None or value is None:
            continue
        if not fits(field, value):
            found.append(Misfit(name, f"{field.type.__name__} expected, {type(value).__name__} found"))
        elif field.values and value not in field.values:
            found.append(Misfit(name, f"{str(value)[:40]!r} is none of {', '.join(field.values)}"))
        elif name == "sessionId":
            found += _bad_id(name, str(value))
        elif name == "label" and utf16_length(value) > MAX_LABEL:
            found.append(Misfit(name, f"longer than {MAX_LABEL} characters"))
    return found


def _bad_id(name: str, value: str) -> list[Misfit]:
    try:
        check_session_id(value)
    except InvalidId as error:
        return [Misfit(name, error.message)]
    return []


def delivery_of(entry: SessionEntry) -> Json:
    """Where a reply goes: the members of `deliveryContext` that are set, else those of the last route.

    The two are never mixed: a channel from one and a recipient from the other would send a reply to a stranger.
    """
    context = entry.known("deliveryContext")
    if context is not None and context.get("channel") is not None:
        return {name: value for name, value in context.items() if value is not None}
    names = {"channel": "lastChannel", "to": "lastTo", "accountId": "lastAccountId", "threadId": "lastThreadId"}
    return {name: entry.get(old) for name, old in names.items() if entry.get(old) is not None}


def merge_entries(one: SessionEntry, other: SessionEntry) -> SessionEntry:
    """Two entries of one key: members of the one that was changed later win, the other fills gaps.

    An entry that does not say when it was changed is the older one; of two that are equally old the first wins.
    """
    newer, older = (other, one) if (other.updated_at or 0) > (one.updated_at or 0) else (one, other)
    taken = {*newer, *(_OTHER_NAMES[name] for name in newer if name in _OTHER_NAMES)}
    gaps = {name: value for name, value in older.members.items() if name not in taken}
    return SessionEntry({**newer.members, **gaps})


def combine_entries(stores: Mapping[str, Mapping[str, SessionEntry]]) -> dict[str, SessionEntry]:
    """The entries of many stores (by agent, keys canonical) as one list, newest first."""
    combined: dict[str, SessionEntry] = {}
    for entries in stores.values():
        for key, entry in entries.items():
            combined[key] = merge_entries(combined[key], entry) if key in combined else entry
    return dict(sorted(combined.items(), key=lambda item: item[1].updated_at or 0, reverse=True))
