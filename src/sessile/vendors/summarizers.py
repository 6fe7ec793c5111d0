"""Summarizers: who sums up what a compaction removes from the context.

    extract                                   from the words that are there; needs nothing (core.summaries)
    OpenAISummarizer("gpt-5-mini")            any OpenAI-compatible endpoint, through the vendor's client
    AnthropicSummarizer("claude-haiku-4-5")   Anthropic's, through the vendor's client
    RemoteSummarizer("https://…")             POST {systemPrompt, prompt} → {summary}
    CommandSummarizer(["my-summarizer"])      a program: the prompt on stdin, the summary on stdout

Each is called with a `SummaryRequest` and returns a `Summary`, or raises `SummarizerFailed`, which says whether the request was
too long for the model (`overflow`). An answer that was cut off is a failure, never a summary. Keys are arguments or the
vendors' own environment variables; they never appear in a message. Only the configured host is connected to: through no proxy of
the environment, and after no redirect, with which keys and conversations would go.

Programs of this machine that are given a text and answer with one.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sessile.core.summaries import Summary, SummaryRequest
from sessile.errors import InvalidConfig, SummarizerFailed
from sessile.vendors.answers import Answer, AnthropicAnswer, OpenAIAnswer, is_overflow
from sessile.vendors.clients import straight

# --- commands


class Ran(NamedTuple):
    """What a program did."""

    code: int
    out: bytes
    err: bytes


class NoAnswer(Exception):
    """The program is not there, or did not end in time."""


def run(command: Sequence[str], given: bytes, *, timeout: float) -> Ran:
    """Run a program without a shell, with some bytes on its stdin; it is ended if it takes longer than that many seconds."""
    try:
        done = subprocess.run(list(command), input=given, capture_output=True, timeout=timeout, check=False)
    except FileNotFoundError as error:
        raise NoAnswer("there is no such command") from error
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"it took longer than {timeout:g} s") from error
    except OSError as error:
        raise NoAnswer(error.strerror or str(error)) from error
    return Ran(done.returncode, done.stdout, done.stderr)


# --- summarizers

TIMEOUT = 180.0  # seconds for a whole summary
_SILENCE = 60.0  # seconds without a byte
_RETRIES = 2  # by the vendors' clients: connections, timeouts, rate limits, 5xx
_LONGEST = 4 << 20  # bytes of an answer
_DETAIL = 300  # characters of what went wrong


class OpenAISummarizer:
    """A model behind an OpenAI-compatible endpoint."""

    def __init__(
        self, model: str, *, base_url: str | None = None, api_key: str | None = None, timeout: float = TIMEOUT
    ) -> None:
        openai = _client("openai")
        self._errors: Any = openai.APIError
        self._model = model
        self._timeout = timeout
        options = {"base_url": base_url, "api_key": api_key, "timeout": min(_SILENCE, timeout), "max_retries": _RETRIES}
        self._connect: Callable[[], Any] = lambda: openai.OpenAI(**options, http_client=_straight(openai))
        with _setting_up(openai.OpenAIError):
            self._connect().close()

    def __call__(self, request: SummaryRequest) -> Summary:
        """Stream the answer, so that a slow model is not taken for a dead one."""
        deadline = time.monotonic() + self._timeout
        limit = {} if request.max_tokens is None else {"max_completion_tokens": request.max_tokens}
        said = [{"role": "system", "content": request.system}, {"role": "user", "content": request.prompt}]
        answer = OpenAIAnswer()
        options = {"include_usage": True}
        with _asking(self._model, self._errors), self._connect() as api:
            asked = {"model": self._model, "messages": said, "stream_options": options, **limit}
            with api.chat.completions.create(**asked, stream=True) as stream:
                for chunk in stream:
                    _in_time(deadline, self._model, answer.length)
                    answer.add(chunk.to_dict(warnings=False))
        return _answered(self._model, answer)


class AnthropicSummarizer:
    """A model behind Anthropic's endpoint, or one that speaks its protocol."""

    def __init__(
        self, model: str, *, base_url: str | None = None, api_key: str | None = None, timeout: float = TIMEOUT
    ) -> None:
        anthropic = _client("anthropic")
        self._errors: Any = anthropic.APIError
        self._model = model
        self._timeout = timeout
        options = {"base_url": base_url, "api_key": api_key, "timeout": min(_SILENCE, timeout), "max_retries": _RETRIES}
        self._connect: Callable[[], Any] = lambda: anthropic.Anthropic(**options, http_client=_straight(anthropic))
        with _setting_up(anthropic.AnthropicError):
            self._connect().close()

    def __call__(self, request: SummaryRequest) -> Summary:
        """Stream the answer, so that a slow model is not taken for a dead one."""
        deadline = time.monotonic() + self._timeout
        answer = AnthropicAnswer()
        said = [{"role": "user", "content": request.prompt}]
        with _asking(self._model, self._errors), self._connect() as api:
            most = request.max_tokens or _ANSWER_TOKENS
            asked = {"model": self._model, "max_tokens": most, "system": request.system, "messages": said}
            with api.messages.create(**asked, stream=True) as stream:
                for event in stream:
                    _in_time(deadline, self._model, answer.length)
                    answer.add(event.to_dict(warnings=False))
        return _answered(self._model, answer)


_ANSWER_TOKENS = 8192  # what Anthropic's endpoint is told if nobody says how long a summary may be


class RemoteSummarizer:
    """An endpoint that is given `{systemPrompt, prompt}` and answers `{summary}`."""

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None, timeout: float = TIMEOUT) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise InvalidConfig("the address of a summarizer begins with http:// or https://")
        self._url = url
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._timeout = timeout

    def __call__(self, request: SummaryRequest) -> Summary:
        """Ask once: the caller decides whether to ask again."""
        asked = json.dumps({"systemPrompt": request.system, "prompt": request.prompt}).encode()
        place = urllib.parse.urlsplit(self._url).netloc.rpartition("@")[2]
        with _asking(place, urllib.error.HTTPError):
            call = urllib.request.Request(self._url, asked, self._headers, method="POST")
            with straight(call, self._timeout) as answer:
                data = answer.read(_LONGEST + 1)
        if len(data) > _LONGEST:
            raise SummarizerFailed(f"the answer of {place} is longer than {_LONGEST} bytes")
        try:
            summary = json.loads(data)["summary"]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise SummarizerFailed(f"the answer of {place} holds no summary", hint='{"summary": "…"}') from error
        return _whole(place, summary if isinstance(summary, str) else "", "stop", None)


class CommandSummarizer:
    """A program of this machine; system prompt and prompt come on stdin, with a blank line between them."""

    def __init__(self, command: Sequence[str], *, timeout: float = TIMEOUT) -> None:
        if not command:
            raise InvalidConfig("a summarizer needs a command")
        self._command = list(command)
        self._timeout = timeout

    def __call__(self, request: SummaryRequest) -> Summary:
        """Run the program once."""
        name = self._command[0]
        given = f"{request.system}\n\n{request.prompt}".encode("utf-8", "replace")
        try:
            code, out, err = run(self._command, given, timeout=self._timeout)
        except NoAnswer as error:
            raise SummarizerFailed(f"{name} did not answer: {error}", hint="sessile needs it to sum up") from error
        if code:
            said = err.decode("utf-8", "replace").strip()[-_DETAIL:]
            raise SummarizerFailed(f"{name} ended with code {code}: {said}", overflow=is_overflow(said))
        return _whole(name, out[:_LONGEST].decode("utf-8", "replace"), "stop", None)


# -- common to all


def _client(name: str) -> Any:
    """The vendor's package."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = "pip install 'sessile[models]', or use the extract, which needs no model"
        raise SummarizerFailed(f"the package {name} is not installed", hint=hint) from error


def _straight(vendor: Any) -> Any:
    """A connection for a vendor's client, of the library that it stands on, that leads to the configured host alone."""
    import importlib

    http = importlib.import_module(vendor.DefaultHttpxClient.__base__.__module__.partition(".")[0])
    return http.Client(trust_env=False, follow_redirects=False)


@contextmanager
def _setting_up(errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise InvalidConfig(f"the summarizer cannot be used: {_told(error)}", hint="give it a key") from error


@contextmanager
def _asking(name: str, refused: type[Exception]) -> Iterator[None]:
    """Failures of an endpoint as ours: refused, unreachable, or cut off."""
    try:
        yield
    except SummarizerFailed:
        raise
    except refused as error:
        told = _told(error)
        raise SummarizerFailed(f"{name} has refused: {told}", overflow=is_overflow(told)) from error
    except Exception as error:  # a stream fails with the errors of whatever HTTP library the client stands on
        raise SummarizerFailed(f"{name} did not answer: {_told(error)}") from error


def _told(error: Exception) -> str:
    """What went wrong, in one line; a response may hold it."""
    body = error.read(_LONGEST) if isinstance(error, urllib.error.HTTPError) else b""
    return " ".join(f"{error} {body.decode('utf-8', 'replace')}".split())[:_DETAIL]


def _in_time(deadline: float, name: str, length: int) -> None:
    if time.monotonic() > deadline:
        raise SummarizerFailed(f"{name} took too long", hint=f"{length} characters had come; allow more time")


def _answered(name: str, answer: Answer) -> Summary:
    """The summary in an answer; one that calls tools is none, whatever it says of its end."""
    stop = "toolUse" if answer.calls_tools else answer.stop
    return _whole(name, answer.text, stop, answer.usage)


def _whole(name: str, text: str, stop: str | None, usage: Mapping[str, Any] | None) -> Summary:
    """The summary, if the answer came to its end."""
    if stop is None:
        raise SummarizerFailed(f"the answer of {name} was cut off after {len(text)} characters")
    return Summary(text.strip(), stop, name, usage)
