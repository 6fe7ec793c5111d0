"""The how-to about databases works as written."""

from __future__ import annotations

from pathlib import Path

import pytest

from page_blocks import Reader, blocks_of

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "scale-out.md"
ADDRESS = "postgresql://me@db.example/agents"


def test_the_blocks_of_the_page_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    """The code blocks run on a real server, whose address replaces that of the page."""
    blocks = blocks_of(PAGE)
    assert sum(ADDRESS in block.text for block in blocks) >= 3
    quoted = [
        block._replace(
            text=block.text.replace(ADDRESS, f"'{postgres_url}'" if block.language == "console" else postgres_url)
        )
        for block in blocks
    ]
    Reader(tmp_path, monkeypatch).follow(quoted)
