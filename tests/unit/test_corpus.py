"""The corpus: one small file for each known kind of damage, and the expected result.

The files in `tests/corpus` have the exact bytes. Each row of the table has the incident, the ids of the records that
are read (`-` for a record without an id), the findings of the scanner as (code, offset, length), and those of the tree.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from sessile.core.codec import decode
from sessile.core.context import build_session_context
from sessile.core.kinds import flags_of
from sessile.core.lines import Finding, Item, Line, Scanner, scan
from sessile.core.migrate import migrate_session_entries
from sessile.core.tree import Node, Tree

CORPUS = Path(__file__).parents[1] / "corpus"


class Case(NamedTuple):
    """One file of the corpus."""

    name: str
    incident: str
    ids: str
    findings: list[tuple[str, int, int]] = []  # noqa: RUF012
    tree: list[str] = []  # noqa: RUF012

    @property
    def data(self) -> bytes:
        return (CORPUS / f"{self.name}.jsonl").read_bytes()


CASES = [
    Case("torn_tail", "kill -9 in the middle of the last line", "s a", [("torn_tail", 243, 60)]),
    Case(
        "torn_tail_after_tool_call",
        "torn right behind a part that has a type and an id of its own",
        "s a",
        [("torn_tail", 243, 224)],
    ),
    Case(
        "torn_then_glued",
        "a writer that did not look at the last byte hung its line from a torn one",
        "s a c",
        [("not_json", 243, 60)],
        tree=["missing_parent"],
    ),
    Case(
        "torn_in_a_string_then_glued",
        "the same, torn inside a string",
        "s a c",
        [("not_json", 243, 121)],
        tree=["missing_parent"],
    ),
    Case(
        "torn_after_a_colon_then_glued",
        "the same, torn where a value was to come",
        "s a c",
        [("not_json", 243, 52)],
        tree=["missing_parent"],
    ),
    Case(
        "nul_run_mid_file",
        "ext4 delayed allocation: a run of NULs inside one line",
        "s a c",
        [("not_json", 243, 431)],
        tree=["missing_parent"],
    ),
    Case(
        "nul_run_over_a_line_end",
        "the run swallows the end of one line and the start of the next",
        "s a",
        [("not_json", 243, 303)],
    ),
    Case("nul_instead_of_newline", "only the newline was lost", "s a b c", [("nul_run", 242, 1)]),
    Case("nul_padding_line", "a line of nothing but padding", "s a b", [("nul_run", 243, 64)]),
    Case(
        "nul_padding_around", "padding before and behind an entry", "s a b", [("nul_run", 90, 5), ("nul_run", 399, 7)]
    ),
    Case("nul_tail", "the file was extended, the data never written", "s a", [("nul_run", 243, 4096)]),
    Case("bad_utf8_in_string", "latin-1 inside a string", "s a b", [("bad_utf8", 90, 0)]),
    Case("bad_utf8_breaks_line", "bytes of another encoding", "s a b", [("bad_utf8", 243, 11)]),
    Case("bad_utf8_before_entry", "half a character, then a whole entry", "s a b", [("bad_utf8", 243, 3)]),
    Case("lone_surrogate_escape", "JavaScript writes half an emoji as an escape", "s a b"),
    Case("line_separators_in_text", "characters that splitlines() splits on", "s a b"),
    Case("glued_lines", "two entries on one line", "s a b c", [("glued", 242, 0)]),
    Case("glued_with_spaces", "two entries with spaces between them", "s a b c", [("glued", 242, 2)]),
    Case("carriage_returns_only", "line ends of an old Mac", "s a b", [("glued", 89, 1), ("glued", 242, 1)]),
    Case("damaged_prefix", "garbage before a whole entry", "s a b c", [("not_json", 243, 22)]),
    Case("garbage_behind_entry", "garbage behind a whole entry", "s a b", [("not_json", 242, 9)]),
    Case(
        "part_of_an_entry",
        "the rest of an entry whose start is gone: a tool call is no entry",
        "s a c",
        [("not_json", 243, 102)],
        tree=["missing_parent"],
    ),
    Case("newline_flipped", "one bit of the newline was flipped", "s a b c", [("not_json", 242, 1)]),
    Case("bom", "saved by an editor", "s a", [("bom", 0, 3)]),
    Case("crlf", "checked out on Windows; the last line end is half there", "s a b c"),
    Case(
        "blank_and_space_lines",
        "empty lines and lines of spaces",
        "s a b",
        [("blank", 91, 3), ("blank", 248, 1), ("blank", 403, 2)],
    ),
    Case("spaces_around_entry", "indented by hand", "s a b"),
    Case(
        "junk_values",
        "JSON that is no entry",
        "s a",
        [
            ("not_an_entry", 90, 1),
            ("not_an_entry", 92, 3),
            ("not_an_entry", 96, 3),
            ("not_an_entry", 100, 4),
            ("not_an_entry", 105, 4),
            ("not_an_entry", 110, 2),
            ("not_an_entry", 113, 10),
        ],
    ),
    Case("no_final_newline", "a last line without newline that parses is an entry", "s a b"),
    Case(
        "parent_cycle",
        "three entries in a circle, a fourth hangs from it",
        "s a b c d",
        tree=["forward_parent", "cycle"],
    ),
    Case("self_parent", "an entry that is its own parent", "s a b", tree=["cycle"]),
    Case("missing_parent", "the parent was never written", "s a b c", tree=["missing_parent"]),
    Case("forward_parent", "the child comes first", "s b a", tree=["forward_parent"]),
    Case("duplicate_ids", "two entries with one id", "s a b a c", tree=["duplicate_id", "forward_parent"]),
    Case("header_over_4_kb", "longer than the prefix that others read", "s a"),
    Case("no_header", "the file was recreated without its header", "a b"),
    Case("header_id_not_a_string", "a header that names no session", "- a"),
    Case("second_header", "the header was written twice", "s a s2 b"),
    Case("garbage_before_header", "a line of a shell before the header", "s a", [("not_json", 0, 6)]),
    Case("empty", "nothing", ""),
    Case("only_newline", "nothing but a newline", ""),
    Case("version_1", "no ids, no parents, the compaction counts records", "s - - - -"),
    Case(
        "version_1_torn_then_glued",
        "the next version 1 entry was hung from a torn one",
        "s - -",
        [("not_json", 229, 100)],
    ),
    Case("version_2_hook_message", "custom messages had another name", "s a b"),
    Case("title_slot", "oh-my-pi 18: 256 bytes that are overwritten in place", "- s a"),
    Case("entry_without_id", "nothing can hang from it", "s a - b"),
    Case("id_not_a_string", "members of the wrong type", "s - a"),
    Case("deep_nesting", "100,000 brackets", "s a b", [("not_json", 243, 200105)]),
    Case("huge_integer", "more digits than Python converts", "s a b"),
    Case("integer_over_64_bits", "more bits than msgspec holds", "s a b"),
    Case("float_out_of_range", "infinite in JavaScript", "s a b"),
    Case("nan_literal", "NaN is not JSON", "s a b", [("not_json", 243, 108)]),
    Case("raw_newline_in_string", "one event over two lines", "s a b", [("not_json", 243, 120), ("not_json", 364, 32)]),
    Case(
        "pretty_printed",
        "formatted by a tool",
        "",
        [
            ("not_json", 0, 1),
            ("not_json", 2, 20),
            ("not_json", 23, 15),
            ("not_json", 39, 12),
            ("not_json", 52, 42),
            ("not_json", 95, 13),
            ("not_json", 109, 1),
            ("not_json", 111, 1),
            ("not_json", 113, 20),
            ("not_json", 134, 12),
            ("not_json", 147, 19),
            ("not_json", 167, 42),
            ("not_json", 210, 14),
            ("not_json", 225, 19),
            ("not_json", 245, 23),
            ("not_json", 269, 30),
            ("not_json", 300, 3),
            ("not_json", 304, 1),
        ],
    ),
    Case("pi_member_order", "the payload comes before id and parent", "s a b"),
    Case("model_changes", "the shapes of pi and of oh-my-pi", "s a b c"),
    Case("escaped_member_names", "a legal spelling that no head pattern expects", "s a b"),
    Case("duplicate_members", "the last of two members is meant", "s z b"),
]

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def feed(chunks: Iterable[bytes]) -> tuple[list[Item], int]:
    """Return the items of a file that is fed in chunks, and the number of bytes of line ends."""
    scanner = Scanner()
    items = [item for chunk in chunks for item in scanner.feed(chunk)]
    items += scanner.finish()
    return items, scanner.newline_bytes


def random_chunks(data: bytes, random: Random) -> list[bytes]:
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(1, 20)))
    return [data[start:end] for start, end in itertools.pairwise([0, *cuts, len(data)])]


def readable(items: Iterable[Item]) -> list[Line]:
    return [item for item in items if isinstance(item, Line)]


def test_every_file_of_the_corpus_is_in_the_table() -> None:
    """Files and rows match one to one, and no name is used twice."""
    assert sorted(case.name for case in CASES) == sorted(path.stem for path in CORPUS.glob("*.jsonl"))


@pytest.mark.promise("P18")
@pytest.mark.mission("X6")
@every_case
def test_readable_records_and_findings_are_the_stated_ones(case: Case) -> None:
    """Records next to the damage are read, and each damage is a finding with its offset and length."""
    items, _ = feed([case.data])
    assert [line.head.id or "-" for line in readable(items)] == case.ids.split()
    findings = [item for item in items if isinstance(item, Finding)]
    assert [(finding.code, finding.offset, finding.length) for finding in findings] == case.findings
    assert all(finding.detail for finding in findings)


@pytest.mark.promise("P17")
@every_case
def test_every_byte_is_accounted_for(case: Case) -> None:
    """Lines, findings and line ends add up to the file, and each line is at its offset."""
    data = case.data
    items, newline_bytes = feed([data])
    covered = newline_bytes
    for item in items:
        if isinstance(item, Line):
            assert data[item.offset : item.offset + len(item.raw)] == item.raw
            covered += len(item.raw)
        else:
            covered += item.length
    assert covered == len(data)


@pytest.mark.promise("P17")
@every_case
def test_the_result_does_not_depend_on_how_the_file_is_fed(case: Case) -> None:
    """Fed at once, byte by byte or in random chunks, the items and line ends are the same."""
    data = case.data
    whole = feed([data])
    assert feed(data[at : at + 1] for at in range(len(data))) == whole
    random = Random(case.name)
    for _ in range(20):
        assert feed(random_chunks(data, random)) == whole


@pytest.mark.promise("P19")
@every_case
def test_the_tree_says_what_is_wrong_with_the_parents(case: Case) -> None:
    """Cycles, missing and forward parents and duplicate ids are findings of the tree."""
    heads = [line.head for line in readable(scan(case.data)) if line.head.type != "session"]
    tree = Tree(Node(head.id, head.parentId, flags_of(head)) for head in heads if head.id is not None)
    assert [finding.code for finding in tree.findings] == case.tree
    for number in range(len(tree.nodes)):
        assert len(tree.path(number)) <= len(tree.nodes)


@pytest.mark.promise("P17")
@every_case
def test_every_readable_record_can_be_decoded_migrated_and_put_into_a_context(case: Case) -> None:
    """Every readable record can be processed up to the context."""
    records = [decode(line.raw) for line in readable(scan(case.data))]
    assert all(isinstance(record, dict) for record in records)
    migrate_session_entries(records)
    for leaf in (None, *(record.get("id") for record in records)):
        build_session_context(records, leaf)
    build_session_context(records)
