"""Which policy applies to which provider, API and model."""

from __future__ import annotations

from itertools import product

import pytest

from sessile.core.providers import DEFAULT, TABLE, Policy, policy_for

pytestmark = pytest.mark.mission("Y6")


@pytest.mark.parametrize(
    ("provider", "api", "model", "name"),
    [
        ("anthropic", None, "claude-opus-4", "anthropic"),
        ("Anthropic", None, None, "anthropic"),
        ("somebody", "anthropic-messages", "glm-5", "anthropic"),
        ("amazon-bedrock", "bedrock-converse-stream", "anthropic.claude", "bedrock"),
        ("google", "google-generative-ai", "gemini-3-pro", "google"),
        ("google", None, None, "google"),
        (None, "google-gemini-cli", None, "google"),
        ("google-antigravity", "google-gemini-cli", "claude-sonnet-4-5", "antigravity-claude"),
        ("google-antigravity", None, "gemini-3", "google"),
        ("mistral", "openai-completions", "mistral-large", "mistral"),
        ("groq", "openai-completions", "mixtral-8x7b", "mistral"),
        ("openrouter", "openai-completions", "mistralai/devstral", "mistral"),
        ("openrouter", "openai-completions", "google/Gemini-2.5", "router-gemini"),
        ("opencode", None, "gemini-3", "router-gemini"),
        ("openrouter", "openai-completions", "x-ai/grok", "router"),
        ("openai", "openai-responses", "gpt-5", "openai-responses"),
        ("openai-codex", None, "gpt-5-codex", "openai-responses"),
        ("openai", None, "gpt-5", "openai"),
        ("openai", "openai-completions", "gpt-4o", "openai"),
        (None, "openai", None, "openai"),
        ("ollama", "openai-completions", "qwen3", "openai-compatible"),
        ("somebody", None, "new", "default"),
        (None, None, None, "default"),
    ],
)
def test_the_row_of_a_provider(provider: str | None, api: str | None, model: str | None, name: str) -> None:
    """The first matching row applies, else the default."""
    assert policy_for(provider, api, model).name == name


def test_every_row_has_a_name_of_its_own_and_can_be_reached() -> None:
    """No row is hidden by an earlier one."""
    names = [policy.name for policy, _ in TABLE]
    assert len({*names, DEFAULT.name}) == len(names) + 1
    for policy, matches in TABLE:
        for match in matches:
            for provider, api, word in product(match.providers or {""}, match.apis or {""}, match.words or {""}):
                assert policy_for(provider, api, word) is policy


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (policy_for("anthropic"), ("full", "strict", "claude", True, True, False, True)),
        (policy_for("google"), ("full", "strict", "gemini", False, True, True, False)),
        (policy_for("google", model="claude"), ("full", "strict", "claude", False, True, True, False)),
        (policy_for("mistral"), ("full", "strict9", "none", False, False, False, False)),
        (policy_for("openrouter", model="gemini"), ("full", "none", "gemini", False, False, False, False)),
        (policy_for("openai"), ("images", "strict", "none", False, False, False, False)),
        (policy_for("openai-codex"), ("images", "strict", "openai", True, False, False, False)),
        (policy_for(api="openai-completions"), ("images", "strict", "none", False, True, True, True)),
        (DEFAULT, ("images", "strict", "none", False, False, False, False)),
    ],
    ids=lambda value: value.name if isinstance(value, Policy) else "",
)
def test_the_columns_of_the_table(policy: Policy, expected: tuple[object, ...]) -> None:
    """The columns have the documented values."""
    columns = ("sanitize", "tool_ids", "signatures", "results", "bootstrap", "merge_assistants", "merge_users")
    assert tuple(getattr(policy, column) for column in columns) == expected
