"""A transcript as lines of text: on a terminal, in a pipe, in words, and as a file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
from builders import AT_MS, Json, assistant, entry, said
from sessile.core import prices
from sessile.render.shown import Depth, Gap, Image, Transcript, show_all
from sessile.render.styled import Line, line_width, plain
from sessile.render.terminal import text_export, transcript_lines
from sessile.render.wording import duration, image_word, many, moment, money, price, size
from terminal import PROBE, harmless, probes

CALL = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "pytest -q", "timeout": 5}}
EDIT = {"type": "toolCall", "id": "c2", "name": "edit", "arguments": {"path": "a.py"}}


def called(entry_id: str, parent: str | None, *calls: Json) -> Json:
    content = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Let me see."}, *calls]
    return entry("message", entry_id, parent, message=assistant("") | {"content": content})


def result(entry_id: str, parent: str | None, text: str, *, call: str = "c1", **members: Any) -> Json:
    message = {"role": "toolResult", "toolCallId": call, "content": [{"type": "text", "text": text}], **members}
    return entry("message", entry_id, parent, message=message)


def printed(
    entries: list[Json], depth: Depth = "tools", columns: int | None = 60, gaps: tuple[Gap, ...] = (), **options: Any
) -> list[str]:
    options = {"when": lambda at: "10:20" if at else "", **options}
    return [plain(line) for line in transcript_lines(show_all(entries), depth, columns, gaps=gaps, **options)]


def styles(lines: list[Line], text: str) -> set[str]:
    return {span.style for line in lines for span in line if text in span.text}


STORY = [
    said("e1", None, "Add retries,\nplease. " + "And tests for every case that comes to your mind."),
    called("e2", "e1", CALL, EDIT),
    result("e3", "e2", "line\n" * 40, isError=False),
    result("e4", "e3", "ok", call="c2", details={"diff": "-old\n+new\n same"}),
    result("e5", "e4", "Traceback\nValueError", isError=True),
    entry("compaction", "e6", "e5", summary="What was done.", tokensBefore=48_200, tokensAfter=6_100),
]


def test_a_transcript_on_a_terminal() -> None:
    """A heading for each entry, texts wrapped below, output folded, diffs shown, hidden parts counted."""
    assert printed(STORY, labels={"e2": "start"}) == [
        "user  10:20  e1",
        "  Add retries,",
        "  please. And tests for every case that comes to your mind.",
        "",
        "assistant  10:20  p/m  e2  [start]",
        "  Let me see.",
        "  bash  pytest -q",
        "  edit  a.py",
        "",
        "bash  10:20  e3",
        *["  line"] * 8,
        "  … 32 more lines",
        "",
        "edit  10:20  e4",
        "  ok",
        "  changed a.py",
        "  -old",
        "  +new",
        "   same",
        "",
        "bash  ✗ failed  10:20  e5",
        "  Traceback",
        "  ValueError",
        "",
        "── compaction · 10:20 · e6 · 48.2k → 6.1k tokens · What was…",
        "  What was done.",
        "",
        "hidden at depth tools: 1 thought",
    ]


def test_all_shows_everything_in_full() -> None:
    """Thinking, every line of output, every argument that is not in the summary."""
    lines = printed(STORY, "all")
    assert lines.count("  line") == 40
    assert "  thinking" in lines and "  Hm." in lines and "  timeout: 5" in lines
    assert not any("hidden" in line or "more lines" in line for line in lines)


@pytest.mark.parametrize(
    ("depth", "hidden"), [("prompts", "4 entries"), ("chat", "1 thought, 2 tool calls, 3 entries")]
)
def test_what_a_depth_hides_is_counted(depth: Depth, hidden: str) -> None:
    """Hidden entries, and hidden parts of other entries."""
    assert printed(STORY, depth)[-1] == f"hidden at depth {depth}: {hidden}"


def test_a_pipe_gets_everything_on_its_lines() -> None:
    """Nothing is wrapped, folded or cut, and ids are in full."""
    long = "word " * 100
    entries = [said("0123456789abcdef", None, long), result("e2", None, "x\n" * 50 + "y" * 5000)]
    lines = printed(entries, columns=None)
    assert lines[0] == "user  10:20  0123456789abcdef"
    assert f"  {long.strip()}" in lines
    assert lines.count("  x") == 50 and lines[-1] == f"  {'y' * 5000}"


def test_a_very_long_line_of_output_is_cut_with_a_count() -> None:
    """A line of a megabyte is cut."""
    lines = printed([result("e1", None, "y" * 5000)])
    assert lines[-1] == "  … 3,000 more characters"
    assert "".join(lines[1:-1]).count("y") == 2000


def test_failures_are_folded_later() -> None:
    """Failures show more lines, because users look for the reason."""
    assert sum(line == "  line" for line in printed([result("e1", None, "line\n" * 40, isError=True)])) == 30


def test_words_for_the_ear() -> None:
    """No glyphs and no rules; failures, labels and changes have words."""
    lines = printed(STORY, plain_words=True, labels={"e2": "start"})
    assert "assistant, 10:20, p/m, e2, label start:" in lines
    assert "bash, failed, 10:20, e5:" in lines
    assert "  added: new" in lines and "  removed: old" in lines
    assert any(line.startswith("compaction · ") for line in lines)
    assert not any(glyph in line for line in lines for glyph in "✗─│○")


def test_styles_say_what_things_mean() -> None:
    """Changes, failures, ids and speakers."""
    lines = list(transcript_lines(show_all(STORY), "tools", 80))
    assert styles(lines, "+new") == {"added"} and styles(lines, "-old") == {"removed"}
    assert styles(lines, "✗ failed") == {"failed"} and styles(lines, "ValueError") == {"failed"}
    assert styles(lines, "e1") >= {"id"} and styles(lines, "user") == {"user"}


def test_damage_is_told_where_it_is() -> None:
    """Damage is shown before the first entry, after any entry, and for entries that are not in the transcript."""
    gaps = (Gap(None, "line 1"), Gap("e2", "line 4, 87 bytes"), Gap("gone", "line 9"))
    lines = printed([said("e1", None), result("e2", "e1", "x"), said("e3", "e2")], "chat", gaps=gaps)
    assert lines == [
        "✗ unreadable here: line 1",
        "user  10:20  e1",
        "  e1",
        "✗ unreadable here: line 4, 87 bytes",
        "",
        "user  10:20  e3",
        "  e3",
        "✗ unreadable here: line 9 (elsewhere in the file)",
        "",
        "hidden at depth chat: 1 entry",
    ]


def test_a_story_that_goes_back_says_so() -> None:
    """If the parent is an earlier entry; not at the start of a part, nor after an entry that is not in it."""
    entries = [said("e2", "e1"), said("e3", "e2"), said("e4", "e2"), said("e5", "marker")]
    rules = [line for line in printed(entries) if line.startswith("──")]
    assert rules == ["── continues from e2 " + "─" * 39]


def test_pictures_and_details_are_named() -> None:
    """An image by its type and size, encrypted thinking and unknown parts by their kind."""
    content = [
        {"type": "image", "data": "A" * 16_000, "mimeType": "image/png"},
        {"type": "thinking", "thinking": "", "redacted": True},
        {"type": "new", "x": 1},
    ]
    lines = printed([entry("message", "e1", None, message={"role": "user", "content": content})], "all")
    assert lines[1:] == [
        "  [image png 12 kB]",
        "  thinking (encrypted by the provider)",
        '  new: {"type": "new", "x": 1}',
    ]


def transcript(entries: list[Json], text: str, depth: Depth) -> Transcript:
    return Transcript(
        text, text, text, AT_MS, entries, len(entries), None, {"e1": text}, [Gap("e1", text)], depth, [text]
    )


def test_a_text_file() -> None:
    """Facts, notes and the transcript."""
    made = transcript(STORY[:1], "Retries", "chat")._replace(gaps=())
    assert "".join(text_export(made)) == (
        "Retries\nid: Retries\nproject: Retries\ncreated: 2026-02-16T10:20:30.000Z\nentries: 1\nnote: Retries\n\n"
        "user  2026-02-16T10:20:30.000Z  e1  [Retries]\n"
        "  Add retries,\n  please. And tests for every case that comes to your mind.\n"
    )
    nameless = made._replace(title=None, created=None)
    assert "".join(text_export(nameless)).startswith("(no title)\nid: Retries\nproject: Retries\ncreated: unknown\n")


def hostile(text: str) -> list[Json]:
    call = {"type": "toolCall", "id": "c1", "name": text, "arguments": {text: text, "path": text}}
    content = [{"type": "text", "text": text}, {"type": "thinking", "thinking": text}, call]
    content += [{"type": "image", "data": text, "mimeType": text}, {"type": text}]
    answer = {"role": "assistant", "content": content, "provider": text, "model": text, "errorMessage": text}
    return [
        entry("message", "e1", None, message=answer),
        result("e2", "e1", text, details={"diff": f"+{text}", "more": text}, toolName=text),
        entry("message", "e3", "e1", message={"role": "bashExecution", "command": text, "output": text, "exitCode": 1}),
        entry("compaction", text, "e3", summary=text, shortSummary=text, details=text),
        entry("custom", "e5", text, customType=text, data={text: text}),
        entry("label", "e6", "e5", targetId=text, label=text),
    ]


@pytest.mark.promise("P37")
@given(probes, st.sampled_from(["prompts", "chat", "tools", "all"]), st.integers(12, 90) | st.none(), st.booleans())
def test_lines_fit_and_hold_no_control_characters(text: str, depth: Depth, columns: int | None, words: bool) -> None:
    """Stored text in any field cannot control a terminal, and no line is wider than requested."""
    gaps = [Gap("e1", text), Gap("gone", text)]
    shown = show_all(hostile(text))
    for line in transcript_lines(shown, depth, columns, {"e1": text, text: text}, gaps, plain_words=words):
        assert harmless(plain(line))
        assert columns is None or line_width(line) <= columns
    assert harmless("".join(text_export(transcript(hostile(text), text, depth))).replace("\n", ""))


@pytest.mark.promise("P19")
@given(st.lists(st.dictionaries(strategies.names, strategies.small, max_size=4), max_size=3))
def test_any_entries_can_be_printed(entries: list[Json]) -> None:
    """Any entries can be printed at full depth."""
    assert all(harmless(line) for line in printed(entries, "all"))


def test_the_probe_is_shown_in_words() -> None:
    """Stored text is made visible, as in all other output."""
    assert "\\x1b" in "\n".join(printed([said("e1", None, PROBE)]))


def test_numbers_in_words() -> None:
    """Counts, prices, times and sizes; unknown values are called unknown."""
    assert (many(1, "entry"), many(1200, "entry"), many(2, "leaf", "leaves")) == (
        "1 entry",
        "1,200 entries",
        "2 leaves",
    )
    assert (money(0.19), money(0.0042), money(0), money(1234.5)) == ("$0.19", "$0.0042", "$0.00", "$1,234.50")
    assert price(None, {"p/m": 3}) == "n/a (3 answers of p/m unpriced)" and price(None, {}) == "n/a"
    assert price(0.5, {"": 1}) == "$0.50 (1 answer of an unknown model unpriced)"
    assert price(0.5, {}, listed=1) == f"$0.50 (prices of {prices.DATE}, {prices.SOURCE})"
    many_models = {f"p/m{number}": 9 - number for number in range(5)}
    assert price(None, many_models).endswith("7 answers of p/m2, 11 answers of 2 other models unpriced)")
    assert (duration(45_999), duration(725_000), duration(12_000_000)) == ("45 s", "12 min 5 s", "3 h 20 min")
    assert (size(940), size(12_000), size(999_600), size(3_400_000)) == ("940 B", "12 kB", "1.0 MB", "3.4 MB")
    assert moment(None) == "" and moment(-62_135_647_200_000) == "" and moment(0) == "1970-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("mime", "data", "word"),
    [
        ("image/png", "A" * 16_000, "[image png 12 kB]"),
        ("image", "", "[image]"),
        ("image/gif", "blob:sha256:0", "[image gif]"),
    ],
)
def test_pictures_in_words(mime: str, data: str, word: str) -> None:
    """The type, and the size if it is known."""
    assert image_word(Image(mime, data)) == word
