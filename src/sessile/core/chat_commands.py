"""Chat commands: the table of commands and the parser for messages.

    /new opus write a poem        /compact: keep the plan        /think high        /resume 2

Rules:
- A command is a whole message. Case is ignored, and a colon may follow the name.
- An unknown word after a slash is ordinary text. So is a command without arguments that is followed by words.
- An invalid argument is a problem to report to the user, not text for the model.
- The text after a command is kept as written, including brackets and colons.
- A command from an unauthorised sender is still recognized as one, with `allowed` false, and must not be executed.

Channels remove what they add to a message, such as the sender's name. Only mentions of the agent are handled here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

INHERIT = "inherit"  # removes an override
RESET_TRIGGERS = ("/new", "/reset")

_Takes = Literal["nothing", "text", "choice", "number", "model", "message"]

_WORD = re.compile(r"/([a-z]+)(?:@([^\s:]+))?(?=[\s:]|$):?", re.I)
_FUZZY = 6  # letters; shorter parts of model names could be words of the message
_NUMBER = re.compile(r"[1-9][0-9]{0,5}")
_INHERIT = {INHERIT: INHERIT, "default": INHERIT, "reset": INHERIT}


class Row(NamedTuple):
    """A command: its argument, the values of a choice by accepted word, and whether everyone may use it."""

    name: str
    takes: _Takes
    help: str
    usage: str = ""
    aliases: tuple[str, ...] = ()
    values: Mapping[str, str] = {}
    shown: tuple[str, ...] = ()  # the values shown to users
    member: str | None = None  # member of a conversation's entry that stores the value
    for_all: bool = False


def _choice(name: str, member: str, purpose: str, *values: str, aliases: tuple[str, ...] = (), **others: str) -> Row:
    table = {**{value: value for value in values}, **others, **_INHERIT}
    return Row(name, "choice", purpose, f"[{'|'.join(values)}]", aliases, table, values, member)


COMMANDS: tuple[Row, ...] = (
    Row("new", "message", "start a new session", "[model] [message]"),
    Row("reset", "message", "same as /new", "[model] [message]"),
    Row("resume", "number", "go back to the previous session, or to an earlier one", "[number]"),
    Row("status", "nothing", "show model, tokens, context and settings"),
    Row("compact", "text", "summarize the older part of the conversation", "[instructions]"),
    _choice(
        "think",
        "thinkingLevel",
        "set how much the model thinks",
        *("off", "minimal", "low", "medium", "high", "xhigh"),
        aliases=("thinking", "t"),
    ),
    _choice("verbose", "verboseLevel", "show what happens during a turn", "off", "on", "full", aliases=("v",)),
    _choice("reasoning", "reasoningLevel", "show the model's reasoning", "off", "on", "stream", aliases=("reason",)),
    Row("model", "model", "show or set the model", "[model|default]"),
    Row(
        "send",
        "choice",
        "deliver replies or hold them back",
        "[on|off|inherit]",
        values={"on": "allow", "allow": "allow", "off": "deny", "deny": "deny", **_INHERIT},
        shown=("on", "off", INHERIT),
        member="sendPolicy",
    ),
    _choice(
        "queue",
        "queueMode",
        "set what happens to messages during a turn",
        *("steer", "followup", "collect", "steer-backlog", "steer+backlog", "queue", "interrupt"),
    ),
    Row("abort", "nothing", "stop the running turn", aliases=("stop",)),
    _choice("usage", "responseUsage", "show usage, or add it to each reply", "off", "tokens", "full", on="on"),
    Row("help", "nothing", "show this list", aliases=("commands",), for_all=True),
)

CHOICES: dict[str, tuple[str, ...]] = {  # valid values of the members that commands set
    row.member: tuple(value for value in dict.fromkeys(row.values.values()) if value != INHERIT)
    for row in COMMANDS
    if row.member is not None
}

_ROWS = {word: row for row in COMMANDS for word in (row.name, *row.aliases)}


class AllowedModels(msgspec.Struct, frozen=True):
    """The models that may be selected, as "provider/model", and their aliases."""

    allowed: tuple[str, ...] = ()
    aliases: dict[str, str] = {}

    def named(self, name: str) -> str | None:
        """Return the allowed model with exactly that name: in full, by alias, or without its provider if that is unique."""
        wanted = name.lower()
        alias = {alias.lower(): model for alias, model in self.aliases.items()}.get(wanted, wanted)
        whole = [model for model in self.allowed if model.lower() == alias.lower()]
        return _only(whole or [model for model in self.allowed if _parts(model)[1] == wanted])

    def with_part(self, part: str) -> list[str]:
        """Return the allowed models whose names contain `part`."""
        return [model for model in self.allowed if part.lower() in model.lower()]

    @property
    def providers(self) -> set[str | None]:
        """The providers of the models, in lower case."""
        return {_parts(model)[0] for model in self.allowed}


NO_MODELS = AllowedModels()


class ChatCommand(msgspec.Struct, frozen=True):
    """A parsed command. If `problem` is set, report it and do nothing."""

    name: str
    text: str = ""
    value: str | None = None
    model: str | None = None
    number: int | None = None
    problem: str | None = None
    allowed: bool = True


def parse_command(
    text: str,
    *,
    authorised: bool,
    models: AllowedModels = NO_MODELS,
    mentions: Collection[str] = (),
    reset_triggers: Sequence[str] = RESET_TRIGGERS,
) -> ChatCommand | None:
    """Parse a message; return `None` for ordinary text. `mentions` are the names of the agent in this chat."""
    written = _without_mentions(text, mentions)
    found = _reset(written, reset_triggers) or _from_table(written)
    if found is None:
        return None
    row, argument = found
    if row.takes == "nothing" and argument:
        return None
    if not authorised and not row.for_all:
        return ChatCommand(row.name, allowed=False, problem=f"you are not allowed to use /{row.name} here")
    return _with_argument(row, argument, models)


def help_text() -> str:
    """Return the list of commands, one per line."""
    return "\n".join(f"/{row.name} {row.usage}".rstrip() + f" – {row.help}" for row in COMMANDS)


def _without_mentions(text: str, mentions: Collection[str]) -> str:
    """Remove a mention of the agent before the first word or attached to it."""
    names = {name.strip().lstrip("@").lower() for name in mentions}
    text = text.strip()
    first, *rest = text.split(maxsplit=1) or [""]
    if rest and first.startswith("@") and first[1:].rstrip(",:").lower() in names:
        text = rest[0]
    word = _WORD.match(text)
    if word is not None and word[2] is not None and word[2].lower() in names:
        text = f"/{word[1]}{text[word.end(2) :]}"
    return text


def _reset(text: str, triggers: Sequence[str]) -> tuple[Row, str] | None:
    for trigger in triggers:
        wanted, behind = trigger.strip(), text[len(trigger.strip()) :]
        if not wanted or text[: len(wanted)].lower() != wanted.lower():
            continue
        if not behind or behind[0].isspace() or behind[0] == ":":
            return _ROWS["reset" if wanted.lower() == "/reset" else "new"], behind.removeprefix(":").strip()
    return None


def _from_table(text: str) -> tuple[Row, str] | None:
    word = _WORD.match(text)
    if word is None or word[2] is not None:
        return None
    row = _ROWS.get(word[1].lower())
    if row is None or row.takes == "message":
        return None
    return row, text[word.end() :].strip()


def _with_argument(row: Row, argument: str, models: AllowedModels) -> ChatCommand:
    if row.takes == "message":
        model, rest = _leading_model(argument, models)
        return ChatCommand(row.name, text=rest, model=model)
    if row.takes == "number":
        if argument and not _NUMBER.fullmatch(argument):
            return ChatCommand(row.name, problem=f"/{row.name} takes a number; 1 is the previous session")
        return ChatCommand(row.name, number=int(argument or "1"))
    if row.takes == "choice" and argument:
        value = row.values.get(argument.lower())
        problem = None if value is not None else f"invalid argument of /{row.name}: use {', '.join(row.shown)}"
        return ChatCommand(row.name, value=value, problem=problem)
    if row.takes == "model" and argument:
        return _chosen_model(row, argument, models)
    return ChatCommand(row.name, text=argument)


def _leading_model(message: str, models: AllowedModels) -> tuple[str | None, str]:
    """Return the model named by the first words of a message, and the rest of the message."""
    first, second, *_ = *message.split(maxsplit=2), "", ""
    is_provider = first.lower() in models.providers
    if is_provider and (model := models.named(f"{first}/{second}")) is not None:
        return model, _without_first_word(_without_first_word(message))
    model = models.named(first)
    if model is None and (is_provider or len(first) >= _FUZZY):
        model = _only(models.with_part(first))
    return (None, message) if model is None else (model, _without_first_word(message))


def _chosen_model(row: Row, argument: str, models: AllowedModels) -> ChatCommand:
    """Parse the argument of `/model`, all of which names the model."""
    if argument.lower() in _INHERIT:
        return ChatCommand(row.name, value=INHERIT)
    name = "/".join(argument.split())
    model = models.named(name)
    if model is not None:
        return ChatCommand(row.name, model=model)
    candidates = models.with_part(name)
    if len(candidates) == 1:
        return ChatCommand(row.name, model=candidates[0])
    names = ", ".join(candidates or models.allowed) or "none"
    if candidates:
        return ChatCommand(row.name, problem=f"ambiguous model {argument[:80]!r}: it matches {names}")
    return ChatCommand(row.name, problem=f"model not available: {argument[:80]!r}; available models: {names}")


def _parts(model: str) -> tuple[str | None, str]:
    """Split a model into provider, if it has one, and name; in lower case."""
    provider, slash, name = model.lower().partition("/")
    return (provider, name) if slash else (None, provider)


def _without_first_word(message: str) -> str:
    return "".join(message.split(maxsplit=1)[1:])


def _only(models: Sequence[str]) -> str | None:
    return models[0] if len(models) == 1 else None
