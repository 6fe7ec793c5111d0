"""Scanning journals for substrings and regular expressions: all escapes, all fields, any size."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from builders import Json, assistant, entry, said, user
from sessile.agents.registry import AGENTS
from sessile.core.lines import Finding
from sessile.core.words import Query
from sessile.errors import InvalidQuery, SessionNotFound
from sessile.storage import search
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.search import Match, Needle, WordNeedle, scan_file
from sessions import header, write_file


def session_at(root: Path, *records: Json | str) -> str:
    return write_file(root / "s1.jsonl", header(), *records)


def found(path: str, needle: str, *, regex: bool = False, case: bool | None = None) -> list[Match]:
    return list(scan_file(PosixFilesystem(), path, Needle(needle, regex=regex, case=case), AGENTS))


def ids(path: str, needle: str, *, regex: bool = False, case: bool | None = None) -> list[str | None]:
    return [match.entry_id for match in found(path, needle, regex=regex, case=case)]


@pytest.mark.parametrize(
    "needle",
    [
        "plain",
        "中文",
        "a/b",
        'say "hi"',
        "back\\slash",
        "two\nlines",
        "tab\there",
        "🙂",
        "é",
        "\x1b[31m",
        "\u2028",
        "<&>",
        "\x7f",
    ],
)
def test_a_needle_is_found_however_it_is_escaped(tmp_path: Path, needle: str) -> None:
    """A needle matches the escapes of JavaScript and Python, \\uXXXX in either case, and \\/."""
    text = f"before {needle} after"
    units = text.encode("utf-16-be")
    escaped = "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
    forms = [
        json.dumps(text, ensure_ascii=False),
        json.dumps(text),
        json.dumps(text).replace("/", "\\/"),
        f'"{escaped}"',
        f'"{escaped.upper()}"'.replace("\\U", "\\u"),
    ]
    lines = [
        f'{{"type":"message","id":"e{n}","parentId":null,"message":{{"role":"user","content":{form}}}}}'
        for n, form in enumerate(forms)
    ]
    path = session_at(tmp_path, *lines, said("no", None, "nothing"))
    assert ids(path, needle) == ["e0", "e1", "e2", "e3", "e4"]
    (first, *_) = found(path, needle)
    assert [first.excerpt.text[a:b] for a, b in first.excerpt.marks] == [needle]


def test_case_counts_if_the_needle_has_a_capital(tmp_path: Path) -> None:
    """Without a capital the search ignores case, also for non-ASCII letters; this can be overridden."""
    path = session_at(tmp_path, said("e1", None, "Übung und Test"), said("e2", None, "übung und test"))
    assert ids(path, "übung") == ["e1", "e2"]
    assert ids(path, "Übung") == ["e1"]
    assert ids(path, "test") == ["e1", "e2"]
    assert ids(path, "test", case=True) == ["e2"]
    assert ids(path, "TEST", case=False) == ["e1", "e2"]


def test_a_match_names_its_field(tmp_path: Path) -> None:
    """Text, thinking, tool input and tool results are searched; ids, images and headers are not."""
    content = [
        {"type": "thinking", "thinking": "needle 1", "thinkingSignature": "needle"},
        {"type": "text", "text": "needle 2"},
        {"type": "toolCall", "id": "needle", "name": "grep", "arguments": {"needle": "no", "a": ["needle 3"]}},
        {"type": "image", "data": "needle"},
    ]
    result = {"role": "toolResult", "toolCallId": "needle", "content": [{"type": "text", "text": "needle 4"}]}
    path = session_at(
        tmp_path,
        entry("message", "a1", None, message=assistant("") | {"content": content}),
        entry("message", "r1", "a1", message=result),
        entry("custom", "needle", "r1", customType="x", data="needle"),
    )
    matches = found(path, "needle")
    assert [(match.entry_id, match.field) for match in matches] == [
        ("a1", "thinking"),
        ("a1", "text"),
        ("a1", "tool_input"),
        ("r1", "tool_result"),
    ]
    only = scan_file(PosixFilesystem(), path, Needle("needle"), AGENTS, fields=["tool_result"])
    assert [match.entry_id for match in only] == ["r1"]


def test_a_match_says_where_its_line_is_and_how_often(tmp_path: Path) -> None:
    """The offset is that of the entry, even if another entry is on the same line."""
    glued = json.dumps(said("e2", None, "x needle needle"))
    path = session_at(tmp_path, json.dumps(said("e1", None, "x")) + glued)
    (match,) = found(path, "needle")
    assert (match.entry_id, match.times) == ("e2", 2)
    assert Path(path).read_bytes()[match.offset :].startswith(glued.encode())


def test_a_regular_expression_sees_the_text(tmp_path: Path) -> None:
    """The expression is matched against decoded texts, with smart case."""
    path = session_at(
        tmp_path, said("e1", None, "error 404\nnext"), said("e2", None, "Error 5"), said("e3", None, "中文")
    )
    assert ids(path, r"error \d+", regex=True) == ["e1", "e2"]
    assert ids(path, r"Error \d+", regex=True) == ["e2"]
    assert ids(path, r"\d$", regex=True) == ["e2"]
    assert ids(path, r"[一-龥]{2}", regex=True) == ["e3"]
    assert ids(path, r"x*", regex=True) == ["e1"]  # an empty match does not count


@pytest.mark.parametrize("needle", ["(", "[a", "*", "a{99999999999}", "(?P<x>a)(?P<x>b)"])
def test_a_bad_expression_is_a_typed_error(needle: str) -> None:
    """The error has the reason and a hint."""
    with pytest.raises(InvalidQuery) as raised:
        Needle(needle, regex=True)
    assert raised.value.hint


def test_a_needle_must_be_something() -> None:
    """An empty or very long needle is refused."""
    for needle in ("", "x" * 10_001):
        with pytest.raises(InvalidQuery):
            Needle(needle)


def test_a_missing_file_is_a_typed_error(tmp_path: Path) -> None:
    """The error names the path."""
    with pytest.raises(SessionNotFound) as raised:
        found(str(tmp_path / "none.jsonl"), "x")
    assert raised.value.path == str(tmp_path / "none.jsonl")


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_blocks_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """A needle across a block boundary or in an unterminated last line is found."""
    path = session_at(tmp_path, *(said(f"e{n}", None, f"n{n} 会话 " + "y" * n) for n in range(30)))
    os.truncate(path, os.stat(path).st_size - 1)
    monkeypatch.setattr(search, "CHUNK", chunk)
    assert ids(path, "会话") == [f"e{n}" for n in range(30)]
    assert ids(path, "n29") == ["e29"]


def test_damaged_lines_do_not_hide_others(tmp_path: Path) -> None:
    """NUL runs, garbage and torn lines are skipped."""
    path = session_at(
        tmp_path, "\0\0\0", "needle but no json", said("e1", None, "needle"), '{"type":"message","id":"needle'
    )
    assert ids(path, "needle") == ["e1"]


def test_memory_is_bounded_and_long_lines_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line above the limit is reported with its place; the other lines are searched."""
    monkeypatch.setattr(search, "MAX_LINE", 3 << 20)
    path = session_at(tmp_path, said("e1", None, "needle"))
    start = os.stat(path).st_size
    with open(path, "ab") as file:
        for _ in range(40):
            file.write(b"needle " * 150_000)
        file.write(b"\n" + json.dumps(said("e2", None, "needle")).encode() + b"\n")
    findings: list[Finding] = []
    tracemalloc.start()
    matches = list(scan_file(PosixFilesystem(), path, Needle("needle"), AGENTS, findings=findings))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [match.entry_id for match in matches] == ["e1", "e2"]
    assert [(finding.code, finding.offset, finding.length) for finding in findings] == [("too_long", start, 42_000_000)]
    assert peak < 12 << 20


@pytest.mark.parametrize("written", ["café", "CAFÉ", "cafe\u0301", "Cafe", "ｃａｆé"])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("asked", ["cafe", "café"])
def test_words_are_found_whatever_accents_they_have(tmp_path: Path, written: str, ascii_only: bool, asked: str) -> None:
    """A scan for words ignores accents, as the index does, however the text is written in the file."""
    record = entry("message", "a", None, message=user(f"one {written} please"))
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(record, ensure_ascii=ascii_only) + "\n")
    matches = list(scan_file(PosixFilesystem(), str(path), WordNeedle(Query(asked)), AGENTS))
    assert [match.entry_id for match in matches] == ["a"]
    assert not list(scan_file(PosixFilesystem(), str(path), WordNeedle(Query("cave")), AGENTS))


@pytest.mark.parametrize("marks", [0, 1, 4000])
def test_accents_are_found_among_many_and_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: int) -> None:
    """It does not matter how many letters with accents a file has: looking at each and one pass find the same."""
    monkeypatch.setattr(search, "_MARKS", marks)
    texts = ["größe", "grosse", "Äpfel", "café", "naïve approach", "cafe", "crème brûlée", "ｃａｆé", "x" * 100]
    rows = [entry("message", str(number), None, message=user(f"{text} é")) for number, text in enumerate(texts)]
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def found_for(asked: str) -> list[str | None]:
        matches = scan_file(PosixFilesystem(), str(path), WordNeedle(Query(asked)), AGENTS)
        return [match.entry_id for match in matches]

    assert found_for("cafe") == ["3", "5", "7"] and found_for("naive") == ["4"]
    assert found_for("brulee creme") == ["6"] and found_for("apfel") == ["2"] and found_for("nothing") == []
