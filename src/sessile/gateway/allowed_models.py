"""Which models a person may choose in a chat: those that the configuration lists, and those that its agents use.

Rules: where nothing is listed, every "provider/model" of a configured provider may be chosen, and has to be written so, in one
word. A model also has a short name where that is clear: the last part of a longer id (`openrouter/anthropic/claude-opus-4`), and
the word for its family (`opus`), if no other model here has it. Other words of a name are no short names: `/new chat with me`
is a message.

Nothing is asked of an endpoint.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sessile.core.chat_commands import AllowedModels

if TYPE_CHECKING:
    from sessile.config import Config

FAMILIES = frozenset(
    (
        *("opus", "sonnet", "haiku", "gpt", "gemini", "gemma", "grok", "llama", "qwen", "mistral", "codestral"),
        *("deepseek", "kimi", "glm", "phi"),
    )
)
"""Words that people say for a model."""

_LETTERS = re.compile(r"[a-z]+")


class AnyOfProviders(AllowedModels, frozen=True):
    """Every model of some providers, as "provider/model"."""

    configured: tuple[str, ...] = ()

    def named(self, name: str) -> str | None:
        """The model of that name, if it begins with a provider that is configured."""
        told, _, model = name.partition("/")
        provider = next((one for one in self.configured if one.lower() == told.lower()), None)
        return f"{provider}/{model}" if provider is not None and model else None


def allowed_models(config: Config) -> AllowedModels:
    """The models that may be chosen."""
    models = tuple(dict.fromkeys(_listed(config)))
    if not models:
        return AnyOfProviders(configured=tuple(config.models.providers))
    return AllowedModels(allowed=models, aliases=_short_names(models))


def _listed(config: Config) -> Iterator[str]:
    for agent in (config.agents.defaults, *config.agents.list):
        if agent.model_name is not None:
            yield agent.model_name
    for name, provider in config.models.providers.items():
        for model in provider.models:
            yield f"{name}/{model.id}"


def _short_names(models: tuple[str, ...]) -> dict[str, str]:
    """The names that mean one model only."""
    meant: defaultdict[str, set[str]] = defaultdict(set)
    for model in models:
        _, _, own = model.lower().rpartition("/")
        if model.count("/") > 1:
            meant[own].add(model)
        for word in FAMILIES.intersection(_LETTERS.findall(own)):
            meant[word].add(model)
    return {name: found.pop() for name, found in sorted(meant.items()) if len(found) == 1}
