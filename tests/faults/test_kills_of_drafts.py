"""Rig: processes killed at random moments around the first prompt of a session; every acknowledged prompt is found."""

from __future__ import annotations

import os
from functools import partial
from itertools import count
from random import Random

import pytest

from faults.processes import Tell, fast_folder, killed_after
from figures import measured
from sessile import Library, Store
from sessile.errors import SessionNotFound
from sessile.storage.drafts import draft_path, published_path
from sessile.storage.search import Needle
from sessile.testing.store_contract import told
from sessile.upkeep.check import check

CWD = "/work/app"
LONGEST = 0.003  # seconds that a process lives after its first report
AT_ONCE = 20  # kills on one store before it is checked

Prompt = tuple[str, str, str]  # session id, path, text


def ask_for_ever(root: str, answers: bool, tell: Tell) -> None:
    """Create sessions, and append one to three prompts to each; some get an answer. Report every receipt."""
    rng = Random(os.getpid())
    store = Store(root, durability="process")
    tell(None)
    for number in count():
        session = store.create(CWD if number % 3 else f"/work/app{number % 7}")
        for part in range(rng.randint(1, 3)):
            text = f"needle{os.getpid()}x{number}x{part} " + "x" * rng.choice((0, 0, 3_000))
            receipt = session.append_message({"role": "user", "content": text})
            tell([session.id, receipt.path, text])
        if answers and rng.random() < 0.5:
            session.append_message({"role": "assistant", "content": [{"type": "text", "text": "answer"}]})
        if rng.random() < 0.5:
            session.close()


def check_found(root: str, prompts: list[Prompt]) -> int:
    """Check that every prompt is found by every way that reads; then open all sessions for writing. Return their number."""
    texts: dict[str, list[str]] = {}
    paths: dict[str, str] = {}
    for session_id, path, text in prompts:
        texts.setdefault(session_id, []).append(text)
        paths[session_id] = path
    store = Store(root, durability="process")
    listed = {info.id: info for info in store.list_all(full=True)}
    with Library(store, cache=f"{root}/cache", auto_catch_up=False) as library:
        library.catch_up("index")
        rows = {row.id: row for row in library.list().rows}
        for session_id, wanted in texts.items():
            info = listed[session_id]
            assert os.path.isfile(info.path) and info.draft == info.path.endswith(".draft")
            assert all(text.strip() in (info.all_messages_text or "") for text in wanted)
            assert (rows[session_id].path, rows[session_id].draft) == (info.path, info.draft)
            assert info.path in [i.path for i in store.list(info.cwd)]
            assert store.find(session_id) == info.path == library.find(session_id)
            path = paths[session_id]
            for ref in (session_id, path, draft_path(path), published_path(path)):
                with store.open(ref, readonly=True) as session:
                    assert session.path == info.path
                    assert [text for text in told(session) if text != "answer"][: len(wanted)] == wanted
            for text in wanted:
                word = text.split()[0]
                assert [hit.path for hit in library.search(word).hits] == [info.path]
            needle = Needle(wanted[-1].split()[0])
            assert {found.row.path for found in library.scan(needle, notices=[])} == {info.path}
            assert check(store, session_id).path == info.path
    for session_id, wanted in texts.items():
        with store.open(session_id) as session:  # every writer is dead, so that each can be recovered
            assert not session.is_draft
            assert [text for text in told(session) if text != "answer"][: len(wanted)] == wanted
            session.append_message({"role": "user", "content": "and on"})
    assert not any(info.draft and info.id in texts for info in store.list_all())
    return len(texts)


def check_kills(seed: int, kills: int) -> tuple[int, int]:
    """Kill processes that begin sessions. Return the number of sessions and of acknowledged prompts."""
    rng = Random(seed)
    sessions = acknowledged = 0
    for _ in range(kills // AT_ONCE):
        with fast_folder() as root:
            prompts: list[Prompt] = []
            for _ in range(AT_ONCE):
                work = partial(ask_for_ever, root, rng.random() < 0.3)
                prompts += killed_after(rng.uniform(0, LONGEST), work, rng.randint(1, 6))[1:]
            sessions += check_found(root, prompts)
            acknowledged += len(prompts)
    measured("P46", "kills before the first answer", kills=kills, sessions=sessions, prompts=acknowledged, not_found=0)
    return sessions, acknowledged


@pytest.mark.promise("P46")
def test_every_acknowledged_prompt_of_a_killed_process_is_found() -> None:
    """By id, by both paths, in listings, by search and scan, by a check; opening it for writing recovers it."""
    sessions, acknowledged = check_kills(seed=1, kills=AT_ONCE)
    assert sessions > 10 and acknowledged > sessions


@pytest.mark.promise("P46")
def test_the_rig_notices_a_walk_that_leaves_out_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without drafts in the walk, prompts are lost to listings."""

    def published(names: list[str]) -> list[str]:
        return [name for name in names if name.endswith(".jsonl")]

    monkeypatch.setattr("sessile.storage.walk.session_files", published)
    with pytest.raises((KeyError, SessionNotFound)):
        check_kills(seed=1, kills=AT_ONCE)


@pytest.mark.promise("P46")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_every_acknowledged_prompt_of_two_thousand_killed_processes_is_found(seed: int) -> None:
    """The long form of the test above."""
    sessions, acknowledged = check_kills(seed, kills=10 * AT_ONCE)
    assert sessions > 100 and acknowledged > sessions
