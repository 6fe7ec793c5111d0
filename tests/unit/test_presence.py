"""The presence of a gateway: one per store, noted while it runs, and ignored when it is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sessile import Store
from sessile.errors import Conflict
from sessile.gateway.conversations.presence import Presence

pytestmark = pytest.mark.mission("Y1")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "root")


def test_one_holds_the_place_and_others_are_told_who(store: Store) -> None:
    """Another object in the same process is refused, too."""
    presence = Presence(store)
    with presence.held(), presence.announced("http://127.0.0.1:7", "/t") as note:
        with pytest.raises(Conflict, match=r"http://127\.0\.0\.1:7, process") as caught, Presence(store).held():
            pass
        assert caught.value.hint and str(note.pid) in caught.value.message
        assert presence.running() == note
    with Presence(store).held():
        assert Presence(store).running() is None


def test_a_note_is_there_only_while_the_gateway_is(store: Store) -> None:
    """The note has the address of the gateway, its start time and the path of its token."""
    presence = Presence(store)
    path = Path(store.layout.root) / "gateway.json"
    with presence.held():
        with presence.announced("http://127.0.0.1:7", "/t") as note:
            assert path.stat().st_mode & 0o777 == 0o600
            assert (note.url, note.token_file) == ("http://127.0.0.1:7", "/t") and note.started > 0
        assert not path.exists() and presence.look() is None and presence.is_held()
    assert not presence.is_held()


def test_what_a_killed_process_leaves_is_not_believed(store: Store, tmp_path: Path) -> None:
    """The note remains, but its lock is free, so the gateway is not running."""
    code = (
        "import sys\n"
        "from sessile import Store\nfrom sessile.gateway.conversations.presence import Presence\n"
        "presence = Presence(Store(sys.argv[1]))\n"
        "with presence.held(), presence.announced('http://127.0.0.1:7', '/t'):\n"
        "    print('there', flush=True); sys.stdin.read(1)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, store.layout.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        presence = Presence(store)
        running = presence.running()
        assert running is not None and running.pid == process.pid
        process.kill()
        process.communicate()
    noted = presence.look()
    assert noted is not None and noted.note == running and not noted.alive
    assert presence.running() is None
    with presence.held():
        pass


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"url": 1}', b"\xff"])
def test_a_note_that_cannot_be_read_tells_nothing(store: Store, content: bytes) -> None:
    """An unreadable note is neither a running gateway nor a missing note."""
    root = Path(store.layout.root)
    root.mkdir()
    (root / "gateway.json").write_bytes(content)
    noted = Presence(store).look()
    assert noted is not None and noted.note is None and not noted.alive
    assert Presence(store).running() is None


def test_of_many_one_that_ends_by_an_error_leaves_nothing_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is removed on an error: without a note nothing would clean it up later."""
    monkeypatch.setattr(store, "database", object())
    presence = Presence(store)
    with pytest.raises(ZeroDivisionError), presence.held():
        assert presence.is_held()
        raise ZeroDivisionError
    assert list(Path(store.layout.root).iterdir()) == []


def test_looking_writes_nothing(store: Store) -> None:
    """Looking does not create the store."""
    presence = Presence(store)
    assert presence.look() is None and not presence.is_held() and presence.running() is None
    assert not Path(store.layout.root).exists()
