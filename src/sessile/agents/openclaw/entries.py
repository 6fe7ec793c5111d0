"""The entries of `sessions.json`: what each key's session is called, how it is set, what it has used.

An entry is a plain object and stays one: members that nobody here has heard of survive every change. The documented ones are
rows of `FIELDS`; older releases called some of them otherwise (`OLDER_NAMES`), and an entry keeps the name that it has. A
member of the wrong type is told and read as unknown, never repaired.

The text of the file, and what may be wrong with it, is `document`'s business.

What a person may change in the entry of a conversation: toggles, overrides and names.

Rules: documented members only, with documented values; what a chat command sets too has the values that the command takes.
`None` clears a member. What the gateway keeps by itself (ids, times, counters, routes) is refused. `model` is short for the
override: "provider/id", or an id alone. A label is at most 64 characters long; that no other conversation has it, and that who
spawned a sub-agent never changes, is checked against the entries.

What a turn adds to the entry of its conversation: counters that grow, and values that replace older ones.

Rules: what is counted belongs to one session; an entry that has another one by now stays as it is, because the transcript has the
numbers too. Sums stay unknown until somebody tells a number. Two counts can be added before either is written, in their order.

    inputTokens outputTokens cacheRead cacheWrite totalTokens estimatedCostUsd compactionCount    grow
    lastInteractionAt updatedAt                                                                   the latest wins
    everything else (`members`)                                                                   is replaced

Entries of another program's store as entries of ours: what is mapped, what stays, and whether one changed since.

Rules: a member that means something else here is mapped, and its old value is kept in the entry, under `sessile.import`. All
others stay as they are, unknown ones and older names too. Three are mapped:

    sessionId        the id that the session has in our store
    sessionFile      goes: here a session is found by its id
    contextTokens    was the window of the model and becomes `contextWindow`; `contextTokens` is what the context takes up,
                     which is `totalTokens` there, as long as that is not called stale

An entry that has a `contextWindow` speaks our language already, and its counters stay.

The mark also holds a digest of what was adopted. By it the next import knows whether somebody changed the entry here.
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

# --- entries

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


# --- patching

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


# --- counting

_SUMS = {"inputTokens": "input", "outputTokens": "output", "cacheRead": "cache_read", "cacheWrite": "cache_write"}


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """Something to count; `at` is when it happened, in milliseconds, and `session_id` where."""

    session_id: str
    at: int
    sums: dict[str, float] = {}
    members: dict[str, Any] = {}
    interacted: int | None = None


def count_usage(usage: Usage | None, cost: float | None, compactions: int) -> dict[str, float]:
    """What the counters of an entry grow by; what is unknown is left out."""
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
    """Two counts of one session as one."""
    if one is None:
        return other
    names = {*one.sums, *other.sums}
    times = [time for time in (one.interacted, other.interacted) if time is not None]
    return Count(
        session_id=other.session_id,
        at=max(one.at, other.at),
        sums={name: one.sums.get(name, 0) + other.sums.get(name, 0) for name in names},
        members={**one.members, **other.members},
        interacted=max(times, default=None),
    )


def counted(entry: SessionEntry, count: Count) -> SessionEntry:
    """The entry with a count; the same object if nothing changes by it."""
    if entry.session_id != count.session_id:
        return entry
    patch = dict(count.members)
    patch |= {name: (entry.known(name) or 0) + value for name, value in count.sums.items()}
    last = entry.known("lastInteractionAt")
    if count.interacted is not None and (last is None or last < count.interacted):
        patch["lastInteractionAt"] = count.interacted
    changes = {name: value for name, value in patch.items() if entry.get(name) != value}
    return entry.touched(changes, count.at) if changes else entry


def unknown_names(members: dict[str, Any]) -> list[str]:
    """The names that no documented member has."""
    return sorted(name for name in members if name not in FIELDS)


# --- adopting

MARK = "sessile.import"  # the member that says where an entry is from

_DIGEST = 16  # bytes


class Adopted(NamedTuple):
    """An entry of ours, and the members that are not what they were: old value and new, `None` for none."""

    entry: SessionEntry
    mapped: dict[str, tuple[Any, Any]]


def adopt(entry: SessionEntry, session_id: str | None, store: str) -> Adopted:
    """An entry of a store file as one of ours, for a session that has this id here; `None` if it was not imported."""
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
    """The store file that an entry of ours came from, if it is still as it came; `None` if it is ours alone by now."""
    mark = entry.get(MARK)
    if not isinstance(mark, dict) or mark.get("digest") != digest_of(entry.members):
        return None
    return str(mark.get("store"))


def digest_of(members: Json) -> str:
    """What tells an entry from a changed one; the mark itself and the order of the members do not count."""
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
