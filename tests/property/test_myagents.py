"""Properties of MyAgents' formats and folder."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myagents_folder import AT, ROOT, begun, content, folder, put, put_index, row
from sessile.agents.myagents import types
from sessile.agents.myagents.index import parse, render, row_of
from sessile.agents.myagents.messages import Row, encode_row, scan, stored_form
from sessile.agents.myagents.translation import to_native, to_stored
from sessile.agents.myagents.types import Message, decode_content
from sessile.core.codec import decode, encode
from sessile.core.lines import Finding
from sessile.storage.memory import MemoryFilesystem
from strategies import as_javascript, chunks_of, json_values, small, text

Json = dict[str, Any]

counts = st.none() | st.integers(0, 10**9) | st.just("many")
usages = st.dictionaries(
    st.sampled_from(["inputTokens", "outputTokens", "cacheReadTokens", "cacheCreationTokens", "model"]), counts
)
said = st.sampled_from(["", "hello", "[1]", "[", "é\u2028\ud800🙂", '[{"type":"text","text":"x"}]', "a\nb"]) | text
messages: st.SearchStrategy[Json] = st.builds(
    lambda role, content, usage, more: {"id": "0", "role": role, "content": content, "usage": usage} | more,
    st.sampled_from(["user", "assistant", "system"]),
    said,
    st.none() | usages,
    st.just({}) | st.dictionaries(st.sampled_from(["later", "n", "é"]), small, max_size=2),
)


def numbered(several: list[Json]) -> list[Json]:
    return [each | {"id": str(number)} for number, each in enumerate(several)]


lists = st.lists(messages, max_size=6).map(numbered)
counted = st.lists(
    st.builds(lambda role, usage: {"role": role, "usage": usage}, st.sampled_from(["user", "assistant"]), usages),
    max_size=4,
)
garbage = st.binary(max_size=20) | st.sampled_from([b"{", b'{"id":"9"', b"[]", b"\xef\xbb\xbf", b"\0\0", b"5"])


@pytest.mark.mission("M3")
@given(lists, st.lists(st.integers(1, 3), max_size=4))
def test_what_is_saved_is_read_however_it_was_cut_into_saves(spoken: list[Json], cuts: list[int]) -> None:
    """Appended messages are read in the same order, each once; unknown members are left out."""
    store = begun(folder())
    end = 0
    for cut in [*cuts, len(spoken)]:
        end = min(len(spoken), end + cut)
        store.save("s", spoken[:end])
    stored = [stored_form(each) for each in spoken]
    assert [each.value for each in store.load("s").messages] == [as_javascript(each) for each in stored]
    if spoken:
        assert content(store, f"{ROOT}/sessions/s.jsonl") == b"".join(encode_row(each) + b"\n" for each in stored)


@pytest.mark.mission("M4")
@given(lists, st.integers(0, 6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_statistics_kept_message_by_message_equal_a_recount(spoken: list[Json], late: int, busy: list[bool]) -> None:
    """This holds if the index was busy at times, and with usage that arrives late."""
    store = begun(folder())
    for number in range(len(spoken)):
        if busy[number]:
            store.fs.mkdir(f"{ROOT}/sessions.lock")
        store.save("s", spoken[: number + 1])
        if number == late:
            spoken[number] = spoken[number] | {"usage": {"inputTokens": 7}}
            store.save("s", spoken[: number + 1])
        if busy[number]:
            store.fs.rmdir(f"{ROOT}/sessions.lock")
    store.settle()
    known = store.get("s")
    assert known is not None
    assert (known.stats or types.recount([])) == store.recount("s") == types.recount(map(Message, spoken))


@pytest.mark.mission("M4")
@given(counted, counted)
def test_tallies_add_up(first: list[Json], second: list[Json]) -> None:
    """Counting in two parts gives the same result as counting at once."""
    one, two = [Message(each) for each in first], [Message(each) for each in second]
    assert types.add(types.recount(one), types.tally(two)) == types.recount([*one, *two])
    assert types.tally([*one, *two]).minus(types.tally(two)) == types.tally(one)


@pytest.mark.mission("M6")
@given(st.lists(messages.map(encode_row) | garbage, max_size=8), st.lists(st.integers(1, 30), min_size=1, max_size=3))
def test_every_message_between_garbage_is_read_and_every_byte_accounted_for(
    lines: list[bytes], sizes: list[int]
) -> None:
    """Rows and findings do not overlap, and other bytes are line ends, spaces or byte order marks."""
    data = b"\n".join(lines)
    items = list(scan(chunks_of(data, sizes)))
    assert items == list(scan([data]))
    rest = bytearray(data)
    at = 0
    for item in items:
        length = item.length if isinstance(item, Finding) else len(item.raw)
        assert item.offset >= at
        at = item.offset + length
        rest[item.offset : at] = b" " * length
    assert not bytes(rest).replace(b"\xef\xbb\xbf", b"").strip(b" \t\r\n")
    read = [item.raw for item in items if isinstance(item, Row)]
    for raw in lines:
        if raw.startswith(b'{"id":') and b"\n" not in raw and _is_object(raw):
            assert raw in read


def _is_object(raw: bytes) -> bool:
    try:
        return isinstance(decode(raw), dict)
    except ValueError:
        return False


@pytest.mark.mission("M6")
@given(st.lists(messages.map(encode_row), max_size=4), st.data())
def test_an_append_behind_any_torn_end_is_read(lines: list[bytes], data: st.DataObject) -> None:
    """The last row may be cut anywhere, and complete rows before it stay."""
    whole = b"".join(raw + b"\n" for raw in lines)
    cut = data.draw(st.integers(0, len(whole)))
    fs = MemoryFilesystem()
    put_index(fs, row("s"))
    put(fs, f"{ROOT}/sessions/s.jsonl", whole[:cut])
    store = folder(fs)
    before = store.load("s").rows
    new = {"id": "new", "role": "user", "content": "x", "timestamp": AT}
    store.save("s", [*(dict(each.message.value) for each in before), new])
    assert [each.raw for each in store.load("s").rows] == [*(each.raw for each in before), encode_row(new)]
    assert content(store, f"{ROOT}/sessions/s.jsonl").startswith(whole[:cut])


@given(json_values)
def test_content_of_ours_comes_back_from_theirs(value: Any) -> None:
    """A text stays a text or becomes one text block, and blocks are the same after a round trip."""
    if isinstance(value, str):
        stored = decode_content(to_stored(value))
        assert stored == value or stored == [{"type": "text", "text": value}]
    elif isinstance(value, list):
        once = to_stored(as_javascript(value))
        assert to_stored(to_native(decode_content(once))) == once


@pytest.mark.mission("M1")
@given(st.lists(json_values, max_size=5))
def test_an_index_is_read_as_it_was_written_byte_for_byte(values: list[Any]) -> None:
    """Rows of any shape survive, and writing again changes nothing."""
    data = render(
        [
            row_of(value) if isinstance(value, dict) else parse(b"[" + encode({"x": value})[5:-1] + b"]").rows[0]
            for value in values
        ]
    )
    parsed = parse(data)
    assert parsed.sound and len(parsed.rows) == len(values)
    assert render(parsed.rows) == data
    assert [each.value for each in parsed.rows] == [as_javascript(value) for value in values]


@pytest.mark.mission("M5")
@given(st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1), st.data())
def test_a_cut_index_gives_every_row_that_is_whole(names: list[str], data: st.DataObject) -> None:
    """It is never reported as sound."""
    whole = render([row_of(row(name, stats={"messageCount": 1})) for name in names])
    cut = data.draw(st.integers(0, len(whole) - 1))
    parsed = parse(whole[:cut])
    assert not parsed.sound
    assert [each.metadata.id for each in parsed.rows if each.metadata] == names[: whole[:cut].count(b"\n  }")]
