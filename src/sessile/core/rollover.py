"""What a reset keeps of an entry of the store, what it clears, and how it is taken back.

Rules: there is one way to begin a new session under a key, whoever asks for it. What a person has set stays (`KEPT`), what
belongs to the session goes (`CLEARED`), what nobody here has heard of survives. Overrides that the program chose by itself go
too, for good: it can choose again.

The session that was left is remembered in `previousSessions`, newest first:

    {"sessionId": "…", "endedAt": 1771237230000, "reason": "daily", "sessionFile": "…", "members": {…}}

`members` is what was cleared, so that a reset can be taken back whole; only the newest record carries it, because a store with a
reset a day must stay small. A session that leaves the list stays on disk and in every listing of transcripts.

Ids and times are arguments; nothing here reads or writes a transcript.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from sessile.core.resets import ResetPolicy, times_of
from sessile.errors import SessionNotFound

Json = dict[str, Any]
Reason = Literal["new", "reset", "daily", "idle"]

PREVIOUS = "previousSessions"
LIMIT = 20  # sessions that are remembered
NEW_SESSION = "🧭 New session."  # what is said of one where there was none before

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
    *("archivedAt", "archivedReason"),  # whoever speaks in it again wants it back
    *("inputTokens", "outputTokens", "totalTokens", "totalTokensFresh", "cacheRead", "cacheWrite"),
    *("contextTokens", "estimatedCostUsd", "contextBudgetStatus"),
    *("compactionCount", "memoryFlushAt", "memoryFlushCompactionCount", "memoryFlush"),
    *("fallbackNoticeSelectedModel", "fallbackNoticeActiveModel", "fallbackNoticeReason"),
    *("authProfileOverrideCompactionCount", "abortCutoffMessageSid", "abortCutoffTimestamp"),
    # other programs' sessions, which would go on with the old conversation
    *("cliSessionIds", "claudeCliSessionId", "acp"),
)

_NAMES = ("sessionId", "sessionFile")  # what finds a session again; every record has them

# What goes as well when the program chose it by itself.
_CHOSEN = {
    "modelOverrideSource": ("modelOverrideSource", "providerOverride", "modelOverride"),
    "authProfileOverrideSource": ("authProfileOverrideSource", "authProfileOverride"),
}


class Previous(NamedTuple):
    """A session that a key had before; time and reason are `None` if unknown."""

    session_id: str
    ended_at: int | None
    reason: str | None


def roll_over(entry: Mapping[str, Any], session_id: str, now: int, reason: Reason) -> Json:
    """The entry with a new session."""
    records = [*_left(entry, now, reason), *_lighter(_records(entry))]
    return _begun(entry, {"sessionId": session_id, "compactionCount": 0}, records[:LIMIT], now)


def resume(entry: Mapping[str, Any], number: int, now: int) -> Json:
    """The entry with an earlier session, counted from 1 for the newest; the current one becomes the newest of the list.

    The times begin anew: with the old ones the next message would reset the session again. Counters of any but the newest
    are unknown, and missing.
    """
    records = _records(entry)
    places = [place for place, record in enumerate(records) if _previous(record) is not None]
    if not 1 <= number <= len(places):
        there = f"{len(places)} earlier session{'' if len(places) == 1 else 's'}" if places else "no earlier session"
        raise SessionNotFound(
            f"there is no session {number} to go back to: this conversation has {there}",
            hint="older ones are found by `sessile search` and `sessile ls`",
        )
    place = places[number - 1]
    chosen, others = records[place], [*records[:place], *records[place + 1 :]]
    members = chosen.get("members")
    # People edit these files: a record brings back what a reset takes away, and sets nothing else.
    restored = {name: members[name] for name in CLEARED if name in members} if isinstance(members, dict) else {}
    restored |= {name: chosen[name] for name in _NAMES if name in chosen}
    return _begun(entry, restored, [*_left(entry, now, "resume"), *_lighter(others)], now)


def previous_sessions(entry: Mapping[str, Any]) -> tuple[Previous, ...]:
    """The sessions that the key of an entry had before, newest first; records that name none are passed over."""
    found = (_previous(record) for record in _records(entry))
    return tuple(previous for previous in found if previous is not None)


def with_session(entry: Mapping[str, Any], session_id: str) -> Json | None:
    """The entry as it names that session, which is the current or an earlier one; `None` if it is neither."""
    records = [entry, *(record for record in _records(entry) if isinstance(record, dict))]
    named = next((record for record in records if record.get("sessionId") == session_id), None)
    if named is None:
        return None
    others = {name: value for name, value in entry.items() if name not in _NAMES}
    return others | {name: named[name] for name in _NAMES if name in named}


def _begun(entry: Mapping[str, Any], members: Json, records: list[Any], now: int) -> Json:
    """What is kept of an entry, with the members of a session that begins now."""
    cleared = {PREVIOUS, *CLEARED}
    for source, names in _CHOSEN.items():
        if entry.get(source) == "auto":
            cleared.update(names)
    kept = {name: value for name, value in entry.items() if name not in cleared}
    updated = times_of(entry).updated
    # Of two entries the later change wins elsewhere: a clock that went back must not make this one the older.
    latest = now if updated is None else max(now, updated)
    new = {**kept, **members, "updatedAt": latest, "sessionStartedAt": now, "lastInteractionAt": now}
    return {**new, PREVIOUS: records} if records else new


def _left(entry: Mapping[str, Any], now: int, reason: str) -> list[Any]:
    """The record of the session that is left, if there is one."""
    session_id = entry.get("sessionId")
    if not isinstance(session_id, str) or not session_id:
        return []
    names = {name: entry[name] for name in _NAMES if name in entry}
    members = {name: value for name, value in entry.items() if name in CLEARED and name not in _NAMES}
    return [{**names, "endedAt": now, "reason": reason, "members": members}]


def _lighter(records: list[Any]) -> list[Any]:
    """Records without what only the newest one carries."""
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
    """What the first reply after a reset says."""
    policy = policy or ResetPolicy()
    if reason == "daily":
        hour = "" if policy.at_hour is None else f" at {policy.at_hour:02d}:00"
        return f"🧭 New session: the daily reset{hour} was due. {_BACK} {_NO_RESETS}"
    if reason == "idle":
        minutes = policy.idle_minutes
        idle = "idle time" if minutes is None else f"{minutes} idle minute{'' if minutes == 1 else 's'}"
        return f"🧭 New session: the last one ended after {idle}. {_BACK} {_NO_RESETS}"
    return f"{NEW_SESSION} {_BACK}"
