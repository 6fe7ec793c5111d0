"""A vendor's endpoint, asked through the vendor's own client.

Rules: only the configured host is connected to. Environment variables change neither the address nor the way there (no proxies,
no .netrc), redirects are not followed, and a key from the environment goes to a host other than the vendor's only if the
settings name the variable. A private address is fine: a person has configured it. Each answer has a connection of its own,
which ends with it. Every failure is a `RunnerFailed` in which the key does not occur.
"""

from __future__ import annotations

import importlib
import os
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, ClassVar

import anyio

from sessile.core.overflow import is_overflow
from sessile.core.provider_answers import Answer, Event, assistant_message
from sessile.core.runner_settings import RunnerSettings
from sessile.errors import InvalidConfig, RunnerFailed
from sessile.gateway.deadlines import in_time
from sessile.gateway.runners import Done, RunRequest, Text

_RETRIES = 2  # by the vendors' clients, before the answer begins: connections, rate limits, 5xx
_DETAIL = 300  # characters of what went wrong
_NO_KEY = "no-key-needed"  # for endpoints that ask for none; the clients insist on a key
_SECRET = 8  # characters; shorter keys are placeholders, and hiding them would garble a message
_REFUSED_KEY = (401, 403)


class EndpointRunner(ABC):
    """A model behind a vendor's protocol; what differs between vendors is what a subclass says."""

    name: ClassVar[str]
    package: ClassVar[str]
    client: ClassVar[str]
    home: ClassVar[str]
    """Where the vendor itself answers."""
    key_variable: ClassVar[str]

    def __init__(self, settings: RunnerSettings, *, api_key: str | None = None) -> None:
        vendor = _vendor(self.package)
        base_url = _address(settings.base_url or self.home)
        self._settings = settings
        self._provider = settings.provider or self.name
        self._key = _sound(api_key or self._key_from_environment(base_url))
        self._status_error: type[Exception] = vendor.APIStatusError
        http = _http_library(vendor)
        self._failures = (vendor.APIError, http.HTTPError, ValueError)
        # A client costs much more than a connection, so it is kept, and connections are not.
        limits = http.Limits(max_connections=None, max_keepalive_connections=0)
        self._api: Any = getattr(vendor, self.client)(
            api_key=self._key,
            base_url=base_url,
            max_retries=_RETRIES,
            timeout=settings.silence,
            http_client=http.AsyncClient(trust_env=False, follow_redirects=False, limits=limits),
        )

    async def run(self, request: RunRequest) -> AsyncIterator[Text | Done]:
        """Stream the answer of the model."""
        model = self._model(request)
        answer = self._answer()
        settings = self._settings
        events = in_time(self._events(request, model), model, silence=settings.silence, timeout=settings.timeout)
        async with aclosing(events):
            async for event in events:
                text = answer.add(event)
                if text:
                    yield Text(text)
        if answer.stop is None:
            raise RunnerFailed(f"the answer of {model} was cut off after {answer.length} characters", hint="ask again")
        yield Done(assistant_message(answer, provider=self._provider, model=model))

    @abstractmethod
    def _answer(self) -> Answer:
        """An answer of this vendor, still empty."""

    @abstractmethod
    async def _ask(self, api: Any, request: RunRequest, model: str) -> Any:
        """Send the request; gives the vendor's stream."""

    async def _events(self, request: RunRequest, model: str) -> AsyncGenerator[Event, None]:
        """The events of the vendor's stream as plain values."""
        with self._asking(model):
            stream = await self._ask(self._api, request, model)
            try:
                async for event in stream:
                    yield _plain(event)
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.close()

    def _model(self, request: RunRequest) -> str:
        """The model's own name; sessions call it "provider/name"."""
        model = request.model or self._settings.model
        if not model:
            raise RunnerFailed(
                f"the {self.name} runner was told no model", hint="name one for the session or the runner"
            )
        return model.removeprefix(f"{self._provider}/")

    def _key_from_environment(self, base_url: str) -> str:
        is_home = _host(base_url) == _host(self.home)
        variable = self._settings.api_key_env or (self.key_variable if is_home else None)
        key = os.environ.get(variable, "").strip() if variable else ""
        if variable and not key:
            raise InvalidConfig(f"the {self.name} runner needs a key", hint=f"set the environment variable {variable}")
        return key or _NO_KEY

    @contextmanager
    def _asking(self, model: str) -> Iterator[None]:
        """Failures of the endpoint as ours. Theirs hold the request, and sometimes the key: they do not go on."""
        try:
            yield
        except self._failures as error:
            told = " ".join(str(error).split())
            overflow = is_overflow(told)
            if len(self._key) >= _SECRET:
                told = told.replace(self._key, "[key]")
            status = getattr(error, "status_code", None) if isinstance(error, self._status_error) else None
            if status in _REFUSED_KEY:
                hint = "name the variable that holds its key: api_key_env" if self._key == _NO_KEY else "check the key"
                raise RunnerFailed(f"{model} has refused the key: {told[:_DETAIL]}", hint=hint) from None
            how = "did not answer" if status is None else "has refused"
            raise RunnerFailed(f"{model} {how}: {told[:_DETAIL]}", overflow=overflow) from None


def _vendor(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        hint = "pip install 'sessile[models]', or use the echo runner, which needs no model"
        raise InvalidConfig(f"the package {package} is not installed", hint=hint) from error


def _http_library(vendor: Any) -> Any:
    """What the vendor's client stands on: httpx, or the successor that newer ones use.

    The client that Anthropic's package makes of it goes through the proxies of the environment, also if it is told not to
    trust that (seen in 2.8.0), so we make our own.
    """
    return importlib.import_module(vendor.DefaultAsyncHttpxClient.__base__.__module__.partition(".")[0])


def _address(base_url: str) -> str:
    try:
        address = urllib.parse.urlsplit(base_url)
        sound = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:
        sound = None
    if not sound:
        raise InvalidConfig("the address of a model begins with http:// or https://", hint="check base_url")
    if address.username or address.password:
        raise InvalidConfig(
            "the address of a model holds no password", hint="name the variable of its key: api_key_env"
        )
    return base_url


def _sound(key: str) -> str:
    """A key that can be sent; an error about one that cannot would repeat it."""
    if not key.strip().isascii() or not key.strip().isprintable():
        raise InvalidConfig("the key holds characters that no key has", hint="set it again, on one line")
    return key.strip()


def _host(address: str) -> str | None:
    return urllib.parse.urlsplit(address).hostname


def _plain(event: Any) -> Event:
    """An event as the vendor sent it; what is no object is no event."""
    if not hasattr(event, "to_dict"):
        raise ValueError("it sent something that is no event")
    plain: Event = event.to_dict(warnings=False)
    return plain
