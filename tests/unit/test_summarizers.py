"""Summarizers: what they send, which answers they accept, and how they fail."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from figures import measured
from model_server import ModelServer, serving
from sessile.core.summaries import EXTRACTED, Summarizer, SummaryRequest, extract
from sessile.errors import InvalidConfig, SummarizerFailed
from sessile.vendors.summarizers import AnthropicSummarizer, CommandSummarizer, OpenAISummarizer, RemoteSummarizer

pytestmark = pytest.mark.mission("Y9")

REQUEST = SummaryRequest("history", "You sum up.", "<conversation>…</conversation>", [], max_tokens=500)
Make = Callable[..., Summarizer]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving() as model:
        yield model


def openai(server: ModelServer, **options: Any) -> Summarizer:
    return OpenAISummarizer("m", base_url=f"{server.url}/v1", api_key="secret-key", **options)


def anthropic(server: ModelServer, **options: Any) -> Summarizer:
    return AnthropicSummarizer("m", base_url=server.url, api_key="secret-key", **options)


def remote(server: ModelServer, **options: Any) -> Summarizer:
    return RemoteSummarizer(f"{server.url}/compact", **options)


models = pytest.mark.parametrize("make", [openai, anthropic])
endpoints = pytest.mark.parametrize("make", [openai, anthropic, remote])


@models
def test_a_model_is_asked_and_its_streamed_answer_is_put_together(make: Make, server: ModelServer) -> None:
    """System prompt, prompt and limit are sent; text, stop reason and usage are returned."""
    server.say("  A summary of some length.\n")
    summary = make(server)(REQUEST)
    assert (summary.text, summary.stop, summary.model) == ("A summary of some length.", "stop", "m")
    assert summary.usage == {"input": 11, "output": 3}
    body = server.asked[0].body
    assert "You sum up." in str(body) and "<conversation>" in str(body) and 500 in body.values()


@models
def test_an_answer_that_is_too_long_or_calls_tools_says_so(make: Make, server: ModelServer) -> None:
    """The caller decides from the stop reason."""
    server.say("half of it", stop="length")
    assert make(server)(REQUEST).stop == "length"
    server.say("let me look", calls=True)
    server.next()
    assert make(server)(REQUEST).stop == "toolUse"


@endpoints
def test_a_refusal_is_told_without_the_key(make: Make, server: ModelServer) -> None:
    """The error contains the endpoint's message, not the key."""
    server.fail(400, "no such model")
    with pytest.raises(SummarizerFailed, match="refused") as failure:
        make(server)(REQUEST)
    assert not failure.value.overflow and "secret-key" not in str(failure.value)


@models
def test_a_request_that_is_too_long_is_recognised(make: Make, server: ModelServer) -> None:
    """`overflow` is set, so that the caller can send less."""
    server.fail(400, "prompt is too long: 250000 tokens > 200000 maximum")
    with pytest.raises(SummarizerFailed) as failure:
        make(server)(REQUEST)
    assert failure.value.overflow


@pytest.mark.promise("P42")
@endpoints
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(make: Make, server: ModelServer, status: int) -> None:
    """The key and the conversation would go along."""
    with serving() as other:
        server.say("elsewhere", status=status, headers=(("Location", f"{other.url}/v1/messages"),))
        other.say("gotcha")
        with pytest.raises(SummarizerFailed, match="refused"):
            make(server)(REQUEST)
        assert not other.asked
    measured("P42", "redirects to another host", tried=1, followed=0)


@pytest.mark.promise("P42")
@endpoints
def test_no_proxy_of_the_environment_stands_between(
    make: Make, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the configured host is contacted."""
    with serving() as other:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, other.url)
            monkeypatch.setenv(name.lower(), other.url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        answer = {"raw": b'{"summary": "direct"}'} if make is remote else {}
        server.say("direct", **answer)
        assert make(server)(REQUEST).text == "direct"
        assert server.asked and not other.asked
    measured("P42", "proxies in the environment", tried=1, used=0)


@models
def test_an_overloaded_model_is_asked_again(make: Make, server: ModelServer) -> None:
    """The vendor's client retries."""
    server.fail(503, "overloaded")
    server.say("at last")
    assert make(server)(REQUEST).text == "at last"
    assert len(server.asked) == 2


@models
def test_a_stream_that_is_cut_is_no_summary(make: Make, server: ModelServer) -> None:
    """The length of the received text does not matter."""
    server.say("a summary that never ends", cut=True)
    with pytest.raises(SummarizerFailed):
        make(server)(REQUEST)


@endpoints
def test_a_slow_model_is_given_up(make: Make, server: ModelServer) -> None:
    """The call ends soon after the timeout."""
    server.say("very slow, piece by piece, for a long time" * 20, pause=0.15)
    began = time.monotonic()
    with pytest.raises(SummarizerFailed):
        make(server, timeout=0.1)(REQUEST)
    assert time.monotonic() - began < 5


@endpoints
def test_an_endpoint_that_is_not_there_is_a_failure_of_ours(make: Make) -> None:
    """It raises `SummarizerFailed`."""
    with serving() as server:
        summarizer = make(server, timeout=2)
    with pytest.raises(SummarizerFailed):
        summarizer(REQUEST)


def test_a_remote_endpoint_gets_both_prompts_and_answers_a_summary(server: ModelServer) -> None:
    """The request is {systemPrompt, prompt}, the answer {summary}."""
    server.say("summed up")
    assert remote(server, headers={"Authorization": "Bearer t"})(REQUEST).text == "summed up"
    asked = server.asked[0]
    assert asked.body == {"systemPrompt": REQUEST.system, "prompt": REQUEST.prompt}
    assert asked.headers["Authorization"] == "Bearer t"


@pytest.mark.parametrize("raw", [b"nonsense", b"[]", b'{"text": "x"}', b"\xff", b"[" * 100_000])
def test_an_answer_without_a_summary_is_a_failure(server: ModelServer, raw: bytes) -> None:
    """Any other body raises."""
    server.say(raw=raw)
    with pytest.raises(SummarizerFailed, match="contains no summary"):
        remote(server)(REQUEST)


def test_a_command_reads_the_prompt_and_prints_the_summary(tmp_path: Path) -> None:
    """The error contains its exit code and the end of stderr."""
    script = "import sys; text = sys.stdin.read(); print('got', len(text))"
    summary = CommandSummarizer([sys.executable, "-c", script])(REQUEST)
    assert summary.text == f"got {len(REQUEST.system) + 2 + len(REQUEST.prompt)}"
    with pytest.raises(SummarizerFailed, match="code 3: no luck"):
        CommandSummarizer([sys.executable, "-c", "import sys; print('no luck', file=sys.stderr); sys.exit(3)"])(REQUEST)
    with pytest.raises(SummarizerFailed, match="command not found"):
        CommandSummarizer([str(tmp_path / "missing")])(REQUEST)
    with pytest.raises(SummarizerFailed, match=r"took longer than 0\.2 s"):
        CommandSummarizer([sys.executable, "-c", "import time; time.sleep(9)"], timeout=0.2)(REQUEST)


def test_what_cannot_work_is_refused_at_once() -> None:
    """The error is raised when the summarizer is made, not when it is used."""
    with pytest.raises(InvalidConfig):
        RemoteSummarizer("file:///etc/passwd")
    with pytest.raises(InvalidConfig):
        CommandSummarizer([])


def said(role: str, text: str, **members: Any) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}], **members}


def test_an_extract_is_made_of_the_words_that_are_there_and_says_so() -> None:
    """The first request, later ones, failures, and the last answer."""
    messages = [said("user", "Build the thing"), said("assistant", "I will"), said("user", "Now test it")]
    messages += [said("toolResult", "2 failed", isError=True), said("assistant", "Two tests\nfail.")]
    text = extract(REQUEST._replace(messages=messages)).text
    assert text.startswith(EXTRACTED)
    for part in ("## Goal\n\nBuild the thing", "- Now test it", "- 2 failed", "## Last answer\n\nTwo tests fail."):
        assert part in text
    again = extract(REQUEST._replace(messages=messages[:1], previous=text)).text
    assert again.count(EXTRACTED) == 1 and "- 2 failed" in again


def test_an_extract_stays_short_however_long_the_conversation_is() -> None:
    """Left-out requests are counted."""
    messages = [said("user", f"request {number} " + "x" * 1000) for number in range(500)]
    text = extract(REQUEST._replace(messages=messages, max_tokens=None)).text
    assert len(text) < 8000 and "475 earlier ones are left out" in text and "request 499" in text


@pytest.mark.parametrize("most", [10, 3_000, None])
def test_an_extract_stays_short_however_often_it_is_made(most: int | None) -> None:
    """The start and the newest part stay, with a notice between them."""
    text, longest = "", 0
    for number in range(60):
        messages = [said("user", f"request {number} " + "x" * 200), said("assistant", f"answer {number} " + "y" * 300)]
        text = extract(REQUEST._replace(messages=messages, previous=text or None, max_tokens=most)).text
        longest = max(longest, len(text))
    assert text.startswith(EXTRACTED) and text.count(EXTRACTED) == 1 and "answer 59" in text
    assert text.count("## Before") == 1 and text.count("a part is left out here") == 1
    assert longest <= min(16_000, max(1_000, most or 16_000))
