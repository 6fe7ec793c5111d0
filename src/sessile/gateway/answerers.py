"""Who answers in a conversation: the agent with its runner, its model, and how much that can read.

Rules: a model that the conversation chose comes before the agent's own. A window is what a person says of the model, else what
the catalogue knows, else `contextTokens` of the agent; else it is unknown, and nothing is ever due for its sake.

A provider that nobody has configured is known only by a vendor's own name: what is said to one must not go to another.

Runners are made once. Those of the configured agents are made at the start, so that what cannot work is told then.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sessile.core.hygiene_policy import Policy, policy_for
from sessile.core.runner_settings import RunnerSettings
from sessile.errors import InvalidConfig
from sessile.gateway.runners import Runner, make_runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessile import Models
    from sessile.config import Config
    from sessile.config.agents import Agent

_REMEMBERED = 256  # runners; each agent has as many as its conversations have chosen models

# What the hygiene table calls the protocols that our runners speak.
_APIS = {"anthropic": "anthropic-messages", "openai": "openai-completions"}


class Answerer(NamedTuple):
    """Who answers. `model` is "provider/model", `policy` what its provider takes; the echo has neither, and takes everything."""

    agent: Agent
    runner: Runner
    settings: RunnerSettings
    model: str | None
    window: int | None
    policy: Policy | None

    @property
    def is_model(self) -> bool:
        """Whether a model behind an endpoint answers: only that can sum up or take notes."""
        return self.settings.name in _APIS


class Answerers:
    """All who answer, by agent and chosen model."""

    def __init__(self, config: Config, models: Models, workspace: Callable[[str], str]) -> None:
        self._config = config
        self._workspace = workspace
        self._models = models
        self.of = lru_cache(maxsize=_REMEMBERED)(self._of)
        for agent in (config.agents.default_id, *(agent.id for agent in config.agents.list)):
            self.of(agent, None)

    def model_name(self, agent: str, override: str | None) -> str | None:
        """The model of an agent's turns, as "provider/model"."""
        provider, model = self._config.model_of(agent, override)
        return model if model is None or provider is None else f"{provider}/{model}"

    def window(self, agent: str, override: str | None) -> int | None:
        """How many tokens that model can read; `None` if nobody knows."""
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
    """Raise if nobody says where the provider of a model is; without an address, a runner asks its vendor."""
    provider = settings.provider
    if settings.name not in _APIS or settings.base_url is not None or provider is None or provider in _APIS:
        return
    hint = f"set baseUrl in [models.providers.{provider[:80]}], or use a model of {' or '.join(_APIS)}"
    raise InvalidConfig(f"nobody says where the provider {provider[:80]!r} is", hint=hint)
