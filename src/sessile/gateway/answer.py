"""One answer while it comes: the words as they were said, and those that may be delivered.

This is the one place through which a model's words go on their way to anybody, so silence and the send policy are kept here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from sessile.core.llm import blocks_of, joined_text
from sessile.core.silence import Silence, is_silent
from sessile.errors import RunnerFailed
from sessile.gateway.runners import Done, Runner, RunRequest, Text

Json = dict[str, Any]


class Answer:
    """The answer of one turn. `say` is given what may be delivered, unless `withheld` says why nothing may."""

    def __init__(self, say: Callable[[str], None], withheld: str | None = None) -> None:
        self.withheld = withheld
        self._say = say
        self._silence = Silence()
        self._words: list[str] = []

    @property
    def begun(self) -> bool:
        """Whether the model has said anything yet."""
        return any(self._words)

    async def listen(self, runner: Runner, request: RunRequest) -> Json:
        """The message of the runner, whole; its words are passed on as they come. May be tried again until it has begun."""
        message: Json | None = None
        self._silence = Silence()
        async with aclosing(runner.run(request)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if isinstance(piece, Text):
                    self._hear(piece.text)
                elif isinstance(piece, Done):
                    message = piece.message
        if message is None:
            raise RunnerFailed(f"the {runner.name} runner ended without an answer", hint="ask again")
        if not self.begun:  # it was not streamed
            self._hear(joined_text(message.get("content")))
        self._deliver(self._silence.finish()[0])
        return message

    def partial(self, why: str) -> Json:
        """The message of an answer that was stopped: what was said of it, and why there is no more.

        A beginning that could have become silence was said to nobody, and nobody is to find it in the session.
        """
        text = "" if self._silence.silent is None else "".join(self._words)
        content = [{"type": "text", "text": text}] if text else []
        return {"role": "assistant", "content": content, "stopReason": "aborted", "errorMessage": why}

    def _hear(self, text: str) -> None:
        self._words.append(text)
        self._deliver(self._silence.feed(text))

    def _deliver(self, text: str) -> None:
        if text and self.withheld is None:
            self._say(text)


def failed(error: str) -> Json:
    """The message of an answer that did not come."""
    return {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": error}


def deliverable(message: Json) -> str:
    """The text of a message that may be delivered; none of a silent one."""
    text = joined_text(message.get("content"))
    return "" if is_silent(text) else text


def reasoning_of(message: Json) -> str | None:
    """What the model thought aloud."""
    blocks = [block for block in blocks_of(message.get("content")) if block.get("type") == "thinking"]
    return "\n".join(str(block.get("thinking", "")) for block in blocks).strip() or None
