"""`sessile compact`, and the context in the formats of providers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from model_server import serving

from .conftest import Command

WEBHOOK = "6513270e"


@pytest.mark.mission("Y9")
def test_a_session_is_compacted_without_a_model_and_nothing_is_lost(sessile: Command, demo: Path) -> None:
    """The plan is shown first; then there is one more entry, a smaller context and a reference to the original entries."""
    before = sessile("show", WEBHOOK, "--json").json
    plan = sessile("compact", WEBHOOK, "--keep", "50", "--plan", "--json").json
    assert plan["status"] == "planned" and plan["summed_up"] > 0
    done = sessile("compact", WEBHOOK, "--keep", "50", "--json").json
    assert done["status"] == "compacted" and done["tokens_after"] < done["tokens_before"]["tokens"]
    after = sessile("show", WEBHOOK, "--json").json
    assert len(after["items"]) == len(before["items"]) + 1
    context = sessile("context", WEBHOOK).out
    assert f"summarized by the compaction {done['entry']}" in context and "an extract" in context
    again = sessile("compact", WEBHOOK)
    assert again.code == 1 and "nothing to compact" in again.err


def test_a_command_or_an_endpoint_can_sum_up(sessile: Command, demo: Path) -> None:
    """It receives the instructions; an invalid summary changes nothing."""
    script = "import sys; text = sys.stdin.read(); print('SUM', 'mind the gap' in text)"
    command = f"command:{sys.executable} -c {script!r}"
    said = sessile("compact", WEBHOOK, "--keep", "50", "--with", command, "mind", "the", "gap")
    assert said.code == 0 and "compacted:" in said.err
    assert "SUM True" in sessile("context", WEBHOOK).out
    with serving() as server:
        server.say("")
        other = str(sessile("ls", "--sort", "messages", "-n", "1", "--json").json["items"][0]["id"])
        empty = sessile("compact", other, "--keep", "50", "--with", f"{server.url}/compact")
        assert empty.code == 1 and "the summary is empty" in empty.err and "nothing was changed" in empty.err


@pytest.mark.parametrize("name", ["nobody", "openai/", "ftp://x", "gemini/x"])
def test_whoever_is_not_known_is_refused(sessile: Command, demo: Path, name: str) -> None:
    """An unknown summarizer is a usage error."""
    refused = sessile("compact", WEBHOOK, "--with", name)
    assert refused.code == 2 and f"invalid summarizer {name!r}" in refused.err


@pytest.mark.mission("X13")
@pytest.mark.mission("Y6")
@pytest.mark.parametrize("provider", ["anthropic", "openai", "google"])
def test_the_context_is_shown_as_a_provider_takes_it(sessile: Command, demo: Path, provider: str) -> None:
    """Messages have the provider's format, and each adjustment has a note."""
    member = "contents" if provider == "google" else "messages"
    document = sessile("context", WEBHOOK, "--provider", provider).json
    assert document["schema"] == f"sessile.context.{provider}/2" and document[member]
    roles = {message["role"] for message in document[member]}
    assert (
        roles
        <= {
            "anthropic": {"user", "assistant"},
            "openai": {"user", "assistant", "tool"},
            "google": {"user", "model"},
        }[provider]
    )
    assert all(note.keys() == {"entry", "did", "text"} for note in document["notes"])
    earlier = sessile("context", WEBHOOK, "--at", "1b0CnUN9", "--provider", provider).json
    assert earlier[member] != document[member]


def test_a_session_of_ones_own_is_compacted_whatever_its_header_says(sessile: Command, demo: Path) -> None:
    """The format is detected from the file; a `format` member in the header does not matter."""
    (path,) = demo.rglob(f"*{WEBHOOK}*.jsonl")
    head, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(json.dumps({**json.loads(head), "format": "codex"}).encode() + b"\n" + rest)
    done = sessile("compact", str(path), "--keep", "50", "--json")
    assert done.code == 0 and done.json["status"] == "compacted"
