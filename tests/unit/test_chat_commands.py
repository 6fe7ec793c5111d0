"""Chat commands: which messages are commands, what they do, and what stays ordinary text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.agents.openclaw.entries import FIELDS, PATCHABLE
from sessile.core.chat_commands import CHOICES, COMMANDS, INHERIT, AllowedModels, ChatCommand, help_text, parse_command

pytestmark = [pytest.mark.mission("Y4"), pytest.mark.mission("Y5"), pytest.mark.mission("Y12")]

MODELS = AllowedModels(
    ("anthropic/claude-opus-4", "anthropic/claude-sonnet-4", "openai/gpt-5", "local/qwen", "other/qwen"),
    {"fast": "openai/gpt-5", "gone": "openai/gpt-2"},
)


def parsed(text: str, **options: Any) -> ChatCommand | None:
    return parse_command(text, authorised=options.pop("authorised", True), models=MODELS, **options)


def command(text: str, **options: Any) -> ChatCommand:
    found = parsed(text, **options)
    assert found is not None
    return found


# -- new and reset


@pytest.mark.parametrize(
    ("text", "name", "rest"),
    [
        ("/new", "new", ""),
        ("  /RESET \n", "reset", ""),
        ("/new hello there", "new", "hello there"),
        ("/Reset\nline one\n  line two", "reset", "line one\n  line two"),
        ("/new  fix [this] bug: [x]", "new", "fix [this] bug: [x]"),
        ("/new Alice: hi \\n there", "new", "Alice: hi \\n there"),
        ("/new: hello", "new", "hello"),
        ("/new /status", "new", "/status"),
    ],
)
def test_a_reset_keeps_the_rest_of_the_text(text: str, name: str, rest: str) -> None:
    """Word for word, including brackets and colons."""
    assert command(text) == ChatCommand(name, text=rest)


@pytest.mark.parametrize(
    "text", ["/newer", "/new-x", "please /new", "/resetting", "new", "Note: /new", "[a] /reset", "/"]
)
def test_what_only_looks_like_a_reset_is_text(text: str) -> None:
    """Mentioning the word does not reset a session."""
    assert parsed(text) is None


@pytest.mark.parametrize(
    ("words", "model", "rest"),
    [
        ("anthropic/claude-opus-4", "anthropic/claude-opus-4", ""),
        ("Anthropic/Claude-Opus-4 do it", "anthropic/claude-opus-4", "do it"),
        ("openai gpt-5 write [a] poem: now", "openai/gpt-5", "write [a] poem: now"),
        ("openai gpt-2 hello", "openai/gpt-5", "gpt-2 hello"),
        ("fast hello", "openai/gpt-5", "hello"),
        ("gpt-5 hello", "openai/gpt-5", "hello"),
        ("sonnet hello", "anthropic/claude-sonnet-4", "hello"),
        ("gone hello", None, "gone hello"),
        ("claude hello", None, "claude hello"),
        ("anthropic hello", None, "anthropic hello"),
        ("qwen hello", None, "qwen hello"),
        ("local qwen hello", "local/qwen", "hello"),
        ("local", "local/qwen", ""),
        ("gpt hello", None, "gpt hello"),
        ("openai/gpt-2 hello", None, "openai/gpt-2 hello"),
        ("write a poem", None, "write a poem"),
    ],
)
def test_a_reset_may_name_a_model(words: str, model: str | None, rest: str) -> None:
    """A model is given by name, provider and name, alias, or a unique part; other words are the message."""
    assert command(f"/new {words}") == ChatCommand("new", text=rest, model=model)


def test_without_models_every_word_is_text() -> None:
    """No model is guessed."""
    assert parse_command("/new opus hi", authorised=True) == ChatCommand("new", text="opus hi")


def test_models_may_have_no_provider() -> None:
    """Their name is not taken for a provider."""
    plain = AllowedModels(("qwen", "llama"))
    assert parse_command("/new", authorised=True, models=plain) == ChatCommand("new")
    assert parse_command("/new qwen hi", authorised=True, models=plain) == ChatCommand("new", text="hi", model="qwen")
    assert parse_command("/new qwen", authorised=True, models=AllowedModels(("qwen", "x/qwen-2"))).model == "qwen"  # type: ignore[union-attr]


def test_other_words_may_trigger_a_reset() -> None:
    """They replace the default triggers."""
    triggers = ("/start", "Fresh start", "/reset")
    assert command("/start now", reset_triggers=triggers) == ChatCommand("new", text="now")
    assert command("fresh START\nnow", reset_triggers=triggers) == ChatCommand("new", text="now")
    assert command("/reset", reset_triggers=triggers).name == "reset"
    assert parsed("/new", reset_triggers=triggers) is None
    assert parsed("fresh starting", reset_triggers=triggers) is None
    assert parsed("", reset_triggers=("", " ")) is None


# -- the others


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/status", ChatCommand("status")),
        ("/help", ChatCommand("help")),
        ("/commands", ChatCommand("help")),
        ("/abort", ChatCommand("abort")),
        ("/STOP", ChatCommand("abort")),
        ("/resume", ChatCommand("resume", number=1)),
        ("/resume 3", ChatCommand("resume", number=3)),
        ("/compact", ChatCommand("compact")),
        ("/compact keep the [plan]: all", ChatCommand("compact", text="keep the [plan]: all")),
        ("/compact: keep it", ChatCommand("compact", text="keep it")),
        ("/compact:keep it", ChatCommand("compact", text="keep it")),
        ("/think", ChatCommand("think")),
        ("/think high", ChatCommand("think", value="high")),
        ("/t: HIGH", ChatCommand("think", value="high")),
        ("/thinking off", ChatCommand("think", value="off")),
        ("/think default", ChatCommand("think", value=INHERIT)),
        ("/verbose on", ChatCommand("verbose", value="on")),
        ("/v full", ChatCommand("verbose", value="full")),
        ("/reasoning stream", ChatCommand("reasoning", value="stream")),
        ("/model", ChatCommand("model")),
        ("/model fast", ChatCommand("model", model="openai/gpt-5")),
        ("/model anthropic claude-opus-4", ChatCommand("model", model="anthropic/claude-opus-4")),
        ("/model gpt", ChatCommand("model", model="openai/gpt-5")),
        ("/model default", ChatCommand("model", value=INHERIT)),
        ("/send", ChatCommand("send")),
        ("/send on", ChatCommand("send", value="allow")),
        ("/send allow", ChatCommand("send", value="allow")),
        ("/send off", ChatCommand("send", value="deny")),
        ("/send deny", ChatCommand("send", value="deny")),
        ("/send inherit", ChatCommand("send", value=INHERIT)),
        ("/send reset", ChatCommand("send", value=INHERIT)),
        ("/queue", ChatCommand("queue")),
        ("/queue interrupt", ChatCommand("queue", value="interrupt")),
        ("/queue steer+backlog", ChatCommand("queue", value="steer+backlog")),
        ("/usage", ChatCommand("usage")),
        ("/usage tokens", ChatCommand("usage", value="tokens")),
    ],
)
def test_each_command_is_understood(text: str, expected: ChatCommand) -> None:
    """Case and a trailing colon do not matter."""
    assert command(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "/status report please",
        "/help me with this",
        "/stop the music",
        "/abort it",
        "/unknown",
        "/etc/passwd",
        "/think-tank",
        "//status",
        "/ status",
        "status",
        "look at /status",
        "",
        "/1",
        "/compacted",
    ],
)
def test_everything_else_is_ordinary_text(text: str) -> None:
    """An unknown word after a slash, or a command without arguments followed by words."""
    assert parsed(text) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/think hgih", "off, minimal, low, medium, high, xhigh"),
        ("/send maybe", "on, off, inherit"),
        ("/queue faster", "interrupt"),
        ("/usage much", "off, tokens, full"),
        ("/resume x", "number"),
        ("/resume 0", "number"),
        ("/resume -1", "number"),
        ("/resume ٣", "number"),
        ("/resume 1 2", "number"),
        ("/model gpt-9", "model not available: 'gpt-9'; available models: anthropic/claude-opus-4"),
        ("/model gone", "openai/gpt-5"),
        ("/model qwen", "it matches local/qwen, other/qwen"),
    ],
)
def test_a_wrong_argument_is_told_and_does_nothing(text: str, says: str) -> None:
    """The problem lists the valid values."""
    found = command(text)
    assert found.problem is not None and says in found.problem
    assert (found.value, found.model, found.number) == (None, None, None)


def test_whoever_may_not_give_commands_is_told_so() -> None:
    """The command is recognized but neither runs nor goes to the model; everyone may ask for help."""
    for text in ("/new secret", "/send off", "/status", "/think nonsense"):
        found = command(text, authorised=False)
        assert not found.allowed
        assert (found.value, found.model, found.number) == (None, None, None)
    assert command("/help", authorised=False).allowed
    assert command("/new").allowed
    assert parsed("hello", authorised=False) is None
    assert parsed("/unknown", authorised=False) is None


def test_a_mention_of_the_agent_is_no_part_of_a_command() -> None:
    """A mention may come before the command or be attached to it, as in Telegram; a command for another agent is text."""
    names = ("Bot", "my.bot")
    assert command("@bot /new [a] hi @bot", mentions=names) == ChatCommand("new", text="[a] hi @bot")
    assert command("/status@my.BOT", mentions=names) == ChatCommand("status")
    assert command("/new@bot hi", mentions=names) == ChatCommand("new", text="hi")
    assert command("@bot, /compact: x", mentions=names).text == "x"
    assert parsed("/status@other", mentions=names) is None
    assert parsed("@other /status", mentions=names) is None
    assert parsed("@botany /status", mentions=names) is None
    assert parsed("/status@bot") is None


def test_values_are_those_of_the_store() -> None:
    """The value that a command sets is valid for its member."""
    assert {row.name for row in COMMANDS if row.takes == "choice"} == {row.name for row in COMMANDS if row.member}
    for member, values in CHOICES.items():
        assert INHERIT not in values and values
        assert member in PATCHABLE
        documented = FIELDS[member].values
        assert not documented or set(values) == set(documented)


def test_help_has_a_line_for_every_command() -> None:
    """It is made from the table of commands."""
    lines = help_text().splitlines()
    assert len(lines) == len(COMMANDS)
    for row, line in zip(COMMANDS, lines, strict=True):
        assert line.startswith(f"/{row.name}")
        assert row.help in line
    assert "/compact [instructions]" in help_text()


def test_names_are_unique() -> None:
    """No word names two commands."""
    words = [word for row in COMMANDS for word in (row.name, *row.aliases)]
    assert len(words) == len(set(words))


# -- laws

free = st.text(st.sampled_from("ab [x]:\n/@.é"), max_size=30)


@given(st.sampled_from(["/new", "/reset", "/compact"]), st.sampled_from([" ", "\n", "  ", "\t"]), free)
def test_no_letter_of_the_text_behind_a_command_is_lost(word: str, gap: str, rest: str) -> None:
    """Only surrounding white space is removed."""
    assert parse_command(f"{word}{gap}{rest}", authorised=True) == ChatCommand(word[1:], text=rest.strip())


@given(free.map(lambda text: text.replace("/", "")), st.booleans())
def test_text_without_a_slash_is_no_command(text: str, authorised: bool) -> None:
    """Any text without a slash is ordinary text."""
    assert parse_command(text, authorised=authorised, models=MODELS) is None


@given(free, st.sampled_from([f"/{row.name}" for row in COMMANDS]))
def test_being_authorised_changes_what_may_be_done_and_not_what_is_a_command(text: str, word: str) -> None:
    """Authorisation does not change how a message is parsed."""
    one, other = (parse_command(f"{word} {text}", authorised=flag, models=MODELS) for flag in (True, False))
    assert (one is None) == (other is None)
    assert one is None or other is None or one.name == other.name
