"""Any OpenAI-compatible endpoint as a runner, through the chat completions that all of them speak."""

from __future__ import annotations

from typing import Any

from sessile.core.llm import sendable, to_openai
from sessile.core.provider_answers import Answer, OpenAIAnswer
from sessile.gateway.endpoints import EndpointRunner
from sessile.gateway.runners import RunRequest

_OFF = (None, "off")


class OpenAIRunner(EndpointRunner):
    """A model behind an OpenAI-compatible endpoint."""

    name = "openai"
    package = "openai"
    client = "AsyncOpenAI"
    home = "https://api.openai.com/v1"
    key_variable = "OPENAI_API_KEY"

    def _answer(self) -> Answer:
        return OpenAIAnswer()

    async def _ask(self, api: Any, request: RunRequest, model: str) -> Any:
        system = [{"role": "system", "content": sendable(request.system)}] if request.system else []
        asked: dict[str, Any] = {"model": model, "messages": [*system, *to_openai(request.messages)]}
        limit = request.max_tokens or self._settings.max_tokens
        if limit is not None:
            asked["max_completion_tokens"] = limit
        if request.thinking not in _OFF:
            asked["reasoning_effort"] = request.thinking
        return await api.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
