"""Chat commands: their effect on the conversation and their replies."""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from compacting import words
from gateways import Clock, ask, gateway_in, running
from sessile import __version__
from sessile.config import load_config
from sessile.core.chat_commands import COMMANDS, AllowedModels, ChatCommand, help_text, parse_command
from sessile.core.compaction import Objection
from sessile.core.resets import previous_sessions, reset_notice
from sessile.errors import SessileError, StorageFull, SummarizerFailed, TurnInProgress
from sessile.gateway.conversations.bindings import Bound
from sessile.gateway.service import Gateway
from sessile.gateway.turns.commands import Executed, allowed_models, execute
from sessile.gateway.turns.turn import Message
from sessile.upkeep.compactor import Outcome
from sessions import answer, say

pytestmark = [pytest.mark.anyio, pytest.mark.mission("Y5")]

KEY = "agent:main:main"
MODELS = """
    [session.reset]
    mode = "none"
    [agents.defaults]
    model = "anthropic/claude-sonnet-4"
    runner = "echo"
    [models.providers.anthropic]
    models = [{id = "claude-sonnet-4", contextWindow = 200000}, {id = "claude-opus-4", contextWindow = 200000}]
    [models.providers.openrouter]
    models = [{id = "meta/llama-4", contextWindow = 8000}]
"""
OPEN = """
    [models.providers.Local]
    baseUrl = "http://127.0.0.1:1/v1"
"""
SLEEPING = """
    [session.reset]
    mode = "none"
    [agents.defaults]
    runner = "command"
    command = ["sleep", "600"]
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Chat:
    """A conversation that receives commands."""

    def __init__(self, gateway: Gateway, clock: Clock) -> None:
        self.gateway = gateway
        self.clock = clock

    @property
    def entry(self) -> Any:
        found = self.gateway.conversations.get(KEY)
        assert found is not None
        return found.entry

    def bound(self) -> Bound:
        return self.gateway.conversations.resolve(KEY)

    def talk(self, *texts: str) -> Bound:
        """Append messages so that the session is not empty, and return its binding."""
        bound = self.bound()
        with self.gateway.opened(bound.path) as session:
            for text in texts or ("hello",):
                say(session, text)
                answer(session, "hi")
        return self.bound()

    def command(self, text: str, *, authorised: bool = True) -> ChatCommand:
        models = allowed_models(self.gateway.config)
        command = parse_command(text, authorised=authorised, models=models)
        assert command is not None
        return command

    async def give(self, text: str, *, authorised: bool = True) -> Executed:
        return await execute(self.gateway, self.bound(), self.command(text, authorised=authorised))


@asynccontextmanager
async def chatting(root: Path, config: str = "") -> AsyncIterator[Chat]:
    """Yield a conversation of a running gateway."""
    clock = Clock()
    gateway = gateway_in(root, tomllib.loads(config), clock=clock, durability="process")
    async with running(gateway):
        yield Chat(gateway, clock)


@pytest.fixture
async def chat(tmp_path: Path) -> AsyncIterator[Chat]:
    async with chatting(tmp_path, MODELS) as one:
        yield one


def models_of(config: str) -> AllowedModels:
    return allowed_models(load_config(config.encode(), "config.toml").config)


# -- allowed models


def test_the_models_of_providers_and_agents_may_be_chosen() -> None:
    """Models of all providers and agents are allowed, with short names where they are unambiguous."""
    models = models_of(MODELS)
    assert models.allowed == ("anthropic/claude-sonnet-4", "anthropic/claude-opus-4", "openrouter/meta/llama-4")
    assert models.named("OPUS") == "anthropic/claude-opus-4"
    assert models.named("llama-4") == "openrouter/meta/llama-4"
    assert models.named("claude") is None


def test_a_short_name_that_two_models_have_is_none() -> None:
    """An ambiguous short name matches no model."""
    both = '[models.providers.a]\nmodels = [{id = "opus-4"}, {id = "opus-5"}]'
    models = models_of(both)
    assert models.aliases == {}
    assert models.named("opus") is None


def test_without_a_list_any_model_of_a_configured_provider_may_be_chosen() -> None:
    """Without a list of models, any `provider/model` of a configured provider is allowed."""
    models = models_of(OPEN)
    assert models.named("local/Qwen/3:8b") == "Local/Qwen/3:8b"
    assert models.named("other/x") is None
    assert models.named("Local/") is None
    assert models.named("Local") is None


async def test_every_command_of_the_table_is_executed(chat: Chat) -> None:
    """Every command in the help replies with text."""
    chat.talk()
    for row in COMMANDS:
        done = await execute(chat.gateway, chat.bound(), ChatCommand(row.name))
        assert done.text, row.name


# -- authorisation


async def test_who_may_not_give_commands_is_told_so_and_changes_nothing(chat: Chat) -> None:
    """An unauthorised command is refused, and the session does not change."""
    before = chat.talk()
    done = await chat.give("/new hello", authorised=False)
    assert done == Executed("you are not allowed to use /new here", before)
    assert chat.bound().session_id == before.session_id


async def test_help_is_for_all(chat: Chat) -> None:
    """/help is available to every sender and lists all commands."""
    assert (await chat.give("/help", authorised=False)).text == help_text()


async def test_a_command_that_fails_answers_with_the_problem_and_without_paths(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed command replies with the error and its hint, without local paths."""
    before = chat.talk()

    def full(*args: Any, **options: Any) -> None:
        raise StorageFull("no room for /srv/data/sessions.json", path="/srv/data/sessions.json", hint="make room")

    monkeypatch.setattr(chat.gateway.conversations, "patch", full)
    done = await chat.give("/think high")
    assert done.text == "⚠️ no room for … (make room)"
    assert done.bound == before


# -- sessions


@pytest.mark.mission("Y4")
@pytest.mark.parametrize("name", ["new", "reset"])
async def test_a_reset_begins_a_session_and_says_how_to_come_back(chat: Chat, name: str) -> None:
    """/new and /reset start a new session, and the notice mentions /resume."""
    before = chat.talk()
    done = await chat.give(f"/{name}")
    assert done.text == reset_notice(name)
    assert "/resume" in done.text
    assert done.message is None
    assert done.bound.session_id != before.session_id == done.bound.previous_id
    assert chat.bound().session_id == done.bound.session_id
    assert previous_sessions(chat.entry)[0].reason == name


@pytest.mark.mission("Y4")
async def test_words_behind_a_reset_are_for_the_model_and_a_model_is_chosen(chat: Chat) -> None:
    """Text after /new is sent to the model; a leading model name selects the model."""
    chat.talk()
    done = await chat.give("/new Opus  Write [a] poem: now")
    assert done.message == "Write [a] poem: now"
    assert done.text.endswith("🧠 Model: anthropic/claude-opus-4")
    assert chat.gateway.model_of("main", chat.entry) == "anthropic/claude-opus-4"
    assert chat.entry["modelOverrideSource"] == "user"


@pytest.mark.mission("Y4")
async def test_a_reset_as_the_first_thing_said_begins_one_session_only(chat: Chat) -> None:
    """A reset of an empty session keeps the session and does not mention /resume."""
    bound = chat.bound()
    done = await execute(chat.gateway, bound, chat.command("/new opus hi"))
    assert done.text == "🧭 New session.\n🧠 Model: anthropic/claude-opus-4"
    assert done.bound.session_id == bound.session_id
    assert done.bound.entry == chat.entry
    assert chat.entry["modelOverride"] == "claude-opus-4"
    assert previous_sessions(chat.entry) == ()


@pytest.mark.mission("Y4")
async def test_a_reset_of_a_thread_takes_the_words_of_its_parent_away(chat: Chat) -> None:
    """A session forked from its parent is replaced on reset; a later empty session is kept."""
    bound = chat.bound()
    forked = bound._replace(entry=bound.entry.changed({"forkedFromParent": True}))
    later = forked._replace(reason="idle")
    assert (await execute(chat.gateway, later, ChatCommand("new"))).bound.session_id == bound.session_id
    assert (await execute(chat.gateway, forked, ChatCommand("new"))).bound.session_id != bound.session_id


@pytest.mark.mission("Y12")
async def test_a_verbose_conversation_hears_the_id_of_its_new_session(chat: Chat) -> None:
    """A verbose conversation shows the id of its new session."""
    chat.talk()
    await chat.give("/verbose on")
    done = await chat.give("/new")
    assert done.text.endswith(f"🧭 New session: {done.bound.session_id}")


@pytest.mark.mission("Y4")
async def test_resume_goes_back_and_forth(chat: Chat) -> None:
    """/resume returns to the previous session and shows when it was left; a second /resume goes back again."""
    first = chat.talk()
    second = (await chat.give("/new")).bound
    chat.talk()
    chat.clock.now += 2 * 3600
    done = await chat.give("/resume")
    assert done.bound.session_id == first.session_id
    assert ", left 2 h ago" in done.text
    assert (await chat.give("/resume")).bound.session_id == second.session_id


@pytest.mark.mission("Y4")
async def test_resume_without_an_earlier_session_says_so(chat: Chat) -> None:
    """/resume without an earlier session is refused and changes nothing."""
    before = chat.talk()
    done = await chat.give("/resume 3")
    assert done.text.startswith("⚠️ earlier session 3 not found: ")
    assert done.bound == before
    assert (await chat.give("/resume soon")).text == "/resume takes a number; 1 is the previous session"


async def test_a_reset_that_somebody_else_was_faster_with_is_refused(chat: Chat) -> None:
    """A reset or resume based on a replaced session is refused."""
    before = chat.talk()
    after = (await chat.give("/new")).bound
    for command in (ChatCommand("new", text="hello"), ChatCommand("resume", number=1)):
        done = await execute(chat.gateway, before, command)
        assert "has the session" in done.text
        assert done.message is None
    assert chat.bound().session_id == after.session_id


# -- settings


@pytest.mark.parametrize(
    ("command", "member", "value", "text"),
    [
        ("/think high", "thinkingLevel", "high", "⚙️ Thinking: high."),
        ("/t off", "thinkingLevel", "off", "⚙️ Thinking: off."),
        ("/verbose full", "verboseLevel", "full", "⚙️ Verbose: full."),
        ("/reasoning stream", "reasoningLevel", "stream", "⚙️ Reasoning: stream."),
        ("/usage full", "responseUsage", "full", "⚙️ Usage in replies: full."),
        ("/usage on", "responseUsage", "tokens", "⚙️ Usage in replies: tokens."),
        ("/queue interrupt", "queueMode", "interrupt", "⚙️ Queue: interrupt."),
        ("/queue followup", "queueMode", "followup", "⚙️ Queue: followup."),
        ("/send on", "sendPolicy", "allow", "⚙️ Sending: on (the session allows it)."),
    ],
)
async def test_a_setting_is_written_shown_and_taken_away(
    chat: Chat, command: str, member: str, value: str, text: str
) -> None:
    """The command stores and shows the setting, and `inherit` removes it."""
    chat.talk()
    done = await chat.give(command)
    assert done.text == text
    assert chat.entry[member] == value
    assert done.bound.entry == chat.entry
    name = command.split()[0]
    assert (await chat.give(name)).text.splitlines()[-1].startswith(f"{text[:-1]}. Values: ")
    assert chat.entry[member] == value
    await chat.give(f"{name} inherit")
    assert member not in chat.entry


@pytest.mark.parametrize("mode", ["steer", "collect", "queue", "steer-backlog", "steer+backlog"])
async def test_a_way_of_queueing_that_is_not_to_be_had_is_said_to_wait(chat: Chat, mode: str) -> None:
    """An unsupported queue mode is replaced by "followup", and the reply says so."""
    chat.talk()
    done = await chat.give(f"/queue {mode}")
    assert done.text.startswith("⚙️ Queue: followup. ")
    assert f"{mode} is not supported: messages wait" in done.text
    assert chat.entry["queueMode"] == "followup"


async def test_holding_replies_back_is_answered(chat: Chat) -> None:
    """/send off withholds replies, and its reply mentions /send on."""
    chat.talk()
    done = await chat.give("/send off")
    assert done.text.startswith("⚙️ Sending: off (the session denies it). ")
    assert "/send on" in done.text
    assert chat.entry["sendPolicy"] == "deny"


async def test_a_value_that_does_not_exist_is_told_with_those_that_do(chat: Chat) -> None:
    """An invalid value is refused with the list of valid values, and nothing is stored."""
    chat.talk()
    done = await chat.give("/think hard")
    assert done.text == "invalid argument of /think: use off, minimal, low, medium, high, xhigh"
    assert "thinkingLevel" not in chat.entry


async def test_usage_without_a_value_tells_that_of_the_session(chat: Chat) -> None:
    """/usage without a value shows the session's token counts and cost."""
    bound = chat.talk()
    members = {"inputTokens": 12_345, "outputTokens": 940, "estimatedCostUsd": 0.5}
    chat.gateway.conversations.count(KEY, bound.session_id, members=members)
    lines = (await chat.give("/usage")).text.splitlines()
    assert lines == [
        "🧮 12.3k in / 940 out · 💵 $0.50 in this session",
        "⚙️ Usage in replies: off. Values: off, tokens, full",
    ]
    await chat.give("/new")
    assert "🧮 unknown in / unknown out · 💵 unknown" in (await chat.give("/usage")).text


# -- the model


async def test_model_shows_sets_and_takes_away(chat: Chat) -> None:
    """/model shows the current and available models, sets a model, and restores the default."""
    chat.talk()
    assert (await chat.give("/model")).text.splitlines() == [
        "🧠 Model: anthropic/claude-sonnet-4 (agent default)",
        "Models: anthropic/claude-sonnet-4 (sonnet), anthropic/claude-opus-4 (opus), openrouter/meta/llama-4 (llama-4)",
    ]
    done = await chat.give("/model opus")
    assert done.text == "🧠 Model: anthropic/claude-opus-4 (set for this conversation)"
    assert (chat.entry["providerOverride"], chat.entry["modelOverride"]) == ("anthropic", "claude-opus-4")
    assert done.bound.entry == chat.entry
    assert (await chat.give("/model default")).text == "🧠 Model: anthropic/claude-sonnet-4 (agent default)"
    assert "modelOverride" not in chat.entry


async def test_a_model_that_is_not_allowed_is_told_with_those_that_are(chat: Chat) -> None:
    """A model that is not allowed is refused with the list of allowed models, and nothing is stored."""
    chat.talk()
    done = await chat.give("/model gpt-5")
    assert "available models: anthropic/claude-sonnet-4, " in done.text
    assert "modelOverride" not in chat.entry


async def test_without_a_list_a_model_is_written_with_its_provider(tmp_path: Path) -> None:
    """Without a list of models, `provider/model` is accepted, and any other name is refused with the usage."""
    async with chatting(tmp_path, OPEN) as chat:
        chat.talk()
        assert (await chat.give("/model")).text.endswith("Any model of these providers: Local")
        assert (await chat.give("/model qwen")).text == "Usage: /model provider/model. Configured providers: Local"
        assert (await chat.give("/model local/qwen3:8b")).text.startswith("🧠 Model: Local/qwen3:8b (set")
        done = await chat.give("/new local/llama hello")
        assert (done.message, chat.gateway.model_of("main", chat.entry)) == ("hello", "Local/llama")


async def test_without_any_provider_there_is_no_model_to_choose(tmp_path: Path) -> None:
    """Without a provider, the reply says that none is configured."""
    async with chatting(tmp_path) as chat:
        chat.talk()
        assert (await chat.give("/model")).text == "🧠 Model: unknown (agent default)\nNo provider is configured."
        assert "available models: none" in (await chat.give("/model a/b")).text


async def test_a_model_that_cannot_answer_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without its API key is refused, and neither the model nor the session changes."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with chatting(tmp_path, '[models.providers.openai]\nmodels = [{id = "gpt-5"}]') as chat:
        before = chat.talk()
        for text in ("/model gpt-5", "/new gpt-5 hello"):
            done = await chat.give(text)
            assert done.text.startswith("⚠️ ")
            assert "OPENAI_API_KEY" in done.text
            assert (done.message, done.bound.session_id) == (None, before.session_id)
        assert "modelOverride" not in chat.entry
        assert chat.bound().session_id == before.session_id


@pytest.mark.promise("P42")
async def test_a_model_of_a_provider_without_an_address_is_not_asked_for_at_another_vendor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider without a base URL is refused, even if another vendor's key is set."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another")
    async with chatting(tmp_path, '[models.providers.elsewhere]\nmodels = [{id = "m"}]') as chat:
        done = await chat.give("/model elsewhere/m")
        assert done.text.startswith("⚠️ ") and "'elsewhere'" in done.text and "baseUrl" in done.text
        assert chat.entry.get("modelOverride") is None


# -- turns


async def test_abort_says_what_it_stopped(tmp_path: Path) -> None:
    """/abort stops the running and queued turns of its conversation, also in earlier sessions, and counts them."""
    async with chatting(tmp_path, SLEEPING) as chat:
        turns = chat.gateway.turns
        assert (await chat.give("/abort")).text == "No turn is running."
        stopped = [await turns.send(Message(text=text, source=KEY)) for text in ("one", "two", "three")]
        other = await turns.send(Message(text="mine", source="agent:main:other"))
        await chat.give("/new")
        assert (await chat.give("/stop")).text == "🛑 Stopped the running turn and 2 waiting messages."
        with anyio.fail_after(10):
            assert {(await turn.wait()).stop for turn in stopped} == {"aborted"}
        assert [turn.id for turn in turns.live()] == [other.id]


@pytest.mark.mission("Y9", "Y12")
async def test_compact_tells_tokens_before_and_after(chat: Chat) -> None:
    """/compact reports the tokens before and after, and the share of the context window."""
    chat.talk(*(words(10_000) for _ in range(5)))
    done = await chat.give("/compact: keep the plan")
    assert done.text.startswith("⚙️ Compacted (50.0k → 2")
    assert "/200.0k (1" in done.text


@pytest.mark.mission("Y9")
@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome("nothing"), "⚙️ Compaction skipped: there is nothing to summarize yet"),
        (Outcome("cancelled"), "⚙️ Compaction skipped: a hook cancelled it"),
        (
            Outcome("rejected", objections=(Objection("empty", "the summary is empty"),)),
            "⚙️ Compaction failed: the summary is empty; the history is unchanged",
        ),
        (SummarizerFailed("the model is down"), "⚙️ Compaction failed: the model is down"),
        (TurnInProgress("a turn is running"), "⚙️ Compaction skipped: a turn is running"),
    ],
)
async def test_compact_says_why_the_history_stays(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, outcome: Outcome | SessileError, text: str
) -> None:
    """The reply says why a compaction was skipped or failed."""
    chat.talk()

    async def compact(bound: Bound, instructions: str | None) -> Outcome:
        if isinstance(outcome, SessileError):
            raise outcome
        return outcome

    monkeypatch.setattr(chat.gateway.turns, "compact", compact)
    assert (await chat.give("/compact")).text == text


@pytest.mark.mission("Y12")
async def test_status_is_one_text_of_lines(chat: Chat) -> None:
    """/status starts with the version and includes the conversation."""
    chat.talk()
    lines = (await chat.give("/status")).text.splitlines()
    assert lines[0] == f"Sessile {__version__}"
    assert any(line.startswith(f"🧵 Session: {KEY}") for line in lines)


# -- commands in a turn


@pytest.mark.mission("Y4")
async def test_a_new_session_that_was_due_anyway_is_told_once(tmp_path: Path) -> None:
    """/new in an expired session resets once and shows one notice."""
    async with chatting(tmp_path) as chat:
        await ask(chat.gateway, "/verbose on")
        old = chat.talk()
        chat.clock.now += 24 * 3600
        reply = await ask(chat.gateway, "/new hello")
        assert reply.text == "hello"
        assert sorted(reply.notices) == sorted([reset_notice("new"), f"🧭 New session: {chat.bound().session_id}"])
        assert [one.session_id for one in previous_sessions(chat.entry)] == [old.session_id]


@pytest.mark.mission("Y5")
async def test_what_commands_set_acts_in_the_next_turn(chat: Chat) -> None:
    """Settings apply to the next turn, and replies of commands are never withheld."""
    assert (await ask(chat.gateway, "/usage tokens")).delivered == "⚙️ Usage in replies: tokens."
    assert (await ask(chat.gateway, "hi")).delivered.startswith("hi\n\n🧮 ")
    assert "Sending: off" in (await ask(chat.gateway, "/send off")).delivered
    held = await ask(chat.gateway, "are you there?")
    assert (held.delivered, held.withheld) == ("", "the session denies it")
    assert "Delivery: blocked by the send policy" in (await ask(chat.gateway, "/status")).delivered
    assert "Sending: on" in (await ask(chat.gateway, "/send on")).delivered
    assert (await ask(chat.gateway, "hi")).text == "hi"
