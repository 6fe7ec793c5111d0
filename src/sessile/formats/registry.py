"""The formats that are known, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Sequence

from sessile.formats.base import Format
from sessile.formats.claude.translate import Claude
from sessile.formats.codex import Codex
from sessile.formats.myagents.translate import MyAgents

FORMATS: Sequence[Format] = (Claude(), Codex(), MyAgents())


def format_named(name: str) -> Format | None:
    """The format with that name."""
    return next((known for known in FORMATS if known.name == name), None)
