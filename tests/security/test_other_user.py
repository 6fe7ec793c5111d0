"""Another user of the same machine against a store: reading, changing, planting, redirecting, and asking the gateway.

The store belongs to the user who runs the tests, which must be root, so that a second process can take another uid. The other
user knows every path. Whatever it tries, it reads no byte, changes none, and makes us write none where it can.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.gateways import Serving, serving
from figures import measured
from sessile import HistoryStorage, Store
from sessile.errors import SessileError
from sessions import answer, begun, say, snapshot

pytestmark = [
    pytest.mark.promise("P51"),
    pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can take the part of another user"),
]

OTHER = 65_533  # a uid and gid that nobody has
NEEDLE = "zqneedle"
PATIENCE = 60  # seconds after which a step counts as hanging


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a folder that every user can enter, with a home and a folder that every user can write, as /tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="sessile-other-user-"))
    folder.chmod(0o755)
    (folder / "home").mkdir(mode=0o755)
    (folder / "shared").mkdir()
    (folder / "shared").chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def environment(place: Path, **more: str) -> dict[str, str]:
    names = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    source = str(Path(__file__).parents[2] / "src")
    cache, temporary = str(place / "home/.cache/sessile"), str(place / "shared")
    own = {"HOME": str(place / "home"), "SESSILE_CACHE": cache, "TMPDIR": temporary, "PYTHONPATH": source}
    return {**kept, **own, "NO_COLOR": "1", **more}


def sessile(place: Path, *arguments: str, umask: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command as ourselves, with a careless umask."""
    command = [sys.executable, "-m", "sessile.cli.main", *arguments]
    return subprocess.run(
        command,
        env=environment(place, **more),
        cwd=place / "home",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=lambda: os.umask(umask) and None,
    )


def as_other(attempt: Callable[[], Any]) -> Any:
    """Run a function as the other user, in a process of its own, and return what it returns."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(PATIENCE)
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            os.write(writing, json.dumps(attempt()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answered:
        told = answered.read()
    os.waitpid(child, 0)
    assert told, "the other user's process failed"
    return json.loads(told)


# -- what there is to attack


def fill(place: Path) -> Store:
    """Make a store that has one of everything."""
    store = Store(place / "home/.sessile")
    with begun(store, "/work/app", title=NEEDLE) as session:
        for number in range(100):
            say(session, f"{NEEDLE} {number}")
        answer(session, NEEDLE)
        session.append_message({"role": "user", "content": NEEDLE * 100_000})
    with begun(store, "/work/app") as gone:
        say(gone, NEEDLE)
    store.delete(gone.path)
    draft = store.create("/work/app")
    draft.append_message({"role": "user", "content": NEEDLE})
    draft.close()
    with HistoryStorage(f"{store.layout.root}/history.db") as history:
        history.add(NEEDLE)
    return store


def everything(*folders: Path) -> tuple[list[str], list[str]]:
    """Return all files and all folders below some folders."""
    files, found = [], []
    for top in folders:
        for folder, _, names in os.walk(top):
            found.append(folder)
            files += [os.path.join(folder, name) for name in names]
    return files, found


def tries(name: str, attempt: Callable[[], object], done: list[str]) -> None:
    """Note an attempt that succeeded."""
    try:
        attempt()
    except OSError:
        return
    done.append(name)


def attempts(files: list[str], folders: list[str], aside: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield every attempt to read, change, replace, move, link and plant."""

    def opening(path: str, flags: int) -> Callable[[], object]:
        return lambda: os.close(os.open(path, flags | os.O_NONBLOCK, 0o666))

    for path in files:
        yield f"read {path}", opening(path, os.O_RDONLY)
        yield f"write {path}", opening(path, os.O_WRONLY)
        yield f"empty {path}", opening(path, os.O_WRONLY | os.O_TRUNC)
        yield f"remove {path}", partial(os.unlink, path)
        yield f"rename {path}", partial(os.rename, path, f"{path}.x")
        yield f"chmod {path}", partial(os.chmod, path, 0o666)
        yield f"hard link {path}", partial(os.link, path, f"{aside}/link")
        yield f"times {path}", partial(os.utime, path)
    for path in folders:
        yield f"list {path}", partial(os.listdir, path)
        yield f"plant in {path}", opening(f"{path}/x", os.O_WRONLY | os.O_CREAT)
        yield f"link in {path}", partial(os.symlink, "/etc/passwd", f"{path}/l")
        yield f"pipe in {path}", partial(os.mkfifo, f"{path}/p")
        yield f"folder in {path}", partial(os.mkdir, f"{path}/d")
        yield f"remove {path}", partial(os.rmdir, path)
        yield f"chmod {path}", partial(os.chmod, path, 0o777)
        yield f"rename {path}", partial(os.rename, path, f"{aside}/stolen")


def attacks(files: list[str], folders: list[str], aside: str) -> tuple[int, list[str]]:
    """Make every attempt; return their number, and those that succeeded."""
    done: list[str] = []
    count = 0
    for count, (name, attempt) in enumerate(attempts(files, folders, aside), 1):  # noqa: B007
        tries(name, attempt, done)
    return count, done


def attack(place: Path) -> int:
    """Let the other user try everything against the home and what we left in the shared folder."""
    aside = place / "aside"
    aside.mkdir(exist_ok=True)
    os.chown(aside, OTHER, OTHER)
    ours = [entry for entry in (place / "shared").iterdir() if entry.lstat().st_uid != OTHER]
    files, folders = everything(*((place / "home").iterdir()), *ours)
    files += [str(entry) for entry in (*(place / "home").iterdir(), *ours) if not entry.is_dir()]
    count, done = as_other(lambda: attacks(files, folders, str(aside)))
    assert done == []
    assert not any(aside.iterdir())
    return int(count)


# -- tests


@pytest.mark.parametrize(
    "umasks", [(0,), pytest.param((0, 0o022, 0o077), marks=pytest.mark.long)], ids=["short", "long"]
)
def test_nothing_of_a_store_can_be_read_or_changed(place: Path, umasks: tuple[int, ...]) -> None:
    """After every kind of verb: sessions, drafts, blobs, trash, originals, history, caches, exports and temporary files."""
    store = fill(place)
    session = next(Path(store.layout.sessions).rglob("*.jsonl"))
    calls: list[tuple[str, ...]] = [
        ("ls", "-A"), ("search", NEEDLE), ("stats",), ("doctor",), ("rename", str(session), "named"),
        ("export", str(session), "-t", "html", "-o", "out.html"), ("export", str(session), "-t", "jsonl", "-o", "out.jsonl"),
        ("fork", str(session)), ("sync", "copy"), ("keep", "claude"), ("history",), ("repair", str(session), "--apply"),
        ("demo",), ("prune", "--older-than", "0d", "--apply"), ("undo",),
    ]  # fmt: skip
    count = 0
    for umask in umasks:
        for call in calls:
            done = sessile(place, *call, umask=umask)
            assert "Traceback" not in done.stderr, done.stderr
        count += attack(place)
    before = snapshot(place / "home")
    assert NEEDLE.encode() in b"".join(content for _, _, content in before.values())
    measured("P51", "attempts on a store", attempts=count, succeeded=0)


def test_a_running_gateway_gives_nothing_away(place: Path) -> None:
    """Its files, its token, its environment and command line, and its port."""
    store = fill(place)
    with serving(Path(store.layout.root), environment=environment(place)) as gateway:
        token = gateway.token
        status, _ = gateway.get("/v1/sessions", token)
        assert status == 200
        count = attack(place)
        assert as_other(lambda: look_at(gateway, token)) == []
    measured("P51", "attempts on a running gateway", attempts=count + 8, succeeded=0)


def look_at(gateway: Serving, token: str) -> list[str]:
    """Return what the other user learns from a gateway that runs."""
    found: list[str] = []
    for name in ("environ", "maps", "mem"):
        path = f"/proc/{gateway.process.pid}/{name}"
        tries(path, Path(path).read_bytes, found)
    tries("fd", lambda: os.listdir(f"/proc/{gateway.process.pid}/fd"), found)
    with open(f"/proc/{gateway.process.pid}/cmdline") as file:
        if token in file.read():
            found.append("the token is in the command line")
    for given in (None, "", "x" * 43):
        connection = http.client.HTTPConnection(*gateway.place, timeout=20)
        connection.request("GET", "/v1/sessions", headers={} if given is None else {"Authorization": f"Bearer {given}"})
        answered = connection.getresponse()
        body = answered.read()
        if answered.status != 401 or NEEDLE.encode() in body or token.encode() in body:
            found.append(f"the gateway answered {answered.status} to the token {given!r}")
        connection.close()
    return found


def owned_by_other(path: Path, mode: int = 0o777) -> Path:
    """Make a folder of the other user."""
    path.mkdir(parents=True)
    os.chown(path, OTHER, OTHER)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_a_root_of_another_user_is_refused(place: Path, mode: int) -> None:
    """Nothing is written there, and the message says whose it is."""
    root = owned_by_other(place / "shared/store", mode)
    with pytest.raises(SessileError, match="belongs to another user"):
        say(begun(Store(root), "/work/app"), NEEDLE)
    fill(place)
    source = next((place / "home/.sessile/sessions").rglob("*.jsonl"))
    done = sessile(place, "--root", str(root), "import", str(source))
    assert done.returncode != 0
    assert list(root.rglob("*.jsonl")) == []


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o703])
def test_a_root_that_every_user_can_write_is_refused(place: Path, mode: int) -> None:
    """Another user could put a folder or a file into it before we do."""
    root = place / "shared/open"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(SessileError, match="other users can write") as caught:
        say(begun(Store(root), "/work/app"), NEEDLE)
    assert "chmod" in str(caught.value)
    assert list(root.rglob("*")) == []


@pytest.mark.parametrize("planted", ["sessions", "sessions/--work-app--", "blobs", "trash"])
def test_a_folder_that_another_user_made_in_the_root_is_refused(place: Path, planted: str) -> None:
    """A root that a group may write is allowed, but not what others of the group made there."""
    root = place / "shared/group"
    root.mkdir()
    root.chmod(0o770)
    owned_by_other(root / planted)
    store = Store(root)
    with pytest.raises(SessileError, match="belongs to another user"):
        with begun(store, "/work/app") as session:
            say(session, NEEDLE * 100_000)
        store.delete(session.path)
    assert not any(NEEDLE.encode() in path.read_bytes() for path in (root / planted).rglob("*") if path.is_file())


def redirect(folder: str, target: str) -> bool:
    """Plant links and pipes under every name that a cache has."""
    for name in ("catalog.db", "catalog.db-journal", "catalog.db-wal", "catalog.seal", "index", "demo-cache"):
        os.symlink(target, f"{folder}/{name}")
    for name in ("catalog.lock", "catalog.db-shm"):
        os.mkfifo(f"{folder}/{name}", 0o666)
    return True


@pytest.mark.parametrize("plant", [False, True], ids=["empty", "with links and pipes"])
def test_a_cache_folder_of_another_user_is_not_used(place: Path, plant: bool) -> None:
    """Answers are right, a notice says why they are slow, nothing is written there, and no link is followed."""
    fill(place)
    cache = owned_by_other(place / "shared/cache")
    target = place / "home/precious"
    target.write_text("precious")
    if plant:
        assert as_other(lambda: redirect(str(cache), str(target)))
    before = {path.name: path.lstat().st_mode for path in cache.iterdir()}
    for call in (("search", NEEDLE), ("check", "--all"), ("doctor",)):
        done = sessile(place, *call, SESSILE_CACHE=str(cache))
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 1, 5), done.stderr
    listed = sessile(place, "ls", "-A", SESSILE_CACHE=str(cache))
    assert NEEDLE in listed.stdout
    assert "cannot be used" in listed.stderr
    assert plant or "another user" in listed.stderr
    assert {path.name: path.lstat().st_mode for path in cache.iterdir()} == before
    assert target.read_text() == "precious"


def test_an_index_that_another_user_made_is_not_believed(place: Path) -> None:
    """An index in a folder of another user is neither read nor written."""
    cache = owned_by_other(place / "shared/cache")
    store = Store(place / "home/.sessile", cache=cache)
    with begun(store, "/work/app") as session:
        for number in range(200):
            say(session, f"{NEEDLE} {number}")
    with store.open(session.path) as again:
        assert len(again.context().messages) == 200
    assert list(cache.rglob("*")) == []


@pytest.mark.parametrize("trap", ["link", "pipe", "file"])
def test_an_export_does_not_go_where_another_user_waits(place: Path, trap: str) -> None:
    """In a folder that everybody can write, a planted link is not followed, and no file of another user is filled."""
    store = fill(place)
    session = next(Path(store.layout.sessions).rglob("*.jsonl"))
    target = place / "home/precious"
    target.write_text("precious")
    out = f"{place}/shared/out.html"

    def plant() -> bool:
        if trap == "link":
            os.symlink(str(target), out)
        elif trap == "pipe":
            os.mkfifo(out, 0o666)
        else:
            os.close(os.open(out, os.O_CREAT | os.O_WRONLY, 0o666))
            os.chmod(out, 0o666)
        return True

    assert as_other(plant)
    done = sessile(place, "export", str(session), "-t", "html", "-o", out)
    assert "Traceback" not in done.stderr
    assert target.read_text() == "precious"
    found = os.lstat(out)
    if stat.S_ISREG(found.st_mode) and found.st_size:
        assert found.st_uid == os.geteuid()
        assert not found.st_mode & 0o077
    assert as_other(lambda: not is_readable(out, NEEDLE))


def is_readable(path: str, text: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    return text.encode() in os.read(fd, 1 << 20)


def test_a_token_file_of_another_user_is_refused(place: Path) -> None:
    """A token that another user chose would let that user in."""
    store = fill(place)
    token = Path(store.layout.root) / "gateway.token"
    token.write_text("x" * 43)
    os.chown(token, OTHER, OTHER)
    token.chmod(0o600)
    done = sessile(place, "serve", "--port", "0")
    assert done.returncode != 0
    assert "belongs to another user" in done.stderr


def test_a_history_of_another_user_is_refused(place: Path) -> None:
    """Prompts are not written into a file that another user can read."""
    root = place / "shared/open"
    root.mkdir()
    path = root / "history.db"
    with HistoryStorage(str(path)) as history:
        history.add("first")
    os.chown(path, OTHER, OTHER)
    path.chmod(0o666)
    with pytest.raises(SessileError, match="another user"), HistoryStorage(str(path)) as history:
        history.add(NEEDLE)
        history.flush()
    assert NEEDLE.encode() not in b"".join(each.read_bytes() for each in root.iterdir())


def test_a_configuration_of_another_user_is_refused(place: Path) -> None:
    """It could name programs to run."""
    store = fill(place)
    path = Path(store.layout.root) / "config.toml"
    path.write_text("")
    os.chown(path, OTHER, OTHER)
    done = sessile(place, "serve", "--port", "0")
    assert done.returncode != 0
    assert "the configuration belongs to another user" in done.stderr


def test_the_rig_sees_what_is_open(place: Path) -> None:
    """A file and a folder that are open to others are found by the attempts."""
    fill(place)
    session = next((place / "home/.sessile/sessions").rglob("*.jsonl"))
    for path in (session, *session.parents):
        if path == place:
            break
        path.chmod(0o777)
    with pytest.raises(AssertionError):
        attack(place)
