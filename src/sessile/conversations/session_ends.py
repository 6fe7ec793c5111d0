"""When sessions of a conversation end by themselves: the configured policy for its type and channel, and the time zones.

What a message says of its chat counts before what the entry remembers. Messages of the system end no session. The rules
themselves are those of `core.resets`; here they meet keys, entries and the names of time zones.
"""

from __future__ import annotations

from datetime import tzinfo
from zoneinfo import ZoneInfo

from sessile.conversations.inbound import Asked, Inbound
from sessile.core import resets
from sessile.core.resets import ResetConfig, ResetPolicy
from sessile.errors import InvalidConfig
from sessile.formats.yoyoclaw.entries import SessionEntry


class SessionEnds:
    """The ends of sessions by a configuration; `zone` is the time zone of policies that name none.

    Raises `InvalidConfig` for a time zone that is not known: now, not when somebody speaks.
    """

    def __init__(self, config: ResetConfig, zone: tzinfo) -> None:
        self._config = config
        self._zone = zone
        self._zones = {name: _zone_named(name, place) for place, name in resets.zones_named(config).items()}

    def policy(self, asked: Asked, entry: SessionEntry) -> ResetPolicy:
        """The policy that holds for a conversation."""
        inbound = asked.inbound or Inbound()
        kind = resets.conversation_type(
            asked.key,
            chat_type=inbound.chat_type or entry.known("chatType"),
            in_thread=bool(inbound.parent_key or entry.known("parentSessionKey")),
        )
        channel = inbound.channel or asked.key.channel or entry.known("channel")
        return resets.resolve_policy(self._config, kind, channel)

    def reason(self, asked: Asked, entry: SessionEntry, now: int) -> resets.Reason | None:
        """Why the session of an entry does not go on; `None` if it does."""
        if asked.inbound is not None and asked.inbound.system:
            return None
        policy = self.policy(asked, entry)
        return resets.freshness(resets.times_of(entry), policy, now, self._zone_of(policy)).reason

    def _zone_of(self, policy: ResetPolicy) -> tzinfo:
        return self._zone if policy.time_zone is None else self._zones[policy.time_zone]


def _zone_named(name: str, place: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        hint = "use a name such as Europe/Berlin"
        raise InvalidConfig(f"{place} is no time zone: {name[:80]!r}", hint=hint) from error
