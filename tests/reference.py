"""Writes docs/reference/api.md from the public names and cli.md from the verbs: `python tests/reference.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

import sessile
import sessile.aio
from sessile.cli import app, output, places
from sessile.cli.main import ALIASES, VERBS
from sessile.core import address

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def pages() -> dict[Path, str]:
    """The pages as they should be."""
    made = {"api.md": _api(), "cli.md": _cli()}
    return {REFERENCE / name: "\n".join(lines) + "\n" for name, lines in made.items()}


def _cli() -> Iterator[str]:
    yield "# The command\n"
    yield "Made from the code by `tests/reference.py`; a test compares.\n"
    about = (inspect.getdoc(app) or "").partition("\n\n")[2].rstrip()
    yield "Exit codes:\n\n```text\n" + inspect.cleandoc(about) + "\n```\n"
    told = (inspect.getdoc(output) or "").split("\n\n")
    yield "Output:\n\n```text\n" + inspect.cleandoc(told[1]) + "\n```\n"
    folders = inspect.cleandoc((inspect.getdoc(places) or "").split("\n\n")[1])
    yield f"Environment:\n\n```text\n{folders}\n{inspect.cleandoc(told[2])}\n```\n"
    yield (
        "How sessions are named:\n\n```text\n"
        + inspect.cleandoc((inspect.getdoc(address) or "").split("\n\n")[1])
        + "\n```\n"
    )
    yield "Aliases: " + ", ".join(f"`{alias}` = `{verb}`" for alias, verb in ALIASES.items()) + ".\n"
    context = click.Context(app.sessile, info_name="sessile")
    for group, verbs in VERBS.items():
        yield f"## {group}\n"
        for name in verbs:
            command = app.sessile.get_command(context, name)
            assert command is not None
            with command.make_context(name, ["--help"], context, resilient_parsing=True, terminal_width=100) as inner:
                text = command.get_help(inner)
            yield f"### {name}\n\n```text\n{text}\n```\n"


def _api() -> Iterator[str]:
    yield "# Public names\n"
    yield "Made from the code by `tests/reference.py`; a test compares. Everything else may change at any time.\n"
    for name in sessile.__all__:
        value = getattr(sessile, name)
        if inspect.isclass(value):
            yield f"## {name}\n\n{inspect.getdoc(value)}\n"
            yield from _members(value)
        elif inspect.isfunction(value):
            yield f"## {name}\n\n`{name}{_signature(value)}`\n\n{inspect.getdoc(value)}\n"
    yield "## sessile.aio\n"
    yield f"{inspect.getdoc(sessile.aio)}\n\n`AsyncStore` and `AsyncSession` have the methods of `Store` and `Session`.\n"
    yield f"## sessile.errors\n\n```text\n{inspect.getdoc(sessile.errors)}\n```"


def _members(cls: type) -> Iterator[str]:
    members = {name: member for name, member in inspect.getmembers(cls) if not name.startswith("_") and _ours(member)}
    for name, member in members.items():
        call = name if isinstance(member, property) else f"{name}{_signature(member)}"
        text = inspect.getdoc(member) or ""
        yield f"- `{call}`" + (f" — {' '.join(text.split())}" if text else "")
    if members:
        yield ""


def _ours(member: object) -> bool:
    """Whether a member is a method or property of our own, not of a class of Python."""
    function = member.fget if isinstance(member, property) else member
    return inspect.isroutine(function) and str(getattr(function, "__module__", "")).startswith("sessile")


def _signature(function: object) -> str:
    text = str(inspect.signature(function))  # type: ignore[arg-type]
    text = text.replace("(self, ", "(").replace("(self)", "()")
    return re.sub(r"<function \w+|<built-in function (\w+)>", r"\1", text.replace("'", ""))


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
