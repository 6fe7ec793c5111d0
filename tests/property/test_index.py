"""For any journal and any history of its index, the results equal those of a full scan."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from figures import measured
from journal_rig import INDEX, PATH, add, ask, content_of, expect, journal_on, settled
from sessile.core.kinds import LEAF_MARKER
from sessile.storage import index
from sessile.storage import index as index_module
from sessile.storage.journal import FileJournal
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.reader import JournalReader
from sessile.testing.filesystem_contract import get, put
from sessile.testing.journal_contract import HEADER, ODD_IDS, assistant, line, marker

POOL = (
    "aaaaaaaa",
    "bbbbbbbb",
    "cccccccc",
    "dd",
    "e",
    "看一下",
    'q"\\',
    "0190aaaa-0000-7000-8000-000000000000",
    "\ud800",
)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save every row, and use blocks so small that every index has many."""
    monkeypatch.setattr(index_module, "SAVE_AFTER_ROWS", 1)
    monkeypatch.setattr(index, "_BLOCK", 64)


ids = st.sampled_from(POOL) | st.sampled_from(ODD_IDS) | st.text(max_size=12)
parents = st.none() | ids
values: Any = st.none() | st.integers() | st.text(max_size=4) | st.floats(allow_nan=False, allow_infinity=False)
members = st.fixed_dictionaries(
    {},
    optional={
        "thinkingLevel": values,
        "model": values,
        "role": values,
        "mode": values,
        "data": values,
        "injectedRules": st.lists(values, max_size=2),
        "serviceTier": values,
        "selectedToolNames": st.lists(values, max_size=2),
        "targetId": ids,
        "label": st.sampled_from(("x", "y", "", None)),
        "customType": st.sampled_from(("x", LEAF_MARKER)),
        "message": st.fixed_dictionaries(
            {}, optional={"role": st.sampled_from(("user", "assistant")), "provider": values, "model": values}
        ),
    },
)
types = st.sampled_from(
    (
        "message", "label", "session_info", "thinking_level_change", "model_change", "mode_change", "ttsr_injection",
        "service_tier_change", "mcp_tool_selection", "context_change", "custom", "compaction", "title", "session", "new",
    )
)  # fmt: skip


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    """Return a line of any kind; ids and parents come from a small pool, so that they repeat."""
    entry: dict[str, Any] = {"type": draw(types)}
    if draw(st.integers(0, 9)):
        entry["id"] = draw(ids)
    entry["parentId"] = draw(parents)
    entry |= draw(members)
    return json.dumps(entry, separators=(",", ":") if draw(st.booleans()) else None).encode()


garbage = st.sampled_from(
    (
        b"",
        b"\0\0\0",
        b"not json",
        b'{"type":"message","id":"torn',
        b"\xff\xfe",
        b"[]",
        b"{}",
        b" ",
        b"\xef\xbb\xbf{}",
        b"\r",
    )
)
pieces = st.lists(st.one_of(entries(), entries(), entries(), garbage), max_size=12)
ends = st.sampled_from((b"\n", b"\n", b"\n", b"\r\n", b""))


@st.composite
def journals(draw: st.DrawFn) -> list[bytes]:
    """Return a file as a list of growth steps, which may end in the middle of a line."""
    data = b"".join(piece + draw(ends) for piece in draw(pieces))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@st.composite
def regular_journals(draw: st.DrawFn) -> list[bytes]:
    """Return a sound file with unique ids and parents before children, some of them missing."""
    lines: list[bytes] = []
    known: list[str] = []
    for number in range(draw(st.integers(0, 25))):
        entry_id = draw(st.sampled_from((f"id{number:06}", f"{number}", f"a longer id {number}", f"看{number}")))
        parent = draw(st.sampled_from((*known[-3:], f"gone{number}", None))) if known else None
        kind = draw(st.sampled_from(("message", "assistant", "marker", "label", "session_info", "mode_change")))
        if kind == "assistant":
            lines.append(assistant(entry_id, parent, draw(st.sampled_from("mno"))))
        elif kind == "marker":
            lines.append(marker(entry_id, parent))
        else:
            lines.append(line(entry_id, parent, kind, mode=draw(st.sampled_from("xyz"))))
        known.append(entry_id)
    cuts = sorted(draw(st.lists(st.integers(0, len(lines)), max_size=3)))
    return [b"".join(raw + b"\n" for raw in lines[a:b]) for a, b in zip([0, *cuts], [*cuts, len(lines)], strict=True)]


@pytest.mark.promise("P12")
@pytest.mark.promise("P17")
@given(steps=st.one_of(journals(), regular_journals()))
def test_every_answer_is_that_of_a_full_scan_with_a_cache_and_without(steps: list[bytes]) -> None:
    """A handle that followed the file, one that loads the cache, and one without a cache agree with the model."""
    fs = settled(MemoryFilesystem())
    old = JournalReader(fs, PATH, index_path=INDEX)
    for step in steps:
        add(fs, step)
        expected = expect(content_of(fs), POOL)
        assert ask(JournalReader(fs, PATH), POOL) == expected
        loaded = JournalReader(fs, PATH, index_path=INDEX)
        assert ask(loaded, POOL) == expected
        assert ask(old, POOL) == expected
        loaded.close()


@pytest.mark.promise("P19")
@pytest.mark.promise("P20")
@given(steps=journals(), new=st.lists(st.tuples(ids, parents), min_size=1, max_size=3))
def test_appending_through_one_handle_is_seen_by_an_index_saved_by_another(
    steps: list[bytes], new: list[tuple[str, str | None]]
) -> None:
    """One handle saves, a second appends lines with any parents or duplicate ids, and a third loads the saved index."""
    fs = settled(MemoryFilesystem(), HEADER + b"\n" + b"".join(steps))
    first = JournalReader(fs, PATH, index_path=INDEX)
    ask(first)
    first.close()
    second = journal_on(fs)
    for entry_id, parent in new:
        raw = line(entry_id, parent)
        second.commit(second.append([raw], lambda news: ()).mark)
    second.close()
    expected = expect(content_of(fs), POOL)
    assert ask(JournalReader(fs, PATH, index_path=INDEX), POOL) == expected
    assert ask(JournalReader(fs, PATH), POOL) == expected


def sample_journal() -> bytes:
    """Return a sound journal that uses every part of an index."""
    lines = [HEADER]
    parent = None
    for number in range(60):
        entry_id = f"id{number:06}" if number % 5 else f"a longer id {number}"
        if number % 7 == 0:
            lines.append(line(entry_id, parent, "mode_change", mode=f"mode {number}"))
        elif number % 11 == 0:
            lines.append(line(entry_id, parent, "label", targetId=parent, label="x"))
        elif number % 13 == 0:
            lines.append(line(entry_id, "gone", "session_info", name="n"))
        else:
            lines.append(assistant(entry_id, parent, f"m{number % 4}"))
        parent = entry_id
    return b"\n".join([*lines[:30], b"not json", *lines[30:]]) + b"\n"


def damaged(data: bytes, rng: Random) -> bytes:
    """Return the bytes with a bit flipped, or a range cut, zeroed, doubled or overwritten."""
    at = rng.randrange(len(data))
    length = min(rng.choice((1, 4, 64, 1000)), len(data) - at)
    damage = rng.randrange(6)
    if damage == 0:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if damage == 1:
        return data[:at]
    if damage == 2:
        return data[:at] + bytes(length) + data[at + length :]
    if damage == 3:
        return data[:at] + rng.randbytes(length) + data[at + length :]
    if damage == 4:
        return data[:at] + data[at + length :]
    return data[: at + length] + data[at:]


@pytest.mark.promise("P12")
@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_index_never_gives_a_wrong_answer(seed: int) -> None:
    """With a hundred damages each, nothing raises and every result is right."""
    rng = Random(seed)
    content = sample_journal()
    fs = settled(MemoryFilesystem(), content)
    JournalReader(fs, PATH, index_path=INDEX).count()
    good = get(fs, INDEX)
    known = expect(content)
    wanted = [row[0] for row in known["rows"]]
    for _ in range(100):
        fs.unlink(INDEX)
        put(fs, INDEX, damaged(good, rng))
        journal = FileJournal(fs, PATH, index_path=INDEX)
        number = rng.randrange(len(wanted))
        row = journal.find(wanted[number])
        assert row is not None
        assert tuple(row) == known["rows"][number]
        for question in rng.sample(range(6), 6):
            if question == 0:
                assert [tuple(step) for step in journal.up(row)] == known["paths"][number]
            elif question == 1:
                assert journal.state(row) == known["states"][number]
            elif question == 2:
                assert journal.labels() == known["labels"]
            elif question == 3:
                assert journal.title() == known["title"]
            elif question == 4:
                assert journal.findings() == known["findings"]
            else:
                assert [tuple(row) for row in journal.rows()] == known["rows"]
        assert journal.count() == known["count"]
        journal.close()
    measured("P12", "damaged indexes", damages=100, wrong_answers=0)
