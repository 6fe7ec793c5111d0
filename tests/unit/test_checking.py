"""A check reports all damage and changes nothing; a repair loses nothing and invents nothing."""

from __future__ import annotations

import os
import stat
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import AT, answered, entry, said
from sessile import Library, Store, errors
from sessile.core.diagnosis import MOST_OF_A_KIND, TROUBLES, Ancestry, CompactTree, Diagnosis, Problem, numbered
from sessile.core.ids import IdTable
from sessile.core.lines import Finding, Line, Scanner, scan
from sessile.core.tree import Node, Tree
from sessile.storage import atomic
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.filesystem_contract import get
from sessile.upkeep.check import Report, check, check_all, plan_repair, repair
from sessions import CWD, answer, append_raw, begun, dumps, header, plant, say, snapshot, store_at
from strategies import Damage, chunks_of, damaged

CORPUS = sorted((Path(__file__).parents[1] / "corpus").glob("*.jsonl"))
every_file = pytest.mark.parametrize("source", CORPUS, ids=lambda path: path.stem)
NAME = "2026-02-16T10-20-30-000Z"

# The expected problems of the damaged files of the corpus: kinds and lines.
EXPECTED: dict[str, list[tuple[str, int | None]]] = {
    "bad_utf8_before_entry": [("bad_utf8", 3)],
    "bad_utf8_breaks_line": [("bad_utf8", 3)],
    "bad_utf8_in_string": [("bad_utf8_inside", 2)],
    "blank_and_space_lines": [("blank", 3), ("blank", 5), ("blank", 8)],
    "bom": [("bom", 1)],
    "carriage_returns_only": [("glued", 1), ("glued", 1)],
    "damaged_prefix": [("not_json", 3)],
    "deep_nesting": [("not_json", 3)],
    "duplicate_ids": [("forward_parent", 3), ("duplicate_id", 4)],
    "empty": [("no_header", None)],
    "entry_without_id": [("no_id", 3)],
    "forward_parent": [("forward_parent", 2)],
    "garbage_before_header": [("not_json", 1)],
    "garbage_behind_entry": [("not_json", 2)],
    "glued_lines": [("glued", 2)],
    "glued_with_spaces": [("glued", 2)],
    "header_id_not_a_string": [("bad_header", 1)],
    "header_over_4_kb": [("long_header", 1)],
    "id_not_a_string": [("no_id", 2)],
    "junk_values": [("not_an_entry", line) for line in range(2, 9)],
    "missing_parent": [("missing_parent", 3)],
    "nan_literal": [("not_json", 3)],
    "newline_flipped": [("not_json", 2)],
    "no_header": [("no_header", 1)],
    "nul_instead_of_newline": [("nul_run", 2)],
    "nul_padding_around": [("nul_run", 2), ("nul_run", 3)],
    "nul_padding_line": [("nul_run", 3)],
    "nul_run_mid_file": [("not_json", 3), ("missing_parent", 4)],
    "nul_run_over_a_line_end": [("not_json", 3)],
    "nul_tail": [("nul_run", 3)],
    "only_newline": [("no_header", None)],
    "parent_cycle": [("forward_parent", 2), ("cycle", 2), ("unreachable", 2)],
    "part_of_an_entry": [("not_json", 3), ("missing_parent", 4)],
    "pretty_printed": [*(("not_json", line) for line in range(1, 19)), ("no_header", None)],
    "raw_newline_in_string": [("not_json", 3), ("not_json", 4)],
    "second_header": [("second_header", 3)],
    "self_parent": [("cycle", 2)],
    "torn_after_a_colon_then_glued": [("not_json", 3), ("missing_parent", 3)],
    "torn_in_a_string_then_glued": [("not_json", 3), ("missing_parent", 3)],
    "torn_tail": [("torn_tail", 3)],
    "torn_tail_after_tool_call": [("torn_tail", 3)],
    "torn_then_glued": [("not_json", 3), ("missing_parent", 3)],
    "version_1": [("old_version", 1)],
    "version_1_torn_then_glued": [("old_version", 1), ("not_json", 3)],
    "version_2_hook_message": [("old_version", 1)],
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_at(tmp_path / "root")


def put(store: Store, data: bytes, session_id: str = "s") -> str:
    """Create a file in the store with these bytes and an old modification time."""
    path = f"{store.layout.folder(CWD)}/{NAME}_{session_id}.jsonl"
    atomic.make_folders(store.fs, os.path.dirname(path))
    atomic.write_new(store.fs, path, [data])
    if not isinstance(store.fs, MemoryFilesystem):
        os.utime(path, ns=(1, 1_600_000_000_123_456_789))
    return path


def write(store: Store, *records: dict[str, Any] | str, session_id: str = "s") -> str:
    """Create a file in the store with these lines; a string is written as it is."""
    lines = (record if isinstance(record, str) else dumps(record) for record in records)
    return put(store, "".join(f"{line}\n" for line in lines).encode(), session_id)


def kinds(report: Report) -> list[tuple[str, int | None]]:
    return [(problem.kind, problem.line) for problem in report.problems]


def lines_in(data: bytes) -> list[bytes]:
    return [item.raw for item in scan(data) if isinstance(item, Line)]


def too_deep(entry: dict[str, Any]) -> set[str]:
    """Raise as the search for images does in an entry that is nested too deep."""
    raise RecursionError


class TestCheck:
    """Results of a check."""

    @pytest.mark.promise("P17")
    @pytest.mark.promise("P13")
    @every_file
    def test_damage_is_named_with_its_line_and_nothing_is_touched(self, store: Store, source: Path) -> None:
        """Every byte of every file of the corpus is accounted for; bytes, times and folders do not change."""
        path = put(store, source.read_bytes())
        before = snapshot(store.layout.root)
        report = check(store, path)
        assert kinds(report) == EXPECTED.get(source.stem, [])
        assert report.bytes_accounted == report.size == len(source.read_bytes())
        assert report.ok == (not any(problem.severity == "damage" for problem in report.problems))
        assert snapshot(store.layout.root) == before
        assert not os.path.exists(store.layout.cache)

    @pytest.mark.promise("P17")
    @given(damaged(), st.lists(st.integers(1, 50), min_size=1, max_size=4))
    def test_line_numbers_do_not_depend_on_how_a_file_is_read(self, damage: Damage, sizes: list[int]) -> None:
        """The line number is the number of newlines before an item, whatever the size of the blocks."""
        scanner = Scanner()
        found = list(numbered(chunks_of(damage.data, sizes), scanner))
        assert [line for line, _ in found] == [damage.data.count(b"\n", 0, item.offset) + 1 for _, item in found]
        assert [item for _, item in found] == list(scan(damage.data))

    @pytest.mark.promise("P17")
    @given(st.binary(max_size=200) | damaged().map(lambda damage: damage.data))
    def test_any_bytes_can_be_checked(self, data: bytes) -> None:
        """All bytes are accounted for, and each problem is within the file."""
        store = Store.in_memory()
        report = check(store, put(store, data))
        assert report.bytes_accounted == report.size == len(data)
        for problem in report.problems:
            assert problem.kind in TROUBLES
            assert problem.offset is None or problem.offset + (problem.length or 0) <= len(data)

    @pytest.mark.promise("P18")
    def test_the_summary_says_which_line_and_how_many_bytes(self, store: Store) -> None:
        """The summary is one line of text as on the command line, or `None` without damage."""
        path = write(store, header(), said("a", None), "garbage")
        report = check(store, path)
        assert report.summary == "1 unreadable line (line 3, 7 bytes)"
        (problem,) = report.problems
        assert (problem.excerpt, problem.offset, problem.length) == ("garbage", report.size - 8, 7)
        append_raw(path, said("b", "a"), "!")
        assert check(store, path).summary == "2 unreadable lines (the first is line 3, 8 bytes)"
        assert check(store, write(store, header(), session_id="healthy")).summary is None

    def test_an_excerpt_cannot_drive_a_terminal(self, store: Store) -> None:
        """Control characters, bidi marks and invalid bytes are replaced by dots or U+FFFD."""
        path = put(store, dumps(header()).encode() + b"\n\x1b[2J\xe2\x80\xae\x07x\xff\n")
        (problem,) = check(store, path).problems
        assert problem.excerpt == "·[2J··x�"

    def test_a_session_is_found_by_its_id_even_without_header(self, store: Store) -> None:
        """The id can be in the file name; unknown and unsafe ids are refused."""
        path = write(store, said("a", None), session_id="lost")
        assert check(store, "lost").path == path
        with pytest.raises(errors.SessionNotFound):
            check(store, "nobody")
        with pytest.raises(errors.InvalidId):
            check(store, "../lost")

    def test_what_is_no_plain_file_is_refused(self, store: Store, tmp_path: Path) -> None:
        """A pipe does not block the check, a link is not followed, and a missing file raises."""
        os.mkfifo(tmp_path / "pipe.jsonl")
        (tmp_path / "link.jsonl").symlink_to(write(store, header()))
        for name, kind in (
            ("pipe", errors.UnsafePath),
            ("link", errors.UnsafePath),
            ("gone", errors.SessionNotFound),
        ):
            with pytest.raises(kind):
                check(store, f"{tmp_path}/{name}.jsonl")

    def test_headers_that_others_cannot_use_are_reported(self, store: Store) -> None:
        """A header that is too long for listings, has an invalid id or a future version is reported."""
        hidden = write(store, header(title="x" * (1 << 20)), session_id="hidden")
        assert kinds(check(store, hidden)) == [("hidden_header", 1)]
        assert kinds(check(store, write(store, header("../x"), session_id="unsafe"))) == [("unsafe_id", 1)]
        assert kinds(check(store, write(store, header(version=9), session_id="new"))) == [("new_version", 1)]

    def test_compactions_and_labels_must_name_entries(self, store: Store) -> None:
        """The first kept entry must be on the path of its compaction; a label may name any entry of the file."""
        path = write(
            store,
            header(),
            said("a", None),
            said("b", "a"),
            said("side", "a"),
            entry("compaction", "good", "b", summary="", firstKeptEntryId="b"),
            entry("compaction", "aside", "b", summary="", firstKeptEntryId="side"),
            entry("compaction", "lost", "b", summary="", firstKeptEntryId="nowhere"),
            entry("compaction", "later", "b", summary="", firstKeptEntryId="end"),
            entry("label", "l1", "b", targetId="side", label="x"),
            entry("label", "l2", "b", targetId="nowhere", label="x"),
            entry("label", "l3", "b", label="x"),
            said("end", "b"),
        )
        found = [(problem.kind, problem.entry_id) for problem in check(store, path).problems]
        assert found == [
            ("lost_cut", "aside"),
            ("lost_cut", "lost"),
            ("lost_cut", "later"),
            ("lost_label", "l2"),
            ("lost_label", "l3"),
        ]

    def test_calls_and_results_are_paired_on_the_active_branch_only(self, store: Store) -> None:
        """A call without a result and a result without a call are notes; other branches are not checked."""

        def call(entry_id: str, parent: str, call_id: str) -> dict[str, Any]:
            block = {"type": "toolCall", "id": call_id, "name": "ls", "arguments": {}}
            return entry("message", entry_id, parent, message={"role": "assistant", "content": [block]})

        def result(entry_id: str, parent: str, call_id: str) -> dict[str, Any]:
            return entry("message", entry_id, parent, message={"role": "toolResult", "toolCallId": call_id})

        path = write(
            store,
            header(),
            said("a", None),
            call("aside", "a", "c0"),
            call("b", "a", "c1"),
            result("c", "b", "c1"),
            call("d", "c", "c2"),
            result("e", "d", "c3"),
            entry("custom", "m", "e", customType="sessile.leaf"),
        )
        found = [(problem.kind, problem.entry_id, problem.severity) for problem in check(store, path).problems]
        assert found == [("unanswered_call", "d", "note"), ("uncalled_result", "e", "note")]

    @pytest.mark.promise("P31")
    def test_blobs_that_are_missing_or_changed_are_damage(self, store: Store) -> None:
        """Each reference to such a blob is reported, and a repair cannot fix it."""
        with begun(store) as session:
            for text in ("x", "y"):
                session.append_message({"role": "user", "content": text * 600_000})
        assert check(store, session.id).problems == ()
        first, second = sorted(Path(store.layout.blobs).iterdir())
        first.unlink()
        second.write_bytes(b"other")
        report = check(store, session.id)
        assert sorted(problem.kind for problem in report.problems) == ["damaged_blob", "missing_blob"]
        assert not report.ok
        assert not report.repairable

    def test_an_entry_of_any_depth_can_be_checked(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """If an entry is too deep to search for images, every text that looks like a reference counts as one."""
        reference = f"blob:sha256:{'0' * 64}"
        deep = "[" * 400 + f'"{reference}"' + "]" * 400
        line = f'{{"type":"custom","id":"a","parentId":null,"customType":"x","data":{deep}}}'
        shallow = entry("custom", "b", "a", customType="x", data=[reference])
        path = write(store, header(), line, shallow)
        found = [(problem.kind, problem.entry_id) for problem in check(store, path).problems]
        assert found in ([], [("missing_blob", "a")])  # newer Python versions allow deeper nesting
        monkeypatch.setattr("sessile.core.diagnosis.blob_refs", too_deep)
        found = [(problem.kind, problem.entry_id) for problem in check(store, path).problems]
        assert found == [("missing_blob", "a"), ("missing_blob", "b")]

    @pytest.mark.promise("P28")
    def test_files_that_others_may_read_are_reported(self, store: Store) -> None:
        """The journal, its folder and its artifacts are checked if they belong to the store."""
        path = write(store, header())
        os.mkdir(path.removesuffix(".jsonl"), 0o700)
        os.chmod(path, 0o640)
        os.chmod(path.removesuffix(".jsonl"), 0o755)
        assert [p.message.split(": its mode is ")[1] for p in check(store, path).problems] == ["0640", "0755"]
        foreign = Path(store.layout.root) / "foreign.jsonl"
        foreign.write_text(dumps(header()))
        foreign.chmod(0o644)
        assert check(store, str(foreign)).problems == ()

    def test_a_draft_is_reported_when_nobody_holds_it(self, store: Store) -> None:
        """A draft in use is not reported."""
        draft = store.create(CWD)
        say(draft, "pending")
        assert [report.problems for report in check_all(store)] == [()]
        draft._writing().close()  # as when its process ends
        (report,) = check_all(store)
        assert [(problem.kind, problem.severity) for problem in report.problems] == [("draft", "note")]
        assert report.entries == 1

    def test_every_session_of_the_store_is_checked(self, store: Store) -> None:
        """All projects are checked; an empty store has no reports."""
        assert list(check_all(store)) == []
        for cwd in (CWD, "/other"):
            begun(store, cwd).close()
        assert len([report for report in check_all(store) if report.ok]) == 2

    def test_a_file_that_cannot_be_read_does_not_stop_the_check_of_the_others(self, store: Store) -> None:
        """The unreadable file is reported as damaged."""
        begun(store).close()
        os.mkfifo(f"{store.layout.folder(CWD)}/a.jsonl")
        os.symlink("nowhere", f"{store.layout.folder(CWD)}/z.jsonl")
        found = [[problem.kind for problem in report.problems] for report in check_all(store)]
        assert sorted(found) == [[], ["unreadable"], ["unreadable"]]

    def test_a_flood_of_problems_is_counted_and_not_kept(self) -> None:
        """Only the first problems of each kind are listed; the others are counted."""
        diagnosis = Diagnosis(lambda offset, length: b"x" * length, lambda digest: None)
        for number in range(MOST_OF_A_KIND + 7):
            diagnosis.add(number, Finding("not_json", number * 2, 1, "x"))
        problems = [problem for problem in diagnosis.finish() if problem.kind == "not_json"]
        assert len(problems) == MOST_OF_A_KIND + 1
        assert (problems[-1].message, problems[-1].offset) == ("7 more of this kind", None)
        assert diagnosis.accounted == MOST_OF_A_KIND + 7

    def test_memory_grows_by_few_bytes_an_entry(self) -> None:
        """A million entries need less than a hundred megabytes, because their bodies are not kept."""
        entries = 6_000

        def chunks() -> Iterator[bytes]:
            yield dumps(header()).encode() + b"\n"
            for number in range(entries):
                parent = f"{number - 1:08x}" if number else None
                yield dumps(said(f"{number:08x}", parent, "x" * 200)).encode() + b"\n"

        tracemalloc.start()
        diagnosis = Diagnosis(lambda offset, length: b"", lambda digest: None)
        for number, item in numbered(chunks(), Scanner()):
            diagnosis.add(number, item)
        assert diagnosis.finish() == []
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak / entries < 100


class TestKinship:
    """The compact tree compared with the plain one."""

    ids = st.sampled_from(["a", "b", "c", "d", "é\ud800", "x" * 200])
    nodes = st.lists(st.builds(Node, ids, st.none() | ids | st.sampled_from(["", "missing"]), st.just(1)), max_size=12)

    @pytest.mark.promise("P19")
    @given(nodes)
    def test_it_finds_what_the_tree_finds(self, nodes: list[Node]) -> None:
        """Parents and findings are the same for all entries."""
        tree, kin = Tree(nodes), CompactTree()
        new = [kin.add(node.id, node.parent_id) for node in nodes]
        odd = list(kin.settle())
        assert list(kin.parents) == tree.parents
        codes = sorted(finding.code for finding in tree.findings if finding.code != "duplicate_id")
        assert sorted(oddity.code for oddity in odd if oddity.code != "unreachable") == codes
        assert new.count(False) == sum(finding.code == "duplicate_id" for finding in tree.findings)
        circles = [o for o in odd if o.code == "cycle" and "ancestor" in o.detail]
        assert bool(circles) == any(oddity.code == "unreachable" for oddity in odd)

    @given(nodes)
    def test_ancestors_are_those_of_the_path(self, nodes: list[Node]) -> None:
        """The result is right for every pair of entries in any tree."""
        tree, kin = Tree(nodes), CompactTree()
        for node in nodes:
            kin.add(node.id, node.parent_id)
        list(kin.settle())
        lineage = Ancestry(kin.parents)
        for number in range(len(nodes)):
            path = tree.path(number)
            assert list(kin.path(number)) == path[::-1]
            assert [other for other in range(len(nodes)) if lineage.leads(other, number)] == sorted(path)

    @given(st.lists(st.text(max_size=3), max_size=3000))
    def test_the_table_gives_one_number_a_text(self, texts: list[str]) -> None:
        """Numbers are consecutive and can be mapped back to the text."""
        table = IdTable()
        numbers = {text: table.number(text) for text in texts}
        assert list(numbers.values()) == list(range(len(table)))
        assert all(table.number(text) == number and table.text(number) == text for text, number in numbers.items())


class TestRepair:
    """Results of a repair."""

    @pytest.mark.promise("P16")
    @every_file
    def test_a_repaired_file_has_no_damage_and_every_entry(self, store: Store, source: Path) -> None:
        """Readable lines keep their bytes and order, the original is kept, and times and mode do not change."""
        data = source.read_bytes()
        path = put(store, data)
        before, plan = check(store, path), plan_repair(store, path)
        assert Path(path).read_bytes() == data
        done = repair(store, path)
        new = Path(path).read_bytes()
        after = check(store, path)
        assert after.ok
        assert done.problems_before == before.problems
        assert done.problems_after == after.problems
        assert (done.kept_entries, after.entries) == (before.entries, before.entries)
        made = [] if before.id else lines_in(new)[:1]
        assert lines_in(new) == [*made, *lines_in(data)]
        assert (done.salvaged, done.dropped_bytes, plan.changes) == (
            plan.salvaged,
            plan.dropped_bytes,
            before.repairable,
        )
        assert os.stat(path).st_mtime_ns == 1_600_000_000_123_456_789
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        if before.repairable:
            assert done.original is not None
            assert Path(done.original).read_bytes() == data
            assert os.path.dirname(done.original) == store.layout.originals
        else:
            assert (done.original, new) == (None, data)
            assert not os.path.exists(store.layout.originals)
        assert [name for name in os.listdir(os.path.dirname(path)) if not name.endswith(".jsonl")] == []

    @pytest.mark.promise("P16")
    @every_file
    def test_repairing_twice_is_repairing_once(self, store: Store, source: Path) -> None:
        """A second repair does nothing."""
        path = put(store, source.read_bytes())
        repair(store, path)
        before = snapshot(store.layout.root)
        assert repair(store, path).original is None
        assert snapshot(store.layout.root) == before

    @pytest.mark.promise("P16")
    @given(damaged() | st.binary(max_size=100).map(lambda data: Damage(data, [])))
    def test_whatever_happened_a_repair_keeps_every_entry(self, damage: Damage) -> None:
        """No damage remains, every counted entry is present, and the original has every byte."""
        store = Store.in_memory()
        path = put(store, damage.data)
        before = check(store, path)
        done = repair(store, path)
        new = get(store.fs, path)
        made = [] if before.id is not None else lines_in(new)[:1]
        assert [line for line in lines_in(new) if line not in made] == [
            line for line in lines_in(damage.data) if line not in made
        ]
        # Inserted bytes may be only white space, which is not damage and stays.
        assert set(damage.untouched) <= {line.strip() for line in lines_in(new)}
        assert check(store, path).ok
        assert get(store.fs, done.original) == damage.data if done.original else new == damage.data
        assert repair(store, path).original is None
        store.open(path, readonly=True).close()

    def test_a_repaired_session_opens_and_goes_on(self, store: Store) -> None:
        """Entries that were joined or split are on the path again, and appending works."""
        path = write(store, header(), said("a", None), dumps(said("b", "a")) + dumps(answered("c", "b")), "}{")
        done = repair(store, path)
        assert (done.kept_entries, done.salvaged, done.dropped_bytes) == (3, 2, 3)
        with store.open(path) as session:
            assert list(session.findings) == []
            assert [step.id for step in session.get_branch()] == ["a", "b", "c"]
            answer(session, "more")

    def test_what_is_left_of_a_damaged_line_is_never_a_line_of_spaces(self, store: Store) -> None:
        """If only spaces remain of a damaged line, it is removed; other blank lines stay."""
        path = put(store, dumps(header()).encode() + b"\n\xef\xbb\xbf  \r\n  \n")
        repair(store, path)
        assert Path(path).read_bytes() == dumps(header()).encode() + b"\n  \n"

    def test_a_header_is_made_from_what_is_known(self, store: Store) -> None:
        """Id, date and version come from the file name and the first entry; the folder from the remains of a header."""
        path = write(store, said("a", None), session_id="lost")
        repair(store, path)
        made = store.open(path, readonly=True)
        assert (made.id, made.cwd, made.header["timestamp"], made.header["version"]) == ("lost", "", AT, 3)
        nameless = write(store, {"type": "session", "cwd": "/kept"}, said("a", None), session_id="nameless")
        repair(store, nameless)
        assert store.open(nameless, readonly=True).cwd == "/kept"
        old = {"type": "message", "timestamp": AT, "message": {"role": "user", "content": "x"}}
        ancient = write(store, old, session_id="ancient")
        repair(store, ancient)
        assert kinds(check(store, ancient)) == [("old_version", 1)]
        empty = put(store, b"", "blank")
        repair(store, empty)
        assert store.open("blank", readonly=True).header["timestamp"] == "2026-02-16T10:20:30.000Z"

    def test_the_plan_says_what_is_done_about_each_problem(self, store: Store) -> None:
        """The plan gives an action or a reason for each problem, and changes nothing."""
        path = write(store, header(), said("a", "gone"), "garbage")
        before = snapshot(store.layout.root)
        plan = plan_repair(store, path)
        assert [(step.problem.kind, step.action.split(":")[0]) for step in plan.steps] == [
            ("missing_parent", "stays"),
            ("not_json", "removed; the original file is kept"),
        ]
        assert (plan.changes, plan.dropped_bytes, plan.salvaged) == (True, 8, 0)
        assert snapshot(store.layout.root) == before

    def test_a_file_of_others_is_only_repaired_in_place_on_demand(self, store: Store, tmp_path: Path) -> None:
        """With `in_place` the original is still kept in our root."""
        foreign = tmp_path / "foreign.jsonl"
        foreign.write_text(f"{dumps(header())}\ngarbage\n")
        data = foreign.read_bytes()
        with pytest.raises(errors.Invalid):
            repair(store, str(foreign))
        assert foreign.read_bytes() == data
        done = repair(store, str(foreign), in_place=True)
        assert foreign.read_text() == f"{dumps(header())}\n"
        assert done.original is not None
        assert Path(done.original).read_bytes() == data

    def test_a_file_of_another_format_gets_no_header(self, store: Store, tmp_path: Path) -> None:
        """Rows without ids may belong to another agent, which could not read our header."""
        foreign = tmp_path / "foreign.jsonl"
        foreign.write_text('{"type":"user","uuid":"u","parentUuid":null}\n')
        before = foreign.read_bytes()
        with pytest.raises(errors.NotASession):
            repair(store, str(foreign), in_place=True)
        with pytest.raises(errors.NotASession):  # no plan is made that would be refused
            plan_repair(store, str(foreign))
        assert not check(store, str(foreign)).repairable and foreign.read_bytes() == before
        foreign.write_text(f"{dumps(said('a', None))}\n")
        assert check(store, str(foreign)).repairable and plan_repair(store, str(foreign)).changes
        assert repair(store, str(foreign), in_place=True).problems_after == ()

    def test_a_session_that_is_being_written_is_not_repaired(self, store: Store) -> None:
        """The repair waits for the lock, then raises and changes nothing."""
        path = write(store, header(), "garbage")
        with store.open(path) as session:
            session._own_journal().hold()
            before = Path(path).read_bytes()
            with pytest.raises(errors.SessionBusy):
                repair(store, path, patience=0.05)
            assert Path(path).read_bytes() == before
            session._own_journal().release()

    def test_an_open_session_goes_on_in_the_repaired_file(self, store: Store) -> None:
        """Later entries are appended to the new file."""
        path = write(store, header(), said("a", None), "garbage")
        with store.open(path) as session:
            repair(store, path)
            say(session, "after")
        report = check(store, path)
        assert (report.entries, report.problems) == (2, ())

    def test_a_line_that_is_too_long_stays(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """The line may be valid, so it is copied unchanged and still reported."""
        monkeypatch.setattr(Scanner.__init__, "__defaults__", (0, 1000))
        long = dumps(said("long", "a", "x" * 2000))
        path = write(store, header(), said("a", None), long, "garbage", said("b", "a"))
        done = repair(store, path)
        assert [problem.kind for problem in done.problems_after] == ["too_long"]
        assert Path(path).read_text().split("\n")[2] == long


def test_a_problem_is_a_plain_value() -> None:
    """A problem has a place, a known kind, and whether a repair helps."""
    fields = ("kind", "message", "offset", "length", "line", "entry_id", "severity", "repairable", "excerpt")
    assert Problem._fields == fields
    assert {trouble.severity for trouble in TROUBLES.values()} == {"note", "warning", "damage"}
    # A draft is the exception: it is intact, and a repair publishes it.
    assert {name for name, trouble in TROUBLES.items() if trouble.remedy and trouble.severity != "damage"} == {"draft"}


# -- caches


@pytest.mark.promise("P45")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("UPDATE sessions SET title = 'planted'", "title: 'planted' instead of 'Named'"),
        ("UPDATE sessions SET messages = messages + 1", "messages: 3 instead of 2"),
        ("UPDATE sessions SET cwd = '/planted'", "cwd: '/planted' instead of"),
        ("UPDATE sessions SET fit = x'00'", "fit: "),
        ("UPDATE sessions SET spending = x'00'", "spending: "),
        ("INSERT INTO texts (texts) VALUES ('delete-all')", "words: those of 2 entries"),
        (
            "INSERT INTO texts (rowid, text) SELECT number << 40 | 7, 'planted' FROM sessions",
            "words: those of 1 entry",
        ),
    ],
)
def test_a_check_compares_the_catalog_with_the_files_and_removes_what_is_wrong(
    tmp_path: Path, change: str, named: str
) -> None:
    """It is a problem of the cache, not of the session, and the next list and search are right again."""
    store = store_at(tmp_path / "root")
    with store.create(CWD, title="Named", publish=True) as session:
        say(session, "alpha")
        answer(session, "omega")
    time.sleep(0.06)
    with Library(store, cache=str(tmp_path / "cache")) as library:
        before = library.list(), library.search("alpha").hits
        assert not check(store, session.path, library=library).problems
        plant(tmp_path / "cache", change)
        (report,) = check_all(store, library=library)
        (found,) = report.problems
        assert (report.ok, report.repairable, found.kind, found.severity) == (True, False, "wrong_cache", "warning")
        assert named in found.message
        after = library.list(), library.search("alpha").hits
        assert [row._replace(number=0) for row in after[0].rows] == [row._replace(number=0) for row in before[0].rows]
        assert [hit._replace(rank=0) for hit in after[1]] == [hit._replace(rank=0) for hit in before[1]]
        assert not check(store, session.path, library=library).problems


@pytest.mark.promise("P45")
def test_a_check_compares_the_index_with_the_file_and_removes_a_wrong_one(tmp_path: Path) -> None:
    """The next reader makes a new index."""
    store = store_at(tmp_path)
    with store.create(CWD, publish=True) as session:
        for number in range(100):
            (say if number % 2 else answer)(session, f"text {number}")
    with store.open(session.path, readonly=True) as view:
        assert view.count_entries() == 100
    index = Path(store.layout.index(session.path))
    assert index.exists() and not check(store, session.path).problems
    data = bytearray(index.read_bytes())
    data[-5] ^= 1
    index.write_bytes(data)
    (found,) = check(store, session.path).problems
    assert (found.kind, found.repairable) == ("wrong_cache", False) and "index" in found.message
    assert not index.exists()
    assert not check(store, session.path).problems
