"""The first prompt of a session: what the user asked, not what a program put in the user's mouth.

Rules: tool results, meta rows and compact summaries are passed over, then texts that the skip rule names; a slash command
counts only if nothing else is there. What is found is one line, cut at 200 characters.

The two SDKs differ in the skip rule (any lower-case tag at the start, or an old list of tags), in shell input, which the
TypeScript SDK shows as `! ls`, and in how long an emoji is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sessile.core.text import utf16_cut, utf16_length
from sessile.formats.claude.heads import View, read_row
from sessile.formats.claude.rows import USER, mapping_of, text_of, type_of

LONGEST = 200

_INTERRUPTED = r"\[Request interrupted by user[^\]]*\]"
_SKIPPED = re.compile(rf"\s*<[a-z][\w-]*[\s>]|{_INTERRUPTED}", re.ASCII)
_SKIPPED_BY_PYTHON = re.compile(
    rf"<local-command-stdout>|<session-start-hook>|<tick>|<goal>|{_INTERRUPTED}"
    r"|\s*<ide_opened_file>.*</ide_opened_file>\s*\Z|\s*<ide_selection>.*</ide_selection>\s*\Z",
    re.DOTALL,
)
_COMMAND = re.compile(r"<command-name>(.*?)</command-name>")
_SHELL = re.compile(r"<bash-input>(.*?)</bash-input>", re.DOTALL)
_PASSED_OVER = (
    '"tool_result"',
    '"isMeta":true',
    '"isMeta": true',
    '"isCompactSummary":true',
    '"isCompactSummary": true',
)


def first_prompt(text: str, view: View = "ts") -> str | None:
    """The first prompt in the beginning of a transcript, or None; the last line may be cut."""
    command = ""
    for said in _texts(text, view):
        line = said.replace("\n", " ").strip()
        if not line:
            continue
        slash = _COMMAND.search(line)
        if slash:
            command = command or slash.group(1)
            continue
        shell = _SHELL.search(line) if view == "ts" else None
        if shell:
            return f"! {shell.group(1).strip()}"
        if not (_SKIPPED if view == "ts" else _SKIPPED_BY_PYTHON).match(line):
            return _cut(line, view)
    return command or None


def _texts(text: str, view: View) -> Iterator[str]:
    """What the user rows say, each text for itself. Most lines are judged by a glance: parsing them all takes long."""
    for line in text.split("\n"):
        if '"type":"user"' not in line and '"type": "user"' not in line:
            continue
        if any(mark in line for mark in _PASSED_OVER):
            continue
        row = read_row(line.encode("utf-8", "surrogatepass"), view)
        if type_of(row) == USER:
            yield from _texts_of(mapping_of(row, "message").get("content"))


def _texts_of(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for block in content:
            said = text_of(block, "text") if type_of(block) == "text" else None
            if said is not None:
                yield said


def _cut(line: str, view: View) -> str:
    if view == "python-sdk":
        return line if len(line) <= LONGEST else line[:LONGEST].rstrip() + "…"
    return line if utf16_length(line) <= LONGEST else utf16_cut(line, LONGEST).rstrip() + "…"
