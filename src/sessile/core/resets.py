"""Resets: when a conversation starts a new session by itself, and what a reset keeps.

A session ends at an hour of the day, after idle minutes, or never. Rules:
- A rule of the channel replaces all others. Otherwise the rule of the conversation's type takes precedence over the base,
  member by member. The default is daily at 04:00.
- If both reasons apply, the earlier one counts. A session that started exactly at the hour, or was idle for exactly the
  limit, is fresh. Times in the future or before 1970 count as unknown, and unknown times never end a session.
- The hour is local time. If the clocks skip it, the reset is at the jump; if it occurs twice, at the first one.
- Nothing happens at the hour itself: the next message checks.

`roll_over` starts a new session under a key, for every reason. Settings of the user stay (`KEPT`), members of the session are
removed (`CLEARED`), unknown members stay. Overrides that the program chose itself are removed for good, because it can choose
again. The old session is recorded in `previousSessions`, newest first:

    {"sessionId": "…", "endedAt": 1771237230000, "reason": "daily", "sessionFile": "…", "members": {…}}

`members` holds what was removed, so that `resume` can undo the reset completely. Only the newest record has it, to keep a
store with a reset a day small. A session that drops off the list stays on disk and in listings.

The clock, time zones and ids are arguments; nothing here reads or writes a transcript.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any, Literal, NamedTuple, Protocol, cast

import msgspec

from sessile.errors import InvalidConfig, SessionNotFound

Mode = Literal["daily", "idle", "none"]
ConversationType = Literal["direct", "group", "thread"]
Reason = Literal["daily", "idle"]

AT_HOUR = 4
IDLE_MINUTES = 60  # of mode "idle" without a number
MODES: tuple[Mode, ...] = ("daily", "idle", "none")

_TYPES = {"direct": "direct", "dm": "direct", "group": "group", "thread": "thread"}
_DIRECT = ("direct", "dm")
_GROUP_KINDS = ("group", "channel", "room")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MINUTE = 60_000  # milliseconds
_LARGEST = 2**53  # what JavaScript can count
_NEAR = range(-2, 3)  # days; zones have skipped and repeated whole dates


# -- configuration


class ResetRule(msgspec.Struct, frozen=True):
    """A reset rule of the configuration; members that are not set are `None`."""

    mode: Mode | None = None
    at_hour: float | None = None
    idle_minutes: float | None = None
    time_zone: str | None = None


class ResetConfig(msgspec.Struct, frozen=True):
    """All reset rules of a configuration. `idle_minutes` is the older setting."""

    base: ResetRule | None = None
    by_type: dict[str, ResetRule] = {}
    by_channel: dict[str, ResetRule] = {}
    idle_minutes: float | None = None


class Remark(NamedTuple):
    """A part of a configuration that has no effect."""

    place: str
    detail: str


def read_reset_config(session: Mapping[str, Any]) -> tuple[ResetConfig, tuple[Remark, ...]]:
    """Read the reset rules from the `session` part of a configuration; also return remarks on unknown keys.

    Raise `InvalidConfig` for an invalid value.
    """
    remarks: list[Remark] = []
    base = None if session.get("reset") is None else _rule(session["reset"], "session.reset", remarks)
    by_type: dict[str, ResetRule] = {}
    types = _object(session.get("resetByType"), "session.resetByType")
    for name, value in types.items():
        place = f"session.resetByType.{name}"
        if name not in _TYPES:
            remarks.append(Remark(place, f"unknown type: use {', '.join(_TYPES)}"))
        elif name == "dm" and "direct" in types:
            remarks.append(Remark(place, "ignored because `direct` is set too"))
        else:
            by_type[_TYPES[name]] = _rule(value, place, remarks)
    channels = _object(session.get("resetByChannel"), "session.resetByChannel")
    config = ResetConfig(
        base=base,
        by_type=by_type,
        by_channel={
            _folded(name): _rule(value, f"session.resetByChannel.{name}", remarks) for name, value in channels.items()
        },
        idle_minutes=_number(session.get("idleMinutes"), "session.idleMinutes"),
    )
    return config, tuple(remarks)


def zones_named(config: ResetConfig) -> dict[str, str]:
    """Return the time zones of a configuration by their keys."""
    rules = {"session.reset": config.base or ResetRule()}
    rules |= {f"session.resetByType.{name}": rule for name, rule in config.by_type.items()}
    rules |= {f"session.resetByChannel.{name}": rule for name, rule in config.by_channel.items()}
    return {f"{place}.timeZone": rule.time_zone for place, rule in rules.items() if rule.time_zone is not None}


def _rule(value: object, place: str, remarks: list[Remark]) -> ResetRule:
    members = _object(value, place)
    known = ("mode", "atHour", "idleMinutes", "timeZone")
    remarks += [
        Remark(f"{place}.{name}", f"unknown key: use {', '.join(known)}") for name in members if name not in known
    ]
    mode, zone = members.get("mode"), members.get("timeZone")
    if mode is not None and mode not in MODES:
        raise InvalidConfig(f"{place}.mode is invalid", hint=f"use {', '.join(MODES)}")
    if zone is not None and (not isinstance(zone, str) or not zone.strip()):
        raise InvalidConfig(f"{place}.timeZone is not a time zone", hint="use a name such as Europe/Berlin")
    return ResetRule(
        mode=cast("Mode | None", mode),
        at_hour=_number(members.get("atHour"), f"{place}.atHour"),
        idle_minutes=_number(members.get("idleMinutes"), f"{place}.idleMinutes"),
        time_zone=zone,
    )


def _object(value: object, place: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidConfig(f"{place} is not an object", hint='write it as {"mode": "daily", "atHour": 4}')
    return value


def _number(value: object, place: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidConfig(f"{place} is not a number", hint="write it without quotes")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise InvalidConfig(f"{place} is too large", hint="use a number of hours or minutes")
    return value


def _folded(channel: str) -> str:
    return channel.strip().lower()


# -- policies


class ResetPolicy(msgspec.Struct, frozen=True):
    """The policy of one conversation; `None` for the hour or the minutes means no such reset."""

    at_hour: int | None = AT_HOUR
    idle_minutes: int | None = None
    time_zone: str | None = None  # `None` is the local zone


def resolve_policy(config: ResetConfig, kind: ConversationType, channel: str | None) -> ResetPolicy:
    """Return the policy of a conversation of that type in that channel."""
    base = config.base or ResetRule()
    chosen = None if channel is None else config.by_channel.get(_folded(channel))
    if chosen is not None:
        # The user's time zone does not depend on the channel.
        return _policy(chosen.mode or "daily", chosen.at_hour, chosen.idle_minutes, chosen.time_zone or base.time_zone)
    own = config.by_type.get(kind) or ResetRule()
    idle = _first(own.idle_minutes, base.idle_minutes, config.idle_minutes)
    hour = _first(own.at_hour, base.at_hour)
    return _policy(_mode(own, base, config), hour, idle, own.time_zone or base.time_zone)


def _mode(own: ResetRule, base: ResetRule, config: ResetConfig) -> Mode:
    if own.mode is not None:
        return own.mode
    if base.mode == "none" and (own.at_hour is not None or own.idle_minutes is not None):
        return "idle" if own.at_hour is None else "daily"
    if base.mode is not None:
        return base.mode
    only_old_setting = config.idle_minutes is not None and config.base is None and not config.by_type
    return "idle" if only_old_setting else "daily"


def _policy(mode: Mode, hour: float | None, idle: float | None, zone: str | None) -> ResetPolicy:
    if mode == "none":
        return ResetPolicy(None, None, zone)
    if hour is None or not math.isfinite(hour):
        hour = AT_HOUR
    if idle is None and mode == "idle":
        idle = IDLE_MINUTES
    minutes = None if idle is None or not math.isfinite(idle) else math.floor(idle)
    return ResetPolicy(
        at_hour=min(max(math.floor(hour), 0), 23) if mode == "daily" else None,
        idle_minutes=minutes if minutes is not None and minutes > 0 else None,
        time_zone=zone,
    )


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


class Key(Protocol):
    """The parts of a session key that matter here."""

    @property
    def kind(self) -> str: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def thread(self) -> str | None: ...


def conversation_type(
    key: Key, *, chat_type: str | None = None, in_thread: bool = False, in_group: bool = False
) -> ConversationType:
    """Return the type of a conversation, from its key and from where a message was sent."""
    if in_thread or key.thread is not None or key.topic is not None:
        return "thread"
    given = _folded(chat_type or "")
    if in_group or key.kind in _GROUP_KINDS or (given and given not in _DIRECT):
        return "group"
    return "direct"


# -- freshness


class Times(NamedTuple):
    """When a session started, when it was last used, and when its entry changed; `None` is unknown."""

    started: int | None = None
    interacted: int | None = None
    updated: int | None = None


class Freshness(NamedTuple):
    """Why a session has ended and when; both `None` if it has not."""

    reason: Reason | None
    at: int | None

    @property
    def fresh(self) -> bool:
        return self.reason is None


def times_of(entry: Mapping[str, Any]) -> Times:
    """Read the times of a store entry; values that are not numbers are unknown."""
    return Times(*(_time(entry.get(name)) for name in ("sessionStartedAt", "lastInteractionAt", "updatedAt")))


def _time(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, float) and math.isfinite(value) else None


def freshness(times: Times, policy: ResetPolicy, now: int, zone: tzinfo) -> Freshness:
    """Return whether a session is still fresh, or which reason ended it first."""
    started, interacted, updated = (None if t is None or not 0 <= t <= now else t for t in times)
    # After a wrong clock, the last message may be the only known time; the session did not start later than that.
    started = next((time for time in (started, updated, interacted) if time is not None), None)
    interacted = started if interacted is None else interacted
    ends: list[Freshness] = []
    if policy.at_hour is not None and started is not None:
        hour = daily_reset_after(started, policy.at_hour, zone)
        if hour is not None and hour <= now:
            ends.append(Freshness("daily", hour))
    if policy.idle_minutes is not None and interacted is not None:
        end = interacted + policy.idle_minutes * _MINUTE
        if now > end:
            ends.append(Freshness("idle", end))
    return min(ends, key=lambda end: end.at or 0, default=Freshness(None, None))


def daily_reset_before(now: int, hour: int, zone: tzinfo) -> int | None:
    """Return the last time, not after `now`, at which that hour started in a zone; `None` if out of range."""
    return max((moment for moment in _resets_near(now, hour, zone) if moment <= now), default=None)


def daily_reset_after(now: int, hour: int, zone: tzinfo) -> int | None:
    """Return the first time after `now` at which that hour starts in a zone; `None` if out of range."""
    return min((moment for moment in _resets_near(now, hour, zone) if moment > now), default=None)


def _resets_near(now: int, hour: int, zone: tzinfo) -> Iterator[int]:
    """Yield the times of that hour on the days around `now`."""
    try:
        today = (_EPOCH + now * _MILLISECOND).astimezone(zone).date()
    except OverflowError:
        return
    for days in _NEAR:
        try:
            # The first of two equal hours; for a skipped hour, the time before the jump plus the offset.
            local = datetime.combine(today + timedelta(days=days), time(hour), zone)
            yield (local.astimezone(UTC) - _EPOCH) // _MILLISECOND
        except OverflowError:
            continue


# -- rollover

Json = dict[str, Any]
RolloverReason = Literal["new", "reset", "daily", "idle"]

PREVIOUS = "previousSessions"
LIMIT = 20  # recorded sessions
NEW_SESSION = "🧭 New session."  # the notice of a first session

_BACK = "Nothing is lost: /resume takes you back to the last one."
_NO_RESETS = 'To have no resets, set session.reset.mode to "none".'

KEPT = (
    # who and where
    *("label", "displayName", "chatType", "channel", "groupId", "subject", "groupChannel", "space", "category"),
    *("origin", "deliveryContext", "route", "lastChannel", "lastTo", "lastAccountId", "lastThreadId", "incognito"),
    *("spawnedBy", "spawnDepth", "parentSessionKey", "forkedFromParent", "autoLabel", "pinnedAt", "lastReadAt"),
    # toggles
    *("thinkingLevel", "verboseLevel", "reasoningLevel", "elevatedLevel", "ttsAuto", "responseUsage", "sendPolicy"),
    *("execHost", "execSecurity", "execAsk", "execNode", "groupActivation", "groupActivationNeedsSystemIntro"),
    *("queueMode", "queueDebounceMs", "queueCap", "queueDrop"),
    # the model
    *("providerOverride", "modelOverride", "modelOverrideSource", "modelProvider", "model", "contextWindow"),
    *("authProfileOverride", "authProfileOverrideSource"),
    # housekeeping of the key
    *("lastHeartbeatText", "lastHeartbeatSentAt", "skillsSnapshot", "systemPromptReport", "quotaSuspension"),
    *("pluginExtensions", "lifecycleRevision", "usageFamilyKey", "usageFamilySessionIds"),
)
CLEARED = (
    *("sessionId", "sessionFile", "updatedAt", "sessionStartedAt", "lastInteractionAt", "lastActivityAt"),
    *("systemSent", "abortedLastRun", "status", "startedAt", "endedAt", "runtimeMs", "goal", "markedUnreadAt"),
    *("archivedAt", "archivedReason"),  # a new message brings the conversation back
    *("inputTokens", "outputTokens", "totalTokens", "totalTokensFresh", "cacheRead", "cacheWrite"),
    *("contextTokens", "estimatedCostUsd", "contextBudgetStatus"),
    *("compactionCount", "memoryFlushAt", "memoryFlushCompactionCount", "memoryFlush"),
    *("fallbackNoticeSelectedModel", "fallbackNoticeActiveModel", "fallbackNoticeReason"),
    *("authProfileOverrideCompactionCount", "abortCutoffMessageSid", "abortCutoffTimestamp"),
    # sessions of other programs, which would continue the old conversation
    *("cliSessionIds", "claudeCliSessionId", "acp"),
)

_NAMES = ("sessionId", "sessionFile")  # they identify a session; every record has them

# Also removed if the program chose the value itself.
_CHOSEN = {
    "modelOverrideSource": ("modelOverrideSource", "providerOverride", "modelOverride"),
    "authProfileOverrideSource": ("authProfileOverrideSource", "authProfileOverride"),
}


class Previous(NamedTuple):
    """An earlier session of a key; time and reason are `None` if unknown."""

    session_id: str
    ended_at: int | None
    reason: str | None


def roll_over(entry: Mapping[str, Any], session_id: str, now: int, reason: RolloverReason) -> Json:
    """Return the entry with a new session."""
    records = [*_left(entry, now, reason), *_lighter(_records(entry))]
    return _begun(entry, {"sessionId": session_id, "compactionCount": 0}, records[:LIMIT], now)


def resume(entry: Mapping[str, Any], number: int, now: int) -> Json:
    """Return the entry with an earlier session, counted from 1 for the newest; the current one is added to the list.

    The times start anew, because with the old ones the next message would reset the session again. Only the newest session
    gets its counters back.
    """
    records = _records(entry)
    places = [place for place, record in enumerate(records) if _previous(record) is not None]
    if not 1 <= number <= len(places):
        there = f"{len(places)} earlier session{'' if len(places) == 1 else 's'}" if places else "no earlier session"
        raise SessionNotFound(
            f"earlier session {number} not found: this conversation has {there}",
            hint="find older sessions with `sessile search` or `sessile ls`",
        )
    place = places[number - 1]
    chosen, others = records[place], [*records[:place], *records[place + 1 :]]
    members = chosen.get("members")
    # Users may edit these files: a record restores only what a reset removes.
    restored = {name: members[name] for name in CLEARED if name in members} if isinstance(members, dict) else {}
    restored |= {name: chosen[name] for name in _NAMES if name in chosen}
    return _begun(entry, restored, [*_left(entry, now, "resume"), *_lighter(others)], now)


def previous_sessions(entry: Mapping[str, Any]) -> tuple[Previous, ...]:
    """Return the earlier sessions of an entry's key, newest first, without invalid records."""
    found = (_previous(record) for record in _records(entry))
    return tuple(previous for previous in found if previous is not None)


def with_session(entry: Mapping[str, Any], session_id: str) -> Json | None:
    """Return the entry with that session, current or earlier; `None` if it has no such session."""
    records = [entry, *(record for record in _records(entry) if isinstance(record, dict))]
    named = next((record for record in records if record.get("sessionId") == session_id), None)
    if named is None:
        return None
    others = {name: value for name, value in entry.items() if name not in _NAMES}
    return others | {name: named[name] for name in _NAMES if name in named}


def _begun(entry: Mapping[str, Any], members: Json, records: list[Any], now: int) -> Json:
    """Return the kept members of an entry with those of a session that starts now."""
    cleared = {PREVIOUS, *CLEARED}
    for source, names in _CHOSEN.items():
        if entry.get(source) == "auto":
            cleared.update(names)
    kept = {name: value for name, value in entry.items() if name not in cleared}
    updated = times_of(entry).updated
    # Elsewhere the later change of two wins, so a clock that was set back must not make this one older.
    latest = now if updated is None else max(now, updated)
    new = {**kept, **members, "updatedAt": latest, "sessionStartedAt": now, "lastInteractionAt": now}
    return {**new, PREVIOUS: records} if records else new


def _left(entry: Mapping[str, Any], now: int, reason: str) -> list[Any]:
    """Return the record of the current session, if there is one, as a list."""
    session_id = entry.get("sessionId")
    if not isinstance(session_id, str) or not session_id:
        return []
    names = {name: entry[name] for name in _NAMES if name in entry}
    members = {name: value for name, value in entry.items() if name in CLEARED and name not in _NAMES}
    return [{**names, "endedAt": now, "reason": reason, "members": members}]


def _lighter(records: list[Any]) -> list[Any]:
    """Return records without the members that only the newest one keeps."""
    return [
        {name: value for name, value in record.items() if name != "members"} if isinstance(record, dict) else record
        for record in records
    ]


def _records(entry: Mapping[str, Any]) -> list[Any]:
    found = entry.get(PREVIOUS)
    return found if isinstance(found, list) else []


def _previous(record: Any) -> Previous | None:
    if not isinstance(record, dict):
        return None
    session_id, ended, reason = record.get("sessionId"), record.get("endedAt"), record.get("reason")
    if not isinstance(session_id, str) or not session_id:
        return None
    known = ended if isinstance(ended, int) and not isinstance(ended, bool) else None
    return Previous(session_id, known, reason if isinstance(reason, str) else None)


def reset_notice(reason: str, policy: ResetPolicy | None = None) -> str:
    """Return the notice for the first reply after a reset."""
    policy = policy or ResetPolicy()
    if reason == "daily":
        hour = "" if policy.at_hour is None else f" at {policy.at_hour:02d}:00"
        return f"🧭 New session: the daily reset{hour} was due. {_BACK} {_NO_RESETS}"
    if reason == "idle":
        minutes = policy.idle_minutes
        idle = "idle time" if minutes is None else f"{minutes} idle minute{'' if minutes == 1 else 's'}"
        return f"🧭 New session: the last one ended after {idle}. {_BACK} {_NO_RESETS}"
    return f"{NEW_SESSION} {_BACK}"
