"""Summarizers: they write the summary that replaces old messages in a compaction.

    extract                                   no model, quotes from the messages (in core/summaries.py)
    OpenAISummarizer("gpt-5-mini")            any OpenAI-compatible endpoint
    AnthropicSummarizer("claude-haiku-4-5")   Anthropic, or an endpoint with its API
    RemoteSummarizer("https://…")             POST {systemPrompt, prompt} → {summary}
    CommandSummarizer(["my-summarizer"])      a program: the prompt on stdin, the summary on stdout

Each is called with a `SummaryRequest` and returns a `Summary` or raises `SummarizerFailed`, whose `overflow` says whether the
request was too long for the model. A truncated answer is a failure. Keys are arguments or come from the vendors' own
environment variables; they never appear in a message. Only the configured host is contacted (`vendors/clients.py`).
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sessile.core.summaries import Summary, SummaryRequest
from sessile.errors import InvalidConfig, SummarizerFailed
from sessile.vendors.answers import is_overflow
from sessile.vendors.clients import ANTHROPIC, OPENAI, Endpoint, ModelRequest, Vendor, open_direct

TIMEOUT = 180.0  # seconds for a whole summary
_SILENCE = 60.0  # seconds without an event
_LONGEST = 4 << 20  # bytes of an answer
_DETAIL = 300  # characters of an error message


class _ModelSummarizer:
    """Summarize with a model behind a vendor's API."""

    _vendor: ClassVar[Vendor]

    def __init__(
        self, model: str, *, base_url: str | None = None, api_key: str | None = None, timeout: float = TIMEOUT
    ) -> None:
        self._model = model
        self._timeout = timeout
        self._endpoint = Endpoint(
            self._vendor,
            base_url=base_url,
            api_key=api_key,
            silence=min(_SILENCE, timeout),
            failure=SummarizerFailed,
        )

    def __call__(self, request: SummaryRequest) -> Summary:
        """Send the request and read the streamed answer."""
        deadline = time.monotonic() + self._timeout
        messages = [{"role": "user", "content": request.prompt}]
        events = self._endpoint.stream(ModelRequest(self._model, messages, request.system, request.max_tokens))
        answer = self._vendor.answer()
        try:
            for event in events:
                if time.monotonic() > deadline:
                    hint = f"{answer.length} characters arrived; use a longer timeout"
                    raise SummarizerFailed(f"{self._model} took longer than {self._timeout:g} s", hint=hint)
                answer.add(event)
        finally:
            events.close()
        # An answer with tool calls is not a summary, whatever its stop reason.
        stop = "toolUse" if answer.calls_tools else answer.stop
        if stop is None:
            raise SummarizerFailed(f"the answer of {self._model} was cut off after {answer.length} characters")
        return Summary(answer.text.strip(), stop, self._model, answer.usage)


class OpenAISummarizer(_ModelSummarizer):
    """Summarize with a model behind an OpenAI-compatible endpoint.

    Args:
        model: The name of the model.
        base_url: The address of the endpoint; OpenAI's by default.
        api_key: The API key; the variable `OPENAI_API_KEY` by default.
        timeout: The maximum time for one summary, in seconds.

    Example:
        ```python
        compactor = Compactor(session, OpenAISummarizer("gpt-5-mini"), window=400_000)
        compactor.compact_if_due()
        ```
    """

    _vendor = OPENAI


class AnthropicSummarizer(_ModelSummarizer):
    """Summarize with a model of Anthropic, or behind an endpoint with its API.

    Args:
        model: The name of the model.
        base_url: The address of the endpoint; Anthropic's by default.
        api_key: The API key; the variable `ANTHROPIC_API_KEY` by default.
        timeout: The maximum time for one summary, in seconds.

    Example:
        ```python
        compactor = Compactor(session, AnthropicSummarizer("claude-haiku-4-5"), window=200_000)
        compactor.compact_if_due()
        ```
    """

    _vendor = ANTHROPIC


class RemoteSummarizer:
    """Summarize with an endpoint that takes `{systemPrompt, prompt}` and returns `{summary}`."""

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None, timeout: float = TIMEOUT) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise InvalidConfig("invalid URL of a summarizer: it must start with http:// or https://")
        self._url = url
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._timeout = timeout

    def __call__(self, request: SummaryRequest) -> Summary:
        """Send the request once; retries are up to the caller."""
        host = urllib.parse.urlsplit(self._url).netloc.rpartition("@")[2]
        data = self._post({"systemPrompt": request.system, "prompt": request.prompt}, host)
        if len(data) > _LONGEST:
            raise SummarizerFailed(f"the answer of {host} is longer than {_LONGEST} bytes")
        try:
            summary = json.loads(data)["summary"]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            hint = 'return JSON of the form {"summary": "…"}'
            raise SummarizerFailed(f"the answer of {host} contains no summary", hint=hint) from error
        return Summary(summary.strip() if isinstance(summary, str) else "", "stop", host, None)

    def _post(self, body: Any, host: str) -> bytes:
        """Return at most one byte more than the longest answer."""
        try:
            request = urllib.request.Request(self._url, json.dumps(body).encode(), self._headers, method="POST")
            with open_direct(request, self._timeout) as response:
                data: bytes = response.read(_LONGEST + 1)
                return data
        except urllib.error.HTTPError as error:
            detail = _one_line(f"{error} {error.read(_LONGEST).decode('utf-8', 'replace')}")
            raise SummarizerFailed(f"{host} refused the request: {detail}", overflow=is_overflow(detail)) from error
        except Exception as error:  # URLError, http.client errors, timeouts while reading
            raise SummarizerFailed(f"{host} did not answer: {_one_line(str(error))}") from error


class CommandSummarizer:
    """Summarize with a program, started without a shell.

    It reads the system prompt, a blank line and the prompt from stdin and writes the summary to stdout.

    Args:
        command: The program and its arguments.
        timeout: The maximum time for one summary, in seconds. The program is killed after it.

    Raises:
        InvalidConfig: The command is empty.

    Example:
        ```python
        Compactor(session, CommandSummarizer(["llm", "-m", "local"]), window=32_000).compact()
        ```
    """

    def __init__(self, command: Sequence[str], *, timeout: float = TIMEOUT) -> None:
        if not command:
            raise InvalidConfig("a command is required", hint='pass a list such as ["my-summarizer"]')
        self._command = list(command)
        self._timeout = timeout

    def __call__(self, request: SummaryRequest) -> Summary:
        """Run the program once; it is killed after the timeout."""
        name = self._command[0]
        prompt = f"{request.system}\n\n{request.prompt}".encode("utf-8", "replace")
        try:
            done = subprocess.run(self._command, input=prompt, capture_output=True, timeout=self._timeout, check=False)
        except FileNotFoundError as error:
            raise SummarizerFailed(f"command not found: {name}", hint="install it, or check its path") from error
        except subprocess.TimeoutExpired as error:
            hint = "use a longer timeout"
            raise SummarizerFailed(f"{name} took longer than {self._timeout:g} s", hint=hint) from error
        except OSError as error:
            raise SummarizerFailed(f"could not run {name}: {error.strerror or error}") from error
        if done.returncode:
            detail = done.stderr.decode("utf-8", "replace").strip()[-_DETAIL:]
            message = f"{name} exited with code {done.returncode}: {detail}"
            raise SummarizerFailed(message, overflow=is_overflow(detail))
        return Summary(done.stdout[:_LONGEST].decode("utf-8", "replace").strip(), "stop", name, None)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_DETAIL]
