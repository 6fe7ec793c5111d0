"""The generated Claude Code transcripts match their description, and a missing SDK is reported."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bench import claude
from bench.claude_corpus import Transcript, sessions, transcript
from bench.scale import Scale, smoke
from bench.tables import table
from sessile import Store
from sessile.transfer import converted


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Scale:
    return smoke(str(tmp_path_factory.mktemp("claude")))


@pytest.fixture(scope="module")
def made(scale: Scale) -> Transcript:
    return transcript(scale, 5)


def test_a_transcript_is_the_same_every_time_and_made_once(made: Transcript, scale: Scale, tmp_path: Path) -> None:
    """Results of different runs and machines are about the same bytes."""
    again = transcript(smoke(str(tmp_path)), 5)
    assert Path(again.path).read_bytes() == Path(made.path).read_bytes()
    written = Path(made.path).stat().st_mtime_ns
    assert transcript(scale, 5) == made
    assert Path(made.path).stat().st_mtime_ns == written


def test_a_transcript_has_what_the_bench_says(made: Transcript) -> None:
    """It has compactions, parallel calls whose results fan out, rows beside the conversation, and a title at the end."""
    rows = [json.loads(line) for line in Path(made.path).read_bytes().splitlines()]
    kinds = Counter(row["type"] for row in rows)
    assert len(rows) == made.rows and made.size == pytest.approx(5e6, rel=0.05)
    assert set(kinds) >= {"user", "assistant", "system", "file-history-snapshot", "queue-operation", "last-prompt"}
    boundaries = [place for place, row in enumerate(rows) if row.get("subtype") == "compact_boundary"]
    assert len(boundaries) > 1 and all(rows[place + 1]["isCompactSummary"] for place in boundaries)
    answered = Counter(row["parentUuid"] for row in rows if "toolUseResult" in row)
    called = {row["uuid"] for row in rows if row["type"] == "assistant" and row["message"]["stop_reason"] == "tool_use"}
    assert set(answered) == called
    responses = Counter(row["message"]["id"] for row in rows if row["uuid" if "uuid" in row else "type"] in called)
    assert max(responses.values()) > 1
    assert rows[-2]["type"] == "ai-title"


def test_the_listing_has_sessions_of_all_sizes_in_several_projects(scale: Scale) -> None:
    """Session sizes vary, and there are several project folders."""
    home, count = sessions(scale)
    files = list(Path(home, "projects").glob("*/*.jsonl"))
    sizes = sorted(path.stat().st_size for path in files)
    assert len(files) == count and len({path.parent for path in files}) > 10
    assert sizes[0] < 20_000 and sizes[-1] > 20 * sizes[0]


def test_without_the_sdk_every_row_has_our_time_and_says_what_is_missing(scale: Scale) -> None:
    """A figure without a comparison is marked as such."""
    rows = claude.listing(scale)
    assert all(row.median and row.verdict == "skipped" and not row.rivals for row in rows)
    assert "skipped: A1 list 50 Claude sessions, warm: claude-sdk is not compared" in table(rows)


def test_what_is_converted_back_are_the_same_bytes(made: Transcript, tmp_path: Path) -> None:
    """The round trip restores the original file."""
    path = claude.convert_in(made, str(tmp_path / "root"))
    with Store(tmp_path / "root").open(path, readonly=True) as session:
        assert b"".join(converted(session, "claude", {})) == Path(made.path).read_bytes()
