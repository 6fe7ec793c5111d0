"""Find the session key of a message.

The key depends on groups, scopes of direct chats, linked identities, bindings and the name of the main session. Everything
is an argument: the message, the configuration, the names of the known channels. No store or clock is used.

Three rules differ from the program that owns these keys. A linked identity has one session in all channels, regardless
of the scope (`links_keep_channel` gives the old keys). The main session has the configured name everywhere. A malformed
agent key is refused instead of going to the default agent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from sessile.agents.openclaw.keys import (
    DEFAULT_ACCOUNT,
    DEFAULT_AGENT,
    DEFAULT_MAIN_KEY,
    GLOBAL,
    MAIN,
    UNKNOWN,
    SessionKey,
    lowered,
    normalize_account_id,
    normalize_agent_id,
    normalize_channel,
    normalize_key,
    normalize_main_key,
    normalize_peer,
    parse_key,
    render_key,
)
from sessile.errors import InvalidConfig

DmScope = Literal["main", "per-peer", "per-channel-peer", "per-account-channel-peer"]
Scope = Literal["per-sender", "global"]
PeerKind = Literal["direct", "group", "channel"]
MatchedBy = Literal["peer", "guild", "team", "account", "channel", "default"]

DM_SCOPES: tuple[DmScope, ...] = ("main", "per-peer", "per-channel-peer", "per-account-channel-peer")
GENERAL_TOPIC = "1"  # Telegram's topic of forum messages without one
SURFACES = frozenset(
    (
        *("discord", "googlechat", "imessage", "matrix", "msteams"),
        *("signal", "slack", "telegram", "webchat", "whatsapp"),
    )
)

_DIRECT = ("direct", "dm")
_GROUP_KINDS = ("group", "channel")
_WHATSAPP_GROUP = "@g.us"


class Inbound(msgspec.Struct, frozen=True, kw_only=True):
    """What a message says about its origin."""

    session_key: str | None = None
    sender: str | None = None  # `From` in the owner's documents
    chat_type: str | None = None
    provider: str | None = None


class Group(msgspec.Struct, frozen=True):
    """A chat with several people."""

    channel: str
    kind: PeerKind
    id: str


class Peer(msgspec.Struct, frozen=True):
    """The sender of a message, or the chat that it is in."""

    kind: PeerKind
    id: str


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that assigns messages to an agent. `account` is "*" for any, `None` for the default account."""

    agent: str
    channel: str
    account: str | None = None
    peer: Peer | None = None
    guild: str | None = None
    team: str | None = None


class Route(msgspec.Struct, frozen=True):
    """The agent and session of a message, and the rule that decided it."""

    agent: str
    key: SessionKey
    main_key: SessionKey
    matched_by: MatchedBy


# -- the session of a message


def group_of(inbound: Inbound, surfaces: Collection[str] = SURFACES) -> Group | None:
    """Return the group that a message was sent in; `None` for a direct message.

    A chat type of "direct" is believed, whatever the id of the sender looks like.
    """
    sender = (inbound.sender or "").strip()
    chat_type = (inbound.chat_type or "").strip().lower()
    segments = sender.split(":")
    inner = [segment.lower() for segment in segments[1:-1]]
    whatsapp = sender.lower().endswith(_WHATSAPP_GROUP)
    marked = whatsapp or "group" in inner or "channel" in inner
    if not sender or chat_type in _DIRECT or not (marked or chat_type in _GROUP_KINDS):
        return None
    surface = segments[0].lower() in surfaces
    hint = (inbound.provider or "").strip().lower()
    channel = segments[0].lower() if surface else hint or ("whatsapp" if whatsapp else "")
    if not channel:
        return None
    second = inner[0] if surface and inner else ""
    kind: PeerKind = "group"
    if second != "group" and ("channel" in inner or chat_type == "channel"):
        kind = "channel"
    start = 0 if not surface else 2 if second in _GROUP_KINDS else 1
    return Group(channel, kind, normalize_peer(":".join(segments[start:]), channel, kind) or UNKNOWN)


def derive_key(
    inbound: Inbound,
    *,
    agent: str = DEFAULT_AGENT,
    scope: Scope = "per-sender",
    main_key: str = DEFAULT_MAIN_KEY,
    surfaces: Collection[str] = SURFACES,
) -> SessionKey:
    """Return the session of a message from the message alone; direct messages share the main session."""
    if inbound.session_key and inbound.session_key.strip():
        return parse_key(normalize_key(inbound.session_key))
    if scope == "global":
        return SessionKey(kind=GLOBAL)
    group = group_of(inbound, surfaces)
    if group is None:
        return main_session(agent, main_key)
    return SessionKey(kind=group.kind, agent=normalize_agent_id(agent), channel=group.channel, peer=group.id)


def peer_key(
    agent: str,
    channel: str,
    peer: Peer | None,
    *,
    account: str | None = None,
    dm_scope: DmScope = "main",
    identity_links: Mapping[str, Sequence[str]] | None = None,
    links_keep_channel: bool = False,
    main_key: str = DEFAULT_MAIN_KEY,
) -> SessionKey:
    """Return the session of a chat with a peer."""
    if dm_scope not in DM_SCOPES:
        raise InvalidConfig(f"invalid dm_scope {dm_scope!r}", hint=f"use one of {', '.join(DM_SCOPES)}")
    agent, channel = normalize_agent_id(agent), normalize_channel(channel)
    kind: PeerKind = "direct" if peer is None else peer.kind
    peer_id = None if peer is None else normalize_peer(peer.id, channel, kind)
    if kind != "direct":
        return SessionKey(kind=kind, agent=agent, channel=channel, peer=peer_id)
    if dm_scope == "main" or peer_id is None:
        return main_session(agent, main_key)
    person = linked_identity(identity_links or {}, channel, peer_id)
    direct = SessionKey(kind="direct", agent=agent, peer=person or peer_id)
    if dm_scope == "per-peer" or (person is not None and not links_keep_channel):
        return direct
    if dm_scope == "per-channel-peer":
        return msgspec.structs.replace(direct, channel=channel)
    return msgspec.structs.replace(direct, channel=channel, account=normalize_account_id(account))


def linked_identity(links: Mapping[str, Sequence[str]], channel: str, peer: str) -> str | None:
    """Return the person that a peer is linked to: the first name that lists its id, with or without its channel."""
    candidates = {peer.lower(), f"{channel}:{peer}".lower()}
    for name, ids in links.items():
        if name.strip() and not candidates.isdisjoint(text.strip().lower() for text in ids):
            return name.strip().lower()
    return None


# -- threads


def forum_topic(thread_id: str | int | None, *, is_forum: bool) -> str | None:
    """Return the topic of a Telegram message; groups that are not forums have none, whatever the message says."""
    if not is_forum:
        return None
    return GENERAL_TOPIC if thread_id is None else str(thread_id)


def in_topic(key: SessionKey, topic: str | None) -> SessionKey:
    """Return the session of a topic in a group; without a topic, that of the group."""
    return key if topic is None else msgspec.structs.replace(key, topic=topic)


def in_thread(key: SessionKey, thread_id: str | int | None) -> SessionKey:
    """Return the session of a thread; without one, that of the chat. Discord threads are channels and need no suffix."""
    return key if thread_id is None else lowered(msgspec.structs.replace(key, thread=str(thread_id)))


def parent_of(key: SessionKey) -> SessionKey | None:
    """Return the session above a thread or topic; `None` for other sessions."""
    if key.thread is not None:
        return msgspec.structs.replace(key, thread=None, heartbeat=False)
    if key.topic is not None:
        return msgspec.structs.replace(key, topic=None, heartbeat=False)
    return None


# -- main sessions


def main_session(agent: str, main_key: str = DEFAULT_MAIN_KEY) -> SessionKey:
    """Return the main session of an agent."""
    return parse_key(f"agent:{normalize_agent_id(agent)}:{normalize_main_key(main_key)}")


def canonical_key(
    text: str, *, default_agent: str = DEFAULT_AGENT, main_key: str = DEFAULT_MAIN_KEY, scope: Scope = "per-sender"
) -> SessionKey:
    """Return the key under which a session is stored, with an agent and one name for the main session."""
    key = parse_key(normalize_key(text))
    if key.kind in (GLOBAL, UNKNOWN) and key.agent is None:
        return key
    key = msgspec.structs.replace(key, agent=normalize_agent_id(key.agent or default_agent))
    bare = msgspec.structs.replace(key, thread=None, topic=None, heartbeat=False)
    main = main_session(key.agent or default_agent, main_key)
    if bare not in (main, msgspec.structs.replace(main, kind=MAIN, id=None)):
        return key
    if scope == "global":
        return SessionKey(kind=GLOBAL)
    return msgspec.structs.replace(main, thread=key.thread, topic=key.topic, heartbeat=key.heartbeat)


def shown_key(key: SessionKey, *, main_key: str = DEFAULT_MAIN_KEY) -> str | None:
    """Return a key as an agent's tools show it: its main session is `main`; `global` and `unknown` are not shown."""
    if key.kind in (GLOBAL, UNKNOWN):
        return None
    return MAIN if key.agent is not None and key == main_session(key.agent, main_key) else render_key(key)


# -- bindings


def resolve_route(
    bindings: Sequence[Binding],
    channel: str,
    *,
    account: str | None = None,
    peer: Peer | None = None,
    guild: str | None = None,
    team: str | None = None,
    default_agent: str = DEFAULT_AGENT,
    dm_scope: DmScope = "main",
    identity_links: Mapping[str, Sequence[str]] | None = None,
    links_keep_channel: bool = False,
    main_key: str = DEFAULT_MAIN_KEY,
) -> Route:
    """Return the route of a message: that of the first binding of the most specific kind, else of the default agent."""
    channel, account = normalize_channel(channel), normalize_account_id(account)
    possible = [b for b in bindings if normalize_channel(b.channel) == channel and _fits_account(b, account)]
    matched_by, agent = next(
        ((how, b.agent) for how in _PRECEDENCE for b in possible if _fits(how, b, channel, peer, guild, team)),
        ("default", default_agent),
    )
    key = peer_key(
        agent,
        channel,
        peer,
        account=account,
        dm_scope=dm_scope,
        identity_links=identity_links,
        links_keep_channel=links_keep_channel,
        main_key=main_key,
    )
    return Route(normalize_agent_id(agent), key, main_session(agent, main_key), matched_by)


_PRECEDENCE: tuple[MatchedBy, ...] = ("peer", "guild", "team", "account", "channel")


def _fits_account(binding: Binding, account: str) -> bool:
    wanted = (binding.account or "").strip()
    return wanted == "*" or (normalize_account_id(wanted) if wanted else DEFAULT_ACCOUNT) == account


def _fits(
    how: MatchedBy, binding: Binding, channel: str, peer: Peer | None, guild: str | None, team: str | None
) -> bool:
    if binding.peer is not None:
        return how == "peer" and peer is not None and _normal(binding.peer, channel) == _normal(peer, channel)
    if binding.guild is not None:
        return how == "guild" and binding.guild.strip() == (guild or "").strip()
    if binding.team is not None:
        return how == "team" and binding.team.strip() == (team or "").strip()
    anyone = (binding.account or "").strip() == "*"
    return how == ("channel" if anyone else "account")


def _normal(peer: Peer, channel: str) -> tuple[str, str | None]:
    return peer.kind, normalize_peer(peer.id, channel, peer.kind)
