"""One spelling for each name: how ids, channels and keys are normalised before they are compared or written.

Rules: ids of agents and accounts are made safe, never refused, as their owners do; everything is in lower case except ids
that are opaque (`OPAQUE`), where lower case would merge two different rooms. Keys of older releases are brought to today's
spelling by `modern_key`; it is a proposal, and the store decides what to do when both spellings are there.

Nothing here knows bindings or a configuration: see `routing`.
"""

from __future__ import annotations

import re

import msgspec

from sessile.formats.yoyoclaw.keys import GLOBAL, OTHER, UNKNOWN, SessionKey, key_shape, parse_key, render_key

DEFAULT_AGENT = "main"
DEFAULT_ACCOUNT = "default"
DEFAULT_MAIN_KEY = "main"
UNKNOWN_CHANNEL = "unknown"

# Which members of a key keep their case, by channel and kind: the ids of these are case-sensitive on their own servers.
OPAQUE: dict[tuple[str, str], tuple[str, ...]] = {
    ("signal", "group"): ("peer",),
    ("matrix", "group"): ("peer", "topic", "thread"),
    ("matrix", "channel"): ("peer", "topic", "thread"),
    ("matrix", "room"): ("peer", "topic", "thread"),
}

_SAFE_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_UNSAFE = re.compile(r"[^a-z0-9_-]+")
_EDGES = re.compile(r"\A[\s:]+|[\s:]+\Z")
_MAX_ID = 64
_PROTOTYPES = {"__proto__", "prototype", "constructor"}  # names that mean something else in their language
_WHATSAPP_GROUP = "@g.us"
_TEXTS = ("agent", "channel", "account", "peer", "id", "run", "topic", "thread")


def normalize_agent_id(text: str | None) -> str:
    """A name that can be an agent's id; an empty one is the default agent."""
    return _safe(text, DEFAULT_AGENT)


def normalize_account_id(text: str | None) -> str:
    """A name that can be an account's id; an empty one is the default account."""
    account = _safe(text, DEFAULT_ACCOUNT)
    return DEFAULT_ACCOUNT if account in _PROTOTYPES else account


def normalize_main_key(text: str | None) -> str:
    """The name of an agent's main session."""
    return (text or "").strip().lower() or DEFAULT_MAIN_KEY


def normalize_channel(text: str | None) -> str:
    """The name of a channel."""
    return (text or "").strip().lower() or UNKNOWN_CHANNEL


def normalize_peer(text: str | None, channel: str, kind: str) -> str | None:
    """The id of a peer in a channel; an empty one is `None` for a direct chat, "unknown" for any other."""
    peer = (text or "").strip()
    if not peer:
        return None if kind == "direct" else UNKNOWN
    return peer if "peer" in OPAQUE.get((channel, kind), ()) else peer.lower()


def normalize_key(text: str) -> str:
    """A key in its one spelling: trimmed, empty segments dropped, lower case except opaque ids.

    The older spellings `dm` and `node:` stay: both are documented names. A malformed key stays malformed.
    """
    segments = _segments(text)
    small = _lower(":".join(segments))
    if key_shape(small) in ("missing", "malformed_agent"):
        return small
    key = parse_key(small)
    if (key.channel, key.kind) not in OPAQUE:
        return small
    head = 2 if key.agent is None else 4  # agent:<id>:<channel>:<kind>
    written = ":".join([*map(_lower, segments[:head]), *segments[head:]])
    return render_key(lowered(parse_key(written)))


def lowered(key: SessionKey) -> SessionKey:
    """A key in lower case, except for ids that are opaque."""
    kept = OPAQUE.get(((key.channel or "").lower(), key.kind), ())
    members = {name: getattr(key, name) for name in _TEXTS if name not in kept}
    lower = {name: _lower(value) for name, value in members.items() if value is not None}
    return msgspec.structs.replace(key, **lower, sub=tuple(map(_lower, key.sub)))


def fold_key(text: str) -> str:
    """What all spellings of a key have in common. Different rooms may have it in common too: it only narrows a search."""
    return ":".join(_segments(text.lower()))


def _segments(text: str) -> list[str]:
    """What stands between the colons of a key, without empty segments and without the spaces around it all."""
    return [segment for segment in _EDGES.sub("", text).split(":") if segment]


def _lower(text: str) -> str:
    return text.lower().replace("%3a", "%3A")  # a quoted colon stays one


def modern_key(text: str, agent: str) -> str:
    """A key of an older release as today's release would have stored it for an agent."""
    written = normalize_key(text)
    if key_shape(written) in ("agent", "malformed_agent", "missing") or written in (GLOBAL, UNKNOWN):
        return written
    key = parse_key(written)
    if key.kind == "group" and key.channel is None:
        channel = "whatsapp" if (key.peer or "").endswith(_WHATSAPP_GROUP) else UNKNOWN_CHANNEL
        return render_key(msgspec.structs.replace(key, agent=agent, channel=channel))
    if written.endswith(_WHATSAPP_GROUP) and key.kind in ("named", OTHER):
        peer = written.removeprefix("whatsapp:").removeprefix("group:")
        return render_key(SessionKey(kind="group", agent=agent, channel="whatsapp", peer=peer))
    return f"agent:{agent}:{written}"


def _safe(text: str | None, default: str) -> str:
    name = (text or "").strip().lower()
    if _SAFE_ID.fullmatch(name):
        return name
    return _UNSAFE.sub("-", name).strip("-")[:_MAX_ID] or default
