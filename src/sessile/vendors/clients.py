"""What a person says of the runner that answers: which one, which model, where, and how long it may take.

Rules: a key is never a setting, only the name of the environment variable that holds it, so that settings can be shown and
kept in a file. What does not fit is refused with its name. Knows nothing of clients and processes.

Making pictures smaller, for providers that take no large ones. Needs Pillow (the extra `images`).

HTTP requests that reach the named host and nobody else: through no proxy of the environment, and after no redirect.

What a request carries, keys and conversations, would go along to wherever it is sent on. An answer that only names another place
is an `HTTPError` like every refusal.
"""

from __future__ import annotations

import io
import urllib.request
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec

from sessile.errors import InvalidConfig

# --- runner settings

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


# --- resizing


def can_resize() -> bool:
    """Whether pictures can be made smaller here."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        return False
    return True


def resize(data: bytes, side: int, quality: int) -> bytes | None:
    """A picture as JPEG with no side longer than that; `None` if it cannot be read, or nobody can."""
    try:
        from PIL import Image
    except ImportError:
        return None
    made = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as picture:
                small = picture.convert("RGB")
                small.thumbnail((side, side))
                small.save(made, "JPEG", quality=quality)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return None
    return made.getvalue()


# --- straight


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes an address to go on to for what it is: no answer."""

    def redirect_request(self, *_: Any) -> None:
        """Go nowhere; whoever opened the request is told the status."""


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


def straight(request: urllib.request.Request, timeout: float) -> Any:
    """The answer to a request, open for reading."""
    return _OPENER.open(request, timeout=timeout)
