"""Runners: requests, streaming, failures, cancellation and network access."""

from __future__ import annotations

import fcntl
import json
import sys
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from model_server import ModelServer, Tool, serving
from sessile.core.tokens import estimate, total
from sessile.errors import InvalidConfig, RunnerFailed
from sessile.gateway.turns.runners import (
    CommandRunner,
    Done,
    EndpointRunner,
    Runner,
    RunRequest,
    Text,
    in_time,
    make_runner,
)
from sessile.vendors.clients import RunnerSettings

pytestmark = [pytest.mark.anyio, pytest.mark.mission("Y13")]

KEY = "secret-key-0123456789"
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": [{"type": "text", "text": "answer"}]},
    {"role": "user", "content": [{"type": "text", "text": "and now, the second of my questions"}]},
]
REQUEST = RunRequest(MESSAGES, system="Be brief.", model="m", session_key="agent:main:main", session_id="s1")
Make = Callable[..., Runner]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving() as model:
        yield model


def openai(server: ModelServer, **settings: Any) -> Runner:
    return EndpointRunner(RunnerSettings(name="openai", base_url=f"{server.url}/v1", **settings), api_key=KEY)


def anthropic(server: ModelServer, **settings: Any) -> Runner:
    return EndpointRunner(RunnerSettings(name="anthropic", base_url=server.url, **settings), api_key=KEY)


def command(script: str, *arguments: str, **settings: Any) -> CommandRunner:
    program = (sys.executable, "-c", script, *arguments)
    return CommandRunner(RunnerSettings(name="command", command=program, **settings))


models = pytest.mark.parametrize("make", [openai, anthropic])


async def answered(runner: Runner, request: RunRequest = REQUEST) -> tuple[list[str], dict[str, Any]]:
    """Return the streamed texts and the message; check that one message comes last and matches the texts."""
    async with aclosing(runner.run(request)) as run:  # type: ignore[type-var]
        pieces = [piece async for piece in run]
    texts = [piece.text for piece in pieces if isinstance(piece, Text)]
    done = [piece for piece in pieces if isinstance(piece, Done)]
    assert len(done) == 1 and pieces[-1] is done[0]
    message = done[0].message
    assert "".join(texts) == "".join(block["text"] for block in message["content"] if block["type"] == "text")
    return texts, message


async def failure(runner: Runner, request: RunRequest = REQUEST) -> RunnerFailed:
    """Return the runner's failure, and check that neither its text nor its traceback contains the key."""
    with pytest.raises(RunnerFailed) as failed:
        await answered(runner, request)
    assert KEY not in str(failed.value)
    assert KEY not in "".join(traceback.format_exception(failed.value))
    return failed.value


# -- echo


async def test_echo_says_the_last_words_of_the_user_in_a_few_pieces() -> None:
    """The echo runner repeats the last user message in pieces and estimates its usage."""
    texts, message = await answered(make_runner("echo"))
    assert 1 < len(texts) < 6 and "".join(texts) == "and now, the second of my questions"
    read = total([{"role": "system", "content": "Be brief."}, *MESSAGES])
    said = estimate(message)
    assert message["usage"] == {"input": read, "output": said, "totalTokens": read + said}
    served = {"role": "assistant", "provider": "echo", "model": "echo", "stopReason": "stop"}
    assert served.items() <= message.items()


async def test_echo_of_nothing_is_an_empty_answer() -> None:
    """The echo of an empty request is an empty message."""
    assert (await answered(make_runner("echo"), RunRequest([])))[1]["content"] == []


# -- models


@models
async def test_a_model_is_asked_and_its_answer_is_streamed(make: Make, server: ModelServer) -> None:
    """The request has the system prompt, messages, model and limit; the reply has text, usage and stop reason."""
    server.say("A fine answer, in some pieces.")
    texts, message = await answered(make(server, max_tokens=77))
    assert len(texts) > 2
    assert message == {
        "role": "assistant",
        "content": [{"type": "text", "text": "A fine answer, in some pieces."}],
        "provider": make.__name__,
        "model": "m",
        "usage": {"input": 11, "output": 3, "totalTokens": 14},
        "stopReason": "stop",
    }
    body = server.asked[0].body
    assert body["model"] == "m" and body["stream"] is True and 77 in body.values()
    for part in ("Be brief.", "first", "answer", "the second of my questions"):
        assert part in json.dumps(body)
    assert KEY in str(server.asked[0].headers)


@models
async def test_the_first_words_are_there_before_the_last_ones(make: Make, server: ModelServer) -> None:
    """Text is streamed as it arrives."""
    server.say("one two three four", pause=0.05)
    run = make(server).run(REQUEST)
    times = []
    async for _ in run:
        times.append(time.monotonic())
    assert times[-1] - times[0] > 0.1


@models
async def test_calls_of_tools_are_blocks_of_the_message(make: Make, server: ModelServer) -> None:
    """Tool calls with streamed arguments become blocks of the message."""
    tools = (Tool("t1", "read", '{"path": "a long path/to a file"}'), Tool("t2", "list", "{}"))
    server.say("let me look", tools=tools, stop="tool_calls" if make is openai else "tool_use")
    message = (await answered(make(server)))[1]
    assert message["stopReason"] == "toolUse"
    assert message["content"] == [
        {"type": "text", "text": "let me look"},
        {"type": "toolCall", "id": "t1", "name": "read", "arguments": {"path": "a long path/to a file"}},
        {"type": "toolCall", "id": "t2", "name": "list", "arguments": {}},
    ]


@models
async def test_an_answer_with_calls_can_be_sent_back_with_their_results(make: Make, server: ModelServer) -> None:
    """A message with tool calls and its results can be sent back to the endpoint."""
    server.say("look", tools=(Tool("t1", "read", '{"path": "x"}'),), thinking="hm", signature="sig")
    message = (await answered(make(server)))[1]
    result = {"role": "toolResult", "toolCallId": "t1", "content": [{"type": "text", "text": "found"}]}
    await answered(make(server), REQUEST._replace(messages=[*MESSAGES, message, result]))
    sent = json.dumps(server.asked[1].body)
    assert sent.count("t1") == 2 and "found" in sent and ("sig" in sent) == (make is anthropic)


@models
async def test_thoughts_are_kept_but_not_said(make: Make, server: ModelServer) -> None:
    """Thinking becomes a separate block, with its signature if there is one, and is not streamed as text."""
    server.say("The answer.", thinking="I think that it is so.", signature="signed-by-the-model")
    texts, message = await answered(make(server), REQUEST._replace(thinking="low"))
    thinking: dict[str, Any] = {"type": "thinking", "thinking": "I think that it is so."}
    if make is anthropic:
        thinking["thinkingSignature"] = "signed-by-the-model"
    assert message["content"] == [thinking, {"type": "text", "text": "The answer."}]
    assert "think" not in "".join(texts)


async def test_the_level_of_thinking_is_asked_for_in_the_words_of_the_endpoint(server: ModelServer) -> None:
    """The thinking level is sent in the endpoint's format with its own token budget; "off" disables it."""
    server.say("x")
    for thinking in ("high", "off", None):
        request = REQUEST._replace(thinking=thinking, max_tokens=1000)
        await answered(openai(server), request)
        await answered(anthropic(server), request)
    bodies = [asked.body for asked in server.asked]
    assert bodies[0]["reasoning_effort"] == "high"
    assert bodies[1]["thinking"] == {"type": "enabled", "budget_tokens": 16384} and bodies[1]["max_tokens"] == 17384
    assert not any("reasoning_effort" in body or "thinking" in body for body in bodies[2:])
    assert "levels: off" in str(await failure(anthropic(server), REQUEST._replace(thinking="utmost")))


@models
async def test_tokens_of_the_cache_are_counted_apart(make: Make, server: ModelServer) -> None:
    """Cached tokens are counted separately for each vendor."""
    if make is openai:
        usage = {"prompt_tokens": 90, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 80}}
        expected = {"input": 10, "output": 3, "cacheRead": 80, "totalTokens": 93}
    else:
        usage = {"input_tokens": 10, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 5}
        expected = {"input": 10, "output": 3, "cacheRead": 80, "cacheWrite": 5, "totalTokens": 98}
    server.say("x", usage=usage)
    assert (await answered(make(server)))[1]["usage"] == expected


@models
async def test_an_answer_that_was_too_long_or_filtered_says_so(make: Make, server: ModelServer) -> None:
    """A truncated or filtered reply keeps its text and reports the reason."""
    server.say("half of it", stop="length")
    server.say("half of", stop="content_filter")
    assert (await answered(make(server)))[1]["stopReason"] == "length"
    message = (await answered(make(server)))[1]
    assert (message["stopReason"], message["errorMessage"]) == ("error", "m stopped: content_filter")
    assert message["content"] == [{"type": "text", "text": "half of"}]


@models
async def test_the_name_of_the_provider_is_no_part_of_the_name_of_the_model(make: Make, server: ModelServer) -> None:
    """The prefix "provider/" is removed from the model name; other slashes are kept."""
    server.say("x")
    for named, sent in ((f"{make.__name__}/m2", "m2"), ("meta/llama", "meta/llama"), (None, "usual")):
        message = (await answered(make(server, model="usual"), REQUEST._replace(model=named)))[1]
        assert server.asked[-1].body["model"] == message["model"] == sent
    assert "no model" in str(await failure(make(server), REQUEST._replace(model=None)))


# -- failures


@models
async def test_a_refused_key_is_told_without_the_key(make: Make, server: ModelServer) -> None:
    """The error for a rejected key never contains the key, even if the endpoint repeats it."""
    server.fail(401, f"{'x' * 250} invalid key: {KEY}")
    failed = await failure(make(server))
    assert "refused the key" in str(failed) and "check the key" in str(failed) and KEY[:6] not in str(failed)
    assert not failed.overflow


async def test_a_key_that_cannot_be_sent_is_refused_at_once(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trailing line break is removed from a key; a line break inside it is rejected without showing the key."""
    settings = {"name": "openai", "base_url": server.url, "api_key_env": "MY_KEY"}
    server.say("x")
    monkeypatch.setenv("MY_KEY", f"{KEY}\n")
    await answered(make_runner(settings))
    assert f"Bearer {KEY}" in server.asked[0].headers.values()
    monkeypatch.setenv("MY_KEY", f"{KEY}\n{KEY}")
    with pytest.raises(InvalidConfig) as refused:
        make_runner(settings)
    assert KEY not in str(refused.value)


async def test_a_placeholder_for_a_key_does_not_garble_what_went_wrong(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A very short placeholder key is not masked in error messages."""
    monkeypatch.setenv("MY_KEY", "o")
    server.fail(400, "prompt is too long")
    failed = await failure(
        make_runner({"name": "openai", "base_url": server.url, "api_key_env": "MY_KEY", "model": "m"})
    )
    assert failed.overflow and "too long" in str(failed)


@models
@pytest.mark.parametrize(
    ("text", "overflow"),
    [("prompt is too long: 250000 tokens > 200000 maximum", True), ("no such model", False)],
)
async def test_a_context_that_is_too_long_is_recognised(
    make: Make, server: ModelServer, text: str, overflow: bool
) -> None:
    """A context overflow is recognised; other errors are not."""
    server.fail(400, text)
    failed = await failure(make(server))
    assert failed.overflow is overflow and text in str(failed)


@models
async def test_an_overloaded_model_is_asked_again(make: Make, server: ModelServer) -> None:
    """The vendor's client retries an overloaded endpoint."""
    server.fail(503, "overloaded")
    server.say("at last")
    assert (await answered(make(server)))[0] == ["at last"]


@models
async def test_an_error_in_the_middle_of_an_answer_is_a_failure(make: Make, server: ModelServer) -> None:
    """An error in mid-stream fails with the endpoint's message."""
    server.say("it began well", error=f"the engine is on fire {KEY}")
    assert "on fire" in str(await failure(make(server)))


@models
async def test_a_stream_that_is_cut_is_a_failure(make: Make, server: ModelServer) -> None:
    """A truncated stream is a failure."""
    server.say("an answer that never ends", cut=True)
    assert not (await failure(make(server))).overflow


@models
@pytest.mark.parametrize(
    "raw", [b"", b"<html>", b"data: []\n\n", b"event: message_start\ndata: nonsense\n\n", b"\xff\xfe\n\n"]
)
async def test_an_answer_that_is_none_is_a_failure(make: Make, server: ModelServer, raw: bytes) -> None:
    """An invalid response is a failure."""
    server.say(raw=raw or b"\n")
    assert not (await failure(make(server))).overflow


@models
async def test_a_model_that_falls_silent_is_given_up(make: Make, server: ModelServer) -> None:
    """A model without output fails after the silence timeout."""
    server.say("never said", pause=30)
    began = time.monotonic()
    failed = str(await failure(make(server, silence=0.2)))
    assert failed.startswith("no output from ") and "for 0.2 s" in failed
    assert time.monotonic() - began < 5


@models
async def test_a_model_that_never_comes_to_an_end_is_given_up(make: Make, server: ModelServer) -> None:
    """A model that keeps sending fails after the total timeout."""
    server.say("and so on " * 500, pause=0.03)
    began = time.monotonic()
    assert "took longer than 0.4 s" in str(await failure(make(server, timeout=0.4)))
    assert time.monotonic() - began < 5
    assert await anyio.to_thread.run_sync(server.gone.wait, 5)


@models
async def test_an_endpoint_that_is_not_there_is_a_failure_of_ours(make: Make) -> None:
    """An unreachable endpoint raises RunnerFailed."""
    with serving() as server:
        runner = make(server)
    assert "did not answer" in str(await failure(runner))


# -- cancellation


async def cancel_after_first(run: AsyncIterator[Text | Done]) -> float:
    """Cancel while waiting for the second piece, and return the seconds that it took."""
    async with anyio.create_task_group() as group:
        first = anyio.Event()

        async def listen() -> None:
            async for _ in run:
                first.set()

        group.start_soon(listen)
        with anyio.fail_after(10):
            await first.wait()
        await anyio.sleep(0.05)
        began = time.monotonic()
        group.cancel_scope.cancel()
    return time.monotonic() - began


@models
async def test_cancelling_ends_the_request_at_once(make: Make, server: ModelServer) -> None:
    """Cancelling closes the connection at once."""
    server.say("a long story " * 500, pause=0.1)
    assert await cancel_after_first(make(server).run(REQUEST)) < 0.5
    assert await anyio.to_thread.run_sync(server.gone.wait, 5)


@models
async def test_who_stops_listening_ends_the_request(make: Make, server: ModelServer) -> None:
    """Closing the iterator closes the connection."""
    server.say("a long story " * 500, pause=0.02)
    async with aclosing(make(server).run(REQUEST)) as run:  # type: ignore[type-var]
        await anext(run)
    assert await anyio.to_thread.run_sync(server.gone.wait, 5)


async def test_a_stream_that_is_left_is_closed_before_anything_else_happens() -> None:
    """The source is closed as soon as the iterator is closed, not by garbage collection."""
    closed = False

    async def source() -> AsyncGenerator[int, None]:
        nonlocal closed
        try:
            yield 1
        finally:
            closed = True

    pieces = source()
    async with aclosing(in_time(pieces, "x", silence=5, timeout=5)) as run:
        await anext(run)
    assert closed


@models
async def test_one_runner_answers_many_at_once(make: Make, server: ModelServer) -> None:
    """One runner serves concurrent turns without mixing their replies."""
    server.say("an answer in some pieces", pause=0.02)
    runner, texts = make(server), []

    async def ask() -> None:
        texts.append("".join((await answered(runner))[0]))

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(ask)
    assert texts == ["an answer in some pieces"] * 8


# -- network access


class Connections:
    """Records the connections of this process with an audit hook."""

    def __init__(self) -> None:
        self.seen: list[Any] | None = None
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.seen is not None and event == "socket.connect":
            self.seen.append(arguments[1])
        elif self.seen is not None and event == "socket.getaddrinfo":
            self.seen.append(arguments[:2])


CONNECTIONS = Connections()  # an audit hook cannot be removed, so there is only one


@pytest.fixture
def connections() -> Iterator[list[Any]]:
    seen: list[Any] = []
    CONNECTIONS.seen = seen
    yield seen
    CONNECTIONS.seen = None


@pytest.mark.promise("P42")
@models
async def test_only_the_configured_host_is_connected_to(
    make: Make, server: ModelServer, monkeypatch: pytest.MonkeyPatch, connections: list[Any]
) -> None:
    """Proxies and base URLs in the environment are ignored."""
    with serving() as other:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
            monkeypatch.setenv(name, other.url)
            monkeypatch.setenv(name.lower(), other.url)
        server.say("direct")
        assert (await answered(make(server)))[0] == ["direct"]
        assert not other.asked
    port = int(server.url.rpartition(":")[2])
    assert connections and {address[1] for address in connections} == {port}
    assert {address[0] for address in connections} == {"127.0.0.1"}


@pytest.mark.promise("P42")
@models
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(make: Make, server: ModelServer, status: int) -> None:
    """Redirects are not followed, because the key would be sent along."""
    with serving() as other:
        path = "/v1/chat/completions" if make is openai else "/v1/messages"
        server.say("elsewhere", status=status, headers=(("Location", f"{other.url}{path}"),))
        other.say("gotcha")
        assert "refused the request" in str(await failure(make(server)))
        assert not other.asked


@models
async def test_each_answer_has_a_connection_of_its_own(make: Make, server: ModelServer, connections: list[Any]) -> None:
    """Each reply uses a new connection."""
    server.say("x", keep=True)
    runner = make(server)
    await answered(runner)
    once = list(connections)
    await answered(runner)
    assert once and connections == once * 2


@pytest.mark.promise("P42")
async def test_echo_and_command_connect_to_nobody(connections: list[Any]) -> None:
    """The echo and command runners open no connections."""
    await answered(make_runner("echo"))
    await answered(command("print('x')"))
    assert connections == []


@pytest.mark.promise("P42")
@pytest.mark.parametrize("name", ["openai", "anthropic"])
async def test_a_key_of_the_vendor_is_not_sent_to_somebody_else(
    name: str, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vendor's key is sent to another host only if the settings name its variable."""
    for variable in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "MY_KEY"):
        monkeypatch.setenv(variable, f"{KEY}-{variable}")
    server.say("x")
    settings = {"name": name, "base_url": f"{server.url}/v1"}
    await answered(make_runner(settings))
    assert KEY not in str(server.asked[-1].headers)
    await answered(make_runner({**settings, "api_key_env": "MY_KEY"}))
    assert f"{KEY}-MY_KEY" in str(server.asked[-1].headers)


# -- command


async def test_a_command_reads_one_document_and_its_words_are_the_answer() -> None:
    """A command reads one JSON document from stdin and its output is the reply, without trailing line breaks."""
    script = "import json, sys; print(json.dumps(json.load(sys.stdin)), end='\\n\\n')"
    message = (await answered(command(script)))[1]
    assert json.loads(message["content"][0]["text"]) == {
        "system": "Be brief.",
        "messages": MESSAGES,
        "model": "m",
        "session": {"key": "agent:main:main", "id": "s1"},
    }
    assert message["content"][0]["text"].endswith("}") and "usage" not in message
    assert {"provider": "command", "model": "m", "stopReason": "stop"}.items() <= message.items()


async def test_the_words_of_a_command_are_streamed_as_they_come() -> None:
    """Output is streamed as it arrives, and split characters are put together."""
    script = """
import sys, time
for byte in "é\\n\\nü€".encode():
    sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush(); time.sleep(0.03)
"""
    texts, _ = await answered(command(script))
    assert "".join(texts) == "é\n\nü€" and len(texts) > 1


async def test_a_command_that_fails_is_told_with_its_last_words() -> None:
    """A failed command reports its exit code or signal and the end of its stderr."""
    script = "import sys; print('half'); print('x' * 500000, 'no luck at all', file=sys.stderr); sys.exit(3)"
    failed = await failure(command(script))
    assert "ended with code 3" in str(failed) and str(failed).endswith("no luck at all") and len(str(failed)) < 500
    assert not failed.overflow
    assert (await failure(command("import sys; sys.exit('prompt is too long')"))).overflow
    assert "signal 15" in str(await failure(command("import os; os.kill(os.getpid(), 15)")))


async def test_a_command_need_not_read_what_it_is_given() -> None:
    """A command may exit without reading its input."""
    request = REQUEST._replace(messages=[{"role": "user", "content": "x" * 3_000_000}])
    assert (await answered(command("print('no need')"), request))[0] == ["no need"]


async def test_a_command_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    """A missing command is reported by its name, without its path."""
    runner = CommandRunner(RunnerSettings(name="command", command=(str(tmp_path / "missing"),)))
    failed = await failure(runner)
    assert "cannot start missing: No such file" in str(failed) and str(tmp_path) not in str(failed)


async def test_there_is_no_shell() -> None:
    """Arguments are passed without a shell."""
    argument = "$HOME; echo `id` | cat"
    assert (await answered(command("import sys; print(sys.argv[1])", argument)))[0] == [argument]


async def test_a_command_that_says_too_much_or_takes_too_long_is_ended() -> None:
    """A command is stopped when it exceeds its silence, total time or output limit."""
    began = time.monotonic()
    sleeping = "import time; time.sleep(60)"
    talking = "import time\nwhile True: print('x', flush=True); time.sleep(0.02)"
    assert "no output from" in str(await failure(command(sleeping, silence=0.2)))
    assert "took longer" in str(await failure(command(talking, timeout=0.4)))
    assert "longer than" in str(await failure(command("while True: print('x' * 100000)")))
    assert time.monotonic() - began < 20


FAMILY = """
import os, subprocess, sys, time
child = "import fcntl, os, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); os.close(int(sys.argv[2])); time.sleep(60)"
reading, writing = os.pipe()
subprocess.Popen([sys.executable, "-c", child, sys.argv[1], str(writing)], pass_fds=[writing])
os.close(writing)
os.read(reading, 1)
print("ready", flush=True)
time.sleep(60 if sys.argv[2] == "stay" else 0)
"""


async def is_free(path: Path) -> bool:
    """Wait briefly and return whether the lock is free."""
    with open(path) as file:
        for _ in range(100):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                await anyio.sleep(0.05)
    return False


async def test_cancelling_kills_a_command_with_all_that_it_has_started(tmp_path: Path) -> None:
    """Cancelling also kills the child processes of a command, so that their lock is released."""
    lock = tmp_path / "lock"
    assert await cancel_after_first(command(FAMILY, str(lock), "stay").run(REQUEST)) < 2
    assert await is_free(lock)


async def test_a_command_leaves_nothing_running_behind_it(tmp_path: Path) -> None:
    """A child process that keeps the output open is killed when the command ends, and the reply is complete."""
    lock = tmp_path / "lock"
    assert (await answered(command(FAMILY, str(lock), "leave", silence=20)))[0] == ["ready"]
    assert await is_free(lock)


# -- settings


@pytest.mark.parametrize(
    "told",
    [
        "gpt",
        {"name": "echo", "colour": "red"},
        {"name": "command"},
        {"name": "openai", "timeout": 0},
        {"name": "openai", "api_key": KEY},
        {"name": "openai", "base_url": "file:///etc/passwd"},
        {"name": "openai", "base_url": "https://"},
        {"name": "openai", "base_url": "https://x:y@host/v1"},
        {"name": "anthropic", "base_url": "http://[::1"},
        {"name": "anthropic", "base_url": "http://host:99999"},
        {"name": "anthropic", "base_url": "http://127.0.0.1", "api_key_env": "NOT_SET_AT_ALL"},
    ],
)
async def test_what_cannot_work_is_refused_at_once(told: Any) -> None:
    """Invalid settings are rejected when the runner is created, without showing a key."""
    with pytest.raises(InvalidConfig) as refused:
        make_runner(told)
    assert refused.value.hint and KEY not in str(refused.value)


@pytest.mark.parametrize(("name", "variable"), [("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY")])
async def test_a_name_alone_means_the_vendor_with_the_key_of_the_environment(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor's key is read from its environment variable; if that is not set, the error names it."""
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(InvalidConfig, match=variable):
        make_runner(name)
    monkeypatch.setenv(variable, KEY)
    assert make_runner(name).name == name
