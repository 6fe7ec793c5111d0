"""A store in which a needle is wherever a session can be, for tests that erase the session."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

from sessile import Library, Store
from sessile.agents.openclaw.binding_store import own_bindings
from sessile.agents.openclaw.entries import SessionEntry
from sessile.erase import pending
from sessile.storage import atomic
from sessile.storage.history import HistoryStorage
from sessile.storage.turn_log import TurnLog
from sessile.upkeep.disk import disk_usage
from sessions import CWD, answer, say

NEEDLE = "xyzzyplugh"
LARGE = 600_000  # characters: the full text becomes a blob


def grep(*tops: Path, needle: str = NEEDLE) -> list[str]:
    """Return the files below some folders that contain the needle in any case, or have it in their names."""
    found = []
    for top in tops:
        for folder, folders, names in os.walk(top):
            found += [f"{folder}/{name}" for name in (*folders, *names) if needle in name]
            for name in names:
                if needle.encode() in Path(folder, name).read_bytes().lower():
                    found.append(f"{folder}/{name}")
    return found


class Everything:
    """A store in which a needle is wherever a session can be, and another session that must stay."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cache = folder / "root", folder / "cache"
        self.store = Store(self.root, cache=self.cache, terminal="tty", durability="process")
        with self.store.create(CWD, title="another") as other:
            say(other, "kept words " + "shared " * (LARGE // 7))
            answer(other, "kept answer")
        self.other = other.path
        session = self.store.create(CWD, title=f"title {NEEDLE}")
        say(session, f"prompt {NEEDLE}")
        say(session, "kept words " + "shared " * (LARGE // 7))  # the same blob as the other session's
        say(session, f"{NEEDLE} " * (LARGE // len(NEEDLE)))
        answer(session, f"answer {NEEDLE}")
        os.makedirs(session.artifacts)
        Path(session.artifacts, "out.txt").write_text(NEEDLE)
        session.close()
        self.path, self.id = session.path, session.id
        with self.store.open(self.path) as opened:
            opened.rewrite_entries(lambda entry: {**entry, "x": NEEDLE})
        Path(atomic.temp_beside(self.path)).write_bytes(f'{{"half": "{NEEDLE}"'.encode())
        Path(f"{self.path}.invalid-17").write_text(NEEDLE)
        shutil.copyfile(self.path, f"{folder}/copy")
        self.store.delete(self.path)  # a deletion of an earlier life of the session
        shutil.copyfile(f"{folder}/copy", self.path)
        os.unlink(f"{folder}/copy")
        os.makedirs(session.artifacts)
        Path(session.artifacts, "again.txt").write_text(NEEDLE)
        self.store.pins.add(self.id)
        with HistoryStorage(self.store.layout.history) as history:
            history.add(f"prompt {NEEDLE}", cwd=CWD)
            history.add("a kept prompt", cwd=CWD)
        broken = sqlite3.connect(f"{self.store.layout.history}.broken-17")
        broken.execute("CREATE TABLE history (prompt)")
        broken.execute("INSERT INTO history VALUES (?)", (f"prompt {NEEDLE}",))
        broken.commit()
        broken.close()
        bindings = own_bindings(self.store, "main")
        mine, others = SessionEntry({"sessionId": self.id, "subject": NEEDLE}), SessionEntry({"sessionId": "kept"})
        bindings.update_all(lambda entries: {"main": mine, "other": others}, now=1)
        archive = {
            "token": "t",
            "entries": {"a": {"sessionId": self.id, "subject": NEEDLE}, "b": {"sessionId": "kept"}},
        }
        deleted = {"token": "t", "key": "k", "entry": {"sessionId": self.id, "subject": NEEDLE}, "path": self.path}
        self.agent = self.root / "agents" / "main"
        (self.agent / "sessions" / "sessions.archived.t.json").write_text(json.dumps(archive))
        (self.agent / "kept" / "deleted").mkdir(parents=True)
        (self.agent / "kept" / "deleted" / "t.json").write_text(json.dumps(deleted))
        (self.agent / "kept" / "sessions.json.broken-1").write_text(f"{{ broken {self.id} {NEEDLE}")
        log = TurnLog(self.store.fs, str(self.root))
        log.note(self.id, {"text": NEEDLE})
        log.keep(self.id, {"text": NEEDLE})
        log.note("other-session", {"text": "kept"})
        log.close()
        with Library(self.store, cache=str(self.cache)) as library:
            assert library.search(NEEDLE).hits
        assert len(grep(self.root, self.cache)) > 12

    def check(self) -> None:
        """Check that the session is nowhere, and that the rest is complete."""
        assert grep(self.root, self.cache) == []
        assert grep(self.root, self.cache, needle=self.id) == []
        store = Store(self.root, cache=self.cache)
        assert pending(store) == []
        with store.open(self.other, readonly=True) as other:
            assert len(other.get_entries()) == 2
        assert disk_usage(store).blobs == 1
        with HistoryStorage(store.layout.history) as history:
            assert [entry.prompt for entry in history.search("prompt")] == ["a kept prompt"]
        assert list(own_bindings(store, "main").read()) == ["other"]
        archive = json.loads((self.agent / "sessions" / "sessions.archived.t.json").read_text())
        assert archive["entries"] == {"b": {"sessionId": "kept"}}
        assert [left.session_id for left in TurnLog(store.fs, str(self.root)).left()] == ["other-session"]
        with Library(store, cache=str(self.cache)) as library:
            assert not library.search(NEEDLE).hits and library.search("kept").hits
            assert [row.path for row in library.list().rows] == [self.other]
        (note,) = (self.root / "erased").iterdir()
        assert json.loads(note.read_text()).keys() == {
            *("session_sha256", "erased", "files", "bytes", "blobs", "prompts"),
        }
