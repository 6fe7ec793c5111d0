"""The index is a cache: results are the same if it is missing, stale, damaged or unavailable."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from faults.failing import Fail, FaultyFilesystem, Meddle, ShortWrite
from journal_rig import INDEX, PATH, add, ask, content_of, count, expect, journal_on, settled
from sessile.core.kinds import State
from sessile.errors import LeafMoved, SessileError
from sessile.storage import base
from sessile.storage import index as index_file
from sessile.storage import index as index_module
from sessile.storage import reader as session_file
from sessile.storage.base import Filesystem
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.index import MAX_FINDINGS, SAVE_AFTER_ROWS
from sessile.storage.journal import FileJournal
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.reader import JournalReader
from sessile.testing.filesystem_contract import get, opened
from sessile.testing.filesystem_contract import put as put_file
from sessile.testing.journal_contract import HEADER, assistant, chain, found, ids, line, put

pytestmark = pytest.mark.promise("P12")


def numbered(start: int, end: int) -> bytes:
    """Return the content of a file with a chain of messages."""
    lines = (line(f"id{n:06}", f"id{n - 1:06}" if n else None) for n in range(start, end))
    return b"".join(raw + b"\n" for raw in lines)


STAMP = 64  # bytes of the file before the header of the index: its name and the stamp
N = 80
CONTENT = HEADER + b"\n" + numbered(0, N)


def reader(fs: Filesystem, index_path: str | None = INDEX) -> JournalReader:
    return JournalReader(fs, PATH, index_path=index_path)


def indexed(content: bytes = CONTENT) -> MemoryFilesystem:
    """Create a journal with an index in the cache."""
    fs = settled(MemoryFilesystem(), content)
    journal = reader(fs)
    journal.last()
    journal.close()
    assert fs.names("/c") == ["s.index"]
    return fs


def scanned_bytes(fs: MemoryFilesystem) -> int:
    """Return how many bytes are read to open the journal and return its last entry."""
    reads: list[tuple[int, int]] = []

    class Measured(FaultyFilesystem):
        def read(self, fd: int, size: int, offset: int) -> bytes:
            data = super().read(fd, size, offset)
            reads.append((fd, len(data)))
            return data

    journal = reader(Measured(fs))
    journal.last()
    return sum(size for fd, size in reads if fd == journal._fd)


class TestSaving:
    """Opening a journal saves an index if it is worth its cost."""

    def test_a_short_journal_leaves_no_index(self) -> None:
        """Scanning a few lines again is cheaper than writing an index."""
        fs = settled(MemoryFilesystem(), HEADER + b"\n" + numbered(0, SAVE_AFTER_ROWS - 1))
        journal = reader(fs)
        journal.last()
        journal.close()
        assert fs.names("/c") == []

    def test_a_few_large_lines_are_worth_an_index(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An index is saved for many bytes as well as for many rows."""
        monkeypatch.setattr(index_module, "SAVE_AFTER_BYTES", 1000)
        indexed(HEADER + b"\n" + line("a", text="x" * 2000) + b"\n")

    def test_the_next_one_scans_only_what_is_new(self) -> None:
        """After our own appends, opening reads the header, the end and the added lines."""
        fs = indexed(HEADER + b"\n" + numbered(0, 3000))
        journal = FileJournal(fs, PATH, index_path=INDEX)
        journal.last()
        put(journal, *numbered(3000, 3010).splitlines())
        size = len(content_of(fs))
        assert scanned_bytes(fs) < size / 10  # the writer is still open
        journal.close()
        assert scanned_bytes(fs) < size / 10
        fs.unlink(INDEX)
        assert scanned_bytes(fs) >= size

    def test_what_another_program_appends_is_checked_once(self) -> None:
        """The bytes that the index covers are read once to compare their checksum; then the new stamp is known."""
        fs = indexed(HEADER + b"\n" + numbered(0, 3000))
        add(fs, numbered(3000, 3010))
        size = len(content_of(fs))
        assert size <= scanned_bytes(fs) < size * 1.1
        assert scanned_bytes(fs) < size / 10

    def test_an_index_is_written_once(self) -> None:
        """Closing or a few more entries do not write the index again."""
        fs = FaultyFilesystem(settled(MemoryFilesystem(), CONTENT))
        journal = reader(fs)
        for number in range(N, N + 10):
            journal.last()
            add(fs.inner, numbered(number, number + 1))
        journal.last()
        journal.close()
        assert count(fs, "rename") == 1

    def test_a_large_index_is_not_rewritten_for_a_little_news(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The new rows must be a fair share of the rows to be rewritten."""
        monkeypatch.setattr(index_module, "SAVE_AFTER_ROWS", 1)
        fs = indexed(HEADER + b"\n" + numbered(0, 1000))
        before = get(fs, INDEX)
        add(fs, line("x") + b"\n")
        journal = reader(fs)
        assert found(journal, "x")
        journal.close()
        assert get(fs, INDEX)[STAMP:] == before[STAMP:]
        add(fs, numbered(1000, 1010))
        assert found(reader(fs), "id001009")
        assert get(fs, INDEX)[STAMP:] != before[STAMP:]

    def test_a_last_line_without_newline_is_shown_and_not_saved(self) -> None:
        """An unterminated last line may still grow, so only the lines before it are saved."""
        fs = settled(MemoryFilesystem(), CONTENT + line("loose", f"id{N - 1:06}"))
        journal = reader(fs)
        assert found(journal, "loose").parent_id == f"id{N - 1:06}"
        journal.close()
        again = reader(fs)
        again.count()
        assert again._index._saved == N
        add(fs, b"\n" + line("next", "loose") + b"\n")
        for each in (journal_on(fs, index_path=INDEX), again):
            assert ids(each.rows())[-2:] == ["loose", "next"]
            assert list(each.findings()) == []

    def test_findings_of_a_growing_last_line_are_reported_once(self) -> None:
        """A finding is reported once, by any handle, before and after the line is complete."""
        fs = indexed(CONTENT + b"garbage\n")
        journal = reader(fs)
        for more in (b"\0\0", b'{"type":"message",', b'"no":"id"}', b"\n", b"\xef\xbb\xbf{}"):
            add(fs, more)
            expected = expect(content_of(fs))["findings"]
            assert journal.findings() == journal.findings() == reader(fs).findings() == expected

    def test_an_irregular_journal_is_never_saved(self) -> None:
        """Duplicate ids, forward parents and cycles need the whole file."""
        for raw in (line("id000003"), line("forward", "later") + b"\n" + line("later"), line("self", "self")):
            fs = settled(MemoryFilesystem(), CONTENT + raw + b"\n")
            journal = reader(fs)
            assert ask(journal) == expect(content_of(fs))
            journal.close()
            assert fs.names("/c") == []

    def test_the_states_of_a_journal_may_be_too_many_to_keep(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Above the limit a state is computed from the path on request, with the same result."""
        monkeypatch.setattr("sessile.storage.index._MAX_SIZE", 300)
        lines = [HEADER]
        for n in range(120):
            lines.append(line(str(n), str(n - 1) if n else None, "mode_change", mode=f"a mode of its own {n}"))
        content = b"\n".join(lines) + b"\n"
        fs = indexed(content)
        assert ask(reader(fs)) == expect(content)
        add(fs, assistant("answer", "119", "m") + b"\n")
        journal = reader(fs)
        assert journal.state(found(journal, "answer")) == State(mode="a mode of its own 119", models={"default": "p/m"})

    def test_an_id_that_looks_like_the_hash_of_another_is_told_from_it(self) -> None:
        """An id of eight letters is its own key; a longer id whose hash has the same letters is another entry."""
        longer = next(f"a longer id {n}" for n in range(10_000) if index_file.key_of(f"a longer id {n}")[0].isascii())
        short = index_file.key_of(longer)[0].decode()
        for first, second in ((longer, short), (short, longer)):
            content = CONTENT + line(first) + b"\n" + line(second, first) + b"\n" + numbered(100, 180)
            fs = indexed(content)
            journal = reader(fs)
            assert found(journal, first).parent_id is None
            assert found(journal, second).parent_id == first
            add(fs, line("child", second) + b"\n")
            assert found(reader(fs), "child").parent_id == second

    def test_endless_findings_are_counted_not_kept(self) -> None:
        """A file of garbage does not fill the memory, and the number of omitted findings is reported."""
        content = HEADER + b"\n" + b"garbage\n" * (MAX_FINDINGS + 7) + numbered(0, 100)
        for journal in (reader(settled(MemoryFilesystem(), content)), reader(indexed(content))):
            findings = journal.findings()
            assert len(findings) == MAX_FINDINGS + 1
            assert findings[-1].code == "more"
            assert "7 more" in findings[-1].detail


class TestStale:
    """The journal changed after the index was saved."""

    @pytest.mark.parametrize(
        "content",
        [
            HEADER + b"\n" + numbered(0, 40),
            HEADER + b"\n" + numbered(0, 40) + numbered(100, 200),
            HEADER + b"\n" + numbered(0, N).replace(b"hello", b"world"),
            HEADER + b"\n",
        ],
        ids=["cut off", "cut off and grown again", "same size", "emptied"],
    )
    @pytest.mark.parametrize("how", ["in place", "replaced"])
    def test_a_rewritten_journal_is_scanned_anew(self, content: bytes, how: str) -> None:
        """The index is not used if the file was replaced or changed in place."""
        fs = indexed()
        if how == "replaced":
            settled(fs, content)
        else:
            with opened(fs, PATH, os.O_RDWR) as fd:
                fs.truncate(fd, 0)
                fs.write(fd, content)
        assert ask(reader(fs)) == expect(content)

    def test_a_replacement_that_ends_like_the_old_file_is_scanned_anew(self) -> None:
        """A new file with the same size and last bytes is scanned again."""
        fs = indexed()
        content = CONTENT.replace(b"id000003", b"id-three")
        settled(fs, content)
        assert ask(reader(fs)) == expect(content)

    def test_an_open_handle_notices_that_the_file_became_shorter(self) -> None:
        """Truncated entries are no longer returned."""
        fs = indexed()
        journal = reader(fs)
        assert len(ids(journal.rows())) == N
        with opened(fs, PATH, os.O_RDWR) as fd:
            fs.truncate(fd, len(HEADER) + 1 + len(numbered(0, 50)))
        assert ask(journal) == expect(content_of(fs))

    def test_a_row_that_was_cut_off_is_refused_with_a_hint(self) -> None:
        """Reading a row that was truncated raises instead of returning other bytes."""
        fs = indexed()
        journal = reader(fs)
        row = found(journal, f"id{N - 1:06}")
        rows = journal.rows()
        with opened(fs, PATH, os.O_RDWR) as fd:
            fs.truncate(fd, len(HEADER) + 1 + len(numbered(0, 5)))
        with pytest.raises(LeafMoved) as caught:
            journal.read(row)
        assert caught.value.hint
        with pytest.raises(LeafMoved):
            list(rows)

    def test_a_line_that_was_moved_in_place_is_found_again(self) -> None:
        """An edit long before the end is not in the index, and is detected when the line is read."""
        lines = [line(f"id{n:06}", None, text="x" * 100) for n in range(200)]
        fs = indexed(b"\n".join([HEADER, *lines]) + b"\n")
        journal = reader(fs)
        row = found(journal, "id000010")
        lines[5], lines[10] = lines[10] + b"  ", lines[5][:-1] + b"}"
        with opened(fs, PATH, os.O_RDWR) as fd:
            fs.write(fd, b"\n".join([HEADER, *lines]) + b"\n")
        assert journal.read(row) == lines[5]


class TestDamaged:
    """The cache file is not what was written."""

    def test_a_damaged_block_is_replaced_by_a_good_one(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The result is right, and a new index is saved for the next open."""
        monkeypatch.setattr(index_file, "_BLOCK", 64)
        fs = indexed()
        good = get(fs, INDEX)
        fs.unlink(INDEX)
        at = good.index(b"id000050")
        put_file(fs, INDEX, good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :])
        with caplog.at_level(logging.WARNING, "sessile"):
            assert ask(reader(fs)) == expect(CONTENT)
        assert "rebuilding the index" in caplog.text
        assert get(fs, INDEX) == good

    def test_catching_up_over_a_damaged_block_starts_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """New rows look up their parents in the cache, and damage found there raises no error either."""
        monkeypatch.setattr(index_file, "_BLOCK", 64)
        monkeypatch.setattr(index_module, "SAVE_AFTER_ROWS", 1)
        fs = indexed(HEADER + b"\n" + numbered(0, 30))
        good = get(fs, INDEX)
        start = good.index(b"id000000")
        for at in range(start, len(good) - 40, 97):
            fs.unlink(INDEX)
            put_file(fs, INDEX, good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :])
            add(fs, line(f"new{at}", "id000010") + b"\n" + line(f"orphan{at}", f"gone{at}") + b"\n")
            assert ask(reader(fs)) == expect(content_of(fs))

    def test_an_absurd_length_in_the_prefix_costs_no_memory(self) -> None:
        """The length of the header is limited by the size of the file."""
        fs = indexed()
        good = get(fs, INDEX)
        fs.unlink(INDEX)
        put_file(fs, INDEX, good[:16] + b"\xff\xff\xff\x7f" + good[20:])
        asked: list[int] = []

        class Measured(FaultyFilesystem):
            def read(self, fd: int, size: int, offset: int) -> bytes:
                asked.append(size)
                return super().read(fd, size, offset)

        assert len(ids(reader(Measured(fs)).rows())) == N
        assert max(asked) <= base.CHUNK

    def test_a_folder_or_an_empty_file_in_the_place_of_the_index_is_no_index(self) -> None:
        """With another file type in place of the index, results come from the journal."""
        fs = settled(MemoryFilesystem(), CONTENT)
        fs.mkdir(INDEX)
        assert ask(reader(fs)) == expect(CONTENT)
        fs.rmdir(INDEX)
        put_file(fs, INDEX, b"")
        assert ask(reader(fs)) == expect(CONTENT)


class TestRefused:
    """The cache cannot be written or read."""

    @pytest.mark.parametrize("where", ["/s/s.jsonl/x.index", "/missing/deeper/x.index", "/c/x.index"])
    @pytest.mark.parametrize("method", ["mkdir", "open", "write", "rename", "close", "sync_directory"])
    def test_a_cache_that_cannot_be_written_is_no_failure(self, where: str, method: str) -> None:
        """Results are right, nothing is raised, and no temporary file remains."""
        inner = settled(MemoryFilesystem(), CONTENT)
        journal = reader(inner, where)
        journal._fs = FaultyFilesystem(inner, plan=[Fail(errno.EROFS, on={method}, forever=True)])
        assert ask(journal) == expect(CONTENT)
        journal._fs = inner
        journal.close()
        assert not [name for name in inner.names("/c") if name.endswith(".tmp")]
        assert content_of(inner) == CONTENT

    @pytest.mark.promise("P3")
    def test_a_full_disk_keeps_nobody_from_reading(self) -> None:
        """The incomplete index is removed, and reading works."""
        fs = settled(MemoryFilesystem(), CONTENT)
        assert ask(reader(FaultyFilesystem(fs, plan=[ShortWrite(written=100)]))) == expect(CONTENT)
        assert fs.names("/c") == []

    def test_a_cache_folder_that_vanishes_while_it_is_written_is_no_failure(self) -> None:
        """The cache may be cleared at any time."""
        at, struck = 0, True
        while struck:
            at += 1
            fs = settled(MemoryFilesystem(), CONTENT)

            def clear(fs: MemoryFilesystem = fs) -> None:
                if "c" in fs.names("/"):
                    for name in fs.names("/c"):
                        fs.unlink(f"/c/{name}")
                    fs.rmdir("/c")

            faulty = FaultyFilesystem(fs, plan=[Meddle(clear, at=at)])
            assert reader(faulty).count() == N
            struck = bool(faulty.struck)
        assert at > 10

    @pytest.mark.promise("P8")
    @pytest.mark.parametrize("forever", [False, True])
    def test_every_failing_call_gives_a_typed_error_or_the_right_answer(
        self, monkeypatch: pytest.MonkeyPatch, forever: bool
    ) -> None:
        """With each call failing in turn, only typed errors are raised, and a later read returns the right result."""
        monkeypatch.setattr(session_file, "CHUNK", 600)
        monkeypatch.setattr(index_module, "SAVE_AFTER_ROWS", 1)
        base = indexed(HEADER + b"\n" + numbered(0, 12))
        add(base, numbered(12, 25) + b"garbage\n" + line("o", "gone") + b"\n")
        index, content = get(base, INDEX), content_of(base)
        expected = expect(content)
        at, struck = 0, True
        while struck:
            at += 1
            base.unlink(INDEX)
            put_file(base, INDEX, index)
            faulty = FaultyFilesystem(base, plan=[Fail(errno.EIO, at=at, forever=forever)])
            journal: JournalReader | None = None
            try:
                journal = reader(faulty)
                assert journal.count() == 26
                assert [f.code for f in journal.findings()] == ["not_json", "missing_parent"]
                assert len(list(journal.up(found(journal, "id000024")))) == 25
                assert journal.state(found(journal, "id000024")) == State()
            except SessileError as error:
                assert error.path
            struck = bool(faulty.struck)
            faulty.heal()
            if journal is not None:
                assert ask(journal) == expected
                journal.close()
            assert base._open == {}
        assert at > 8

    @pytest.mark.promise("P8")
    def test_a_failure_while_catching_up_adds_no_entry_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the disk fails after some new lines were read, the next read starts again."""
        monkeypatch.setattr(session_file, "CHUNK", 300)
        for at in range(1, 8):
            fs = settled(MemoryFilesystem(), HEADER + b"\n" + numbered(0, 5))
            journal = reader(fs, None)
            assert journal.count() == 5
            add(fs, numbered(5, 25))
            journal._fs = FaultyFilesystem(fs, plan=[Fail(errno.EIO, on={"read"}, at=at)])
            with pytest.raises(SessileError):
                journal.count()
            assert ask(journal) == expect(content_of(fs))


@pytest.mark.promise("P13")
class TestReadingNeverWrites:
    """A reader changes only the cache."""

    def test_no_read_touches_the_journal(self, tmp_path: Path) -> None:
        """Bytes, inode, times and the names in the folder are the same after every query."""
        folder, cache = tmp_path / "s", tmp_path / "c"
        folder.mkdir()
        path = folder / "s.jsonl"
        path.write_bytes(CONTENT + b"garbage\n" + line("x", "gone") + b"\n" + b'{"type":"torn')
        path.chmod(0o400)
        os.utime(path, ns=(10**18, 10**18))
        before = path.read_bytes()
        os.utime(folder, ns=(10**18, 10**18))
        stats = [os.lstat(path), os.lstat(folder)]
        for _ in range(2):
            journal = JournalReader(PosixFilesystem(), str(path), index_path=str(cache / "x.index"))
            assert ask(journal) == expect(before)
            assert journal.header() == HEADER
            assert len(list(journal.items())) == N + 4
            journal.close()
        assert path.read_bytes() == before
        for old, new in zip(stats, [os.lstat(path), os.lstat(folder)], strict=True):
            assert (old.st_ino, old.st_mtime_ns, old.st_ctime_ns) == (new.st_ino, new.st_mtime_ns, new.st_ctime_ns)
        assert [name.name for name in cache.iterdir()] == ["x.index"]

    def test_a_reader_without_a_cache_writes_nothing_at_all(self) -> None:
        """No call that changes anything is made."""
        faulty = FaultyFilesystem(settled(MemoryFilesystem(), CONTENT))
        journal = reader(faulty, None)
        ask(journal)
        journal.close()
        assert {call.method for call in faulty.calls} <= {"open", "read", "fstat", "lstat", "close"}

    def test_descriptors_are_closed_once(self) -> None:
        """The descriptor of the index is closed, too, and closing twice is safe."""
        fs = indexed()
        faulty = FaultyFilesystem(fs)
        journal = reader(faulty)
        put(journal_on(fs), *chain("more"))
        journal.last()
        journal.close()
        journal.close()
        assert count(faulty, "open") == count(faulty, "close") == 3  # the third one writes the stamp
