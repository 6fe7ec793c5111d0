"""Session keys: their structure, the table of their patterns, and their normal spelling.

    agent:main:telegram:group:-100:topic:7        agent:ops:cron:nightly:run:3        agent:main:matrix:channel:!r:example.org

A key is parsed by segments, never by searching for `:group:` inside an id. Parsing and rendering are exact inverses:
`render_key(parse_key(text)) == text` for every accepted text, and `parse_key(render_key(key)) == key` for every key
that can be rendered. A name that a user chose is of kind "named"; a text that fits no pattern is of kind "other" and
kept verbatim. A key that starts with `agent:` without an agent or anything after it is refused: treating it as a key of
the default agent would mix two conversations.

Ids are written as they are, including colons. Only an id that would be parsed as something else (a peer `a:thread:b`)
has its `:` and `%` written as `%3A` and `%25`, and only such a text is unquoted.

Normal spelling: ids of agents and accounts are made safe instead of being refused, as the owners of the format do.
Everything is in lower case except opaque ids (`OPAQUE`), where lower case would merge different rooms. `modern_key`
proposes today's spelling for keys of older releases; the store decides what to do if both exist.

Nothing here knows a configuration: see `routing`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import msgspec

from sessile.errors import InvalidId

AGENT = "agent"
GLOBAL = "global"
UNKNOWN = "unknown"
MAIN = "main"
OTHER = "other"

KeyShape = Literal["missing", "agent", "malformed_agent", "legacy_or_alias"]

_THREADS = ("topic", "thread", "heartbeat")
_PART = re.compile(r"([^{}]*)(?:\{([a-z]+)(\*?)\}([^{}]*))?")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


class SessionKey(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed key. Which members are set depends on the kind: see `PATTERNS`.

    `agent` is `None` in a bare key. `legacy` marks the older spelling of a pattern: `dm` for `direct`, `node:` for
    `node-`. `sub` are the sub-agents below the first one.
    """

    kind: str
    agent: str | None = None
    channel: str | None = None
    account: str | None = None
    peer: str | None = None
    id: str | None = None
    run: str | None = None
    sub: tuple[str, ...] = ()
    topic: str | None = None
    thread: str | None = None
    heartbeat: bool = False
    legacy: bool = False

    def __str__(self) -> str:
        return render_key(self)

    @property
    def depth(self) -> int:
        """The number of sub-agents above the session; 0 if no agent spawned it."""
        return len(self.sub) + (self.kind == "subagent")

    @property
    def incognito(self) -> bool:
        """Whether the id has the prefix that the dashboard reserves for sessions that leave no trace."""
        return self.kind == "dashboard" and (self.id or "").startswith("incognito-")


class _Part(NamedTuple):
    """One segment of a pattern: literal text around at most one field."""

    before: str
    field: str
    many: bool
    after: str

    def match(self, segment: str) -> str | None:
        """Return the value of the field in a segment; `None` if the segment does not match."""
        if not self.field:
            return segment if segment == self.before else None
        if not segment.startswith(self.before) or not segment.endswith(self.after):
            return None
        value = segment[len(self.before) : len(segment) - len(self.after)]
        if not value or (self.field == "uuid" and not _UUID.fullmatch(value)):
            return None
        return value


class Pattern(NamedTuple):
    """One row of the table: `{x}` is one segment, `{x*}` one or more; `suffixes` may follow in that order."""

    kind: str
    shape: str
    suffixes: tuple[str, ...] = _THREADS
    legacy: bool = False
    bare: bool = False  # never below an agent

    @property
    def parts(self) -> list[_Part]:
        matches = [_PART.fullmatch(part) for part in self.shape.split(":")]
        return [_Part(m[1], m[2] or "", bool(m[3]), m[4] or "") for m in matches if m is not None]


# Patterns with a fixed word in the first segment come first: no channel can have such a name.
PATTERNS: tuple[Pattern, ...] = (
    Pattern(GLOBAL, "global", (), bare=True),
    Pattern(UNKNOWN, "unknown", (), bare=True),
    Pattern(MAIN, "main"),
    Pattern("direct", "direct:{peer*}"),
    Pattern("direct", "dm:{peer*}", legacy=True),
    Pattern("group", "group:{peer*}"),
    Pattern("cron", "cron:{id*}", ("run", *_THREADS)),
    Pattern("hook", "hook:{id*}"),
    Pattern("node", "node-{id*}"),
    Pattern("node", "node:{id*}", legacy=True),
    Pattern("subagent", "subagent:{id*}", ("subagent", *_THREADS)),
    Pattern("acp", "acp:{id*}"),
    Pattern("dashboard", "dashboard:{id*}"),
    Pattern("explicit", "explicit:{id*}"),
    Pattern("temp", "temp:{id*}"),
    Pattern("http", "{channel}-user:{peer*}"),
    Pattern("direct", "{channel}:direct:{peer*}"),
    Pattern("direct", "{channel}:dm:{peer*}", legacy=True),
    Pattern("group", "{channel}:group:{peer*}"),
    Pattern("channel", "{channel}:channel:{peer*}"),
    Pattern("room", "{channel}:room:{peer*}"),
    Pattern("slash", "{channel}:slash:{peer*}"),
    Pattern("direct", "{channel}:{account}:direct:{peer*}"),
    Pattern("direct", "{channel}:{account}:dm:{peer*}", legacy=True),
    Pattern("http", "{channel}:{uuid}"),
    Pattern("named", "{id*}"),
)

KINDS = (*dict.fromkeys(pattern.kind for pattern in PATTERNS), OTHER)


class _Row(NamedTuple):
    """A pattern with its segments, and the numbers of those that are fixed words."""

    pattern: Pattern
    parts: list[_Part]
    words: list[tuple[int, str]]


_ROWS = tuple(
    _Row(pattern, parts, [(number, part.before) for number, part in enumerate(parts) if not part.field])
    for pattern in PATTERNS
    for parts in (pattern.parts,)
)
_FIELDS = ("channel", "account", "peer", "id")


def key_shape(text: str) -> KeyShape:
    """Classify a key without parsing it."""
    if not text.strip():
        return "missing"
    first, _, after = text.partition(":")
    if first != AGENT:
        return "malformed_agent" if first.strip().lower() == AGENT else "legacy_or_alias"
    agent, _, rest = after.partition(":")
    return "agent" if agent and rest.strip(":") else "malformed_agent"


def parse_key(text: str) -> SessionKey:
    """Parse a key; raise `InvalidId` if it is empty or a malformed agent key."""
    shape = key_shape(text)
    if shape == "missing":
        raise InvalidId("a session key must not be empty")
    if shape == "malformed_agent":
        raise InvalidId(
            f"invalid agent key {text[:120]!r}",
            hint="use agent:<agent id>:<rest>, in lower case",
        )
    agent, rest = text.split(":", 2)[1:] if shape == "agent" else (None, text)
    segments = rest.split(":")
    if all(segments):
        for row in _ROWS:
            if agent is None or not row.pattern.bare:
                key = _match(row, segments, agent)
                if key is not None:
                    return key
    return SessionKey(kind=OTHER, agent=agent, id=rest)


def render_key(key: SessionKey) -> str:
    """Return the text of a key; raise `InvalidId` if no text can represent it."""
    text = _rest(key)
    if key.agent is not None:
        text = f"{AGENT}:{key.agent}:{text}"
    # Some members cannot be written: an empty id, an account "direct", a channel "cron".
    if key_shape(text) in ("missing", "malformed_agent") or parse_key(text) != key:
        raise InvalidId(
            f"this {key.kind} key would be parsed as another one: {text[:120]!r}",
            hint="no id may be empty, and no channel or account may have the name of a kind",
        )
    return text


def _match(row: _Row, segments: list[str], agent: str | None) -> SessionKey | None:
    pattern, parts, words = row
    if len(segments) < len(parts):
        return None
    for number, word in words:
        if segments[number] != word:
            return None
    end = len(parts)
    if parts[-1].many:
        end = _end_of_id(segments, end, pattern.suffixes)
    taken = [*segments[: len(parts) - 1], ":".join(segments[len(parts) - 1 : end])]
    values: dict[str, str] = {}
    for part, segment in zip(parts, taken, strict=True):
        value = part.match(segment)
        if value is None:
            return None
        if part.field:
            name = "id" if part.field == "uuid" else part.field
            values[name] = _read(value, pattern.suffixes if part.many else None)
    suffixes = _suffixes(pattern, segments, end)
    if suffixes is None:
        return None
    key = SessionKey(kind=pattern.kind, agent=agent, legacy=pattern.legacy)
    return msgspec.structs.replace(key, **values, **suffixes)


def _end_of_id(segments: Sequence[str], start: int, markers: Collection[str]) -> int:
    """Return the index after an id: that of the next marker."""
    while start < len(segments) and segments[start] not in markers:
        start += 1
    return start


def _suffixes(pattern: Pattern, segments: list[str], at: int) -> dict[str, object] | None:
    """Return the members that follow the base of a key; `None` if something else follows."""
    found: dict[str, object] = {}
    subs: list[str] = []
    for name in pattern.suffixes:
        while at < len(segments) and segments[at] == name:
            if name == "heartbeat":
                found[name] = True
                at += 1
                break
            end = _end_of_id(segments, at + 2, pattern.suffixes)
            if end > len(segments):
                return None
            value = _read(":".join(segments[at + 1 : end]), pattern.suffixes)
            at = end
            if name == "subagent":
                subs.append(value)
                continue
            found[name] = value
            break
    if subs:
        found["sub"] = tuple(subs)
    return found if at == len(segments) else None


def _rest(key: SessionKey) -> str:
    """Return the part of a key after its agent."""
    if key.kind == OTHER:
        return key.id or ""
    given = {name for name in _FIELDS if getattr(key, name) is not None}
    for pattern, parts, _ in _ROWS:
        if pattern.kind != key.kind or pattern.legacy != key.legacy:
            continue
        if given == {"id" if part.field == "uuid" else part.field for part in parts if part.field}:
            return ":".join([_written(part, key, pattern) for part in parts] + _written_suffixes(key, pattern))
    raise InvalidId(f"invalid members of a {key.kind} key: {', '.join(sorted(given)) or 'none'}")


def _written(part: _Part, key: SessionKey, pattern: Pattern) -> str:
    if not part.field:
        return part.before
    value = getattr(key, "id" if part.field == "uuid" else part.field)
    return part.before + _write(value, pattern.suffixes if part.many else None) + part.after


def _written_suffixes(key: SessionKey, pattern: Pattern) -> list[str]:
    segments: list[str] = []
    for name in pattern.suffixes:
        if name == "heartbeat":
            segments += [name] if key.heartbeat else []
            continue
        values = key.sub if name == "subagent" else (getattr(key, name),)
        for value in values:
            if value is not None:
                segments += [name, _write(value, pattern.suffixes)]
    return segments


# -- ids that contain colons. `markers` is None where an id must be one segment.


def _write(value: str, markers: Collection[str] | None) -> str:
    return _quoted(value) if _needs_quotes(value, markers) else value


def _read(text: str, markers: Collection[str] | None) -> str:
    value = _unquoted(text)
    return value if value != text and _quoted(value) == text and _needs_quotes(value, markers) else text


def _needs_quotes(value: str, markers: Collection[str] | None) -> bool:
    """Return whether an id would be parsed as something else, or looks like the quoted form of such an id."""
    while True:
        segments = value.split(":")
        if not all(segments) or (len(segments) > 1 and (markers is None or not set(markers).isdisjoint(segments[1:]))):
            return True
        inner = _unquoted(value)
        if inner == value or _quoted(inner) != value:
            return False
        value = inner


def _quoted(value: str) -> str:
    return value.replace("%", "%25").replace(":", "%3A")


def _unquoted(text: str) -> str:
    return text.replace("%3A", ":").replace("%25", "%")


# -- normal spelling
DEFAULT_AGENT = "main"
DEFAULT_ACCOUNT = "default"
DEFAULT_MAIN_KEY = "main"
UNKNOWN_CHANNEL = "unknown"

# Members that keep their case, by channel and kind, because these ids are case-sensitive on their servers.
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
_PROTOTYPES = {"__proto__", "prototype", "constructor"}  # names with another meaning in JavaScript
_WHATSAPP_GROUP = "@g.us"
_TEXTS = ("agent", "channel", "account", "peer", "id", "run", "topic", "thread")


def normalize_agent_id(text: str | None) -> str:
    """Return a valid agent id for a text; the default agent if it is empty."""
    return _safe(text, DEFAULT_AGENT)


def normalize_account_id(text: str | None) -> str:
    """Return a valid account id for a text; the default account if it is empty."""
    account = _safe(text, DEFAULT_ACCOUNT)
    return DEFAULT_ACCOUNT if account in _PROTOTYPES else account


def normalize_main_key(text: str | None) -> str:
    """Return the name of an agent's main session."""
    return (text or "").strip().lower() or DEFAULT_MAIN_KEY


def normalize_channel(text: str | None) -> str:
    """Return the normal name of a channel."""
    return (text or "").strip().lower() or UNKNOWN_CHANNEL


def normalize_peer(text: str | None, channel: str, kind: str) -> str | None:
    """Return the id of a peer in a channel; for an empty one `None` in a direct chat, else "unknown"."""
    peer = (text or "").strip()
    if not peer:
        return None if kind == "direct" else UNKNOWN
    return peer if "peer" in OPAQUE.get((channel, kind), ()) else peer.lower()


def normalize_key(text: str) -> str:
    """Return the normal spelling of a key: trimmed, without empty segments, lower case except opaque ids.

    The older spellings `dm` and `node:` stay: both are documented. A malformed key stays malformed.
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
    """Return a key in lower case, except for opaque ids."""
    kept = OPAQUE.get(((key.channel or "").lower(), key.kind), ())
    members = {name: getattr(key, name) for name in _TEXTS if name not in kept}
    lower = {name: _lower(value) for name, value in members.items() if value is not None}
    return msgspec.structs.replace(key, **lower, sub=tuple(map(_lower, key.sub)))


def fold_key(text: str) -> str:
    """Return what all spellings of a key have in common. Different rooms may share it: use it only to narrow a search."""
    return ":".join(_segments(text.lower()))


def _segments(text: str) -> list[str]:
    """Return the segments of a key, without empty ones and surrounding spaces."""
    return [segment for segment in _EDGES.sub("", text).split(":") if segment]


def _lower(text: str) -> str:
    return text.lower().replace("%3a", "%3A")  # a quoted colon keeps its case


def modern_key(text: str, agent: str) -> str:
    """Return a key of an older release as the current release would store it for an agent."""
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
