"""Anthropic's endpoint as a runner, or another that speaks its protocol.

The endpoint counts thoughts as part of the answer; we do not: they get room of their own beside `max_tokens`.
"""

from __future__ import annotations

from typing import Any

from sessile.core.llm import sendable, to_anthropic
from sessile.core.provider_answers import Answer, AnthropicAnswer
from sessile.errors import RunnerFailed
from sessile.gateway.endpoints import EndpointRunner
from sessile.gateway.runners import RunRequest

ANSWER_TOKENS = 8192  # if nobody says how long an answer may be: the endpoint wants to be told
THINKING = {"off": 0, "minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768}
"""Tokens for thinking at each level; 1024 is the least that the endpoint takes."""


class AnthropicRunner(EndpointRunner):
    """A model behind Anthropic's protocol."""

    name = "anthropic"
    package = "anthropic"
    client = "AsyncAnthropic"
    home = "https://api.anthropic.com"
    key_variable = "ANTHROPIC_API_KEY"

    def _answer(self) -> Answer:
        return AnthropicAnswer()

    async def _ask(self, api: Any, request: RunRequest, model: str) -> Any:
        level = request.thinking or "off"
        if level not in THINKING:
            raise RunnerFailed(f"there is no thinking level {level}", hint=f"levels: {', '.join(THINKING)}")
        limit = request.max_tokens or self._settings.max_tokens or ANSWER_TOKENS
        asked: dict[str, Any] = {"model": model, "messages": to_anthropic(request.messages)}
        asked["max_tokens"] = limit + THINKING[level]
        if request.system:
            asked["system"] = sendable(request.system)
        if THINKING[level]:
            asked["thinking"] = {"type": "enabled", "budget_tokens": THINKING[level]}
        return await api.messages.create(**asked, stream=True)
