"""Runners: who answers in a turn.

    echo          says what it was told; needs nothing, for trying the gateway out
    command       a program of this machine (command_runner)
    openai        any OpenAI-compatible endpoint (openai_runner)
    anthropic     Anthropic's, or one that speaks its protocol (anthropic_runner)

A runner streams pieces: any number of `Text`, then exactly one `Done` with the whole message. It raises `RunnerFailed`, whose
`overflow` says that the context was too long, or its message has the stop reason "error". It keeps nothing between two runs.
Cancelling ends a run at once, and with it the request or the program; whoever stops listening early closes the iterator:

    async with aclosing(runner.run(request)) as pieces:
        async for piece in pieces: …

A runner does not know the session, the store or the clock: it is given messages and gives back one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from sessile.core.llm import joined_text
from sessile.core.runner_settings import RunnerSettings, runner_settings
from sessile.core.secret import Secret
from sessile.core.tokens import context_tokens, estimate

_ECHOED = 4  # pieces of an echo, so that streaming can be seen


class RunRequest(NamedTuple):
    """What a runner is asked: the messages of a context after hygiene, and whose conversation it is."""

    messages: list[dict[str, Any]]
    system: str | None = None
    model: str | None = None
    max_tokens: int | None = None
    thinking: str | None = None
    session_key: str = ""
    session_id: str = ""


class Text(NamedTuple):
    """Words that the model adds to what it has said."""

    text: str


class Done(NamedTuple):
    """The assistant's message, whole, as an entry holds it."""

    message: dict[str, Any]


class Runner(Protocol):
    """Answers a request."""

    @property
    def name(self) -> str:
        """Which runner this is: "echo", "command", "openai", "anthropic"."""

    def run(self, request: RunRequest) -> AsyncIterator[Text | Done]:
        """Stream the answer."""


class EchoRunner:
    """Answers with the last words of the user; its usage is an estimate."""

    name = "echo"

    async def run(self, request: RunRequest) -> AsyncIterator[Text | Done]:
        """Stream the words in a few pieces."""
        asked = (message.get("content") for message in reversed(request.messages) if message.get("role") == "user")
        text = joined_text(next(asked, None))
        size = -(-len(text) // _ECHOED) or 1
        for at in range(0, len(text), size):
            yield Text(text[at : at + size])
        yield Done(_echo(request, text))


def _echo(request: RunRequest, text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}] if text else []
    message = {"role": "assistant", "content": content, "provider": "echo", "model": "echo"}
    system = [{"role": "system", "content": request.system}] if request.system else []
    # What was counted for the last answer need not be counted again.
    asked, said = context_tokens([*system, *request.messages]).tokens, estimate(message)
    return message | {"usage": {"input": asked, "output": said, "totalTokens": asked + said}, "stopReason": "stop"}


def make_runner(told: str | Mapping[str, Any] | RunnerSettings, key: Secret | None = None) -> Runner:
    """The runner of a name or of settings; what cannot work is refused now, not in the first turn.

    `key` is for endpoints whose key is not in the environment.
    """
    settings = runner_settings(told)
    return _RUNNERS[settings.name](settings, None if key is None else key.reveal())


# The vendors' clients take a while to import; only who uses one pays for it.


def _make_echo(settings: RunnerSettings, key: str | None) -> Runner:
    return EchoRunner()


def _make_command(settings: RunnerSettings, key: str | None) -> Runner:
    from sessile.gateway.command_runner import CommandRunner

    return CommandRunner(settings)


def _make_openai(settings: RunnerSettings, key: str | None) -> Runner:
    from sessile.gateway.openai_runner import OpenAIRunner

    return OpenAIRunner(settings, api_key=key)


def _make_anthropic(settings: RunnerSettings, key: str | None) -> Runner:
    from sessile.gateway.anthropic_runner import AnthropicRunner

    return AnthropicRunner(settings, api_key=key)


_RUNNERS: dict[str, Callable[[RunnerSettings, str | None], Runner]] = {
    "echo": _make_echo,
    "command": _make_command,
    "openai": _make_openai,
    "anthropic": _make_anthropic,
}
