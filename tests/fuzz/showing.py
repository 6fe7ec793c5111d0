"""Laws of output for people: nothing is executed, nothing controls a terminal, and nothing hidden is revealed."""

from __future__ import annotations

import json
import re

import msgspec

from fuzz.mutator import text_of
from sessile import errors
from sessile.agents.registry import AGENTS
from sessile.core.codec import plain
from sessile.core.delivery import Silence, is_silent
from sessile.core.providers import dimensions, fit, sniff
from sessile.core.redact import Redactor, find_secrets
from sessile.core.text import clean_name, clean_tag, parse_timestamp, utf16_cut, utf16_length, without_surrogates
from sessile.core.visible import cut, fitting, visible, visible_json, visible_line, width, without_colours
from sessile.gateway.http.streams import frame
from sessile.render.html import code, coloured_lines, escape, language_of, markdown
from sessile.render.markdown import fenced, in_tag, inline, prose, quoted_scalar
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.packed import open_rows
from sessile.storage.turn_log import TurnLog
from sessile.testing.filesystem_contract import put
from sessile.vendors.answers import AnthropicAnswer, OpenAIAnswer, assistant_message

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_RUNS = re.compile(
    r"<\s*(script|iframe|object|embed|style|svg|form|base|meta|link)\b|<[^>]*\son[a-z]+\s*=", re.IGNORECASE
)
_CANARY = "ghp_N0tARealKeyN0tARealKeyN0tARealKey7N0t"


def terminals(data: bytes) -> None:
    """No control character for terminals is left, and truncated text fits."""
    text = text_of(data)
    assert not _CONTROLS.search(visible(text)), "a control character comes through"
    assert not _CONTROLS.search(visible_line(text)) and "\n" not in visible_line(text)
    without_colours(text)
    line = visible_line(text)
    assert width(cut(line, 20)) <= 20
    assert fitting(line, 0, 20) <= len(line)
    assert json.loads(visible_json(json.dumps(text))) == text
    utf16_length(text)
    assert utf16_length(utf16_cut(text, 7)) <= 7
    without_surrogates(text).encode()
    parse_timestamp(text)
    clean_name(text)
    clean_tag(text)


def pages(data: bytes) -> None:
    """Untrusted Markdown, code and coloured output become HTML in which nothing is executed."""
    text = text_of(data)
    for html in (
        markdown(text),
        code(text, "python"),
        escape(text),
        *coloured_lines(text),
        code(text, language_of(text)),
    ):
        assert not _RUNS.search(html), "something in the page would run"
    assert frame(text).count(b"\n\n") == 1, "one event became two"


def documents(data: bytes) -> None:
    """Untrusted text within Markdown does not leave its place."""
    text = text_of(data)
    list(prose(text))
    lines = list(fenced(text, "x"))
    assert lines[0].startswith("`") and lines[-1].startswith("`")
    mark = lines[0].rstrip("x")
    assert not any(line.strip().startswith(mark) for line in lines[1:-1]), "a fence is closed from within"
    assert "\n" not in inline(text) and "\n" not in in_tag(text)
    quoted_scalar(text)


def secrets(data: bytes) -> None:
    """Redaction is idempotent, hides a known secret in any text, and accepts any JSON value."""
    text = text_of(data)
    for found in find_secrets(text):
        assert 0 <= found.start < found.end <= len(text)
    redactor = Redactor(known={_CANARY: "known"})
    redacted = redactor.redact(f"{text} {_CANARY} {text}")
    assert f" {_CANARY} " not in redacted, "a known secret comes through"
    assert redactor.redact(redacted) == redacted, "redacting twice gives another text"
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    Redactor().redact_value(value)


def values(data: bytes) -> None:
    """Any value becomes a plain value, or is refused as an entry."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    try:
        once = plain(value).value
    except errors.InvalidEntry:
        return
    assert plain(once).value == once


def pictures(data: bytes) -> None:
    """Any bytes have integer dimensions, or none."""
    found = dimensions(data)
    assert found is None or all(side >= 0 for side in found)
    text = data.decode("latin-1")
    sniff(text)
    fit({"type": "image", "data": text, "mimeType": "image/png"}, "x")


def answers(data: bytes) -> None:
    """Any stream of a provider is an answer, or a reported failure."""
    for answer in (OpenAIAnswer(), AnthropicAnswer()):
        for line in data.split(b"\n"):
            try:
                event = msgspec.json.decode(line)
            except (msgspec.DecodeError, ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                try:
                    answer.add(event)
                except errors.ModelFailed:
                    break
        assistant_message(answer, provider="p", model="m")
    silence = Silence()
    text = text_of(data)
    told = "".join(silence.feed(piece) for piece in text) + silence.finish()[0]
    assert told in text
    is_silent(text)


def packed(data: bytes) -> None:
    """A compressed file is unpacked as far as possible."""
    for ending in (".jsonl.gz", ".jsonl.zst"):
        fs = MemoryFilesystem()
        put(fs, f"/s{ending}", data)
        rows = open_rows(fs, f"/s{ending}", AGENTS)
        assert fs.fstat(rows.fd).st_size == rows.size
        fs.close(rows.fd)


def turns(data: bytes) -> None:
    """Unfinished turns are read in spite of any damage."""
    fs = MemoryFilesystem()
    log = TurnLog(fs, "/root")
    log.keep("s", {"turn": 1})
    path = "/root/gateway/turns/" + fs.names("/root/gateway/turns")[0]
    put(fs, path, data)
    log.keep("s", {"turn": 2})
    (left,) = log.left()
    assert left.turns[0] == {"turn": 1} and left.turns[-1] == {"turn": 2}
