"""Recognizing that a context was too long."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sessile.vendors.answers import EXCLUDED, PHRASES, is_overflow

pytestmark = pytest.mark.mission("Y9")

OVERFLOWS = {
    "anthropic": '400 {"error":{"type":"invalid_request_error","message":"prompt is too long: 213462 tokens > 200000 maximum"}}',
    "anthropic-output": "400 input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length",
    "anthropic-bytes": '413 {"error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}',
    "anthropic-size": "Request exceeds the maximum size allowed",
    "bedrock": "ValidationException: The model returned the following errors: Input is too long for requested model.",
    "openai": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "openai-chat": "400 This model's maximum context length is 128000 tokens. However, your messages resulted in 131337 tokens.",
    "openai-code": "Error code: 400 - {'error': {'code': 'context_length_exceeded'}}",
    "google": "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "mistral": "Prompt contains 40021 tokens ... too large for model with 32768 maximum context length",
    "openrouter": "This endpoint's maximum context length is 163840 tokens. However, you requested about 170001 tokens",
    "llama.cpp": "the request exceeds the available context size. try increasing the context size or enable context shift",
    "llama.cpp-code": '{"error":{"code":400,"type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":8192}}',
    "vllm": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens in the messages",
    "vllm-prompt": "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
    "ollama": "prompt too long; exceeded max context length by 1204 tokens",
    "ollama-embed": "the input length exceeds the context length",
    "groq": "Please reduce the length of the messages or completion. Your messages are too long",
    "xai": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "copilot": "prompt token count of 140000 exceeds the limit of 128000",
    "copilot-code": "model_max_prompt_tokens_exceeded",
    "lmstudio": "The number of tokens to keep from the initial prompt is greater than the context length",
    "minimax": "invalid params, context window exceeds limit (2013)",
    "kimi": "Invalid request: Your request exceeded model token limit: 262144 (requested: 270000)",
    "z.ai": "stop: model_context_window_exceeded",
    "gateway": "Request size exceeds model context window",
    "gateway-2": "context overflow: prompt larger than the model can take",
    "gateway-3": "Context length exceeded",
    "gateway-4": "token limit exceeded",
    "gateway-5": "too many tokens in prompt",
    "gateway-6": "the request size exceeds what fits the context length",
    "gateway-7": "the input exceeds the model's context length",
    "http": "413 Payload Too Large",
    "http-empty": "413 (no body)",
    "cerebras": "400 status code (no body)",
}

OTHERS = [
    "429 Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000. Too many tokens",
    "ThrottlingException: Too many tokens, please wait before trying again.",
    "Throttling error: Too many tokens, please wait before trying again.",
    "Service unavailable: token limit exceeded for now",
    "rate_limit_error: This request would exceed your organization's rate limit; prompt is too long for the remaining tokens",
    "Too Many Requests: token limit exceeded",
    "Limit on tokens per minute: reduce the length of the messages or wait",
    "RESOURCE_EXHAUSTED: input token count exceeds the maximum per minute",
    "Overloaded: exceeds the context window capacity of the pool",
    "400 messages.3: `tool_use` ids were found without `tool_result` blocks immediately after",
    "400 Invalid 'messages[3].tool_calls[0].id': string too long. Expected a string with maximum length 40",
    "max_tokens exceeds the limit of 8192",
    "500 Internal server error",
    "invalid x-api-key",
    "Connection reset",
    "",
]


@pytest.mark.parametrize("text", OVERFLOWS.values(), ids=OVERFLOWS)
def test_providers_say_it_in_their_words(text: str) -> None:
    """Each message means that a shorter context is needed, in any case and on several lines."""
    assert is_overflow(text)
    assert is_overflow(text.upper(), stop_reason="error")
    assert is_overflow(f"request failed\n{text}") or text.startswith("400 status")


@pytest.mark.parametrize("text", OTHERS)
def test_other_errors_are_not_taken_for_it(text: str) -> None:
    """Rate limits, throttling and other errors."""
    assert not is_overflow(text)


def test_every_phrase_of_the_table_is_needed() -> None:
    """Each matches a message above alone, and each exclusion excludes one."""
    for phrase in PHRASES:
        assert any(re.search(phrase.pattern, text, re.I | re.S) for text in OVERFLOWS.values()), phrase
    for phrase in EXCLUDED:
        assert any(re.search(phrase.pattern, text, re.I | re.S) for text in OTHERS), phrase


@pytest.mark.parametrize(
    ("usage", "window", "stop", "expected"),
    [
        ({"input": 100_001, "cacheRead": 100_000, "output": 5}, 200_000, "stop", True),
        ({"input": 100_000, "cacheRead": 100_000, "output": 5}, 200_000, "stop", False),
        ({"input": 200_001}, 200_000, "stop", True),
        ({"input": 198_000, "output": 0}, 200_000, "length", True),
        ({"input": 8_000, "cacheRead": 190_000, "output": 0}, 200_000, "length", True),
        ({"input": 197_999, "output": 0}, 200_000, "length", False),
        ({"input": 199_000, "output": 1}, 200_000, "length", False),
        ({"input": 199_000}, 200_000, "length", False),
        ({"input": 300_000, "output": 0}, 200_000, "toolUse", False),
        ({"input": 300_000}, None, "stop", False),
        ({"input": 300_000}, 0, "stop", False),
        ({"input": 300_000}, 200_000, None, False),
        ({"input": "300000", "cacheRead": True}, 200_000, "stop", False),
        (None, 200_000, "stop", False),
    ],
)
def test_numbers_tell_where_no_error_does(usage: Any, window: int | None, stop: str | None, expected: bool) -> None:
    """More input than the window, or a full window without output; unknown numbers mean nothing."""
    assert is_overflow(None, usage, window, stop) is expected


def test_a_text_that_is_no_error_is_not_read() -> None:
    """A model may write about context windows; only its stop reason counts."""
    assert not is_overflow("prompt is too long", {"input": 1}, 1000, "stop")
