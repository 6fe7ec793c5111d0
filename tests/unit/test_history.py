"""Prompt recall: capture, search, sharing with the family, damage, failing disks, and files that are not ours."""

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
    """Do not wait five seconds for a lock, nor long between attempts."""
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
    """An entry has the time of its capture in whole seconds and the folder it was typed in."""
    with HistoryStorage(path, clock=iter([10.9, 20.2]).__next__) as storage:
        storage.add("first", "/a")
        storage.add("second")
        assert storage.get_recent() == [
            HistoryEntry(2, "second", moment(20), None),
            HistoryEntry(1, "first", moment(10), "/a"),
        ]


def test_prompts_of_one_second_are_ordered_by_id(path: str) -> None:
    """The later of two prompts of the same second comes first."""
    with HistoryStorage(path, clock=lambda: 5.0) as storage:
        for prompt in "abc":
            storage.add(prompt)
        assert prompts(storage.get_recent()) == ["c", "b", "a"]


def test_blank_prompts_are_ignored_and_others_are_stripped(path: str) -> None:
    """White space around a prompt is not part of it, and alone it is none."""
    with HistoryStorage(path) as storage:
        for prompt in ("", " \n\t", "  keep \n this  "):
            storage.add(prompt)
        assert prompts(storage.get_recent()) == ["keep \n this"]


def test_only_consecutive_duplicates_are_dropped(path: str) -> None:
    """A, A, B, A gives three rows."""
    with HistoryStorage(path) as storage:
        for prompt in ("A", " A ", "B", "A"):
            storage.add(prompt)
        assert prompts(storage.get_recent()) == ["A", "B", "A"]


def test_the_last_prompt_is_remembered_across_a_restart(path: str) -> None:
    """Repeating after a restart what was typed last before it adds nothing."""
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
    """The thread writes by itself, and ends when nothing is left."""
    storage = HistoryStorage(path)
    storage.add("one")
    eventually(lambda: rows(path, "SELECT prompt FROM history") == [("one",)])
    eventually(lambda: all(thread.name != "sessile-history" for thread in threading.enumerate()))
    storage.add("two")
    eventually(lambda: len(rows(path, "SELECT prompt FROM history")) == 2)
    storage.close()


def test_add_does_not_wait_for_a_locked_database(path: str) -> None:
    """While another process keeps the lock, capture stays immediate and nothing is lost."""
    storage = HistoryStorage(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        for number in range(100):
            storage.add(f"prompt {number}")
        assert time.monotonic() - began < 4  # SQLite waits for 5
        other.execute("ROLLBACK")
    storage.close()
    assert len(storage.get_recent()) == 100


def test_a_normal_exit_without_close_loses_nothing(path: str) -> None:
    """Prompts that are queued when the interpreter ends are written first."""
    program = (
        "import sys; from sessile.storage.history import HistoryStorage\n"
        "storage = HistoryStorage(sys.argv[1])\n"
        "for number in range(500): storage.add(f'prompt {number}')\n"
    )
    subprocess.run([sys.executable, "-c", program, path], check=True, env=CHILD)
    assert rows(path, "SELECT count(*) FROM history") == [(500,)]


def test_threads_may_share_one_storage(path: str) -> None:
    """Every prompt of every thread arrives once."""
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
    """Processes that create, write and read the same file at the same time all get through, and no prompt is lost."""
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
    """Words match by prefix, in any order, accents folded; and everywhere in the text, with no wildcards."""
    assert prompts(storage.search(query)) == [found]


@pytest.mark.parametrize(
    "query", ["", "  ", "git nothing", "xzy", "-", "*", "NOT", "git OR", "prompt:git", "NEAR(git)"]
)
def test_search_finds_nothing_where_nothing_matches(storage: HistoryStorage, query: str) -> None:
    """Every word must match, and the operators of the query language are plain text."""
    assert storage.search(query) == []


def test_prefix_and_substring_matches_are_merged_newest_first(path: str) -> None:
    """The way a prompt was found does not change its place, and the limit cuts the merged list."""
    with HistoryStorage(path, clock=iter(range(9)).__next__) as storage:
        for prompt in ("mit one", "commit two", "mit three", "commit four"):
            storage.add(prompt)
        assert prompts(storage.search("mit", 3)) == ["commit four", "mit three", "commit two"]


@pytest.mark.parametrize(
    ("limit", "count"),
    [(2, 2), (2.9, 2), (0, 0), (-5, 0), (float("nan"), 0), (float("inf"), 0), (-float("inf"), 0), (1e300, 1000)],
)
def test_limits_are_floored_and_clamped(path: str, limit: float, count: int) -> None:
    """No limit gives more than a thousand entries or an error."""
    with HistoryStorage(path) as storage:
        for number in range(1001):
            storage.add(f"prompt {number}")
        assert len(storage.get_recent(limit)) == len(storage.search("prompt", limit)) == count


def test_very_long_queries_are_answered(storage: HistoryStorage) -> None:
    """Neither thousands of words nor a word of a hundred thousand letters meets a limit of SQLite."""
    assert storage.search(" ".join(map(str, range(5000)))) == []
    assert storage.search("x" * 100_000) == []


def test_a_prompt_with_bad_bytes_is_shown(path: str) -> None:
    """Text that another program stored as bad UTF-8 does not hide the rest."""
    with HistoryStorage(path) as storage:
        storage.add("good")
        sql(path, "INSERT INTO history(prompt, created_at) VALUES (CAST(X'62FF64' AS TEXT), 1)")
        assert prompts(storage.get_recent()) == ["good", "b\ufffdd"]


# Sharing with the family


def test_a_new_file_has_the_documented_tables(path: str) -> None:
    """Table, index, full-text table and the three triggers; the write-ahead log is on."""
    HistoryStorage(path).close()
    columns = [row[1:4] for row in rows(path, "PRAGMA table_info(history)")]
    assert columns == [("id", "INTEGER", 0), ("prompt", "TEXT", 1), ("created_at", "INTEGER", 1), ("cwd", "TEXT", 0)]
    triggers = rows(path, "SELECT name FROM sqlite_schema WHERE type = 'trigger' ORDER BY name")
    assert triggers == [("history_ad",), ("history_ai",), ("history_au",)]
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]


def test_a_database_of_xcsh_gains_the_missing_triggers_and_a_true_index(path: str) -> None:
    """Rows that were changed and deleted without a trigger are found as they are now, and changes are followed."""
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
    """A database from before full-text search becomes searchable with all its rows."""
    sql(path, XCSH.split("CREATE INDEX")[0] + "INSERT INTO history(prompt) VALUES ('Crème brûlée');")
    assert HistoryStorage(path, readonly=True).search("rème")
    with HistoryStorage(path) as storage:
        assert prompts(storage.search("creme brulee")) == ["Crème brûlée"]


def test_columns_of_others_survive_and_a_unique_prompt_moves_to_the_top(path: str) -> None:
    """Where the prompt is unique, a repeated one gets the new time and folder and keeps what others know of it."""
    sql(path, OMP)
    with HistoryStorage(path, clock=lambda: 9.0) as storage:
        storage.add("new")
        storage.add("old", "/b")
        storage.add("third")
        assert prompts(storage.get_recent()) == ["third", "old", "new"]
        assert prompts(storage.search("ol")) == ["old"]
    assert rows(path, "SELECT * FROM history ORDER BY id")[0] == (1, "old", 9, "/b", "s1", 7)


def test_opening_a_complete_database_changes_nothing(path: str) -> None:
    """Opening and reading leave the file byte for byte as it was, even for a writer."""
    filled(path)
    before = snapshot(os.path.dirname(path))
    with HistoryStorage(path) as storage:
        assert storage.search("prompt")
    assert snapshot(os.path.dirname(path)) == before


# Failing storage


def test_a_failed_write_is_told_kept_and_tried_again(path: str, impatient: None) -> None:
    """Flush raises the typed error with the path; the prompts are written as soon as it is possible."""
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
    """Reading merges what is in the file with what waits in the queue."""
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
    """When no file may grow, flush raises; when it may again, every prompt arrives."""
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
    """A full database is StorageFull, whatever raised it."""
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
    """The next prompt finds a new file."""
    with HistoryStorage(path) as storage:
        storage.add("gone")
        storage.flush()
        os.unlink(path)
        storage.add("here")
        assert prompts(storage.get_recent()) == ["here"]


def test_a_database_that_is_not_the_familys_is_refused_and_left_alone(path: str) -> None:
    """A sound database in which `history` means something else is no damage."""
    sql(path, "CREATE TABLE history (url TEXT); INSERT INTO history VALUES ('x')")
    with pytest.raises(StorageFailure, match="created_at"):
        HistoryStorage(path)
    assert os.listdir(os.path.dirname(path)) == ["history.db"]
    assert rows(path, "SELECT name FROM sqlite_schema") == [("history",)]


def test_a_column_that_only_others_can_fill_is_a_failure_and_no_damage(path: str) -> None:
    """A sound database that refuses our rows is not set aside; the prompts wait until it takes them."""
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
    """Its bytes are kept under a name that the findings tell, and a working database takes its place."""
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
    """Nothing that was set aside is ever overwritten."""
    for garbage in (b"first damage", b"second damage"):
        Path(path).write_bytes(garbage)
        HistoryStorage(path, clock=lambda: 77.0).close()
    assert [Path(os.path.dirname(path), name).read_bytes() for name in broken(path)] == [
        b"first damage",
        b"second damage",
    ]


def test_a_truncated_database_gives_back_the_rows_before_the_cut(path: str) -> None:
    """What can still be read is carried over, with ids, times and folders."""
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
    """Rows on both sides of a bad page of the table are carried over."""
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
    """When only the full-text index is bad, every prompt is carried over and found by prefix."""
    filled(path, 300)
    sql(path, "UPDATE history_fts_data SET block = X'DEADBEEF'")
    with HistoryStorage(path) as storage:
        assert len(storage.search("promp abou", 1000)) == 300
        storage.add("works")
        assert prompts(storage.search("works")) == ["works"]
        assert len(storage.get_recent(1000)) == 301


def test_damage_that_comes_while_in_use_is_survived(path: str) -> None:
    """Neither reading nor writing stops because the file went bad under an open history."""
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
    """The log of a damaged database goes with it, under a name by which SQLite finds it."""
    Path(path).write_bytes(b"garbage" * repeat)
    Path(f"{path}-wal").write_bytes(b"log")
    Path(f"{path}-shm").write_bytes(b"map")
    HistoryStorage(path, clock=lambda: 77.0).close()
    assert broken(path) == ["history.db.broken-77", "history.db.broken-77-shm", "history.db.broken-77-wal"]
    assert Path(f"{path}.broken-77-wal").read_bytes() == b"log"


@pytest.mark.parametrize("rest", [None, b""])
def test_a_log_without_its_database_is_not_read_into_a_new_one(path: str, rest: bytes | None) -> None:
    """SQLite would delete the log, or play it into a database that it does not belong to; it is set aside instead."""
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
    """An empty file is no damage."""
    Path(path).touch()
    with HistoryStorage(path) as storage:
        storage.add("x")
        assert storage.findings == ()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_hundred_flipped_bytes_never_stop_the_history(path: str) -> None:
    """Wherever one byte goes bad, opening, searching and adding work, and no prompt appears that was not typed."""
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
    """The database and its side files are 0600, a folder made for it is 0700."""
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
    """A database of the family that is readable by everybody is closed to them."""
    sql(path, XCSH)
    os.chmod(path, 0o644)
    HistoryStorage(path).close()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_symbolic_links_and_devices_are_refused(path: str, suffix: str, readonly: bool) -> None:
    """Neither the database nor its log may be anything but a plain file, and what a link names is not touched."""
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
    """Trouble with the path is raised on opening, with the path."""
    Path(path).touch()
    with pytest.raises(StorageFailure) as caught:
        HistoryStorage(f"{path}/below/history.db")
    assert caught.value.path == f"{path}/below/history.db"


def test_names_with_special_characters_are_plain_names(tmp_path: Path) -> None:
    """Characters that mean something in an address mean nothing in a path."""
    path = str(tmp_path / "a?mode=ro#b%20c é.db")
    with HistoryStorage(path) as storage:
        storage.add("x")
    assert os.listdir(tmp_path) == [os.path.basename(path)]


# Reading only


def test_reading_only_changes_no_file(path: str) -> None:
    """A reader of a database that nobody uses leaves no side files and not a changed byte."""
    filled(path)
    before = snapshot(os.path.dirname(path))
    with HistoryStorage(path, readonly=True) as storage:
        assert len(storage.get_recent()) == len(storage.search("prompt")) == 3
        with pytest.raises(ReadOnly):
            storage.add("x")
    assert snapshot(os.path.dirname(path)) == before


def test_reading_only_sees_what_a_live_writer_has_in_its_log(path: str) -> None:
    """Prompts that are only in the write-ahead log are shown, and nothing is changed."""
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
    """A reader that takes no locks never sees half of a change while another process opens, writes and closes."""
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
    """Neither the file nor its folder comes into being; when it does, the reader sees it."""
    path = str(tmp_path / "none" / "history.db")
    storage = HistoryStorage(path, readonly=True)
    assert storage.get_recent() == storage.search("x") == []
    storage.close()
    assert os.listdir(tmp_path) == []
    filled(path)
    assert len(storage.get_recent()) == 3


def test_reading_only_of_a_damaged_file_says_so_and_leaves_it(path: str) -> None:
    """Setting aside is for those who may write."""
    Path(path).write_bytes(b"garbage" * 1000)
    before = snapshot(os.path.dirname(path))
    with pytest.raises(Damaged) as caught:
        HistoryStorage(path, readonly=True)
    assert caught.value.path == path
    assert snapshot(os.path.dirname(path)) == before
