"""Whether an answer says that the context was too long for the model: one table of phrases, and what the numbers tell.

Rules: a phrase counts only in the text of an error. Limits on requests or tokens per minute use the same words; what
asks to wait and try again is excluded first, because a shorter context would not help. Some providers cut the context
without an error: then the answer counts more input than the window holds, or stops at once for its length with the
window full.

The phrases are those of the providers, in lower case; `.*` stands for the numbers and names between them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from sessile.core.usage import usage_of

FULL = 0.99  # of the window: an answer that stops for its length there had no room


class Phrase(NamedTuple):
    """Words by which a provider says it."""

    who: str
    pattern: str


PHRASES = (
    Phrase("Anthropic", r"prompt is too long"),
    Phrase("Anthropic", r"input length and `?max_tokens`? exceed context limit"),
    Phrase("Anthropic", r"request_too_large"),
    Phrase("Anthropic", r"request exceeds the maximum size"),
    Phrase("Bedrock", r"input is too long for requested model"),
    Phrase("OpenAI", r"exceeds the context window"),
    Phrase("OpenAI", r"context_length_exceeded"),
    Phrase("OpenAI, OpenRouter, vLLM", r"maximum context length"),
    Phrase("Google", r"input token count.*exceeds the maximum"),
    Phrase("xAI", r"maximum prompt length is \d+"),
    Phrase("Groq", r"reduce the length of the messages"),
    Phrase("Copilot", r"token count of \d+ exceeds the limit of \d+"),
    Phrase("Copilot", r"model_max_prompt_tokens_exceeded"),
    Phrase("Mistral", r"too large for model with \d+ maximum context length"),
    Phrase("llama.cpp", r"exceeds the available context size"),
    Phrase("llama.cpp", r"exceed_context_size_error"),
    Phrase("LM Studio", r"greater than the context length"),
    Phrase("Ollama", r"exceeded max context length"),
    Phrase("Ollama", r"input length exceeds (?:the )?(?:maximum )?context length"),
    Phrase("vLLM", r"longer than the maximum model length"),
    Phrase("MiniMax", r"context window exceeds limit"),
    Phrase("Kimi", r"exceeded model token limit"),
    Phrase("z.ai", r"model_context_window_exceeded"),
    Phrase("gateways", r"context length exceeded"),
    Phrase("gateways", r"context[ _](?:window )?overflow"),
    Phrase("gateways", r"exceeds (?:the )?(?:model'?s? )?(?:maximum )?context (?:window|length)"),
    Phrase("gateways", r"request size exceeds.*context (?:window|length)"),
    Phrase("gateways", r"token limit exceeded"),
    Phrase("gateways", r"too many tokens"),
    Phrase("HTTP", r"\b413\b.*(?:too large|\(no body\))"),
    Phrase("Cerebras", r"^\s*4(?:00|13)\s*(?:status code)?\s*\(no body\)"),
)

# These are about the rate, not about the length.
EXCLUDED = (
    Phrase("Bedrock", r"^(?:throttling|service ?unavailable)(?: error|exception)?:"),
    Phrase("Bedrock", r"throttlingexception"),
    Phrase("Bedrock", r"too many tokens,? please wait"),
    Phrase("all", r"rate[ _-]?limit"),
    Phrase("all", r"too many requests"),
    Phrase("all", r"\b429\b"),
    Phrase("OpenAI, Groq", r"tokens per (?:minute|day)"),
    Phrase("Google", r"resource_exhausted|quota exceeded"),
    Phrase("all", r"overloaded"),
)

_PHRASES = re.compile("|".join(phrase.pattern for phrase in PHRASES), re.I | re.S)
_EXCLUDED = re.compile("|".join(phrase.pattern for phrase in EXCLUDED), re.I | re.S)


def is_overflow(
    error_text: str | None,
    usage: Mapping[str, Any] | None = None,
    window: int | None = None,
    stop_reason: str | None = None,
) -> bool:
    """Whether the context was too long, from an error or from the end and usage of an answer; an unknown window tells nothing."""
    if error_text and stop_reason in (None, "error"):
        return _PHRASES.search(error_text) is not None and _EXCLUDED.search(error_text) is None
    reported = usage_of(usage)
    if reported is None or not window or window < 0:
        return False
    used = (reported.input or 0) + (reported.cache_read or 0)
    if stop_reason == "stop":
        return used > window
    return stop_reason == "length" and reported.output == 0 and used >= FULL * window
