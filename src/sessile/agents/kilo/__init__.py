"""Kilo CLI: made from OpenCode, with a database of its own."""

from __future__ import annotations

from sessile.agents.opencode import OpenCode


class Kilo(OpenCode):
    """Kilo: `~/.local/share/kilo/kilo.db`."""

    name = "kilo"
    title = "Kilo"
    command = ("kilo", "--session")
