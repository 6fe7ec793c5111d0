"""P13: reading a store, or opening it for writing without an append, changes no byte, time or inode."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from faults.ledger import CWD, Ledger, Run, message
from faults.scenarios import SCENARIOS, an_old_session
from figures import measured
from sessile import Session, Store
from sessile.discovery import find_most_recent_session, get_recent_sessions, load_entries_from_file
from sessile.errors import SessileError

CORPUS = sorted((Path(__file__).parent.parent / "corpus").glob("*.jsonl"))
CACHE = "cache"

State = dict[str, tuple[int, int, int, str]]


def state_of(root: Path) -> State:
    """Return mode, inode, modification time and content of everything below a root except the cache."""
    found: State = {}
    for folder, folders, files in os.walk(root):
        if folder == str(root) and CACHE in folders:
            folders.remove(CACHE)
        names = [folder] if folder != str(root) else []
        for path in [*names, *(os.path.join(folder, name) for name in files)]:
            status = os.lstat(path)
            content = Path(path).read_bytes() if os.path.isfile(path) else b"\n".join(map(os.fsencode, sorted(files)))
            found[path] = (status.st_mode, status.st_ino, status.st_mtime_ns, hashlib.sha256(content).hexdigest())
    return found


@contextmanager
def unchanged(root: Path) -> Iterator[None]:
    """Raise if anything below the root has changed."""
    before = state_of(root)
    yield
    after = state_of(root)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert not changed, f"changed: {sorted(changed)}"


def read_everything(session: Session) -> None:
    """Read a session in every way."""
    entries = session.get_entries()
    assert [entry.raw for entry in session.iter_entries()] == [entry.raw for entry in entries]
    list(session.iter_lines())
    for entry in entries[:20]:
        session.get_entry(entry.id)
        session.get_full_entry(entry.id)
        session.get_branch(entry.id)
        session.get_children(entry.id)
        session.get_label(entry.id)
        session.get_common_ancestor(entry.id, entries[-1].id)
        session.context(entry.id)
    for look in (
        session.context,
        session.build_session_context,
        session.get_heads,
        session.get_abandoned,
        session.get_tree,
        session.get_branch,
    ):
        look()
    session.context(bridge=True)
    session.get_children(None)
    for name in ("id", "path", "cwd", "header", "leaf_id", "title", "artifacts", "findings", "is_draft", "readonly"):
        getattr(session, name)


def look_around(store: Store) -> None:
    """Read a store in every way."""
    for full in (False, True):
        store.list_all(full=full)
        store.list(CWD, full=full)
    store.deletions()
    store.find("not-there")
    folder = store.layout.folder(CWD)
    store.list(CWD, session_dir=folder)
    get_recent_sessions(folder)
    find_most_recent_session(folder)


@pytest.fixture
def corpus_store(tmp_path: Path) -> Path:
    """Return a store with one session file for every known kind of damage."""
    folder = tmp_path / "store" / "sessions" / "--home-ada-project--"
    folder.mkdir(parents=True)
    for path in CORPUS:
        shutil.copy(path, folder / f"2026-01-01T00-00-00-000Z_{path.stem}.jsonl")
    return tmp_path / "store"


@pytest.mark.promise("P13")
@pytest.mark.skipif(not CORPUS, reason="the corpus is not there")
def test_reading_the_corpus_changes_nothing(corpus_store: Path) -> None:
    """Opening for reading, listing and reading every damaged file leaves all of them unchanged."""
    store = Store(corpus_store)
    opened = 0
    with unchanged(corpus_store):
        look_around(store)
        for path in sorted((corpus_store / "sessions").glob("*/*.jsonl")):
            load_entries_from_file(path)
            try:
                session = store.open(path, readonly=True)
            except SessileError:
                continue
            read_everything(session)
            session.close()
            opened += 1
        look_around(store)
    assert opened > len(CORPUS) // 2
    measured("P13", "reading the corpus", files=len(CORPUS), changed=0)


@pytest.mark.promise("P13")
@pytest.mark.skipif(not CORPUS, reason="the corpus is not there")
def test_opening_the_corpus_for_writing_and_closing_changes_no_journal(corpus_store: Path) -> None:
    """A session of the current version that is opened for writing and closed without an append is unchanged."""
    store = Store(corpus_store)
    opened = 0
    for path in sorted((corpus_store / "sessions").glob("*/*.jsonl")):
        if [record.get("version") for record in load_entries_from_file(path)[:1]] != [3]:
            continue  # not a session, or one that will be migrated
        with unchanged(corpus_store):
            session = store.open(path)
            read_everything(session)
            session.flush()
            session.close()
        opened += 1
    assert opened > len(CORPUS) // 2


@pytest.mark.promise("P13")
@pytest.mark.parametrize("number", range(len(SCENARIOS)), ids=lambda number: SCENARIOS[number].name)
def test_reading_what_any_scenario_made_changes_nothing(tmp_path: Path, number: int) -> None:
    """Reading, and opening and closing, change nothing after any scenario."""
    run = Run(Store(tmp_path, durability="process"), Ledger())
    SCENARIOS[number].prepare(run)
    SCENARIOS[number].act(run)
    for session in run.sessions:
        session.close()
    store = Store(tmp_path, durability="process")
    with unchanged(tmp_path):
        look_around(store)
        for info in store.list_all():
            session = store.open(info.path, readonly=True)
            read_everything(session)
            session.close()
            load_entries_from_file(info.path)
            if info.draft:
                continue  # opening one for writing publishes it
            session = store.open(info.id)
            read_everything(session)
            session.flush()
            session.close()
    measured("P13", "reading generated stores", scenarios=1, changed=0)


@pytest.mark.promise("P13")
def test_an_old_version_is_migrated_in_memory_only_by_readers(tmp_path: Path) -> None:
    """Opening a file of version 1 for reading migrates it in memory only; opening it for writing stores the result."""
    run = Run(Store(tmp_path), Ledger())
    an_old_session(run)
    (path,) = [info.path for info in run.store.list_all()]
    original = Path(path).read_bytes()
    with unchanged(tmp_path):
        session = run.store.open(path, readonly=True)
        assert [entry.id for entry in session.get_branch()] == list(run.ledger.texts["old-session"])
        session.close()
    run.store.open(path).close()
    assert Path(path).read_bytes() != original
    assert [kept.read_bytes() for kept in (tmp_path / "originals").iterdir()] == [original]
    with unchanged(tmp_path):
        run.store.open(path).close()


@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    "attempt",
    [
        lambda session: session.append_message(message("no")),
        lambda session: session.append_custom_entry("no"),
        lambda session: session.branch(session.leaf_id, durable=True),
        lambda session: session.set_session_name("no"),
        lambda session: session.rewrite_entries(lambda entry: None),
        lambda session: session.move_to("/elsewhere"),
        lambda session: session.reopen(),
    ],
    ids=["append", "custom", "branch", "name", "rewrite", "move", "reopen"],
)
def test_a_session_for_reading_cannot_be_written(tmp_path: Path, attempt: Callable[[Session], object]) -> None:
    """Every verb that writes raises on a read-only session, and changes nothing."""
    store = Store(tmp_path)
    with store.create(CWD, publish=True) as session:
        session.append_message(message("one"))
        session.append_message(message("two"))
    with unchanged(tmp_path):
        reader = store.open(session.id, readonly=True)
        with pytest.raises(SessileError):
            attempt(reader)
        reader.branch(reader.get_entries()[0].id)
        reader.close()
