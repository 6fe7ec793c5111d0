"""The map of the code: every module with the first sentence of its docstring, layer by layer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "sessile"

LAYERS = {  # from the bottom up; modules in no folder belong to the package
    "core": "Pure: bytes and values in, values out. No files, no clock, no random numbers.",
    "render": "Pure: text, Markdown and HTML of what people see.",
    "vendors": "Everything that talks to model vendors.",
    "storage": "The only layer that touches files, locks and databases.",
    "agents": "One package for each agent: its files found, read, written and resumed.",
    "": "The package: its verbs, each in one place.",
    "upkeep": "What keeps sessions healthy: compaction, checks, pruning, repairs.",
    "demo": "The made-up sessions of the demo.",
    "gateway": "The gateway, its HTTP interface and its page.",
    "cli": "The command.",
    "mcp": "The MCP server.",
    "adapters": "Stores for agent frameworks.",
    "testing": "Contract tests for extensions.",
}


def modules_page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Modules\n"
    yield "Generated from the code by `python tests/reference.py`; a test compares.\n"
    there = sorted(path for path in SOURCE.rglob("*.py") if path.stem not in ("__init__", "__main__"))
    for layer, about in LAYERS.items():
        yield f"## {layer or 'The package'}\n\n{about}\n\n| module | purpose |\n|---|---|"
        for path in there:
            name = path.relative_to(SOURCE).with_suffix("").as_posix()
            first = name.split("/")[0]
            if layer == (first if first in LAYERS else ""):
                yield f"| `{name.removeprefix(f'{layer}/')}` | {_sentence(path)} |"
        yield ""


def _sentence(path: Path) -> str:
    """Return the first paragraph of a module's docstring."""
    about = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
    return " ".join(about.split()).rstrip(":").replace("|", "\\|")
