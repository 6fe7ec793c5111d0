"""Clients of model vendors: the one place that connects to a model.

    endpoint = Endpoint(ANTHROPIC, api_key=key, silence=60.0, failure=SummarizerFailed)
    answer = ANTHROPIC.answer()
    for event in endpoint.stream(ModelRequest("claude-haiku-4-5", messages)):
        answer.add(event)

`Endpoint` and `AsyncEndpoint` send requests through the vendor's own client and return the events of the stream as plain
values, which `vendors/answers.py` puts together. Summarizers use the first, the gateway's runners the second.

Rules:
- Only the configured host is contacted. Proxies and `.netrc` of the environment are ignored and redirects are not followed:
  keys and conversations would go along.
- `AsyncEndpoint.from_settings` sends a key from the environment to a host other than the vendor's only if the settings name
  the variable. Private addresses are allowed.
- Clients retry before an answer starts: connection errors, rate limits, 5xx.
- Every answer uses its own connection, which is closed with it.
- Every failure is a `ModelFailed` of the class that the caller chose. It never contains the key.
- Settings never contain a key, only the name of its environment variable, so they can be shown and stored in files.
"""

from __future__ import annotations

import importlib
import os
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import msgspec

from sessile.core.messages.anthropic import anthropic_messages
from sessile.core.messages.family import sendable
from sessile.core.messages.openai_chat import openai_messages
from sessile.errors import InvalidConfig, ModelFailed
from sessile.vendors.answers import Answer, AnthropicAnswer, Event, OpenAIAnswer, is_overflow

# -- settings of runners

Name = Literal["echo", "command", "openai", "anthropic"]

SILENCE = 120.0  # seconds without an event; a model that thinks may send nothing for a while
TIMEOUT = 900.0  # seconds for a whole answer

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class RunnerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a runner. `name` selects it; each runner uses only the fields that it needs."""

    name: Name = "echo"
    model: str | None = None  # default model of sessions that name none
    provider: str | None = None  # recorded with the answers; defaults to the vendor
    base_url: str | None = None
    api_key_env: str | None = None
    command: tuple[str, ...] = ()
    folder: str | None = None  # working directory of the command; defaults to the gateway's
    max_tokens: Annotated[int, msgspec.Meta(gt=0)] | None = None  # default limit of an answer
    silence: Seconds = SILENCE
    timeout: Seconds = TIMEOUT


def runner_settings(value: str | Mapping[str, Any] | RunnerSettings) -> RunnerSettings:
    """Return the settings for the name of a runner or for a table of a configuration."""
    if isinstance(value, RunnerSettings):
        return value
    try:
        return msgspec.convert({"name": value} if isinstance(value, str) else value, RunnerSettings)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"invalid runner settings: {error}",
            hint=f"runners: {', '.join(get_args(Name))}; settings: {', '.join(RunnerSettings.__struct_fields__)}",
        ) from error


# -- vendors

ANSWER_TOKENS = 8192  # default `max_tokens` for Anthropic, whose API requires one
THINKING = {"off": 0, "minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768}
"""Thinking tokens of each level for Anthropic, whose minimum is 1024."""


class ModelRequest(NamedTuple):
    """A request to a model: messages of a context, with the limits of the answer."""

    model: str
    messages: list[dict[str, Any]]
    system: str | None = None
    max_tokens: int | None = None
    thinking: str | None = None


class Vendor(ABC):
    """A vendor's API: its client package and the shape of its requests and answers."""

    name: ClassVar[str]
    package: ClassVar[str]
    client: ClassVar[str]
    """Name of the client class; the asynchronous one has the prefix "Async"."""
    home: ClassVar[str]
    """The vendor's own base URL."""
    key_variable: ClassVar[str]
    thinking_levels: ClassVar[tuple[str, ...] | None] = None
    """The valid thinking levels; `None` if any level is passed on."""
    answer: ClassVar[type[Answer]]

    @abstractmethod
    def parameters(self, request: ModelRequest) -> dict[str, Any]:
        """Return the parameters of a streaming request."""

    @abstractmethod
    def send(self, client: Any, parameters: dict[str, Any]) -> Any:
        """Send a streaming request; return the client's stream, or an awaitable of it if the client is asynchronous."""


class _Anthropic(Vendor):
    """Anthropic, or an endpoint with the same API."""

    name = "anthropic"
    package = "anthropic"
    client = "Anthropic"
    home = "https://api.anthropic.com"
    key_variable = "ANTHROPIC_API_KEY"
    thinking_levels = tuple(THINKING)
    answer = AnthropicAnswer

    def parameters(self, request: ModelRequest) -> dict[str, Any]:
        """Return the parameters of a message. Thinking tokens are added to the limit of the answer."""
        thinking = THINKING[request.thinking or "off"]
        limit = (request.max_tokens or ANSWER_TOKENS) + thinking
        parameters = {"model": request.model, "messages": anthropic_messages(request.messages), "max_tokens": limit}
        if request.system:
            parameters["system"] = sendable(request.system)
        if thinking:
            parameters["thinking"] = {"type": "enabled", "budget_tokens": thinking}
        return parameters

    def send(self, client: Any, parameters: dict[str, Any]) -> Any:
        """Request a message."""
        return client.messages.create(**parameters, stream=True)


class _OpenAI(Vendor):
    """OpenAI, or any endpoint with its chat completions API."""

    name = "openai"
    package = "openai"
    client = "OpenAI"
    home = "https://api.openai.com/v1"
    key_variable = "OPENAI_API_KEY"
    answer = OpenAIAnswer

    def parameters(self, request: ModelRequest) -> dict[str, Any]:
        """Return the parameters of a chat completion."""
        system = [{"role": "system", "content": sendable(request.system)}] if request.system else []
        parameters: dict[str, Any] = {"model": request.model, "messages": [*system, *openai_messages(request.messages)]}
        if request.max_tokens is not None:
            parameters["max_completion_tokens"] = request.max_tokens
        if request.thinking not in (None, "off"):
            parameters["reasoning_effort"] = request.thinking
        return parameters

    def send(self, client: Any, parameters: dict[str, Any]) -> Any:
        """Request a chat completion, with its usage."""
        return client.chat.completions.create(**parameters, stream=True, stream_options={"include_usage": True})


ANTHROPIC: Vendor = _Anthropic()
OPENAI: Vendor = _OpenAI()
VENDORS = {vendor.name: vendor for vendor in (ANTHROPIC, OPENAI)}


# -- endpoints

_RETRIES = 2
_NO_KEY = "no-key-needed"  # for endpoints without authentication; the clients require a key
_SECRET = 8  # characters; shorter keys are placeholders, and replacing them would garble a message
_DETAIL = 300  # characters of an error message
_REFUSED_KEY = (401, 403)


class _BaseEndpoint:
    """What the synchronous and the asynchronous endpoint have in common."""

    _prefix: ClassVar[str]

    def __init__(
        self,
        vendor: Vendor,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        silence: float = SILENCE,
        failure: type[ModelFailed] = ModelFailed,
    ) -> None:
        package = _client_package(vendor.package)
        http = _http_library(package)
        self.vendor = vendor
        self._failure = failure
        self._key = api_key or os.environ.get(vendor.key_variable) or ""
        self._status_error: type[Exception] = package.APIStatusError
        # Making a client is far more expensive than connecting, so the client is kept and connections are not.
        limits = http.Limits(max_connections=None, max_keepalive_connections=0)
        connections = getattr(http, f"{self._prefix}Client")(trust_env=False, follow_redirects=False, limits=limits)
        try:
            self._client: Any = getattr(package, f"{self._prefix}{vendor.client}")(
                api_key=api_key, base_url=base_url, max_retries=_RETRIES, timeout=silence, http_client=connections
            )
        except getattr(package, f"{vendor.client}Error") as error:
            hint = f"set the environment variable {vendor.key_variable}, or pass api_key"
            raise InvalidConfig(f"cannot set up the {vendor.name} client: {self._detail(error)}", hint=hint) from None

    def _parameters(self, request: ModelRequest) -> dict[str, Any]:
        levels = self.vendor.thinking_levels
        if levels is not None and (request.thinking or "off") not in levels:
            raise self._failure(f"invalid thinking level {request.thinking!r}", hint=f"levels: {', '.join(levels)}")
        return self.vendor.parameters(request)

    @contextmanager
    def _failures(self, model: str) -> Iterator[None]:
        """Convert failures of the client. The originals hold the request, and sometimes the key, so they are dropped."""
        try:
            yield
        except Exception as error:  # of the client, of its HTTP library, or about a malformed stream
            overflow = is_overflow(" ".join(str(error).split()))
            detail = self._detail(error)
            status = getattr(error, "status_code", None) if isinstance(error, self._status_error) else None
            if status in _REFUSED_KEY:
                hint = "set api_key_env to the variable that holds the key" if self._key == _NO_KEY else "check the key"
                raise self._failure(f"{model} refused the key: {detail}", hint=hint) from None
            outcome = "did not answer" if status is None else "refused the request"
            raise self._failure(f"{model} {outcome}: {detail}", overflow=overflow) from None

    def _detail(self, error: Exception) -> str:
        """Return the message of an error in one line, without the key."""
        text = " ".join(str(error).split())
        if len(self._key) >= _SECRET:
            text = text.replace(self._key, "[key]")
        return text[:_DETAIL]


class Endpoint(_BaseEndpoint):
    """A model endpoint for synchronous callers.

    Without `base_url` and `api_key` the vendor's client reads its own environment variables.
    """

    _prefix = ""

    def stream(self, request: ModelRequest) -> Generator[Event, None, None]:
        """Send a request and yield the events of the answer."""
        parameters = self._parameters(request)
        with self._failures(request.model), self.vendor.send(self._client, parameters) as stream:
            for event in stream:
                yield _plain(event)


class AsyncEndpoint(_BaseEndpoint):
    """A model endpoint for asynchronous callers."""

    _prefix = "Async"

    @classmethod
    def from_settings(
        cls, settings: RunnerSettings, *, api_key: str | None = None, failure: type[ModelFailed] = ModelFailed
    ) -> AsyncEndpoint:
        """Return the endpoint of a runner; environment variables of the vendor's client do not change its address."""
        vendor = VENDORS[settings.name]
        base_url = _checked_url(settings.base_url or vendor.home)
        key = _checked_key(api_key or _key_from_environment(vendor, settings, base_url))
        return cls(vendor, base_url=base_url, api_key=key, silence=settings.silence, failure=failure)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Event, None]:
        """Send a request and yield the events of the answer."""
        import anyio  # comes with the vendors' clients, which are optional

        parameters = self._parameters(request)
        with self._failures(request.model):
            stream = await self.vendor.send(self._client, parameters)
            try:
                async for event in stream:
                    yield _plain(event)
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.close()


def _client_package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = "run `pip install 'sessile[models]'`"
        raise InvalidConfig(f"the package {name} is not installed", hint=hint) from error


def _http_library(package: Any) -> Any:
    """Return the HTTP library of a vendor's client: httpx, or the successor that newer clients use.

    Anthropic's own subclass of the HTTP client uses the proxies of the environment even with `trust_env=False` (2.8.0), so
    clients are made from the library itself.
    """
    return importlib.import_module(package.DefaultHttpxClient.__base__.__module__.partition(".")[0])


def _checked_url(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = None
    if not is_valid:
        raise InvalidConfig("invalid base URL: it must start with http:// or https://", hint="check base_url")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        # Programs disagree about the host of such a URL, so the one that is checked may not be the one that is used.
        raise InvalidConfig(
            "invalid base URL: it contains characters that a URL must not contain", hint="check base_url"
        )
    if parts.username or parts.password:
        raise InvalidConfig(
            "invalid base URL: it must not contain a password",
            hint="set api_key_env to the variable that holds the key",
        )
    return url


def _key_from_environment(vendor: Vendor, settings: RunnerSettings, base_url: str) -> str:
    ours, home = urllib.parse.urlsplit(base_url), urllib.parse.urlsplit(vendor.home)
    is_home = (ours.scheme, ours.hostname) == (
        home.scheme,
        home.hostname,
    )  # the vendor's key is never sent in the clear
    variable = settings.api_key_env or (vendor.key_variable if is_home else None)
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and not key:
        raise InvalidConfig(f"the {vendor.name} runner needs a key", hint=f"set the environment variable {variable}")
    return key or _NO_KEY


def _checked_key(key: str) -> str:
    """Return the key without surrounding space; raise if it cannot be sent, because the HTTP library would print it."""
    if not key.strip().isascii() or not key.strip().isprintable():
        raise InvalidConfig("the key contains invalid characters", hint="set it again, on one line")
    return key.strip()


def _plain(event: Any) -> Event:
    """Return an event of a client's stream as a plain value."""
    if not hasattr(event, "to_dict"):
        raise ValueError("the stream contains something that is not an event")
    plain: Event = event.to_dict(warnings=False)
    return plain


# -- other HTTP requests


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow nothing; opening the request raises an `HTTPError`."""


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


def open_direct(request: urllib.request.Request, timeout: float) -> Any:
    """Send a request without proxies or redirects and return the open response."""
    return _OPENER.open(request, timeout=timeout)
