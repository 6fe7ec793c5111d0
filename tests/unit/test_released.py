"""Files of every earlier release, opened by this one: user data is whole, caches are rebuilt, newer forms are left alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from figures import measured
from released import FOLDER, FORMS
from sessile import HistoryStorage, Library, Store
from sessile.core.migrate import VERSION as FILE_VERSION
from sessile.errors import ReadOnly, SessileError
from sessile.gateway.conversations.registry import Conversations
from sessile.storage import index
from sessile.storage.catalog import VERSION as CATALOG_VERSION
from sessile.storage.turn_log import TurnLog
from sessile.upkeep.check import check_all

pytestmark = pytest.mark.promise("P52")

every_release = pytest.mark.parametrize("name", FORMS)
MAGIC = re.compile(rb"sessile-index-(\d+)\n")


def unpacked(name: str, folder: Path) -> Path:
    """Unpack the files of a release, with caches that look as if they belonged to the files at their new place."""
    with tarfile.open(FOLDER / f"{name}.tar.gz") as files:
        files.extractall(folder, filter="tar")
    root = folder / "root"
    layout = Store(root).layout
    old = next((root / "cache/index").glob("*/*"))
    largest = max((root / "sessions").rglob("*.jsonl"), key=lambda path: path.stat().st_size)
    place = Path(layout.index(str(largest)))
    place.parent.mkdir(parents=True, exist_ok=True)
    old.rename(place)
    seal_for(root)
    return root


def seal_for(root: Path, **members: Any) -> Path:
    """Let the seal of a catalog say that the database is as its last writer left it."""
    seal, status = root / "cache/catalog.seal", root / "cache/catalog.db"
    if seal.exists():
        found = os.stat(status)
        mark = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
        seal.write_text(json.dumps({**json.loads(seal.read_text()), "mark": mark, "at_work": False, **members}))
    return seal


def answers(root: Path, cache: Path | None = None) -> Any:
    """Return what a store says about all of its sessions."""
    store = Store(root)
    found: dict[str, Any] = {}
    for path in sorted((root / "sessions").rglob("*.jsonl")):
        with store.open(str(path), readonly=True) as session:
            context = session.context()
            found[path.name] = (
                context.messages,
                context.models,
                dict(session.get_labels()),
                [entry.id for entry in session.get_branch()],
                list(session.findings),
            )
    with Library(store, cache=None if cache is None else str(cache)) as library:
        library.catch_up()
        rows = [(row.id, row.title, row.first_text, row.counts) for row in library.list().rows]
        hits = [(hit.session_id, hit.entry_id) for hit in library.search("question", limit=500).hits]
        notices = list(library.notices)
    return found, sorted(rows, key=str), sorted(hits, key=str), notices


def without_cache(root: Path, folder: Path) -> Any:
    """Return the answers of a copy that never had a cache."""
    subprocess.run(["cp", "-a", str(root), str(folder)], check=True)
    subprocess.run(["rm", "-rf", str(folder / "cache")], check=True)
    return answers(folder)


@every_release
def test_the_files_have_the_forms_that_they_stand_for(name: str, tmp_path: Path) -> None:
    """Each form of the index and the catalog that was ever written is among them."""
    root = unpacked(name, tmp_path)
    (saved,) = (path.read_bytes()[:16] for path in (root / "cache/index").glob("*/*"))
    found = MAGIC.match(saved)
    assert found is not None
    assert int(found[1]) == FORMS[name].of_index
    seal = root / "cache/catalog.seal"
    assert (json.loads(seal.read_text())["version"] if seal.exists() else 0) == FORMS[name].of_catalog


def test_every_earlier_form_is_among_them() -> None:
    """A new form of the index or the catalog needs files of the one before."""
    index_version = int(index._MAGIC.strip().rpartition(b"-")[2])
    assert {form.of_index for form in FORMS.values()} - {index_version} == set(range(1, index_version))
    assert {form.of_catalog for form in FORMS.values()} - {CATALOG_VERSION} == set(range(CATALOG_VERSION))


@every_release
def test_an_upgrade_keeps_every_datum_and_rebuilds_every_cache(name: str, tmp_path: Path) -> None:
    """Sessions, blobs, labels, trash, history, conversations and turns are read; caches answer as if made anew."""
    root = unpacked(name, tmp_path)
    expected = without_cache(root, tmp_path / "bare")
    for _ in range(2):  # the second time with the caches of this release
        assert answers(root, root / "cache") == expected
    sessions, rows, hits, notices = expected
    assert notices == []
    assert len(rows) >= 4
    assert len(hits) >= 18
    texts = json.dumps([messages for messages, *_ in sessions.values()])
    assert all(f"question {turn} of session {number}" in texts for turn in range(6) for number in range(3))
    assert b"x" * 600_000 in [path.read_bytes().strip(b'"') for path in (root / "blobs").iterdir()]
    assert "line 119" in texts
    assert sum(bool(labels) for _, _, labels, _, _ in sessions.values()) == 3
    assert not any(findings for *_, findings in sessions.values())
    store = Store(root)
    assert all(report.ok for report in check_all(store))
    (deletion,) = store.deletions()
    store.undo(deletion.token)
    assert any(b"in the trash" in path.read_bytes() for path in (root / "sessions").rglob("*.jsonl"))
    with HistoryStorage(str(root / "history.db")) as history:
        history.add("prompt of today")
        assert [entry.prompt for entry in history.search("prompt")][1:] == [f"prompt {n}" for n in reversed(range(5))]
    with store.open(
        max((root / "sessions").rglob("*.jsonl"), key=lambda path: path.stat().st_size).as_posix()
    ) as session:
        session.append_message({"role": "user", "content": "after the upgrade"})
        assert session.context().messages[-1]["content"] == "after the upgrade"
    if (root / "agents").exists():
        before = json.loads(next(root.glob("agents/*/sessions/sessions.json")).read_text())
        ((key, binding),) = before.items()
        then = Store(root, clock=lambda: binding["updatedAt"] / 1000)  # the daily reset would begin another session
        with Conversations(then, workspace=lambda agent: "/work/app") as conversations:
            assert [each.text for each in conversations.list().rows] == [key]
            assert conversations.resolve("telegram:group:42").session_id == binding["sessionId"]
    if (root / "gateway").exists():
        left = {each.session_id: each.turns for each in TurnLog(store.fs, str(root)).left()}
        assert [turn["message"] for turns in left.values() for turn in turns] == ["was running", "is waiting"]
    measured("P52", "releases opened", forms=1, differences=0)


# -- newer forms


def test_an_index_of_a_newer_release_is_neither_used_nor_replaced(tmp_path: Path) -> None:
    """Two releases may be in use on one machine."""
    root = unpacked("0.2.0", tmp_path)
    expected = without_cache(root, tmp_path / "bare")
    (saved,) = (root / "cache/index").glob("*/*")
    for newer in (b"sessile-index-8\n", b"sessile-index-9\n", b"sessile-index-10"):
        saved.write_bytes(newer + saved.read_bytes()[16:])
        before = saved.read_bytes()
        assert answers(root, root / "cache") == expected
        store = Store(root)
        largest = max((root / "sessions").rglob("*.jsonl"), key=lambda path: path.stat().st_size)
        with store.open(str(largest)) as session:
            session.append_many([{"type": "message", "message": {"role": "user", "content": "x"}}] * 100)
        assert saved.read_bytes() == before
        expected = without_cache(root, tmp_path / f"bare{newer!r}"[:40].replace("\\", ""))


def test_a_catalog_of_a_newer_release_is_left_alone_and_said_so(tmp_path: Path) -> None:
    """Answers come from the files, a notice says why, and not a byte of the catalog changes."""
    root = unpacked("0.2.0", tmp_path)
    *expected, _ = without_cache(root, tmp_path / "bare")
    seal = seal_for(root, version=CATALOG_VERSION + 1)
    before = [(path.read_bytes(), path.stat().st_ino) for path in (root / "cache/catalog.db", seal)]
    *found, notices = answers(root, root / "cache")
    assert found[0] == expected[0]
    assert [row[0] for row in found[1]] == [row[0] for row in expected[1]]
    assert any(
        f"its version is {CATALOG_VERSION + 1}; this release supports {CATALOG_VERSION}" in text for text in notices
    )
    assert [(path.read_bytes(), path.stat().st_ino) for path in (root / "cache/catalog.db", seal)] == before


def test_a_session_file_of_a_newer_version_is_read_and_not_written(tmp_path: Path) -> None:
    """It opens read-only, and stays as it is."""
    root = unpacked("0.2.0", tmp_path)
    path = next(path for path in (root / "sessions").rglob("*.jsonl") if b"question 0" in path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b'"version":3', b'"version":%d' % (FILE_VERSION + 1), 1))
    before = path.read_bytes()
    store = Store(root)
    with store.open(str(path), readonly=True) as session:
        assert session.context().messages
    with pytest.raises(SessileError), store.open(str(path)) as session:
        session.append_message({"role": "user", "content": "x"})
        raise ReadOnly("not reached")
    assert path.read_bytes() == before


def test_members_that_a_newer_release_added_survive(tmp_path: Path) -> None:
    """Conversations and deletions with unknown members are used, and the conversation keeps them when it is written."""
    root = unpacked("0.2.0", tmp_path)
    bindings = next(root.glob("agents/*/sessions/sessions.json"))
    stored = json.loads(bindings.read_text())
    (key,) = stored
    stored[key]["fromTheFuture"] = {"kept": True}
    bindings.write_text(json.dumps(stored))
    manifest = next(root.glob("trash/*/manifest.json"))
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "fromTheFuture": 1}))
    store = Store(root)
    with Conversations(store, workspace=lambda agent: "/work/app") as conversations:
        conversations.patch(key, {"label": "renamed"})
        conversations.flush()
    assert json.loads(bindings.read_text())[key]["fromTheFuture"] == {"kept": True}
    (deletion,) = store.deletions()
    store.undo(deletion.token)


# -- interruptions

_UPGRADE = """
import sys
from sessile import HistoryStorage, Library, Store
store = Store(sys.argv[1])
print("ready", flush=True)
with Library(store, cache=sys.argv[1] + "/cache") as library:
    library.catch_up()
    for row in library.list().rows:
        with store.open(row.path) as session:
            session.context()
with HistoryStorage(sys.argv[1] + "/history.db") as history:
    history.add("prompt of today")
"""


@pytest.mark.parametrize("rounds", [6, pytest.param(120, marks=pytest.mark.long)], ids=["short", "long"])
def test_an_upgrade_that_was_killed_goes_on(rounds: int, tmp_path: Path) -> None:
    """A process is killed at any moment of its first look at old files; the next one answers as if nothing had happened."""
    random = Random(52)
    names = list(FORMS)
    expected: dict[str, Any] = {}
    for number in range(rounds):
        name = names[number % len(names)]
        root = unpacked(name, tmp_path / str(number))
        if name not in expected:
            expected[name] = without_cache(root, tmp_path / f"bare-{name}")
        with subprocess.Popen([sys.executable, "-c", _UPGRADE, str(root)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(random.random() * 0.12)
            process.send_signal(signal.SIGKILL)
        assert answers(root, root / "cache") == expected[name]
        with HistoryStorage(str(root / "history.db")) as history:
            prompts = [entry.prompt for entry in history.search("prompt")]
        assert prompts[-5:] == [f"prompt {n}" for n in reversed(range(5))]
        subprocess.run(["rm", "-rf", str(root)], check=True)
    measured("P52", "upgrades killed", kills=rounds, differences=0)
