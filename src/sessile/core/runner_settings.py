"""What a person says of the runner that answers: which one, which model, where, and how long it may take.

Rules: a key is never a setting, only the name of the environment variable that holds it, so that settings can be shown and
kept in a file. What does not fit is refused with its name. Knows nothing of clients and processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec

from sessile.errors import InvalidConfig

Name = Literal["echo", "command", "openai", "anthropic"]

SILENCE = 120.0  # seconds without a piece; models that think say nothing for a while
TIMEOUT = 900.0  # seconds for a whole answer

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class RunnerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One runner: `name` says which, the rest is for those that need it."""

    name: Name = "echo"
    model: str | None = None  # if the session names none
    provider: str | None = None  # what its answers are filed under, if it is not the vendor itself
    base_url: str | None = None
    api_key_env: str | None = None
    command: tuple[str, ...] = ()
    folder: str | None = None  # in which the command runs; that of the gateway
    max_tokens: Annotated[int, msgspec.Meta(gt=0)] | None = None  # of an answer, if the turn does not say
    silence: Seconds = SILENCE
    timeout: Seconds = TIMEOUT


def runner_settings(told: str | Mapping[str, Any] | RunnerSettings) -> RunnerSettings:
    """The settings that a name, a table of a configuration, or settings mean."""
    if isinstance(told, RunnerSettings):
        return told
    try:
        return msgspec.convert({"name": told} if isinstance(told, str) else told, RunnerSettings)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"the runner cannot be set up: {error}",
            hint=f"runners: {', '.join(get_args(Name))}; settings: {', '.join(RunnerSettings.__struct_fields__)}",
        ) from error
