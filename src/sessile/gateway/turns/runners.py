"""Runners: who answers in a turn.

    echo          says what it was told; needs nothing, for trying the gateway out
    command       a program of this machine
    openai        any OpenAI-compatible endpoint (vendors/clients.py)
    anthropic     Anthropic's, or one that speaks its protocol (vendors/clients.py)

A runner streams pieces: any number of `Text`, then exactly one `Done` with the whole message. It raises `RunnerFailed`, whose
`overflow` says that the context was too long, or its message has the stop reason "error". It keeps nothing between two runs.
Cancelling ends a run at once, and with it the request or the program; whoever stops listening early closes the iterator:

    async with aclosing(runner.run(request)) as pieces:
        async for piece in pieces: …

A runner does not know the session, the store or the clock: it is given messages and gives back one.

A program of this machine as a runner.

It is started without a shell, in a process group of its own, and is given one JSON document on stdin:

    {"system": …, "messages": […], "model": …, "session": {"key": …, "id": …}}

What it writes to stdout is the answer, streamed as it comes; line breaks at the end are not part of it. An exit code other
than 0 is a failure, told with the last words on stderr. When the program ends, is cancelled or late, whatever is left of its
group is killed: nothing stays running behind a turn. What it used is unknown.

Who answers in a conversation: the agent with its runner, its model, and how much that can read.

Rules: a model that the conversation chose comes before the agent's own. A window is what a person says of the model, else what
the catalogue knows, else `contextTokens` of the agent; else it is unknown, and nothing is ever due for its sake.

A provider that nobody has configured is known only by a vendor's own name: what is said to one must not go to another.

Runners are made once. Those of the configured agents are made at the start, so that what cannot work is told then.

A stream that must not stay silent, nor go on for ever.

No cancel scope is open while a piece is handed out: a scope belongs to the task that opened it, and nobody knows who asks for
the next piece.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import anyio
import msgspec

from sessile.core.messages import joined_text, sendable
from sessile.core.providers import Policy, policy_for
from sessile.core.secret import Secret
from sessile.core.tokens import context_tokens, estimate
from sessile.errors import InvalidConfig, RunnerFailed
from sessile.vendors.answers import assistant_message, is_overflow
from sessile.vendors.clients import AsyncEndpoint, ModelRequest, RunnerSettings, runner_settings

if TYPE_CHECKING:
    from sessile.config import Agent, Config
    from sessile.vendors.models import Models


# --- runners

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

    return CommandRunner(settings)


def _make_endpoint(settings: RunnerSettings, key: str | None) -> Runner:
    return EndpointRunner(settings, api_key=key)


_RUNNERS: dict[str, Callable[[RunnerSettings, str | None], Runner]] = {
    "echo": _make_echo,
    "command": _make_command,
    "openai": _make_endpoint,
    "anthropic": _make_endpoint,
}


# --- deadlines

T = TypeVar("T")


async def in_time(
    pieces: AsyncGenerator[T, None], name: str, *, silence: float, timeout: float
) -> AsyncGenerator[T, None]:
    """The pieces as they come; fails after so many seconds without one, and after so many in all."""
    end = anyio.current_time() + timeout
    async with aclosing(pieces):
        while True:
            left = end - anyio.current_time()
            try:
                with anyio.fail_after(min(silence, left)):
                    piece = await anext(pieces)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise _too_slow(name, silence, timeout, silent=silence < left) from None
            yield piece


def _too_slow(name: str, silence: float, timeout: float, *, silent: bool) -> RunnerFailed:
    if silent:
        return RunnerFailed(f"{name} has said nothing for {silence:g} s", hint="allow a longer silence, or ask again")
    return RunnerFailed(f"{name} took longer than {timeout:g} s", hint="allow more time, or ask for less")


# --- command runner

_LONGEST = 4 << 20  # bytes of an answer
_READ = 1 << 16
_LAST_WORDS = 2000  # bytes of stderr that are looked at
_DETAIL = 300  # characters of them that are told
_LOOK = 0.02  # seconds between two looks whether it has ended
_GOODBYE = 5.0  # seconds until a killed program is gone
_PIPE = asyncio.subprocess.PIPE


class CommandRunner:
    """Runs the program once for each turn."""

    name = "command"

    def __init__(self, settings: RunnerSettings) -> None:
        if not settings.command or not settings.command[0]:
            raise InvalidConfig("the command runner needs a command", hint='command = ["my-agent", "--json"]')
        self._settings = settings
        self._program = os.path.basename(settings.command[0])

    async def run(self, request: RunRequest) -> AsyncIterator[Text | Done]:
        """Stream what the program writes."""
        settings = self._settings
        model = request.model or settings.model
        words = self._answer(_document(request, model))
        said: list[str] = []
        async with aclosing(
            in_time(words, self._program, silence=settings.silence, timeout=settings.timeout)
        ) as pieces:
            async for piece in pieces:
                said.append(piece)
                yield Text(piece)
        content = [{"type": "text", "text": "".join(said)}] if said else []
        served = {"provider": settings.provider or self.name, "model": model or self._program}
        yield Done({"role": "assistant", "content": content, **served, "stopReason": "stop"})

    async def _answer(self, given: bytes) -> AsyncGenerator[str, None]:
        process = await self._start()
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        over, listening = asyncio.create_task(_over(process)), asyncio.create_task(_last_words(process.stderr))
        try:
            process.stdin.write(given)
            process.stdin.close()  # once all of it is written
            async with aclosing(_decoded(process.stdout, self._program)) as words:
                async for piece in words:
                    yield piece
            code, last = await over, await listening
        finally:
            over.cancel()
            listening.cancel()
            with anyio.move_on_after(_GOODBYE, shield=True):
                await asyncio.wait((over, listening))
                await _end(process)
        if code:
            told = " ".join(last.split())
            how = f"code {code}" if code > 0 else f"signal {-code}"
            raise RunnerFailed(f"{self._program} ended with {how}: {told[-_DETAIL:]}", overflow=is_overflow(told))

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._settings.command,
                cwd=self._settings.folder,
                stdin=_PIPE,
                stdout=_PIPE,
                stderr=_PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            hint = "the runner's command is a program and its arguments; there is no shell"
            raise RunnerFailed(f"{self._program} cannot be started: {reason}", hint=hint) from error


def _document(request: RunRequest, model: str | None) -> bytes:
    session = {"key": request.session_key, "id": request.session_id}
    document: dict[str, Any] = {"system": request.system, "messages": request.messages}
    document |= {"model": model, "session": session}
    return json.dumps(sendable(document), ensure_ascii=False).encode()


async def _decoded(out: asyncio.StreamReader, program: str) -> AsyncGenerator[str, None]:
    """The text of a stream as it comes; line breaks wait until something follows them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    length, held, at_end = 0, "", False
    while not at_end:
        data = await out.read(_READ)
        at_end = not data
        length += len(data)
        if length > _LONGEST:
            raise RunnerFailed(f"the answer of {program} is longer than {_LONGEST} bytes")
        text = held + decoder.decode(data, final=at_end)
        said = text.rstrip("\r\n")
        held = text[len(said) :]
        if said:
            yield said


async def _last_words(err: asyncio.StreamReader) -> str:
    """The end of what is written there; the rest is read, so that the program does not wait for us."""
    last = b""
    while data := await err.read(_READ):
        last = (last + data)[-_LAST_WORDS:]
    return last.decode("utf-8", "replace")


async def _over(process: asyncio.subprocess.Process) -> int:
    """Wait for the end of a program; then what it has started may no longer hold its stdout open."""
    while process.returncode is None:  # `wait` would wait for whoever holds stdout, too
        await asyncio.sleep(_LOOK)
    _kill(process)
    return process.returncode


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a program with all that it has started, and see it off."""
    _kill(process)
    for pipe in (process.stdout, process.stderr):
        while pipe is not None and await pipe.read(_READ):
            pass  # a pipe that nobody reads never closes
    await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    """End what is left of the group of a program."""
    with suppress(ProcessLookupError, PermissionError):  # nothing is; macOS refuses a group of the dead
        os.killpg(process.pid, signal.SIGKILL)


# --- endpoints


class EndpointRunner:
    """A model behind the API of a vendor, reached through `vendors/clients.py`."""

    def __init__(self, settings: RunnerSettings, *, api_key: str | None = None) -> None:
        self._settings = settings
        self._endpoint = AsyncEndpoint.from_settings(settings, api_key=api_key, failure=RunnerFailed)
        self._provider = settings.provider or self.name

    @property
    def name(self) -> str:
        """The name of the vendor: "openai" or "anthropic"."""
        return self._endpoint.vendor.name

    async def run(self, request: RunRequest) -> AsyncIterator[Text | Done]:
        """Stream the answer of the model."""
        settings = self._settings
        model = self._model(request)
        limit = request.max_tokens or settings.max_tokens
        sent = ModelRequest(model, request.messages, request.system, limit, request.thinking)
        answer = self._endpoint.vendor.answer()
        events = in_time(self._endpoint.stream(sent), model, silence=settings.silence, timeout=settings.timeout)
        async with aclosing(events):
            async for event in events:
                text = answer.add(event)
                if text:
                    yield Text(text)
        if answer.stop is None:
            raise RunnerFailed(f"the answer of {model} was cut off after {answer.length} characters", hint="try again")
        yield Done(assistant_message(answer, provider=self._provider, model=model))

    def _model(self, request: RunRequest) -> str:
        """Return the model's own name; sessions use "provider/name"."""
        model = request.model or self._settings.model
        if not model:
            raise RunnerFailed(f"the {self.name} runner has no model", hint="set a model for the session or the runner")
        return model.removeprefix(f"{self._provider}/")


# --- answerers

_REMEMBERED = 256  # runners; each agent has as many as its conversations have chosen models

# What the hygiene table calls the protocols that our runners speak.
_APIS = {"anthropic": "anthropic-messages", "openai": "openai-completions"}


class Answerer(NamedTuple):
    """Who answers. `model` is "provider/model", `policy` what its provider takes; the echo has neither, and takes everything."""

    agent: Agent
    runner: Runner
    settings: RunnerSettings
    model: str | None
    window: int | None
    policy: Policy | None

    @property
    def is_model(self) -> bool:
        """Whether a model behind an endpoint answers: only that can sum up or take notes."""
        return self.settings.name in _APIS


class Answerers:
    """All who answer, by agent and chosen model."""

    def __init__(self, config: Config, models: Models, workspace: Callable[[str], str]) -> None:
        self._config = config
        self._workspace = workspace
        self._models = models
        self.of = lru_cache(maxsize=_REMEMBERED)(self._of)
        for agent in (config.agents.default_id, *(agent.id for agent in config.agents.list)):
            self.of(agent, None)

    def model_name(self, agent: str, override: str | None) -> str | None:
        """The model of an agent's turns, as "provider/model"."""
        provider, model = self._config.model_of(agent, override)
        return model if model is None or provider is None else f"{provider}/{model}"

    def window(self, agent: str, override: str | None) -> int | None:
        """How many tokens that model can read; `None` if nobody knows."""
        name = self.model_name(agent, override)
        known = None if name is None else self._models.window(name)
        return known or self._config.agents.named(agent).context_tokens

    def _of(self, agent: str, override: str | None) -> Answerer:
        settings = self._config.runner_of(agent, override)
        if self._config.agents.named(agent).workspace is not None:
            settings = msgspec.structs.replace(settings, folder=self._workspace(agent))
        _check_address(settings)
        runner = make_runner(settings, self._config.key_of(settings.provider))
        api = _APIS.get(settings.name)
        return Answerer(
            self._config.agents.named(agent),
            runner,
            settings,
            self.model_name(agent, override),
            self.window(agent, override),
            None if settings.name == "echo" else policy_for(settings.provider, api, settings.model),
        )


def _check_address(settings: RunnerSettings) -> None:
    """Raise if nobody says where the provider of a model is; without an address, a runner asks its vendor."""
    provider = settings.provider
    if settings.name not in _APIS or settings.base_url is not None or provider is None or provider in _APIS:
        return
    hint = f"set baseUrl in [models.providers.{provider[:80]}], or use a model of {' or '.join(_APIS)}"
    raise InvalidConfig(f"nobody says where the provider {provider[:80]!r} is", hint=hint)
