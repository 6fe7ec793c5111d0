"""The prompt history: capture, search, sharing with other programs, damage, failing disks, and foreign files."""

from __future__ import annotations

import os
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sessile.errors import Damaged, ReadOnly, StorageFailure, StorageFull, UnsafePath
from sessile.storage import history
from sessile.storage.history import HistoryEntry, HistoryStorage

pytestmark = pytest.mark.mission("X23")

CHILD = os.environ | {"PYTHONPATH": str(Path(history.__file__).parents[2])}
XCSH = """
PRAGMA journal_mode = WAL;
CREATE TABLE history (
    id INTEGER PRIMARY KEY AUTOINCREMENT, prompt TEXT NOT NULL, created_at INTEGER NOT NULL DEFAULT (unixepoch()), cwd TEXT
);
CREATE INDEX idx_history_created_at ON history(created_at DESC);
CREATE VIRTUAL TABLE history_fts USING fts5(prompt, content='history', content_rowid='id');
CREATE TRIGGER history_ai AFTER INSERT ON history BEGIN
    INSERT INTO history_fts(rowid, prompt) VALUES (new.id, new.prompt);
END;
"""
OMP = """
PRAGMA journal_mode = WAL;
CREATE TABLE history (
    id INTEGER PRIMARY KEY AUTOINCREMENT, prompt TEXT NOT NULL UNIQUE, created_at INTEGER NOT NULL, cwd TEXT,
    session_id TEXT, use_count INTEGER NOT NULL DEFAULT 1
);
CREATE VIRTUAL TABLE history_fts USING fts5(prompt, content='history', content_rowid='id');
CREATE TRIGGER history_ai AFTER INSERT ON history BEGIN
    INSERT INTO history_fts(rowid, prompt) VALUES (new.id, new.prompt);
END;
INSERT INTO history(prompt, created_at, cwd, session_id, use_count) VALUES ('old', 1, '/a', 's1', 7), ('new', 2, '/a', 's2', 1);
"""


def moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "history.db")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the lock timeout and the time between attempts."""
    monkeypatch.setattr(history, "PATIENCE", 0.02)
    monkeypatch.setattr(history, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(history, "_LONGEST_PAUSE", 0.02)


def prompts(entries: list[HistoryEntry]) -> list[str]:
    return [entry.prompt for entry in entries]


def sql(path: str, script: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)


def rows(path: str, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def filled(path: str, count: int = 3) -> None:
    with HistoryStorage(path, clock=iter(range(100, 100 + count)).__next__) as storage:
        for number in range(count):
            storage.add(f"prompt number {number:04d} about something", "/work")


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline, "it did not happen in ten seconds"
        time.sleep(0.01)


def snapshot(folder: str) -> dict[str, tuple[int, bytes]]:
    return {
        name: (os.stat(os.path.join(folder, name)).st_mtime_ns, Path(folder, name).read_bytes())
        for name in sorted(os.listdir(folder))
    }


# Capture


def test_added_prompts_come_back_newest_first_with_time_and_folder(path: str) -> None:
    """An entry has its time of capture in whole seconds and its folder."""
    with HistoryStorage(path, clock=iter([10.9, 20.2]).__next__) as storage:
        storage.add("first", "/a")
        storage.add("second")
        assert storage.get_recent() == [
            HistoryEntry(2, "second", moment(20), None),
            HistoryEntry(1, "first", moment(10), "/a"),
        ]


def test_prompts_of_one_second_are_ordered_by_id(path: str) -> None:
    """Of two prompts of the same second, the later one comes first."""
    with HistoryStorage(path, clock=lambda: 5.0) as storage:
        for prompt in "abc":
            storage.add(prompt)
        assert prompts(storage.get_recent()) == ["c", "b", "a"]


def test_blank_prompts_are_ignored_and_others_are_stripped(path: str) -> None:
    """Surrounding white space is removed, and a blank prompt is ignored."""
    with HistoryStorage(path) as storage:
        for prompt in ("", " \n\t", "  keep \n this  "):
            storage.add(prompt)
        assert prompts(storage.get_recent()) == ["keep \n this"]


def test_only_consecutive_duplicates_are_dropped(path: str) -> None:
    """A, A, B, A is stored as three rows."""
    with HistoryStorage(path) as storage:
        for prompt in ("A", " A ", "B", "A"):
            storage.add(prompt)
        assert prompts(storage.get_recent()) == ["A", "B", "A"]


def test_the_last_prompt_is_remembered_across_a_restart(path: str) -> None:
    """The last prompt before a restart is not added again after it."""
    for _ in range(2):
        with HistoryStorage(path) as storage:
            storage.add("again")
    with HistoryStorage(path) as storage:
        assert len(storage.get_recent()) == 1


def test_text_that_sqlite_cannot_hold_is_replaced_by_the_replacement_character(path: str) -> None:
    """NUL and lone surrogates neither raise nor cut a prompt short."""
    with HistoryStorage(path) as storage:
        storage.add("a\0b \ud800 end", "/\udc80")
        assert storage.search("end") == storage.search("a\0b") == storage.get_recent()
        assert storage.get_recent()[0].prompt == "a\ufffdb \ufffd end"


def test_prompts_are_written_without_anybody_asking(path: str) -> None:
    """A background thread writes the prompts and ends when the queue is empty."""
    storage = HistoryStorage(path)
    storage.add("one")
    eventually(lambda: rows(path, "SELECT prompt FROM history") == [("one",)])
    eventually(lambda: all(thread.name != "sessile-history" for thread in threading.enumerate()))
    storage.add("two")
    eventually(lambda: len(rows(path, "SELECT prompt FROM history")) == 2)
    storage.close()


def test_add_does_not_wait_for_a_locked_database(path: str) -> None:
    """While another process holds the lock, `add` returns at once and nothing is lost."""
    storage = HistoryStorage(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        for number in range(100):
            storage.add(f"prompt {number}")
        assert time.monotonic() - began < 4  # SQLite waits for 5 seconds
        other.execute("ROLLBACK")
    storage.close()
    assert len(storage.get_recent()) == 100


def test_a_normal_exit_without_close_loses_nothing(path: str) -> None:
    """Queued prompts are written before the interpreter exits."""
    program = (
        "import sys; from sessile.storage.history import HistoryStorage\n"
        "storage = HistoryStorage(sys.argv[1])\n"
        "for number in range(500): storage.add(f'prompt {number}')\n"
    )
    subprocess.run([sys.executable, "-c", program, path], check=True, env=CHILD)
    assert rows(path, "SELECT count(*) FROM history") == [(500,)]


def test_threads_may_share_one_storage(path: str) -> None:
    """Each prompt of each thread is stored once."""
    with HistoryStorage(path) as storage:

        def work(name: int) -> None:
            for number in range(50):
                storage.add(f"{name} {number}")
                storage.get_recent(1)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(prompts(storage.get_recent(1000)))) == 200


def test_two_processes_may_share_one_file_from_its_very_beginning(path: str) -> None:
    """Processes that create, write and read the same file at once all succeed, and no prompt is lost."""
    program = (
        "import sys; from sessile.storage.history import HistoryStorage\n"
        "for number in range(40):\n"
        "    with HistoryStorage(sys.argv[1]) as storage:\n"
        "        assert storage.findings == ()\n"
        "        storage.add(f'{sys.argv[2]} {number}')\n"
        "        assert storage.search(f'{sys.argv[2]} {number}')\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, path, name], env=CHILD) for name in "abc"]
    assert [process.wait() for process in processes] == [0, 0, 0]
    with HistoryStorage(path) as storage:
        assert len(set(prompts(storage.get_recent(1000)))) == 120
    assert os.listdir(os.path.dirname(path)) == ["history.db"]


# Recall


@pytest.fixture
def storage(path: str) -> Iterator[HistoryStorage]:
    with HistoryStorage(path, clock=iter(range(100)).__next__) as storage:
        for prompt in ("git commit", "Café au lait", "日本語テスト", "100% of C:\\x_y", 'say "hi"'):
            storage.add(prompt)
        yield storage


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("git", "git commit"),
        ("com", "git commit"),
        ("git-commit", "git commit"),
        ("commit git", "git commit"),
        ("mit", "git commit"),
        ("GIT MIT", "git commit"),
        ("cafe", "Café au lait"),
        ("afé", "Café au lait"),
        ("日本", "日本語テスト"),
        ("本語", "日本語テスト"),
        ("%", "100% of C:\\x_y"),
        ("x_y", "100% of C:\\x_y"),
        ("\\", "100% of C:\\x_y"),
        ('"hi', 'say "hi"'),
    ],
)
def test_search_finds_prefixes_and_substrings(storage: HistoryStorage, query: str, found: str) -> None:
    """Words match by prefix in any order without accents, or as a substring without wildcards."""
    assert prompts(storage.search(query)) == [found]


@pytest.mark.parametrize(
    "query", ["", "  ", "git nothing", "xzy", "-", "*", "NOT", "git OR", "prompt:git", "NEAR(git)"]
)
def test_search_finds_nothing_where_nothing_matches(storage: HistoryStorage, query: str) -> None:
    """Every word must match, and query operators are plain text."""
    assert storage.search(query) == []


def test_prefix_and_substring_matches_are_merged_newest_first(path: str) -> None:
    """Matches of both kinds are ordered by time, and the limit applies to the merged list."""
    with HistoryStorage(path, clock=iter(range(9)).__next__) as storage:
        for prompt in ("mit one", "commit two", "mit three", "commit four"):
            storage.add(prompt)
        assert prompts(storage.search("mit", 3)) == ["commit four", "mit three", "commit two"]


@pytest.mark.parametrize(
    ("limit", "count"),
    [(2, 2), (2.9, 2), (0, 0), (-5, 0), (float("nan"), 0), (float("inf"), 0), (-float("inf"), 0), (1e300, 1000)],
)
def test_limits_are_floored_and_clamped(path: str, limit: float, count: int) -> None:
    """Any limit is accepted, and at most a thousand entries are returned."""
    with HistoryStorage(path) as storage:
        for number in range(1001):
            storage.add(f"prompt {number}")
        assert len(storage.get_recent(limit)) == len(storage.search("prompt", limit)) == count


def test_very_long_queries_are_answered(storage: HistoryStorage) -> None:
    """Thousands of words or a word of a hundred thousand letters do not exceed a limit of SQLite."""
    assert storage.search(" ".join(map(str, range(5000)))) == []
    assert storage.search("x" * 100_000) == []


def test_a_prompt_with_bad_bytes_is_shown(path: str) -> None:
    """Invalid UTF-8 stored by another program does not hide the other prompts."""
    with HistoryStorage(path) as storage:
        storage.add("good")
        sql(path, "INSERT INTO history(prompt, created_at) VALUES (CAST(X'62FF64' AS TEXT), 1)")
        assert prompts(storage.get_recent()) == ["good", "b\ufffdd"]


# Sharing with other programs


def test_a_new_file_has_the_documented_tables(path: str) -> None:
    """A new file has the table, index, full-text table and three triggers, and uses the write-ahead log."""
    HistoryStorage(path).close()
    columns = [row[1:4] for row in rows(path, "PRAGMA table_info(history)")]
    assert columns == [("id", "INTEGER", 0), ("prompt", "TEXT", 1), ("created_at", "INTEGER", 1), ("cwd", "TEXT", 0)]
    triggers = rows(path, "SELECT name FROM sqlite_schema WHERE type = 'trigger' ORDER BY name")
    assert triggers == [("history_ad",), ("history_ai",), ("history_au",)]
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]


def test_a_database_of_xcsh_gains_the_missing_triggers_and_a_true_index(path: str) -> None:
    """Rows that changed without a trigger are reindexed, and later changes are followed."""
    sql(path, XCSH + "INSERT INTO history(prompt) VALUES ('alpha'), ('beta'), ('gamma');")
    sql(path, "UPDATE history SET prompt = 'delta' WHERE id = 2; DELETE FROM history WHERE id = 3;")
    with HistoryStorage(path) as storage:
        assert prompts(storage.search("delta")) == ["delta"]
        assert storage.search("beta") == storage.search("gamma") == []
        sql(path, "UPDATE history SET prompt = 'omega' WHERE id = 1; DELETE FROM history WHERE id = 2;")
        storage.add("psi")
        assert prompts(storage.get_recent()) == ["psi", "omega"]
        assert storage.search("alpha") == storage.search("delta") == []
        assert storage.findings == ()
    sql(path, "INSERT INTO history_fts(history_fts, rank) VALUES ('integrity-check', 1)")


def test_a_table_without_an_index_is_indexed(path: str) -> None:
    """All rows of a database without full-text search become searchable."""
    sql(path, XCSH.split("CREATE INDEX")[0] + "INSERT INTO history(prompt) VALUES ('Crème brûlée');")
    assert HistoryStorage(path, readonly=True).search("rème")
    with HistoryStorage(path) as storage:
        assert prompts(storage.search("creme brulee")) == ["Crème brûlée"]


def test_columns_of_others_survive_and_a_unique_prompt_moves_to_the_top(path: str) -> None:
    """If prompts are unique, a repeated one gets the new time and folder and keeps its other columns."""
    sql(path, OMP)
    with HistoryStorage(path, clock=lambda: 9.0) as storage:
        storage.add("new")
        storage.add("old", "/b")
        storage.add("third")
        assert prompts(storage.get_recent()) == ["third", "old", "new"]
        assert prompts(storage.search("ol")) == ["old"]
    assert rows(path, "SELECT * FROM history ORDER BY id")[0] == (1, "old", 9, "/b", "s1", 7)


def test_opening_a_complete_database_changes_nothing(path: str) -> None:
    """Opening and reading keep every byte of the file, also in a writable history."""
    filled(path)
    before = snapshot(os.path.dirname(path))
    with HistoryStorage(path) as storage:
        assert storage.search("prompt")
    assert snapshot(os.path.dirname(path)) == before


# Failing storage


def test_a_failed_write_is_told_kept_and_tried_again(path: str, impatient: None) -> None:
    """`flush` raises the typed error with the path, and the prompts are written by a later attempt."""
    storage = HistoryStorage(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        storage.add("waits")
        with pytest.raises(StorageFailure, match="locked") as caught:
            storage.flush()
        assert caught.value.path == path
        assert caught.value.hint
        with pytest.raises(StorageFailure):
            storage.close()
        assert isinstance(storage.failure, StorageFailure)
        other.execute("ROLLBACK")
    eventually(lambda: rows(path, "SELECT prompt FROM history") == [("waits",)])
    storage.close()
    assert storage.failure is None


def test_prompts_that_cannot_be_written_are_still_recalled(path: str, impatient: None) -> None:
    """Reading merges the stored prompts with the queued ones."""
    storage = HistoryStorage(path, clock=iter([1, 2, 3, 4]).__next__)
    storage.add("commit one")
    storage.flush()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        storage.add("Commit twó")
        storage.add("other")
        assert prompts(storage.get_recent()) == ["other", "Commit twó", "commit one"]
        assert prompts(storage.search("mit")) == ["Commit twó", "commit one"]
        assert prompts(storage.search("two", 1)) == ["Commit twó"]
        other.execute("ROLLBACK")
    storage.close()
    assert [entry.id for entry in storage.get_recent()] == [3, 2, 1]


def test_a_full_disk_loses_nothing(path: str) -> None:
    """`flush` raises while files cannot grow; afterwards every prompt is written."""
    program = f"""
import resource, sys
from sessile.errors import StorageFailure
from sessile.storage.history import HistoryStorage
storage = HistoryStorage(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {resource.RLIM_INFINITY}))
storage.add("held back")
try:
    storage.flush()
except StorageFailure as error:
    assert error.path == sys.argv[1]
else:
    sys.exit("the disk was not full")
resource.setrlimit(resource.RLIMIT_FSIZE, ({resource.RLIM_INFINITY}, {resource.RLIM_INFINITY}))
storage.close()
"""
    subprocess.run([sys.executable, "-c", program, path], check=True, env=CHILD)
    assert rows(path, "SELECT prompt FROM history") == [("held back",)]


def test_sqlite_errors_have_the_types_of_the_error_tree(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full database raises StorageFull, whichever SQLite error reports it."""
    storage = HistoryStorage(path)

    def full(rows: object, database: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(history, "insert", full)
        storage.add("x")
        with pytest.raises(StorageFull):
            storage.flush()
    storage.close()


def test_a_history_that_is_deleted_while_in_use_is_made_again(path: str) -> None:
    """The next prompt creates a new file."""
    with HistoryStorage(path) as storage:
        storage.add("gone")
        storage.flush()
        os.unlink(path)
        storage.add("here")
        assert prompts(storage.get_recent()) == ["here"]


def test_a_database_that_is_not_the_familys_is_refused_and_left_alone(path: str) -> None:
    """A valid database with another table named `history` is not treated as damaged."""
    sql(path, "CREATE TABLE history (url TEXT); INSERT INTO history VALUES ('x')")
    with pytest.raises(StorageFailure, match="created_at"):
        HistoryStorage(path)
    assert os.listdir(os.path.dirname(path)) == ["history.db"]
    assert rows(path, "SELECT name FROM sqlite_schema") == [("history",)]


def test_a_column_that_only_others_can_fill_is_a_failure_and_no_damage(path: str) -> None:
    """A valid database that rejects our rows is not set aside; the prompts stay in the queue."""
    sql(path, OMP.replace("DEFAULT 1", ""))
    storage = HistoryStorage(path)
    storage.add("x")
    with pytest.raises(StorageFailure, match="use_count"):
        storage.flush()
    assert storage.findings == ()
    sql(path, "ALTER TABLE history RENAME COLUMN use_count TO unused; ALTER TABLE history DROP COLUMN unused")
    storage.close()
    assert storage.get_recent(1)[0].prompt == "x"


# Damage


def broken(path: str) -> list[str]:
    folder, name = os.path.split(path)
    return sorted(other for other in os.listdir(folder) if other.startswith(f"{name}.broken-"))


@pytest.mark.parametrize("garbage", [b"not a database, but long enough to look at" * 100, b"x", bytes(8192)])
def test_a_file_that_is_no_database_is_set_aside(path: str, garbage: bytes) -> None:
    """The file is renamed, the findings name its new path, and a working database replaces it."""
    Path(path).write_bytes(garbage)
    with HistoryStorage(path, clock=lambda: 77.0) as storage:
        assert broken(path) == ["history.db.broken-77"]
        assert Path(f"{path}.broken-77").read_bytes() == garbage
        assert f"{path}.broken-77" in storage.findings[0]
        storage.add("works")
        assert prompts(storage.search("work")) == ["works"]
    with HistoryStorage(path) as storage:
        assert storage.findings == ()


def test_a_second_damage_in_the_same_second_gets_its_own_name(path: str) -> None:
    """A file that was set aside is never overwritten."""
    for garbage in (b"first damage", b"second damage"):
        Path(path).write_bytes(garbage)
        HistoryStorage(path, clock=lambda: 77.0).close()
    assert [Path(os.path.dirname(path), name).read_bytes() for name in broken(path)] == [
        b"first damage",
        b"second damage",
    ]


def test_a_truncated_database_gives_back_the_rows_before_the_cut(path: str) -> None:
    """Readable rows are recovered with ids, times and folders."""
    filled(path, 2000)
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[: len(whole) // 3])
    with HistoryStorage(path) as storage:
        entries = storage.get_recent(1000)
        assert entries
        assert f"{len(rows(path, 'SELECT id FROM history'))} prompts" in storage.findings[0]
        for entry in entries:
            assert entry == HistoryEntry(
                entry.id, f"prompt number {entry.id - 1:04d} about something", moment(99 + entry.id), "/work"
            )
        assert prompts(storage.search(entries[0].prompt)) == [entries[0].prompt]
    assert Path(os.path.dirname(path), broken(path)[0]).read_bytes() == whole[: len(whole) // 3]


def test_a_bad_page_costs_only_its_own_rows(path: str) -> None:
    """Rows before and after a bad page of the table are recovered."""
    filled(path, 2000)
    data = bytearray(Path(path).read_bytes())
    page = data.index(b"prompt number 1000") // 4096 * 4096
    data[page : page + 4096] = b"\xff" * 4096
    Path(path).write_bytes(data)
    with HistoryStorage(path) as storage:
        assert storage.search("0000")
        assert storage.search("1999")
    assert len(rows(path, "SELECT id FROM history")) > 1800


def test_a_damaged_index_costs_no_prompt(path: str) -> None:
    """If only the full-text index is damaged, every prompt is recovered and found by prefix."""
    filled(path, 300)
    sql(path, "UPDATE history_fts_data SET block = X'DEADBEEF'")
    with HistoryStorage(path) as storage:
        assert len(storage.search("promp abou", 1000)) == 300
        storage.add("works")
        assert prompts(storage.search("works")) == ["works"]
        assert len(storage.get_recent(1000)) == 301


def test_damage_that_comes_while_in_use_is_survived(path: str) -> None:
    """Reading and writing continue if the file is damaged while the history is open."""
    filled(path, 10)
    with HistoryStorage(path) as storage:
        Path(path).write_bytes(b"garbage" * 1000)
        storage.add("after the first")
        storage.flush()
        Path(path).write_bytes(b"rubbish" * 1000)
        assert storage.get_recent() == []
        assert len(storage.findings) == len(broken(path)) == 2


@pytest.mark.parametrize("repeat", [1, 2000])
def test_side_files_are_set_aside_with_the_database(path: str, repeat: int) -> None:
    """The log of a damaged database is renamed with it, so that SQLite finds it."""
    Path(path).write_bytes(b"garbage" * repeat)
    Path(f"{path}-wal").write_bytes(b"log")
    Path(f"{path}-shm").write_bytes(b"map")
    HistoryStorage(path, clock=lambda: 77.0).close()
    assert broken(path) == ["history.db.broken-77", "history.db.broken-77-shm", "history.db.broken-77-wal"]
    assert Path(f"{path}.broken-77-wal").read_bytes() == b"log"


@pytest.mark.parametrize("rest", [None, b""])
def test_a_log_without_its_database_is_not_read_into_a_new_one(path: str, rest: bytes | None) -> None:
    """A log without its database is set aside: SQLite would delete it or apply it to the new database."""
    HistoryStorage(path).close()
    with closing(sqlite3.connect(path)) as live:
        live.execute("INSERT INTO history(prompt, created_at) VALUES ('in the log', 1)")
        live.commit()
        log = Path(f"{path}-wal").read_bytes()
    os.unlink(path)
    Path(f"{path}-wal").write_bytes(log)
    if rest is not None:
        Path(path).write_bytes(rest)
    with HistoryStorage(path, clock=lambda: 77.0) as storage:
        assert storage.get_recent() == []
        assert storage.findings
    assert Path(f"{path}.broken-77-wal").read_bytes() == log


def test_an_empty_file_becomes_a_history(path: str) -> None:
    """An empty file is not damaged."""
    Path(path).touch()
    with HistoryStorage(path) as storage:
        storage.add("x")
        assert storage.findings == ()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_hundred_flipped_bytes_never_stop_the_history(path: str) -> None:
    """With any byte flipped, opening, searching and adding work, and no invented prompt appears."""
    filled(path, 50)
    whole = Path(path).read_bytes()
    for place in range(0, len(whole), len(whole) // 100):
        data = bytearray(whole)
        data[place] ^= 0xFF
        Path(path).write_bytes(data)
        with HistoryStorage(path) as storage:
            storage.search("prompt")
            storage.add("new")
            assert "new" in prompts(storage.search("new", 1000))


# Files


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    """The database and its side files are 0600, and a new folder is 0700."""
    path = str(tmp_path / "new" / "history.db")
    previous = os.umask(umask)
    try:
        with HistoryStorage(path) as storage, closing(sqlite3.connect(path)) as live:
            storage.add("x")
            storage.flush()
            live.execute("SELECT * FROM history").fetchall()
            modes = {
                name: stat.S_IMODE(os.stat(tmp_path / "new" / name).st_mode) for name in os.listdir(tmp_path / "new")
            }
            assert modes == {"history.db": 0o600, "history.db-wal": 0o600, "history.db-shm": 0o600}
    finally:
        os.umask(previous)
    assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == 0o700


def test_a_file_that_others_may_read_is_made_private(path: str) -> None:
    """A database that is readable by others gets private permissions."""
    sql(path, XCSH)
    os.chmod(path, 0o644)
    HistoryStorage(path).close()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_symbolic_links_and_devices_are_refused(path: str, suffix: str, readonly: bool) -> None:
    """The database and its log must be regular files, and the target of a link is not touched."""
    filled(path)
    target = f"{path}.target"
    os.rename(path, target) if not suffix else Path(target).touch()
    os.symlink(target, path + suffix)
    before = Path(target).read_bytes()
    with pytest.raises(UnsafePath):
        HistoryStorage(path, readonly=readonly)
    assert Path(target).read_bytes() == before
    os.unlink(path + suffix)
    os.mkfifo(path + suffix)
    with pytest.raises(UnsafePath):
        HistoryStorage(path, readonly=readonly)


def test_a_folder_that_cannot_be_made_is_a_typed_error(path: str) -> None:
    """An invalid path raises on opening, and the error has the path."""
    Path(path).touch()
    with pytest.raises(StorageFailure) as caught:
        HistoryStorage(f"{path}/below/history.db")
    assert caught.value.path == f"{path}/below/history.db"


def test_names_with_special_characters_are_plain_names(tmp_path: Path) -> None:
    """Characters with a meaning in a URI are plain characters in a path."""
    path = str(tmp_path / "a?mode=ro#b%20c é.db")
    with HistoryStorage(path) as storage:
        storage.add("x")
    assert os.listdir(tmp_path) == [os.path.basename(path)]


# Read-only


def test_reading_only_changes_no_file(path: str) -> None:
    """Reading an unused database leaves no side files and changes no byte."""
    filled(path)
    before = snapshot(os.path.dirname(path))
    with HistoryStorage(path, readonly=True) as storage:
        assert len(storage.get_recent()) == len(storage.search("prompt")) == 3
        with pytest.raises(ReadOnly):
            storage.add("x")
    assert snapshot(os.path.dirname(path)) == before


def test_reading_only_sees_what_a_live_writer_has_in_its_log(path: str) -> None:
    """Prompts that are only in the write-ahead log are returned, and nothing is changed."""
    filled(path)
    program = (
        "import sqlite3, sys\n"
        "database = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "database.execute(\"INSERT INTO history(prompt, created_at) VALUES ('in the log', 999)\")\n"
        "print(flush=True); sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program, path], env=CHILD, **pipes) as live:  # type: ignore[call-overload]
        live.stdout.readline()
        before = snapshot(os.path.dirname(path))
        assert len(before) == 3
        storage = HistoryStorage(path, readonly=True)
        assert storage.get_recent(1)[0].prompt == "in the log"
        assert snapshot(os.path.dirname(path)) == before
    assert storage.get_recent(1)[0].prompt == "in the log"


def test_reading_only_follows_a_busy_writer(path: str) -> None:
    """A reader without locks never sees a partial change while another process opens, writes and closes."""
    filled(path)
    program = (
        "import sys; from sessile.storage.history import HistoryStorage\n"
        "for number in range(100):\n"
        "    with HistoryStorage(sys.argv[1]) as storage: storage.add(f'new {number}')\n"
    )
    reader = HistoryStorage(path, readonly=True)
    with subprocess.Popen([sys.executable, "-c", program, path], env=CHILD) as writer:
        while writer.poll() is None:
            numbers = [int(prompt[4:]) for prompt in prompts(reader.search("new", 1000))]
            assert numbers == list(range(len(numbers)))[::-1]
    assert writer.returncode == 0
    assert len(reader.search("new", 1000)) == 100


def test_reading_only_of_a_missing_file_is_empty_and_makes_nothing(tmp_path: Path) -> None:
    """Neither the file nor its folder is created; a file created later is read."""
    path = str(tmp_path / "none" / "history.db")
    storage = HistoryStorage(path, readonly=True)
    assert storage.get_recent() == storage.search("x") == []
    storage.close()
    assert os.listdir(tmp_path) == []
    filled(path)
    assert len(storage.get_recent()) == 3


def test_reading_only_of_a_damaged_file_says_so_and_leaves_it(path: str) -> None:
    """A reader reports the damage and does not set the file aside."""
    Path(path).write_bytes(b"garbage" * 1000)
    before = snapshot(os.path.dirname(path))
    with pytest.raises(Damaged) as caught:
        HistoryStorage(path, readonly=True)
    assert caught.value.path == path
    assert snapshot(os.path.dirname(path)) == before
