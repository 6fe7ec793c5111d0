"""Concurrent calls: exactly one succeeds where only one can, and nothing is lost or left over, in both transaction modes."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from postgres.at_once import run_at_once
from sessile.storage import atomic
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.names import MAKE_FOLDER, PostgresFilesystem, placed
from sessile.storage.postgres.schema import migrate
from sessile.testing.filesystem_contract import error, get, opened, put

pytestmark = pytest.mark.mission("B8")

ROOT = "/sessile:postgresql"
_EXCLUSIVE = os.O_CREAT | os.O_EXCL | os.O_RDWR
_STRICT = "&options=-c%20default_transaction_isolation%3Dserializable"


@pytest.fixture(params=["", _STRICT], ids=["read-committed", "serializable"])
def url(request: pytest.FixtureRequest, postgres_url: str) -> str:
    """The address of a database, in the mode of PostgreSQL and in that of CockroachDB."""
    return postgres_url + str(request.param)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """An empty database with all tables."""
    made = Database(url, durability="process", patience=60)
    migrate(made)
    yield made
    made.close()


@pytest.fixture
def files(database: Database, leases: Leases) -> PostgresFilesystem:
    """The files of the database."""
    return PostgresFilesystem(database, leases)


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Run calls in threads that start together. Return their results or negative errno values."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return call()
        except OSError as failure:
            assert failure.errno is not None, failure
            return -failure.errno

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def assert_whole(database: Database) -> None:
    """Check that every name has its folder and file, and that link counts are correct."""
    homeless = """
        SELECT folder, base FROM name WHERE folder <> '' AND folder <> '/' AND NOT EXISTS (
            SELECT 1 FROM name AS above WHERE above.file IS NULL AND above.base <> ''
            AND CASE WHEN above.folder = '/' THEN '/'::bytea ELSE above.folder || '/' END || above.base = name.folder)"""
    assert database.query(homeless) == []
    counted = "SELECT id FROM file WHERE links <> (SELECT count(*) FROM name WHERE name.file = file.id)"
    assert database.query(counted) == []
    assert (
        database.query("SELECT base FROM name LEFT JOIN file ON id = file WHERE file IS NOT NULL AND id IS NULL") == []
    )
    assert database.query("SELECT id FROM file WHERE (links = 0) <> (unnamed IS NOT NULL)") == []


def test_of_eight_threads_one_makes_a_name(files: PostgresFilesystem, database: Database) -> None:
    """For files, folders and links, one thread succeeds, the others get EEXIST, and no unnamed file is left."""
    put(files, f"{ROOT}/source", b"")
    for number in range(10):
        name = f"{ROOT}/{number}"
        for make in (
            lambda: files.open(f"{name}.file", _EXCLUSIVE),  # noqa: B023
            lambda: files.mkdir(f"{name}.folder"),  # noqa: B023
            lambda: files.link(f"{ROOT}/source", f"{name}.link"),  # noqa: B023
        ):
            answers = at_once(*[make] * 8)
            assert answers.count(-errno.EEXIST) == 7, answers
    assert files.lstat(f"{ROOT}/source").st_nlink == 11
    assert_whole(database)


def test_of_eight_threads_all_open_the_same_new_file(files: PostgresFilesystem, database: Database) -> None:
    """Without O_EXCL all threads open the same file."""
    for number in range(10):
        fds = at_once(*[lambda: files.open(f"{ROOT}/{number}", os.O_CREAT | os.O_RDWR)] * 8)  # noqa: B023
        assert len({files.fstat(int(str(fd))).st_ino for fd in fds}) == 1
    assert_whole(database)


def test_of_four_processes_one_makes_each_name(files: PostgresFilesystem, database: Database, url: str) -> None:
    """Each of forty names is created by one process, with its content."""
    script = """
import os
from sessile.storage import atomic
database = Database(url)
files = PostgresFilesystem(database, Leases(database))
database.query("SELECT 1")
gate()
for number in range(40):
    try:
        atomic.write_new(files, f"/sessile:postgresql/{number}", [str(os.getpid()).encode()])
        print(number)
    except FileExistsError:
        pass
"""
    made = [int(number) for printed in run_at_once(script, url) for number in printed.split()]
    assert sorted(made) == list(range(40))
    assert all(get(files, f"{ROOT}/{number}") for number in range(40))
    assert_whole(database)


def test_replacing_at_once_leaves_one_whole_file(files: PostgresFilesystem, database: Database) -> None:
    """While six threads replace a file, readers always see one whole version, and nothing is left over."""
    path = f"{ROOT}/a"
    atomic.replace(files, path, [b"0" * 3000])

    def write(letter: bytes) -> None:
        for _ in range(6):
            atomic.replace(files, path, [letter * 1000, letter * 2000])

    def read() -> None:
        for _ in range(30):
            content = atomic.read_all(files, path)
            assert len(content) == 3000 and len(set(content)) == 1

    writers = [lambda letter=letter: write(letter.encode()) for letter in "abcdef"]
    assert at_once(*writers, read, read) == [None] * 8
    assert files.names(ROOT) == ["a"]
    assert files.lstat(path).st_nlink == 1
    assert_whole(database)


def test_a_name_made_in_a_folder_that_goes_is_refused_or_kept(files: PostgresFilesystem, database: Database) -> None:
    """Either creating the file or removing its folder succeeds, and no name is left without a folder."""
    for number in range(25):
        folder = f"{ROOT}/{number}"
        files.mkdir(folder)
        made, removed = at_once(
            lambda: files.close(files.open(f"{folder}/a", _EXCLUSIVE)),  # noqa: B023
            lambda: files.rmdir(folder),  # noqa: B023
        )
        assert (made, removed) in ((None, -errno.ENOTEMPTY), (-errno.ENOENT, None))
    assert_whole(database)


def while_being_made(database: Database, path: str, call: Callable[[], object]) -> object:
    """Run a call while a folder is created but not committed, and check that it waits. Return its result."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as cursor:
            cursor.execute(MAKE_FOLDER, placed(path))
            assert cursor.fetchone() is not None
            answer = pool.submit(at_once, call)
            until = time.monotonic() + 10
            while not database.query(waiting, ("%name%",)):
                assert time.monotonic() < until, "it did not wait"
        return answer.result()[0]


def test_a_folder_in_which_a_name_is_just_made_is_not_removed(files: PostgresFilesystem, database: Database) -> None:
    """Removing the folder waits for the other transaction and then sees the new name."""
    files.mkdir(f"{ROOT}/d")
    assert while_being_made(database, f"{ROOT}/d/new", lambda: files.rmdir(f"{ROOT}/d")) == -errno.ENOTEMPTY
    assert files.names(f"{ROOT}/d") == ["new"]
    assert_whole(database)


def test_a_name_that_is_just_made_moves_with_its_folder(files: PostgresFilesystem, database: Database) -> None:
    """Moving the folder waits for the other transaction and takes the new name along."""
    for folder in ("d", "d/e", "d/e/f"):
        files.mkdir(f"{ROOT}/{folder}")
    moved = while_being_made(database, f"{ROOT}/d/e/f/new", lambda: files.rename(f"{ROOT}/d", f"{ROOT}/m"))
    assert moved is None
    assert files.names(f"{ROOT}/m/e/f") == ["new"] and files.names(ROOT) == ["m"]
    assert_whole(database)


def test_names_made_in_a_folder_that_moves_are_moved_or_refused(files: PostgresFilesystem, database: Database) -> None:
    """Every file and folder created by four threads in a tree that is moved back and forth is found."""
    files.mkdir(f"{ROOT}/here")
    done = threading.Event()
    made: list[str] = []

    def build(mark: str) -> None:
        number = 0
        while not done.is_set():
            number += 1
            folder = f"{mark}{number}"
            for top in ("here", "there"):
                if error(files.mkdir, f"{ROOT}/{top}/{folder}") is None:
                    made.append(folder)
                    if error(put, files, f"{ROOT}/{top}/{folder}/file", b"x") is None:
                        made.append(f"{folder}/file")
            time.sleep(0.005)

    def move() -> None:
        try:
            for _ in range(8):
                files.rename(f"{ROOT}/here", f"{ROOT}/there")
                files.rename(f"{ROOT}/there", f"{ROOT}/here")
        finally:
            done.set()

    answers = at_once(move, *[lambda mark=mark: build(mark) for mark in "abcd"])
    assert answers == [None] * 5
    assert files.names(ROOT) == ["here"]
    assert len(made) > 5
    for name in made:
        files.lstat(f"{ROOT}/here/{name}")
    assert_whole(database)


def test_two_folders_that_move_into_each_other_stay_reachable(files: PostgresFilesystem, database: Database) -> None:
    """One of the two moves is refused, so both folders stay reachable from the root."""
    for number in range(8):
        a, b = f"{ROOT}/a{number}", f"{ROOT}/b{number}"
        for folder in (a, b, f"{a}/deep", f"{b}/deep"):
            files.mkdir(folder)
        answers = at_once(
            lambda: files.rename(a, f"{b}/deep/x"),  # noqa: B023
            lambda: files.rename(b, f"{a}/deep/x"),  # noqa: B023
        )
        assert sorted(map(str, answers)) == sorted([str(None), str(-errno.ENOENT)])
    assert_whole(database)


def test_links_are_counted_while_names_come_and_go(files: PostgresFilesystem, database: Database) -> None:
    """While threads link, rename and unlink the names of a few files, the link counts stay correct."""
    for name in "abcd":
        put(files, f"{ROOT}/{name}", name.encode())

    def churn(start: int) -> None:
        for number in range(start, start + 12):
            one, other = "abcd"[number % 4], "abcd"[(number // 2 + start) % 4]
            error(files.link, f"{ROOT}/{one}", f"{ROOT}/{other}{start % 3}")
            error(files.rename, f"{ROOT}/{other}{start % 3}", f"{ROOT}/{one}{number % 3}")
            error(files.unlink, f"{ROOT}/{other}{number % 2}")

    assert at_once(*[lambda start=start: churn(start) for start in range(5)]) == [None] * 5
    assert set("abcd") <= set(files.names(ROOT))
    assert_whole(database)


def test_writes_of_many_processes_are_all_there(files: PostgresFilesystem, url: str) -> None:
    """Four processes append a hundred lines each to one file; no line is lost or torn."""
    script = """
import os
database = Database(url, durability="process")
files = PostgresFilesystem(database, Leases(database))
fd = files.open("/sessile:postgresql/log", os.O_CREAT | os.O_RDWR | os.O_APPEND)
gate()
for number in range(100):
    files.write(fd, f"{os.getpid()} {number} {'x' * 3000}\\n".encode())
files.close(fd)
"""
    run_at_once(script, url)
    lines = atomic.read_all(files, f"{ROOT}/log").splitlines()
    assert len(lines) == len(set(lines)) == 400
    assert all(line.endswith(b" " + b"x" * 3000) for line in lines)


def test_a_lock_is_held_against_other_processes(files: PostgresFilesystem, url: str) -> None:
    """A counter that four processes read and rewrite under its file's lock loses no increment."""
    put(files, f"{ROOT}/counter", b"0")
    script = """
import os
from sessile.storage.locks import acquire
database = Database(url, durability="process")
leases = Leases(database)
files = PostgresFilesystem(database, leases)
gate()
for _ in range(10):
    fd = files.open("/sessile:postgresql/counter", os.O_RDWR)
    acquire(files, fd, "counter", 60)
    value = int(files.read(fd, 99, 0))
    files.write(fd, str(value + 1).encode())
    files.close(fd)
leases.close()
"""
    run_at_once(script, url)
    assert get(files, f"{ROOT}/counter") == b"40"
    with opened(files, f"{ROOT}/counter", os.O_RDONLY) as fd:
        assert files.lock_holder(fd) is None
        assert files.lock(fd)
        assert files.lock_holder(fd) == os.getpid()
