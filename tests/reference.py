"""Generate docs/reference from the code, and the table of README.md from the measured figures.

    python tests/reference.py

    api.md      the public names                       errors.md    the tree of errors
    cli.md      the verbs                              config.md    the configuration keys and environment variables
    http.md     the operations of the gateway          stores.md    writers of other agents' files
    modules.md  the map of the code

A test compares the pages.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click

from reference_api import api_page, described
from reference_config import config_page, errors_page
from reference_http import http_page
from reference_measured import README, readme
from reference_modules import modules_page
from sessile.cli import command as app
from sessile.cli import output
from sessile.cli.main import ALIASES, VERBS
from sessile.core import address

STORES = {
    "sessile.agents.claude.transcript": ("Transcript", "Diagnostic", "Stamp"),
    "sessile.agents.claude.paths": ("Current",),
    "sessile.agents.claude.sdk": ("ClaudeSessions",),
    "sessile.agents.claude.mutations": ("Mutations", "Forked"),
    "sessile.agents.claude.checking": ("check_transcript", "TranscriptReport"),
    "sessile.agents.claude.remote": (
        "fetch_from_folder",
        "fetch_from_store",
        "fetch_from_url",
        "mirror_to_url",
        "hydrate_session",
        "Address",
        "Hydration",
    ),
    "sessile.agents.myagents.store": ("MyAgentsStore", "Saved"),
    "sessile.agents.myagents.switching": ("Switcher", "Steps", "Active"),
    "sessile.agents.myagents.archive": ("Archive", "Plan"),
    "sessile.agents.myagents.correlation": ("joined", "report", "Report"),
    "sessile.agents.openclaw.binding_store": ("SessionStore",),
    "sessile.storage.filesystem": ("PosixFilesystem",),
}
REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def pages() -> dict[Path, str]:
    """Return the expected pages."""
    made = {
        "api.md": api_page(),
        "cli.md": _cli(),
        "http.md": http_page(),
        "config.md": config_page(),
        "errors.md": errors_page(),
        "stores.md": _stores(),
        "modules.md": modules_page(),
    }
    return {README: readme()} | {REFERENCE / name: "\n".join(lines) + "\n" for name, lines in made.items()}


def _cli() -> Iterator[str]:
    yield "# Command line\n"
    yield "Generated from the code by `python tests/reference.py`; a test compares.\n"
    about = (inspect.getdoc(app) or "").partition("\n\n")[2].rstrip()
    yield "Exit codes:\n\n```text\n" + inspect.cleandoc(about) + "\n```\n"
    told = (inspect.getdoc(output) or "").split("\n\n")
    yield "Output:\n\n```text\n" + inspect.cleandoc(told[1]) + "\n```\n"
    yield "Environment variables are in [config.md](config.md#environment), errors in [errors.md](errors.md).\n"
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


def _stores() -> Iterator[str]:
    yield "# Stores of other agents\n"
    yield (
        "Classes that read and write the files of Claude Code, MyAgents and OpenClaw as these programs do, for programs that "
        "replace one of them. See [the guide](../howto/write-other-agents-files.md). "
        "Generated from the code by `python tests/reference.py`; a test compares.\n"
    )
    for module, names in STORES.items():
        yield f"## {module}\n\n{(inspect.getdoc(import_module(module)) or '').splitlines()[0]}\n"
        for name in names:
            yield from described(name, getattr(import_module(module), name))


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
