"""Routing of inbound messages: the key of a message's conversation, and what its entry stores about the chat.

Rules: a key in the message has precedence. Then what started it: a cron job, a hook, a node, a sub-agent. Then its
chat: the configured bindings select the agent, unless the message names one; topics and threads are appended to the key
of their chat. A message without a channel belongs to the main conversation. A group message without a channel is
rejected, because the main conversation is private.

`Keys` caches parsed keys: parsing costs more than everything else on the way from a message to its session.

Nothing here reads a store, a file or the clock. The spelling of keys is defined in `agents.openclaw.keys`.
"""

from __future__ import annotations

import posixpath
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from sessile.agents.openclaw.keys import (
    AGENT,
    GLOBAL,
    MAIN,
    SessionKey,
    fold_key,
    lowered,
    normalize_agent_id,
    normalize_channel,
    normalize_key,
    normalize_main_key,
    parse_key,
    render_key,
)
from sessile.agents.openclaw.routing import (
    Binding,
    DmScope,
    Peer,
    Scope,
    canonical_key,
    forum_topic,
    group_of,
    in_thread,
    in_topic,
    main_session,
    parent_of,
    peer_key,
    resolve_route,
)
from sessile.agents.openclaw.routing import Inbound as Sender
from sessile.config import Config
from sessile.errors import Invalid, InvalidId

Json = dict[str, Any]

_MAX_CACHED = 1 << 16  # keys
_KINDS = ("direct", "group", "channel")
_TOPIC_CHANNELS = ("telegram",)  # channels whose groups have topics; in others a thread is a thread


class Inbound(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a message; `None` means unknown.

    `sender` is the documented `From`, and identifies a group if nothing else does. `to` is where a reply goes. A
    `system` message, such as a heartbeat, neither keeps a session fresh nor ends it.
    """

    session_key: str | None = None
    agent: str | None = None
    channel: str | None = None
    account: str | None = None
    chat_type: str | None = None
    peer: str | None = None
    sender: str | None = None
    to: str | None = None
    guild: str | None = None
    team: str | None = None
    thread: str | int | None = None
    is_forum: bool = False
    parent_key: str | None = None
    cron: str | None = None
    run: str | None = None
    hook: str | None = None
    node: str | None = None
    subagent: str | None = None
    spawned_by: str | None = None
    subject: str | None = None
    display_name: str | None = None
    system: bool = False


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """The configured rules for keys."""

    default_agent: str = "main"
    main_key: str = "main"
    scope: Scope = "per-sender"
    dm_scope: DmScope = "main"
    bindings: tuple[Binding, ...] = ()
    identity_links: dict[str, tuple[str, ...]] = {}
    links_keep_channel: bool = False

    def canonical(self, text: str) -> SessionKey:
        """Return the key under which a conversation is stored, from any spelling."""
        return canonical_key(text, default_agent=self.default_agent, main_key=self.main_key, scope=self.scope)

    def main(self, agent: str) -> SessionKey:
        """Return the key of an agent's main conversation."""
        return SessionKey(kind=GLOBAL) if self.scope == "global" else main_session(agent, self.main_key)


class Asked(NamedTuple):
    """A resolved key, and the message that it was made from, if any."""

    key: SessionKey
    text: str
    agent: str
    inbound: Inbound | None


class Keys:
    """Resolves keys, and caches their spellings."""

    def __init__(self, routing: Routing) -> None:
        self.routing = routing
        self._spelling = lru_cache(maxsize=_MAX_CACHED)(self._spell)
        self._rendered = lru_cache(maxsize=_MAX_CACHED)(render_key)
        self._canonical = lru_cache(maxsize=_MAX_CACHED)(routing.canonical)

    def asked(self, source: Inbound | SessionKey | str) -> Asked:
        """Resolve a message, or any spelling of a key."""
        inbound = source if isinstance(source, Inbound) else None
        if isinstance(source, Inbound):
            key = self._canonical(source.session_key) if source.session_key else key_of(source, self.routing)
        else:
            key = self._canonical(source if isinstance(source, str) else self._rendered(source))
        return Asked(key, self._rendered(key), normalize_agent_id(key.agent or self.routing.default_agent), inbound)

    def spelling(self, agent: str, text: str) -> str:
        """Return the canonical spelling of a key in an agent's store file. A malformed key is returned unchanged."""
        first, _, after_agent = text.partition(":")
        rest = after_agent.partition(":")[2]
        name = rest.partition(":")[0]
        if first == AGENT and name and name not in (MAIN, self._main_name) and fold_key(text) == text:
            return text  # as nearly all keys are
        return self._spelling(agent, text)

    @property
    def _main_name(self) -> str:
        return normalize_main_key(self.routing.main_key).partition(":")[0]

    def _spell(self, agent: str, text: str) -> str:
        try:
            return render_key(msgspec.structs.replace(self.routing, default_agent=agent).canonical(text))
        except InvalidId:
            return text


def key_of(inbound: Inbound, routing: Routing) -> SessionKey:
    """Return the key of a message's conversation."""
    if inbound.session_key and inbound.session_key.strip():
        return routing.canonical(inbound.session_key)
    agent = normalize_agent_id(inbound.agent or routing.default_agent)
    started = _started(inbound, agent)
    if started is not None:
        return lowered(started)
    if routing.scope == "global":
        return SessionKey(kind=GLOBAL)
    return _in_thread(_chat(inbound, routing), inbound)


def _started(inbound: Inbound, agent: str) -> SessionKey | None:
    """Return the key of a conversation that was not started by a person."""
    if inbound.subagent is not None:
        parent = None if inbound.spawned_by is None else parse_key(normalize_key(inbound.spawned_by))
        if parent is not None and parent.kind == "subagent":
            return msgspec.structs.replace(parent, agent=parent.agent or agent, sub=(*parent.sub, inbound.subagent))
        return SessionKey(kind="subagent", agent=agent, id=inbound.subagent)
    if inbound.cron is not None:
        return SessionKey(kind="cron", agent=agent, id=inbound.cron, run=inbound.run)
    for kind in ("hook", "node"):
        if (name := getattr(inbound, kind)) is not None:
            return SessionKey(kind=kind, agent=agent, id=name)
    return None


def _chat(inbound: Inbound, routing: Routing) -> SessionKey:
    """Return the key of the chat, without topic and thread."""
    peer = _peer(inbound)
    channel = _channel(inbound)
    if channel is None:
        if peer is not None and peer.kind != "direct":
            raise Invalid(f"channel is required for a {peer.kind} message", hint="pass the channel, such as telegram")
        return main_session(inbound.agent or routing.default_agent, routing.main_key)
    if inbound.agent is not None:
        return peer_key(
            inbound.agent,
            channel,
            peer,
            account=inbound.account,
            dm_scope=routing.dm_scope,
            identity_links=routing.identity_links,
            links_keep_channel=routing.links_keep_channel,
            main_key=routing.main_key,
        )
    return resolve_route(
        routing.bindings,
        channel,
        account=inbound.account,
        peer=peer,
        guild=inbound.guild,
        team=inbound.team,
        default_agent=routing.default_agent,
        dm_scope=routing.dm_scope,
        identity_links=routing.identity_links,
        links_keep_channel=routing.links_keep_channel,
        main_key=routing.main_key,
    ).key


def _channel(inbound: Inbound) -> str | None:
    if inbound.channel is not None:
        return normalize_channel(inbound.channel)
    group = group_of(Sender(sender=inbound.sender, chat_type=inbound.chat_type))
    return None if group is None else group.channel


def _peer(inbound: Inbound) -> Peer | None:
    """Return the sender of a message, or its group."""
    chat_type = (inbound.chat_type or "").strip().lower()
    kind = {"dm": "direct", "room": "channel"}.get(chat_type, chat_type)
    if kind and kind not in _KINDS:
        raise Invalid(f"invalid chat type {inbound.chat_type!r}", hint=f"use {', '.join(_KINDS)}")
    if inbound.peer is not None:
        return Peer(kind or "direct", inbound.peer)  # type: ignore[arg-type]
    group = group_of(Sender(sender=inbound.sender, chat_type=inbound.chat_type, provider=inbound.channel))
    if group is not None:
        return Peer(group.kind, group.id)
    return None if inbound.sender is None else Peer("direct", inbound.sender)


def _in_thread(key: SessionKey, inbound: Inbound) -> SessionKey:
    if key.kind == "group" and key.channel in _TOPIC_CHANNELS:
        return in_topic(key, forum_topic(inbound.thread, is_forum=inbound.is_forum))
    return in_thread(key, inbound.thread)


def parent_key_of(inbound: Inbound | None, key: SessionKey, routing: Routing) -> SessionKey | None:
    """Return the conversation that a thread continues: the one named in the message, or the chat of the thread.

    A forum topic is a conversation of its own, unless the message says otherwise.
    """
    if inbound is not None and inbound.parent_key:
        parent: SessionKey | None = routing.canonical(inbound.parent_key)
    else:
        parent = parent_of(key) if key.thread is not None else None
    return None if parent == key else parent


def members_of(inbound: Inbound, key: SessionKey, parent: SessionKey | None) -> Json:
    """Return the members that a message sets in its conversation's entry; `None` clears a member.

    The route is replaced as a whole: the recipient of one message is never combined with the channel of another.
    """
    found: Json = {
        "chatType": inbound.chat_type,
        "subject": inbound.subject,
        "displayName": inbound.display_name,
        "spawnedBy": inbound.spawned_by,
        "parentSessionKey": None if parent is None else render_key(parent),
        "channel": _channel(inbound),
        "groupId": key.peer if key.kind in ("group", "channel") else None,
    }
    members = {name: value for name, value in found.items() if value is not None}
    if inbound.to is not None and inbound.channel is not None and not inbound.system:
        route = {
            "channel": normalize_channel(inbound.channel),
            "to": inbound.to,
            "accountId": inbound.account,
            "threadId": inbound.thread,
        }
        names = {"lastChannel": "channel", "lastTo": "to", "lastAccountId": "accountId", "lastThreadId": "threadId"}
        members |= {name: route[part] for name, part in names.items()}
        members["deliveryContext"] = {name: value for name, value in route.items() if value is not None}
    return members


# -- configuration


def routing_of(config: Config) -> Routing:
    """Return the routing rules of a configuration."""
    rules = config.session
    return Routing(
        default_agent=config.agents.default_id,
        main_key=rules.main_key,
        scope=rules.scope,
        dm_scope=rules.dm_scope,
        bindings=tuple(rule.binding for rule in config.bindings),
        identity_links=rules.identity_links,
        links_keep_channel=rules.links_keep_channel,
    )


def agent_workspace(config: Config, root: str, agent: str) -> str:
    """Return the folder in which an agent works; by default a folder below the root of the store."""
    folder = config.agents.named(agent).workspace
    return f"{root}/workspaces/{agent}" if folder is None else posixpath.abspath(posixpath.expanduser(folder))
