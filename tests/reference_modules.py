"""The map of the code: every module with the sentence that it begins with, layer by layer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "sessile"

LAYERS = {  # from the bottom up; what is not a folder here belongs to the package
    "core": "Pure: bytes and values in, values out. No files, no clock, no random numbers.",
    "formats": "Pure: other agents' rows as entries, and back.",
    "render": "Pure: text, Markdown and HTML of what people see.",
    "storage": "The only layer that touches the machine.",
    "stores": "Other agents' folders, found, read and written as their owners do.",
    "": "The package: its verbs, each in one place.",
    "adapters": "Stores for agent frameworks.",
    "mcp": "What agents may ask.",
    "gateway": "The gateway, its HTTP interface and its page.",
    "cli": "The command.",
    "testing": "For tests of programs that use the seams.",
}


def modules_page() -> Iterator[str]:
    """Every module, once."""
    yield "# The map of the code\n"
    yield "Made from the code by `tests/reference.py`; a test compares. Each module says more at its top.\n"
    there = sorted(path for path in SOURCE.rglob("*.py") if path.stem not in ("__init__", "__main__"))
    for layer, about in LAYERS.items():
        yield f"## {layer or 'The package'}\n\n{about}\n\n| module | what it is for |\n|---|---|"
        for path in there:
            name = path.relative_to(SOURCE).with_suffix("").as_posix()
            first = name.split("/")[0]
            if layer == (first if first in LAYERS else ""):
                yield f"| `{name.removeprefix(f'{layer}/')}` | {_sentence(path)} |"
        yield ""


def _sentence(path: Path) -> str:
    """The first paragraph of a module."""
    about = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
    return " ".join(about.split()).rstrip(":").replace("|", "\\|")
