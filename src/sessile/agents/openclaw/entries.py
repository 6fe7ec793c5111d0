"""The entries of `sessions.json`: the name, settings and counters of each key's session.

An entry is a plain object, and unknown members survive every change. The documented members are in `FIELDS`; older
releases used other names for some of them (`OLDER_NAMES`), and an entry keeps the name that it has. A member of the
wrong type is reported and read as unknown, never repaired.

Patching: users may set documented members to documented values; where a chat command sets the same member, its values
apply. `None` clears a member. Members that the gateway maintains (ids, times, counters, routes) are refused. `model` is
short for the override: "provider/id" or "id". A label has at most 64 characters and must be unique; `spawnedBy` of a
sub-agent never changes.

Counting: counts belong to one session; an entry that has another session by now is left unchanged, because the
transcript has the numbers too. Sums stay unknown until there is a first number. Counts can be added up before they are
written.

    inputTokens outputTokens cacheRead cacheWrite totalTokens estimatedCostUsd compactionCount    are added
    lastInteractionAt updatedAt                                                                   keep the maximum (1)
    everything else (`members`)                                                                   is replaced

(1) A `lastInteractionAt` that is more than an hour ahead comes from a wrong clock and is replaced: otherwise the session
would not be reset before that time.

Adopting entries of another program's store: members with another meaning here are mapped, and their old values are
stored in the entry under `sessile.import`. All other members stay, including unknown ones and older names.

    sessionId        becomes the id of the session in our store
    sessionFile      is removed: our sessions are found by id
    contextTokens    was the window of the model and becomes `contextWindow`; here it is the size of the context, which is
                     `totalTokens` there unless that is stale

The counters of an entry with a `contextWindow` are ours already and stay. `sessile.import` also holds a digest of the
adopted entry, by which the next import knows whether the entry was changed here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from sessile.core.chat_commands import CHOICES
from sessile.core.codec import plain
from sessile.core.ids import blake2b, check_session_id
from sessile.core.text import utf16_length
from sessile.core.usage import Usage
from sessile.errors import Conflict, Invalid, InvalidId

Json = dict[str, Any]

OLDER_NAMES = {"channel": "provider", "lastChannel": "lastProvider", "groupChannel": "room"}

MAX_LABEL = 64

_OTHER_NAMES = OLDER_NAMES | {older: newer for newer, older in OLDER_NAMES.items()}


class Field(NamedTuple):
    """One documented member: its type, and its allowed values."""

    name: str
    type: type
    values: tuple[str, ...] = ()


def _fields(kind: type, *names: str) -> tuple[Field, ...]:
    return tuple(Field(name, kind) for name in names)


FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        # identity and place
        *_fields(str, "sessionId", "sessionFile", "label", "displayName", "channel", "groupId", "subject"),
        *_fields(str, "groupChannel", "space", "lastChannel", "lastTo", "lastAccountId", "spawnedBy"),
        *_fields(str, "parentSessionKey", "category", "autoLabel", "archivedReason"),
        *_fields(dict, "origin", "deliveryContext", "route"),
        *_fields(bool, "systemSent", "abortedLastRun", "forkedFromParent", "incognito"),
        Field("chatType", str, ("direct", "dm", "group", "channel", "room")),
        Field("status", str, ("running", "done", "failed", "killed", "timeout")),
        # times
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
        *_fields(int, "contextWindow"),  # our own member; elsewhere `contextTokens` is the window
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

    Documented members are also found under their older names. Entries are equal if their members are, as written.
    """

    __slots__ = ("_members",)

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = dict(members)

    def __getitem__(self, name: str) -> Any:
        return self._members[name if name in self._members else OLDER_NAMES.get(name, name)]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a member without raising and catching `KeyError`: a turn asks for dozens of missing members."""
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
        """Return a documented member; `None` if it is missing or has the wrong type."""
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
        """Return the entry with other values for some members; `None` removes one.

        A member is written under the name that the entry already uses, so its other readers see the change.
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
        """Return the entry with a patch; its time of change never goes back."""
        times = [self.updated_at, patch.get("updatedAt"), now]
        return self.changed({**patch, "updatedAt": max(time for time in times if isinstance(time, int | float))})


class Misfit(NamedTuple):
    """A documented member with an invalid value."""

    name: str
    detail: str


def fits(field: Field, value: Any) -> bool:
    """Return whether a value has the type of a documented member. Unknown values of that type are accepted."""
    if field.type in (int, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, field.type)


def misfits(entry: SessionEntry) -> list[Misfit]:
    """Return the documented members of an entry with another type or value than documented."""
    found = []
    for name, value in entry.members.items():
        field = FIELDS.get(name) or FIELDS.get(_OTHER_NAMES.get(name, ""))
        if field is None or value is None:
            continue
        if not fits(field, value):
            found.append(Misfit(name, f"expected {field.type.__name__}, found {type(value).__name__}"))
        elif field.values and value not in field.values:
            found.append(Misfit(name, f"{str(value)[:40]!r} is not one of {', '.join(field.values)}"))
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
    """Return where a reply goes: the members of `deliveryContext` that are set, else those of the last route.

    The two are never mixed: a channel of one and a recipient of the other would send a reply to a stranger.
    """
    context = entry.known("deliveryContext")
    if context is not None and context.get("channel") is not None:
        return {name: value for name, value in context.items() if value is not None}
    names = {"channel": "lastChannel", "to": "lastTo", "accountId": "lastAccountId", "threadId": "lastThreadId"}
    return {name: entry.get(old) for name, old in names.items() if entry.get(old) is not None}


def merge_entries(one: SessionEntry, other: SessionEntry) -> SessionEntry:
    """Merge two entries of one key: members of the newer one win, the other fills gaps.

    An entry without a time of change is the older one; of two with the same time the first wins.
    """
    newer, older = (other, one) if (other.updated_at or 0) > (one.updated_at or 0) else (one, other)
    taken = {*newer, *(_OTHER_NAMES[name] for name in newer if name in _OTHER_NAMES)}
    gaps = {name: value for name, value in older.members.items() if name not in taken}
    return SessionEntry({**newer.members, **gaps})


def combine_entries(stores: Mapping[str, Mapping[str, SessionEntry]]) -> dict[str, SessionEntry]:
    """Return the entries of many stores (by agent, keys canonical) as one list, newest first."""
    combined: dict[str, SessionEntry] = {}
    for entries in stores.values():
        for key, entry in entries.items():
            combined[key] = merge_entries(combined[key], entry) if key in combined else entry
    return dict(sorted(combined.items(), key=lambda item: item[1].updated_at or 0, reverse=True))


# -- patching
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
    """Return the members that select a model for a conversation; for `None`, those that remove the selection."""
    if model is None:
        return {"providerOverride": None, "modelOverride": None, "modelOverrideSource": None}
    provider, slash, name = model.strip().partition("/")
    if not provider or (slash and not name):
        raise Invalid(f"invalid model {model[:80]!r}", hint="use provider/model")
    override = (provider, name) if slash else (None, provider)
    return {"providerOverride": override[0], "modelOverride": override[1], "modelOverrideSource": "user"}


def checked_patch(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that a patch sets; raise `Invalid` for a member or value that is not allowed."""
    patch: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in PATCHABLE:
            raise Invalid(f"cannot change {name[:80]!r}", hint=f"use one of {', '.join(sorted(PATCHABLE))}")
        field = FIELDS[name]
        if value is None:
            patch |= model_override(None) if name == "model" else {name: None}
            continue
        if not fits(field, value):
            raise Invalid(f"invalid {name} {str(value)[:80]!r}", hint=f"use a {field.type.__name__}")
        if (values := _values(name)) and value not in values:
            raise Invalid(f"invalid {name} {str(value)[:80]!r}", hint=f"use one of {', '.join(values)}")
        if name == "label":
            value = _label(value)
        patch |= model_override(value) if name == "model" else {name: value}
    return patch


def patchable() -> dict[str, tuple[str, ...]]:
    """Return the members that a patch may set, with their values; empty if any value of the type is allowed."""
    return {name: _values(name) for name in sorted(PATCHABLE)}


def _values(name: str) -> tuple[str, ...]:
    return CHOICES.get(name, FIELDS[name].values)


def _label(text: str) -> str:
    label = text.strip()
    if not label:
        raise Invalid("a label must not be empty", hint="set it to null to remove it")
    if utf16_length(label) > MAX_LABEL:
        raise Invalid(f"a label must have at most {MAX_LABEL} characters", hint="shorten it")
    return label


def check_against(patch: Mapping[str, Any], name: str, kind: str, entries: Mapping[str, SessionEntry]) -> None:
    """Raise if a patch of the entry `name` conflicts with other entries."""
    entry = entries.get(name, SessionEntry({}))
    label = patch.get("label")
    other = next(
        (key for key, e in entries.items() if label is not None and key != name and e.get("label") == label), None
    )
    if other is not None:
        raise Conflict(f"label {label!r} is used by {other[:120]!r}", hint="choose another one")
    if "spawnedBy" in patch:
        if kind != "subagent":
            raise Invalid("spawnedBy is for sub-agents only", hint="leave spawnedBy out")
        if entry.get("spawnedBy") not in (None, patch["spawnedBy"]):
            raise Invalid("spawnedBy of a sub-agent cannot be changed", hint="leave spawnedBy out")


def check_expected(entry: SessionEntry | None, expected: Mapping[str, Any] | None) -> None:
    """Raise `Conflict` if some members do not have the expected values; `None` means absent."""
    held: Mapping[str, Any] = {} if entry is None else entry
    for name, value in (expected or {}).items():
        if held.get(name) != value:
            raise Conflict(
                f"{name[:80]} is now {str(held.get(name))[:80]!r}", hint="read the entry again, then try again"
            )


# -- counting
_WRONG_CLOCK = 3_600_000  # milliseconds that a time may be ahead
_NOT_SET = 1_735_689_600_000  # the year 2025; an earlier time is that of a clock that is not set yet
_SUMS = {"inputTokens": "input", "outputTokens": "output", "cacheRead": "cache_read", "cacheWrite": "cache_write"}


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """Something to count; `at` is when it happened, in milliseconds, and `session_id` where."""

    session_id: str
    at: int
    sums: dict[str, float] = {}
    members: dict[str, Any] = {}
    interacted: int | None = None


def count_usage(usage: Usage | None, cost: float | None, compactions: int) -> dict[str, float]:
    """Return what the counters of an entry grow by, without unknown values."""
    sums: dict[str, float] = {}
    if usage is not None:
        sums = {name: value for name, part in _SUMS.items() if (value := getattr(usage, part)) is not None}
        if usage.context is not None:
            sums["totalTokens"] = usage.context
    if cost is not None:
        sums["estimatedCostUsd"] = cost
    if compactions:
        sums["compactionCount"] = compactions
    return sums


def added(one: Count | None, other: Count) -> Count:
    """Add two counts of one session."""
    if one is None:
        return other
    names = {*one.sums, *other.sums}
    return Count(
        session_id=other.session_id,
        at=max(one.at, other.at),
        sums={name: one.sums.get(name, 0) + other.sums.get(name, 0) for name in names},
        members={**one.members, **other.members},
        interacted=_later(one.interacted, other.interacted),
    )


def _later(before: int | None, now: int | None) -> int | None:
    """Return the later of two times, unless the clock of the first was wrong."""
    if before is None or now is None:
        return before if now is None else now
    is_ahead = before > now + _WRONG_CLOCK and now > _NOT_SET
    return now if is_ahead else max(before, now)


def counted(entry: SessionEntry, count: Count) -> SessionEntry:
    """Return the entry with a count; the same object if nothing changes."""
    if entry.session_id != count.session_id:
        return entry
    patch = dict(count.members)
    patch |= {name: (entry.known(name) or 0) + value for name, value in count.sums.items()}
    if count.interacted is not None:
        patch["lastInteractionAt"] = _later(entry.known("lastInteractionAt"), count.interacted)
    changes = {name: value for name, value in patch.items() if entry.get(name) != value}
    return entry.touched(changes, count.at) if changes else entry


def unknown_names(members: dict[str, Any]) -> list[str]:
    """Return the names that are not documented members."""
    return sorted(name for name in members if name not in FIELDS)


# -- adopting entries of another program
MARK = "sessile.import"  # the member that records where an entry came from

_DIGEST = 16  # bytes


class Adopted(NamedTuple):
    """An adopted entry, and the members that were mapped: old value and new, `None` for none."""

    entry: SessionEntry
    mapped: dict[str, tuple[Any, Any]]


def adopt(entry: SessionEntry, session_id: str | None, store: str) -> Adopted:
    """Return an entry of a store file as our own; `session_id` is the session's id here, `None` if not imported."""
    old = {name: value for name, value in entry.members.items() if name != MARK}
    wanted = {**_mapped_session(entry, session_id), **_mapped_counters(entry)}
    patch = {name: value for name, value in wanted.items() if old.get(name) != value}
    new = {name: value for name, value in {**old, **patch}.items() if name not in patch or value is not None}
    mark: Json = {"store": store, "digest": digest_of(new)}
    if was := {name: old[name] for name in patch if name in old}:
        mark["was"] = was
    mapped = {name: (old.get(name), value) for name, value in patch.items()}
    return Adopted(SessionEntry({**new, MARK: mark}), mapped)


def adopted_from(entry: SessionEntry) -> str | None:
    """Return the store file that an entry came from, or `None` if the entry was changed here since."""
    mark = entry.get(MARK)
    if not isinstance(mark, dict) or mark.get("digest") != digest_of(entry.members):
        return None
    return str(mark.get("store"))


def digest_of(members: Json) -> str:
    """Return a digest of an entry; the mark itself and the order of members do not count."""
    counted = plain({name: value for name, value in members.items() if name != MARK}).value  # as it will be written
    return blake2b(json.dumps(counted, sort_keys=True).encode("ascii"), _DIGEST).hex()


def _mapped_session(entry: SessionEntry, session_id: str | None) -> Json:
    return {} if session_id is None else {"sessionId": session_id, "sessionFile": None}


def _mapped_counters(entry: SessionEntry) -> Json:
    window = entry.known("contextTokens")
    if window is None or "contextWindow" in entry:
        return {}
    used = None if entry.get("totalTokensFresh") is False else entry.known("totalTokens")
    return {"contextWindow": window, "contextTokens": used}
