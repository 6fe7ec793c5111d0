"""Whether a reply may be delivered: one decision for every way out.

    {"rules": [{"action": "deny", "match": {"chatType": "group", "keyPrefix": "cron:"}}], "default": "allow"}

Rules: what the entry of the session says wins. Then the rules, in their order: the first one that matches and denies ends it, one
that matches and allows is enough if none denies. Then the default, then yes. A rule matches if everything that it names is so;
what is unknown of a message matches nothing. A policy that is not understood is refused as a whole: a misspelt condition would
match every message.

It knows nothing of who sends: `/send` and patches set the word of the entry elsewhere.

Silence: a reply whose first token is `NO_REPLY` is not delivered, also not in part.

Rules: tokens end at white space, and the first one must be exactly the word. Then the whole reply is silent. A reply that
begins with `NO_REPLYfoo`, or mentions the word later, is delivered as it is. Every reply, streamed or not, goes through here
before it leaves for a client; what is stored keeps the word.

A stream is held back as long as it could become silent: white space, then a beginning of the word, then the word itself.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from sessile.errors import InvalidConfig

# --- send policy

Action = Literal["allow", "deny"]
_Said = Annotated[str, msgspec.Meta(pattern=r"\S")]  # nothing is no condition


class SendMatch(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What a rule asks of a message. A key prefix is that of the whole key, or of the key behind its agent."""

    channel: _Said | None = None
    chat_type: _Said | None = None
    key_prefix: _Said | None = None
    raw_key_prefix: _Said | None = None


class SendRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule; without conditions it matches everything."""

    action: Action
    match: SendMatch = SendMatch()


class SendPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `session.sendPolicy` of a configuration."""

    rules: tuple[SendRule, ...] = ()
    default: Action | None = None


class Verdict(NamedTuple):
    """Whether a reply may be delivered, and what decided that."""

    allowed: bool
    why: str


def read_send_policy(value: object) -> SendPolicy | None:
    """The policy that a configuration holds; raises `InvalidConfig` for one that is not understood."""
    if value is None:
        return None
    try:
        return msgspec.convert(value, SendPolicy)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"session.sendPolicy cannot be used: {error}",
            hint="rules have an action (allow or deny) and a match (channel, chatType, keyPrefix, rawKeyPrefix)",
        ) from error


def decide_sending(
    policy: SendPolicy | None,
    key: str,
    *,
    override: Any = None,
    channel: str | None = None,
    chat_type: str | None = None,
) -> Verdict:
    """Whether a reply in the session of that key may be delivered; `override` is the `sendPolicy` of its entry."""
    if override in ("allow", "deny"):
        return _verdict(override, "the session")
    allowing = None
    policy = policy or SendPolicy()
    for number, rule in enumerate(policy.rules):
        if _matches(rule.match, key, channel, chat_type):
            name = f"session.sendPolicy.rules[{number}]"
            if rule.action == "deny":
                return _verdict("deny", name)
            allowing = allowing or name
    if allowing is not None:
        return _verdict("allow", allowing)
    if policy.default is not None:
        return _verdict(policy.default, "session.sendPolicy.default")
    return Verdict(True, "nothing denies it")


def _verdict(action: Action, who: str) -> Verdict:
    return Verdict(action == "allow", f"{who} {'allows' if action == 'allow' else 'denies'} it")


def _matches(match: SendMatch, key: str, channel: str | None, chat_type: str | None) -> bool:
    whole = _folded(key)
    first, _, behind = whole.partition(":")
    stripped = behind.partition(":")[2] if first == "agent" else whole
    return (
        (match.channel is None or _folded(match.channel) == _folded(channel))
        and (match.chat_type is None or _chat_type(match.chat_type) == _chat_type(chat_type))
        and (match.key_prefix is None or any(k.startswith(_folded(match.key_prefix)) for k in (whole, stripped)))
        and (match.raw_key_prefix is None or whole.startswith(_folded(match.raw_key_prefix)))
    )


def _folded(text: str | None) -> str:
    return (text or "").strip().lower()


def _chat_type(text: str | None) -> str:
    folded = _folded(text)
    return "direct" if folded == "dm" else folded


# --- silence

NO_REPLY = "NO_REPLY"


def is_silent(text: str) -> bool:
    """Whether a whole reply is not to be delivered."""
    return text.split(maxsplit=1)[:1] == [NO_REPLY]


class Silence:
    """Decides about one reply that comes in pieces: `feed` each of them, then `finish`."""

    __slots__ = ("_begun", "_held", "silent")

    def __init__(self) -> None:
        self.silent: bool | None = None  # not known yet
        self._held: list[str] = []
        self._begun = ""  # what is held, without the white space before it

    def feed(self, text: str) -> str:
        """What may be delivered now."""
        if self.silent is not None:
            return "" if self.silent else text
        self._held.append(text)
        self._begun = (self._begun + text).lstrip()
        if NO_REPLY.startswith(self._begun):
            return ""
        return self._decide()

    def finish(self) -> tuple[str, bool]:
        """What is still to be delivered, and whether the reply was silent."""
        rest = self._decide() if self.silent is None else ""
        return rest, bool(self.silent)

    def _decide(self) -> str:
        self.silent = is_silent(self._begun)
        return "" if self.silent else "".join(self._held)
