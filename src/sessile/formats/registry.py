"""The formats that Sessile itself brings, in the order in which they are tried; `known_formats` adds what is installed."""

from __future__ import annotations

from collections.abc import Sequence

from sessile.formats.base import Format
from sessile.formats.claude.translate import Claude
from sessile.formats.codex import Codex
from sessile.formats.myagents.translate import MyAgents

FORMATS: Sequence[Format] = (Claude(), Codex(), MyAgents())
