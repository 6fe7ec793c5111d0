"""Kilo CLI: made from OpenCode, with a database of its own."""

from __future__ import annotations

from sessile.agents.opencode import OPENCODE, OpenCode
from sessile.agents.opencode.database import Sessions


class Kilo(OpenCode):
    """Kilo: `~/.local/share/kilo/kilo.db`."""

    name = "kilo"
    title = "Kilo"
    command = ("kilo", "--session")
    reader = Sessions("kilo")
    dialect = OPENCODE._replace(
        name="kilo",
        empty=False,
        gaps=(
            "system prompt: Kilo does not store it",
            "tools: Kilo does not store their descriptions",
            "environment details: Kilo adds the time and the folder to each prompt, and does not store that text",
        ),
    )
