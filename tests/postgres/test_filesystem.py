"""The file system in a database keeps the numbered behaviours of all file systems, and behaves like the one in memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.leases import Leases
from sessile.storage.postgres.names import PIECE, PostgresFilesystem, sweep
from sessile.storage.postgres.schema import migrate
from sessile.testing.filesystem_contract import FilesystemContract, error, get, opened, put

pytestmark = pytest.mark.mission("B8")

ROOT = "/sessile:postgresql"
_APPEND = os.O_CREAT | os.O_RDWR | os.O_APPEND


@pytest.fixture
def files(database: Database, leases: Leases) -> PostgresFilesystem:
    """The files of an empty database."""
    return PostgresFilesystem(database, leases)


class TestPostgresFilesystem(FilesystemContract):
    """The files of a store in a database."""

    @pytest.fixture
    def filesystem(self, files: PostgresFilesystem) -> Filesystem:
        return files

    @pytest.fixture
    def root(self, filesystem: Filesystem) -> str:
        filesystem.mkdir(f"{ROOT}/root")
        return f"{ROOT}/root"


class TestSerializableFilesystem(TestPostgresFilesystem):
    """The same with serializable transactions, as in CockroachDB."""

    @pytest.fixture
    def database(self, postgres_url: str) -> Iterator[Database]:
        made = Database(postgres_url + "&options=-c%20default_transaction_isolation%3Dserializable")
        migrate(made)
        yield made
        made.close()


# Both file systems give the same results for any sequence of calls.

_NAMES = st.sampled_from(["a", "b", "ab", "a/a", "a/b", "a/a/b", "b/a", "ab/b", "a0", "a-/b", "a-"])
_STEPS = st.one_of(
    st.tuples(st.just("mkdir"), _NAMES),
    st.tuples(st.just("mkdir"), _NAMES),
    st.tuples(st.just("put"), _NAMES, st.binary(min_size=1, max_size=3)),
    st.tuples(st.just("put"), _NAMES, st.binary(min_size=1, max_size=3)),
    st.tuples(st.just("rename"), _NAMES, _NAMES),
    st.tuples(st.just("rename"), _NAMES, _NAMES),
    st.tuples(st.just("link"), _NAMES, _NAMES),
    st.tuples(st.just("unlink"), _NAMES),
    st.tuples(st.just("rmdir"), _NAMES),
    st.tuples(st.just("names"), _NAMES),
)


def do(files: Filesystem, root: str, step: tuple[object, ...]) -> object:
    """Run a step. Return its result or the number of its error."""
    name, *arguments = step
    paths = [f"{root}/{one}" if isinstance(one, str) else one for one in arguments]
    call: Callable[..., object] = getattr(files, str(name)) if name != "put" else lambda *rest: put(files, *rest)
    try:
        return call(*paths)
    except OSError as failure:
        return failure.errno


def tree(files: Filesystem, path: str) -> dict[str, object]:
    """Return everything below a folder: names, contents and link counts."""
    found: dict[str, object] = {}
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        for name in files.names(folder):
            inner = f"{folder}/{name}"
            if atomic.is_folder(files, inner):
                waiting.append(inner)
                found[inner.removeprefix(path)] = None
            else:
                found[inner.removeprefix(path)] = (get(files, inner), files.lstat(inner).st_nlink)
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(_STEPS, max_size=25))
def test_names_mean_what_they_mean_in_memory(
    files: PostgresFilesystem, database: Database, steps: list[tuple[object, ...]]
) -> None:
    """After any steps the results, errors and trees are the same, and the tables hold nothing unused."""
    database.query("DELETE FROM name WHERE folder LIKE '/sessile:postgresql%%'")
    database.query("DELETE FROM piece")
    database.query("DELETE FROM file")
    memory = MemoryFilesystem()
    memory.mkdir("/memory")
    for step in steps:
        assert do(files, ROOT, step) == do(memory, "/memory", step), step
    assert tree(files, ROOT) == tree(memory, "/memory")
    counted = "SELECT id FROM file WHERE links <> (SELECT count(*) FROM name WHERE name.file = file.id)"
    assert database.query(counted) == []
    assert database.query("SELECT id FROM file WHERE (links = 0) <> (unnamed IS NOT NULL)") == []


_PLACES = st.sampled_from([0, 1, 5, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE - 2, 3 * PIECE + 7])
_DATA = st.tuples(st.sampled_from([1, 2, 7, PIECE - 1, PIECE, PIECE + 3, 2 * PIECE + 1]), st.integers(1, 255))
_CHANGES = st.one_of(
    st.tuples(st.just("append"), _DATA),
    st.tuples(st.just("write"), _DATA),
    st.tuples(st.just("truncate"), _PLACES),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(changes=st.lists(_CHANGES, max_size=8), reads=st.lists(st.tuples(_PLACES, _PLACES), max_size=4))
def test_bytes_are_what_they_are_in_memory(
    files: PostgresFilesystem, changes: list[tuple[str, object]], reads: list[tuple[int, int]]
) -> None:
    """After any appends, writes and truncations around the ends of pieces, every read is the same."""
    memory = MemoryFilesystem()
    for place, root in ((files, ROOT), (memory, "")):
        error(place.unlink, f"{root}/a")
        put(place, f"{root}/a", b"begin")
    with (
        opened(files, f"{ROOT}/a", os.O_RDWR) as ours,
        opened(files, f"{ROOT}/a", _APPEND) as our_end,
        opened(memory, "/a", os.O_RDWR) as theirs,
        opened(memory, "/a", _APPEND) as their_end,
    ):
        for name, argument in changes:
            if isinstance(argument, tuple):
                data = bytes([argument[1]]) * argument[0]
                at_end = name == "append"
                assert files.write(our_end if at_end else ours, data) == len(data)
                memory.write(their_end if at_end else theirs, data)
            else:
                files.truncate(ours, int(str(argument)))
                memory.truncate(theirs, int(str(argument)))
            assert files.fstat(ours).st_size == memory.fstat(theirs).st_size
        for offset, size in [*reads, (0, 9 * PIECE)]:
            assert files.read(ours, size, offset) == memory.read(theirs, size, offset)


def test_a_large_write_is_taken_in_parts(files: PostgresFilesystem) -> None:
    """A statement carries at most some megabytes; writing in a loop stores everything."""
    data = os.urandom(5 << 20)
    with opened(files, f"{ROOT}/a", _APPEND) as fd:
        assert 0 < files.write(fd, data) < len(data)
    atomic.replace(files, f"{ROOT}/a", [data])
    assert atomic.read_all(files, f"{ROOT}/a") == data


# Names

_ODD = [
    "\udcff\udc80",
    "ä",
    "e\u0301",
    "é",
    " ",
    "%s",
    "a\nb",
    "'; DROP TABLE name; --",
    "\\x00",
    "*",
    "x" * 255,
    "語" * 85,
]


@pytest.mark.parametrize("name", _ODD)
def test_odd_names_are_names(files: PostgresFilesystem, name: str) -> None:
    """Names with invalid UTF-8, quotes, spaces and long names are returned unchanged, for files and folders."""
    files.mkdir(f"{ROOT}/{name}")
    put(files, f"{ROOT}/{name}/{name}", b"in it")
    files.rename(f"{ROOT}/{name}", f"{ROOT}/other")
    files.rename(f"{ROOT}/other", f"{ROOT}/{name}")
    assert files.names(ROOT) == [name]
    assert files.names(f"{ROOT}/{name}") == [name]
    assert get(files, f"{ROOT}/{name}/{name}") == b"in it"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("a\0b", errno.EINVAL),
        ("x" * 256, errno.ENAMETOOLONG),
        ("語" * 86, errno.ENAMETOOLONG),
        ("/".join(["x" * 200] * 11), errno.ENAMETOOLONG),
        ("..", errno.EINVAL),
        ("a/../b", errno.EINVAL),
        (".", errno.EINVAL),
        ("\ud800", errno.EILSEQ),
    ],
)
def test_what_is_no_name_is_refused_everywhere(files: PostgresFilesystem, path: str, code: int) -> None:
    """Invalid names are refused by every call before the database is asked."""
    put(files, f"{ROOT}/a", b"")
    bad = f"{ROOT}/{path}"
    assert error(files.open, bad, _APPEND) == code
    assert error(files.mkdir, bad) == error(files.rmdir, bad) == error(files.unlink, bad) == code
    assert error(files.lstat, bad) == error(files.names, bad) == error(files.sync_directory, bad) == code
    assert error(files.rename, f"{ROOT}/a", bad) == error(files.rename, bad, f"{ROOT}/b") == code
    assert error(files.link, f"{ROOT}/a", bad) == error(files.link, bad, f"{ROOT}/b") == code
    assert error(files.open, "relative", _APPEND) == errno.EINVAL
    assert files.names(ROOT) == ["a"]


def test_a_long_path_fits_into_the_index(files: PostgresFilesystem) -> None:
    """The longest allowed path works, even with bytes that do not compress."""
    folder = ROOT
    while len(folder) + 257 < 1990:
        folder += "/" + os.urandom(127).hex()
        files.mkdir(folder)
    name = os.urandom(127).hex()[: 1999 - len(folder)]
    put(files, f"{folder}/{name}", b"deep")
    assert get(files, f"{folder}/{name}") == b"deep"


def test_a_folder_with_many_names_moves_with_all_of_them(files: PostgresFilesystem, database: Database) -> None:
    """Moving a folder moves three thousand nested names, but not neighbours with a common prefix."""
    for folder in ("d", "d/e", "d/e/f", "d-", "d0", "dd", "d/e-"):
        files.mkdir(f"{ROOT}/{folder}")
        put(files, f"{ROOT}/{folder}/file", folder.encode())
    database.query(
        "INSERT INTO name (folder, base, file) SELECT convert_to(%s || f, 'UTF8'), convert_to('n' || n, 'UTF8'), 0 "
        "FROM generate_series(1, 1000) n, unnest(ARRAY['/d', '/d/e', '/d/e/f']) f",
        (ROOT,),
    )
    files.mkdir(f"{ROOT}/to")
    before = database.count
    files.rename(f"{ROOT}/d", f"{ROOT}/to/new")
    assert database.count - before <= 9
    assert files.names(ROOT) == ["d-", "d0", "dd", "to"]
    assert len(files.names(f"{ROOT}/to/new/e/f")) == len(files.names(f"{ROOT}/to/new")) - 2 == 1001
    assert get(files, f"{ROOT}/to/new/e/f/file") == b"d/e/f" and get(files, f"{ROOT}/to/new/e-/file") == b"d/e-"
    assert [get(files, f"{ROOT}/{name}/file") for name in ("d-", "d0", "dd")] == [b"d-", b"d0", b"dd"]
    assert error(files.lstat, f"{ROOT}/d/e") == errno.ENOENT


def test_the_root_is_there_and_stays(files: PostgresFilesystem) -> None:
    """`/` and the store's folder exist from the start; `/` cannot be moved, removed or created."""
    assert files.names("/") == [ROOT[1:]] and files.names(ROOT) == []
    assert (
        error(files.rmdir, "/")
        == error(files.rename, "/", f"{ROOT}/x")
        == error(files.rename, ROOT, "/")
        == errno.EBUSY
    )
    assert error(files.mkdir, "/") == errno.EEXIST
    assert error(files.unlink, "/") == errno.EISDIR


# Round trips


def trips(database: Database, call: Callable[[], object]) -> int:
    """Return the number of statements of a call."""
    before = database.count
    call()
    return database.count - before


def test_common_calls_are_one_round_trip(files: PostgresFilesystem, database: Database) -> None:
    """Creating, writing, reading, moving and removing take one statement each; closing and syncing take none."""
    fds: list[int] = []
    path = f"{ROOT}/a"
    assert trips(database, lambda: files.mkdir(f"{ROOT}/d")) == 1
    assert trips(database, lambda: fds.append(files.open(path, _APPEND | os.O_EXCL))) == 1
    assert trips(database, lambda: files.write(fds[0], b"x" * 60_000)) == 1
    assert trips(database, lambda: files.write(fds[0], b"y" * 500_000)) == 1
    assert trips(database, lambda: files.truncate(fds[0], 0)) == 1
    assert trips(database, lambda: files.write(fds[0], b"z" * 60_000)) == 1
    assert trips(database, lambda: files.sync(fds[0])) == trips(database, lambda: files.close(fds[0])) == 0
    assert trips(database, lambda: atomic.read_all(files, path)) == 1
    assert trips(database, lambda: get(files, path)) == 1
    assert trips(database, lambda: files.lstat(path)) == 1
    assert trips(database, lambda: atomic.exists(files, f"{ROOT}/missing")) == 1
    assert trips(database, lambda: atomic.exists(files, f"{ROOT}/missing/missing")) == 1
    assert trips(database, lambda: files.names(ROOT)) == 1
    assert trips(database, lambda: files.rename(path, f"{ROOT}/d/b")) == 1
    assert trips(database, lambda: files.link(f"{ROOT}/d/b", path)) == 1
    assert trips(database, lambda: files.unlink(path)) == 1


def test_larger_calls_are_few_round_trips(files: PostgresFilesystem, database: Database) -> None:
    """Creating or replacing a whole file, and removing a folder, take few statements."""
    assert trips(database, lambda: atomic.replace(files, f"{ROOT}/a", [b"one"])) == 8
    assert trips(database, lambda: atomic.replace(files, f"{ROOT}/a", [b"two"])) == 13
    assert get(files, f"{ROOT}/a") == b"two"
    files.mkdir(f"{ROOT}/d")
    assert trips(database, lambda: files.rmdir(f"{ROOT}/d")) == 4


def test_what_opening_brought_along_is_told_once(files: PostgresFilesystem, database: Database) -> None:
    """Data prefetched by `open` is used once; a second read asks the database and sees changes."""
    put(files, f"{ROOT}/a", b"old")
    with opened(files, f"{ROOT}/a", os.O_RDONLY) as fd:
        assert trips(database, lambda: (files.fstat(fd), files.read(fd, 9, 0), files.read(fd, 9, 3))) == 0
        put(files, f"{ROOT}/a", b"+new")
        assert files.fstat(fd).st_size == 7
        assert files.read(fd, 9, 0) == b"old+new"
        assert files.read(fd, 9, 3) == b"+new"


def test_whoever_waited_for_a_lock_sees_what_its_holder_did(files: PostgresFilesystem) -> None:
    """After waiting for a lock, data prefetched by `open` is not used, for any access mode."""
    put(files, f"{ROOT}/a", b"old")
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_APPEND):
        with opened(files, f"{ROOT}/a", flags) as waiting:
            with opened(files, f"{ROOT}/a", _APPEND) as holder:
                assert files.lock(holder) and not files.lock(waiting)
                files.write(holder, b"+")
            assert files.lock(waiting)
            assert files.fstat(waiting).st_size == len(files.read(waiting, 99, 0)) == len(get(files, f"{ROOT}/a"))


# Files without a name


def test_files_without_a_name_go_after_a_while(files: PostgresFilesystem, database: Database) -> None:
    """Removed and replaced files are kept for open descriptors, and swept later with all their pieces."""
    for name in ("kept", "removed", "replaced", "linked"):
        put(files, f"{ROOT}/{name}", b"x" * (PIECE + 1))
    files.link(f"{ROOT}/linked", f"{ROOT}/second")
    files.unlink(f"{ROOT}/removed")
    files.unlink(f"{ROOT}/linked")
    atomic.replace(files, f"{ROOT}/replaced", [b"new"])
    assert sweep(database) == 0
    assert sweep(database, older_than=0) == 2
    assert sweep(database, older_than=0) == 0
    assert len(get(files, f"{ROOT}/kept")) == len(get(files, f"{ROOT}/second")) == PIECE + 1
    assert get(files, f"{ROOT}/replaced") == b"new"
    assert database.query("SELECT count(*) FROM piece") == [(5,)]


def test_whoever_removes_files_sweeps_at_times(files: PostgresFilesystem, database: Database) -> None:
    """Once a minute, removing a file also sweeps old unnamed files."""
    for name in "abc":
        put(files, f"{ROOT}/{name}", b"x")
    files.unlink(f"{ROOT}/a")
    database.query("UPDATE file SET unnamed = unnamed - 3600000000000 WHERE links = 0")
    files.unlink(f"{ROOT}/b")
    assert database.query("SELECT count(*) FROM file") == [(3,)]
    files._swept -= 60
    files.unlink(f"{ROOT}/c")
    assert database.query("SELECT count(*) FROM file") == [(2,)]


def test_a_descriptor_of_a_file_that_was_swept_is_stale(files: PostgresFilesystem, database: Database) -> None:
    """A descriptor of a swept file raises ESTALE instead of reading an empty file."""
    with opened(files, f"{ROOT}/a", _APPEND) as fd:
        files.write(fd, b"x")
        files.unlink(f"{ROOT}/a")
        sweep(database, older_than=0)
        assert error(files.read, fd, 1, 0) == error(files.write, fd, b"y") == error(files.fstat, fd) == errno.ESTALE


def test_a_temporary_file_leaves_nothing(files: PostgresFilesystem, database: Database) -> None:
    """Closing a temporary file removes its rows; until then the sweep ignores it."""
    fd = files.temporary()
    files.write(fd, b"x")
    assert sweep(database, older_than=0) == 0
    assert files.read(fd, 9, 0) == b"x"
    files.close(fd)
    assert database.query("SELECT (SELECT count(*) FROM file), (SELECT count(*) FROM piece)") == [(0, 0)]
