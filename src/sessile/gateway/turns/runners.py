"""Runners, which answer turns, and the runner of each agent.

    echo          repeats the user's message; needs nothing, for trying out the gateway
    command       a program on this machine
    openai        any OpenAI-compatible endpoint (vendors/clients.py)
    anthropic     Anthropic's endpoint, or one that speaks its protocol (vendors/clients.py)

A runner streams any number of `Text` pieces, then exactly one `Done` with the complete message. It raises
`RunnerFailed`, whose `overflow` says that the context was too long, or returns a message with the stop reason "error".
It keeps no state between runs. Cancelling stops a run at once, including its request or program. A caller that stops
early closes the iterator:

    async with aclosing(runner.run(request)) as pieces:
        async for piece in pieces: …

A runner knows nothing about the session, the store or the clock.

A program is started without a shell, in its own process group, and gets one JSON document on stdin:

    {"system": …, "messages": […], "model": …, "session": {"key": …, "id": …}}

Its stdout is the answer, streamed as it arrives, without trailing line breaks. A non-zero exit code is a failure,
reported with the end of stderr. When the program exits, is cancelled or times out, its whole process group is killed.
Its usage is unknown.

Rules for agents: a model set for the conversation has precedence over the agent's. The context window is the configured
one of the model, or the one in the catalogue, or `contextTokens` of the agent; otherwise it is unknown, and compaction
is never due. A provider that is not configured must have a vendor's name, so that messages for one provider never go to
another. Runners are created once, those of configured agents at the start, so that invalid settings are reported then.
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

from sessile.core.messages.family import joined_text, sendable
from sessile.core.providers import Policy, policy_for
from sessile.core.secret import Secret
from sessile.core.tokens import context_tokens, estimate
from sessile.errors import InvalidConfig, RunnerFailed
from sessile.vendors.answers import assistant_message, is_overflow
from sessile.vendors.clients import AsyncEndpoint, ModelRequest, RunnerSettings, runner_settings

if TYPE_CHECKING:
    from sessile.config import Agent, Config
    from sessile.vendors.models import Models


T = TypeVar("T")

_ECHO_PIECES = 4  # so that streaming is visible
_MAX_ANSWER = 4 << 20  # bytes
_READ = 1 << 16
_STDERR = 2000  # bytes of stderr that are kept
_DETAIL = 300  # characters of stderr in an error message
_POLL = 0.02  # seconds between checks whether a program has exited
_KILL_TIMEOUT = 5.0  # seconds
_PIPE = asyncio.subprocess.PIPE
_MAX_ANSWERERS = 256  # one for each agent and model

# Names of the protocols in the provider table.
_APIS = {"anthropic": "anthropic-messages", "openai": "openai-completions"}


class RunRequest(NamedTuple):
    """A request to a runner: the cleaned messages of a context, and its conversation."""

    messages: list[dict[str, Any]]
    system: str | None = None
    model: str | None = None
    max_tokens: int | None = None
    thinking: str | None = None
    session_key: str = ""
    session_id: str = ""


class Text(NamedTuple):
    """A piece of the answer's text."""

    text: str


class Done(NamedTuple):
    """The complete assistant message, as an entry holds it."""

    message: dict[str, Any]


class Runner(Protocol):
    """Answers requests."""

    @property
    def name(self) -> str:
        """Return the kind of runner: "echo", "command", "openai" or "anthropic"."""

    def run(self, request: RunRequest) -> AsyncIterator[Text | Done]:
        """Stream the answer."""


class EchoRunner:
    """Answers with the last user message. Its usage is an estimate."""

    name = "echo"

    async def run(self, request: RunRequest) -> AsyncIterator[Text | Done]:
        """Stream the text in a few pieces."""
        texts = (message.get("content") for message in reversed(request.messages) if message.get("role") == "user")
        text = joined_text(next(texts, None))
        size = -(-len(text) // _ECHO_PIECES) or 1
        for at in range(0, len(text), size):
            yield Text(text[at : at + size])
        yield Done(_echo(request, text))


def _echo(request: RunRequest, text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}] if text else []
    message = {"role": "assistant", "content": content, "provider": "echo", "model": "echo"}
    system = [{"role": "system", "content": request.system}] if request.system else []
    # Reuse the count of the last answer.
    sent, received = context_tokens([*system, *request.messages]).tokens, estimate(message)
    usage = {"input": sent, "output": received, "totalTokens": sent + received}
    return message | {"usage": usage, "stopReason": "stop"}


def make_runner(settings: str | Mapping[str, Any] | RunnerSettings, key: Secret | None = None) -> Runner:
    """Return the runner of a name or of settings. Raise if the settings are invalid.

    `key` is the API key of an endpoint, if it is not in the environment.
    """
    found = runner_settings(settings)
    return _RUNNERS[found.name](found, None if key is None else key.reveal())


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


# -- timeouts


async def in_time(
    pieces: AsyncGenerator[T, None], name: str, *, silence: float, timeout: float
) -> AsyncGenerator[T, None]:
    """Yield pieces as they arrive. Raise after `silence` seconds without one, and after `timeout` seconds in total.

    No cancel scope is open while a piece is yielded: a scope belongs to the task that opened it, and the next piece may
    be requested by another one.
    """
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
        return RunnerFailed(f"no output from {name} for {silence:g} s", hint="raise the runner's silence, or try again")
    return RunnerFailed(f"{name} took longer than {timeout:g} s", hint="raise the runner's timeout, or ask for less")


# -- programs


class CommandRunner:
    """Runs a program once for each turn."""

    name = "command"

    def __init__(self, settings: RunnerSettings) -> None:
        if not settings.command or not settings.command[0]:
            raise InvalidConfig(
                "command is required for the command runner", hint='set command = ["my-agent", "--json"]'
            )
        self._settings = settings
        self._program = os.path.basename(settings.command[0])

    async def run(self, request: RunRequest) -> AsyncIterator[Text | Done]:
        """Stream the output of the program."""
        settings = self._settings
        model = request.model or settings.model
        output = self._answer(_document(request, model))
        texts: list[str] = []
        async with aclosing(
            in_time(output, self._program, silence=settings.silence, timeout=settings.timeout)
        ) as pieces:
            async for piece in pieces:
                texts.append(piece)
                yield Text(piece)
        content = [{"type": "text", "text": "".join(texts)}] if texts else []
        served = {"provider": settings.provider or self.name, "model": model or self._program}
        yield Done({"role": "assistant", "content": content, **served, "stopReason": "stop"})

    async def _answer(self, document: bytes) -> AsyncGenerator[str, None]:
        process = await self._start()
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        exited, stderr = asyncio.create_task(_exited(process)), asyncio.create_task(_tail(process.stderr))
        try:
            process.stdin.write(document)
            process.stdin.close()  # after all of it is written
            async with aclosing(_decoded(process.stdout, self._program)) as pieces:
                async for piece in pieces:
                    yield piece
            code, last = await exited, await stderr
        finally:
            exited.cancel()
            stderr.cancel()
            with anyio.move_on_after(_KILL_TIMEOUT, shield=True):
                await asyncio.wait((exited, stderr))
                await _end(process)
        if code:
            detail = " ".join(last.split())
            how = f"code {code}" if code > 0 else f"signal {-code}"
            raise RunnerFailed(f"{self._program} ended with {how}: {detail[-_DETAIL:]}", overflow=is_overflow(detail))

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
            hint = "set the runner's command to a program and its arguments; no shell is used"
            raise RunnerFailed(f"cannot start {self._program}: {reason}", hint=hint) from error


def _document(request: RunRequest, model: str | None) -> bytes:
    session = {"key": request.session_key, "id": request.session_id}
    document: dict[str, Any] = {"system": request.system, "messages": request.messages}
    document |= {"model": model, "session": session}
    return json.dumps(sendable(document), ensure_ascii=False).encode()


async def _decoded(out: asyncio.StreamReader, program: str) -> AsyncGenerator[str, None]:
    """Yield the text of a stream. Line breaks are held back until more text follows."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    length, held, at_end = 0, "", False
    while not at_end:
        data = await out.read(_READ)
        at_end = not data
        length += len(data)
        if length > _MAX_ANSWER:
            raise RunnerFailed(f"the answer of {program} is longer than {_MAX_ANSWER} bytes")
        text = held + decoder.decode(data, final=at_end)
        visible = text.rstrip("\r\n")
        held = text[len(visible) :]
        if visible:
            yield visible


async def _tail(err: asyncio.StreamReader) -> str:
    """Return the end of stderr. All of it is read, so that the program does not block."""
    last = b""
    while data := await err.read(_READ):
        last = (last + data)[-_STDERR:]
    return last.decode("utf-8", "replace")


async def _exited(process: asyncio.subprocess.Process) -> int:
    """Wait until a program exits, then kill its group, so that no child keeps its stdout open."""
    while process.returncode is None:  # `wait` would also wait for children that hold stdout
        await asyncio.sleep(_POLL)
    _kill(process)
    return process.returncode


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a program and its group, and wait for it."""
    _kill(process)
    for pipe in (process.stdout, process.stderr):
        while pipe is not None and await pipe.read(_READ):
            pass  # an unread pipe never closes
    await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process group of a program."""
    with suppress(
        ProcessLookupError, PermissionError
    ):  # already gone; macOS refuses to signal a group of dead processes
        os.killpg(process.pid, signal.SIGKILL)


# -- endpoints


class EndpointRunner:
    """A model behind the API of a vendor, reached through `vendors/clients.py`."""

    def __init__(self, settings: RunnerSettings, *, api_key: str | None = None) -> None:
        self._settings = settings
        self._endpoint = AsyncEndpoint.from_settings(settings, api_key=api_key, failure=RunnerFailed)
        self._provider = settings.provider or self.name

    @property
    def name(self) -> str:
        """Return the name of the vendor: "openai" or "anthropic"."""
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


# -- answerers


class Answerer(NamedTuple):
    """The runner of an agent, with its settings.

    `model` is "provider/model", `policy` are the rules of its provider. The echo runner has neither.
    """

    agent: Agent
    runner: Runner
    settings: RunnerSettings
    model: str | None
    window: int | None
    policy: Policy | None

    @property
    def is_model(self) -> bool:
        """Return whether a model behind an endpoint answers. Only those can summarize and take notes."""
        return self.settings.name in _APIS


class Answerers:
    """The answerers of all agents, by agent and model."""

    def __init__(self, config: Config, models: Models, workspace: Callable[[str], str]) -> None:
        self._config = config
        self._workspace = workspace
        self._models = models
        self.of = lru_cache(maxsize=_MAX_ANSWERERS)(self._of)
        for agent in (config.agents.default_id, *(agent.id for agent in config.agents.list)):
            self.of(agent, None)

    def model_name(self, agent: str, override: str | None) -> str | None:
        """Return the model of an agent's turns, as "provider/model"."""
        provider, model = self._config.model_of(agent, override)
        return model if model is None or provider is None else f"{provider}/{model}"

    def window(self, agent: str, override: str | None) -> int | None:
        """Return the context window of that model in tokens; `None` if unknown."""
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
    """Raise if the provider of a model has no address. Without one, a runner uses its vendor's."""
    provider = settings.provider
    if settings.name not in _APIS or settings.base_url is not None or provider is None or provider in _APIS:
        return
    hint = f"set baseUrl in [models.providers.{provider[:80]}], or use a model of {' or '.join(_APIS)}"
    raise InvalidConfig(f"provider {provider[:80]!r} has no baseUrl", hint=hint)
