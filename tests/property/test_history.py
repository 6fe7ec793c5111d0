"""Properties of prompt recall for any text, query and change by other programs."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.storage.history import HistoryStorage

pytestmark = pytest.mark.mission("X23")

# Letters with case folding, all kinds of white space, query syntax, CJK, and characters that SQLite cannot store.
PROMPTS = st.text(max_size=40) | st.text(alphabet="aBé語日 \t\n\x1c\u3000\"'*-+^:(){}%_\\\0\ud800\udfffİß", max_size=40)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "insert", "update", "delete", "move"]), st.integers(1, 8), PROMPTS), max_size=20
)


@contextmanager
def fresh() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield os.path.join(folder, "history.db")


@given(prompt=PROMPTS, data=st.data())
def test_a_prompt_is_found_by_every_prefix_of_each_of_its_words(prompt: str, data: st.DataObject) -> None:
    """A prompt is found by a prefix of any of its words, and by all of its words together."""
    with fresh() as path, HistoryStorage(path) as storage:
        storage.add(prompt, prompt)
        entries = storage.get_recent()
        assert bool(entries) == bool(prompt.strip())
        for word in prompt.split():
            prefix = word[: data.draw(st.integers(1, len(word)))]
            assert (
                storage.search(prefix) == storage.search(prefix.swapcase() if prefix.isascii() else prefix) == entries
            )
        if entries:
            assert storage.search(prompt) == entries


@given(query=PROMPTS, limit=st.integers() | st.floats())
def test_no_query_and_no_limit_can_raise(query: str, limit: float) -> None:
    """Any string and any limit are accepted, and the result is always part of the history."""
    with fresh() as path, HistoryStorage(path) as storage:
        storage.add("git commit -m 'x'")
        storage.add("日本語")
        everything = storage.get_recent()
        assert [entry for entry in everything if entry in storage.search(query)] == storage.search(query)
        assert len(storage.search(query, limit)) <= max(0, min(1000, limit if limit == limit else 0))
        assert storage.get_recent(limit) == everything[: len(storage.get_recent(limit))]


@given(changes=CHANGES)
def test_the_index_follows_every_change_by_anybody(changes: list[tuple[str, int, str]]) -> None:
    """After any mix of own prompts and changes by other programs, the index equals a rebuilt one."""
    statements = {
        "insert": "INSERT OR IGNORE INTO history(id, prompt, created_at) VALUES (:id, :text, 0)",
        "update": "UPDATE history SET prompt = :text WHERE id = :id",
        "delete": "DELETE FROM history WHERE id = :id",
        "move": "UPDATE OR IGNORE history SET id = id + 100 WHERE id = :id",
    }
    with (
        fresh() as path,
        HistoryStorage(path) as storage,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        for change, place, text in changes:
            if change == "add":
                storage.add(text)
                storage.flush()
            else:
                values = {"id": place, "text": text.encode("utf-8", "replace").decode()}
                other.execute(statements[change], values)
        other.execute("INSERT INTO history_fts(history_fts, rank) VALUES ('integrity-check', 1)")


@given(
    prompts=st.lists(st.sampled_from(["A", "B", " A", "", "B\n"]), max_size=12), restarts=st.sets(st.integers(0, 11))
)
def test_the_history_is_what_was_typed_without_blanks_and_repetitions(prompts: list[str], restarts: set[int]) -> None:
    """Restarting between two prompts changes nothing."""
    expected: list[str] = []
    with fresh() as path:
        storage = HistoryStorage(path, clock=lambda: 1.0)
        for place, prompt in enumerate(prompts):
            if place in restarts:
                storage.close()
                storage = HistoryStorage(path, clock=lambda: 1.0)
            storage.add(prompt)
            if prompt.strip() and expected[-1:] != [prompt.strip()]:
                expected.append(prompt.strip())
        storage.close()
        assert [entry.prompt for entry in storage.get_recent()] == expected[::-1]


@given(data=st.data())
def test_no_damage_stops_the_history_or_loses_its_bytes(data: st.DataObject) -> None:
    """After any cut or overwrite, prompts can be added and found, and the old bytes are kept if the file is replaced."""
    with fresh() as path:
        with HistoryStorage(path) as storage:
            for number in range(60):
                storage.add(f"prompt {number} " + "with some words " * 10)
        content = bytearray(Path(path).read_bytes())
        if data.draw(st.booleans()):
            del content[data.draw(st.integers(1, len(content))) :]
        for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=5)):
            noise = data.draw(st.binary(min_size=1, max_size=64))
            content[place : place + len(noise)] = noise
        Path(path).write_bytes(content)
        with HistoryStorage(path, clock=lambda: 2e9) as storage:
            storage.add("something new")
            assert "something new" in [entry.prompt for entry in storage.search("thing new", 1000)]
            storage.get_recent(1000)
            if storage.findings:
                assert Path(f"{path}.broken-{2 * 10**9}").read_bytes() == content
