"""A program of this machine as a runner.

It is started without a shell, in a process group of its own, and is given one JSON document on stdin:

    {"system": …, "messages": […], "model": …, "session": {"key": …, "id": …}}

What it writes to stdout is the answer, streamed as it comes; line breaks at the end are not part of it. An exit code other
than 0 is a failure, told with the last words on stderr. When the program ends, is cancelled or late, whatever is left of its
group is killed: nothing stays running behind a turn. What it used is unknown.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import anyio

from sessile.core.llm import sendable
from sessile.core.overflow import is_overflow
from sessile.core.runner_settings import RunnerSettings
from sessile.errors import InvalidConfig, RunnerFailed
from sessile.gateway.deadlines import in_time
from sessile.gateway.runners import Done, RunRequest, Text

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
