"""MyAgents' files after we have written them: the bytes of JavaScript, and late changes of stored messages."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from myagents_folder import AT, OURS, ROOT, asked, begun, content, everything, folder, ids, line, put, put_index, told
from sessile.agents.myagents.index import render, row_of
from sessile.agents.myagents.messages import Row
from sessile.agents.myagents.store import MyAgentsStore
from sessile.errors import LeafMoved, NotFound
from sessile.storage.memory import MemoryFilesystem

FILE = f"{ROOT}/sessions/s.jsonl"
INDEX = f"{ROOT}/sessions.json"


def stats_of(store: MyAgentsStore) -> object:
    known = store.get("s")
    return known.stats if known else None


# -- optional members


@pytest.mark.mission("M2")
def test_what_is_not_known_is_not_written() -> None:
    """Unknown values are omitted in the message, its usage and attachments; unknown members are kept."""
    store = begun(folder(), sdkSessionId=None, unifiedSession=None, stats=None, cronTaskId=None)
    usage: dict[str, Any] = {"inputTokens": 3, "outputTokens": 1, "cacheReadTokens": None, "model": None}
    usage["modelUsage"] = {"m": {"inputTokens": 3, "outputTokens": 1, "cacheReadTokens": None}}
    attachment = {"id": "a", "name": "x", "mimeType": "image/png", "path": "s/a.png", "size": None}
    store.append("s", [asked(0, attachments=[attachment], usage=None, toolCount=None, durationMs=None)])
    store.append("s", [told(1, usage=usage, attachments=None, later={"x": None})])
    assert content(store, FILE).decode().splitlines() == [
        f'{{"id":"0","role":"user","content":"hello","timestamp":"{AT}",'
        '"attachments":[{"id":"a","name":"x","mimeType":"image/png","path":"s/a.png"}]}',
        f'{{"id":"1","role":"assistant","content":"well","timestamp":"{AT}",'
        '"usage":{"inputTokens":3,"outputTokens":1,"modelUsage":{"m":{"inputTokens":3,"outputTokens":1}}},'
        '"later":{"x":null}}',
    ]
    assert b"null" not in content(store, INDEX)
    assert list(json.loads(content(store, INDEX))[0]) == [
        "id",
        "agentDir",
        "title",
        "createdAt",
        "lastActiveAt",
        "stats",
    ]


@pytest.mark.mission("M2")
def test_a_null_that_another_program_wrote_stays() -> None:
    """The null stays even in rows that are changed."""
    fs = MemoryFilesystem()
    put_index(fs, {"id": "s", "agentDir": "/w", "lastActiveAt": AT, "icon": None})
    put(fs, FILE, line(asked(0, mood=None)))
    store = folder(fs)
    store.update_last("s", {"toolCount": 2})
    assert store.load("s").messages[0].value == asked(0, mood=None, toolCount=2)
    assert b'"icon": null' in content(store, INDEX)


@pytest.mark.mission("M2")
@pytest.mark.parametrize("as_read", [False, True])
def test_a_null_in_a_stored_message_is_no_news(as_read: bool) -> None:
    """Passing the message back, as it was read or as a plain value, changes nothing."""
    fs = MemoryFilesystem()
    put_index(fs, {"id": "s", "agentDir": "/w", "lastActiveAt": AT})
    stored = line(told(0, usage={"inputTokens": None, "outputTokens": 1}, attachments=[{"id": None}]))
    put(fs, FILE, stored)
    store = folder(fs)
    read = store.load("s").messages
    saved = store.save("s", [*(read if as_read else [dict(each.value) for each in read]), asked(1)])
    assert not saved.updated and content(store, FILE) == stored + line(asked(1))


@pytest.mark.mission("M2")
def test_blocks_are_stored_as_text() -> None:
    """MyAgents reads them as text, and passing them again changes nothing."""
    store = begun(folder())
    blocks = [{"type": "text", "text": "ä\n"}]
    messages = [asked(0), told(1) | {"content": blocks}]
    store.save("s", messages)
    assert Row(0, content(store, FILE).splitlines()[1]).message.value["content"] == '[{"type":"text","text":"ä\\n"}]'
    assert store.load("s").messages[1].content == blocks
    before = everything(store.fs, ROOT)
    assert not store.save("s", messages).updated and everything(store.fs, ROOT) == before


@pytest.mark.mission("M2")
def test_the_index_has_the_characters_of_json_stringify() -> None:
    """Numbers, empty values, escapes and lone surrogates are written as Node does."""
    value: dict[str, Any] = {"a": 1e-7, "b": 0.00001, "c": 2.0, "d": [], "e": {}, "f": [1, {"g": []}]}
    value |= {"h": '\x01\x7f\u2028\ud800"\\/é', "i": None, "j": True, "k": -0.0, "l": 1e16}
    assert render([row_of(value)]).decode() == (
        '[\n  {\n    "a": 1e-7,\n    "b": 0.00001,\n    "c": 2,\n    "d": [],\n    "e": {},\n    "f": [\n      1,\n'
        '      {\n        "g": []\n      }\n    ],\n    "h": "\\u0001\x7f\u2028\\ud800\\"\\\\/é",\n    "i": null,\n'
        '    "j": true,\n    "k": 0,\n    "l": 10000000000000000\n  }\n]'
    )


@pytest.mark.mission("M2")
def test_a_row_with_bytes_that_are_not_utf_8_can_be_changed() -> None:
    """They are shown and written as U+FFFD; an unchanged row keeps them."""
    fs = MemoryFilesystem()
    put(fs, INDEX, b'[{"id":"s","title":"\xff"},{"id":"t","title":"\xfe"}]')
    store = folder(fs)
    assert [each.title for each in store.list_sessions()] == ["\ufffd", "\ufffd"]
    store.index.update("s", lambda known: known.changed(agentDir="/w"))
    data = content(store, INDEX)
    assert '"title": "\ufffd"'.encode() in data and b'{"id":"t","title":"\xfe"}' in data


# -- counting


@pytest.mark.mission("M3")
@pytest.mark.parametrize("form", ["jsonl", "json", "jsonl.gz", "both"])
def test_the_count_is_that_of_the_reader_whatever_the_form(form: str) -> None:
    """The count is right for a session that was not migrated or unpacked yet."""
    store = begun(folder())
    rows = line(asked(0)) + b"{bad\n\n" + line(told(1))
    whole = json.dumps({"messages": [asked(0), told(1), asked(2)]}).encode()
    forms = {"jsonl": rows, "json": whole, "jsonl.gz": gzip.compress(rows)}
    for name in ("jsonl", "json") if form == "both" else (form,):
        put(store.fs, f"{ROOT}/sessions/s.{name}", forms[name])
    assert store.files.count("s") == len(ids(store)) == (2 if form in ("jsonl", "jsonl.gz") else 3)


# -- news of stored messages


@pytest.mark.mission("M3")
def test_messages_as_they_were_loaded_can_be_saved_with_new_ones() -> None:
    """Stored messages are not written again."""
    store = begun(folder())
    store.save("s", [asked(0), told(1)])
    before = content(store, FILE)
    assert store.save("s", [*store.load("s").messages, asked(2)]) == (1, False, 3, (), None)
    assert content(store, FILE) == before + line(asked(2))


@pytest.mark.mission("M3")
@pytest.mark.mission("M4")
@pytest.mark.parametrize("cold", [False, True])
def test_usage_that_arrives_after_the_next_question_is_stored(cold: bool) -> None:
    """An answer may still stream when the user asks again; both late rows are updated, and everything is counted once."""
    store = begun(folder())
    first = [asked(0), {"id": "1", "role": "assistant", "content": "we", "timestamp": AT}, asked(2, "and?")]
    store.save("s", first)
    final = [asked(0), told(1, text="well", toolCount=1), asked(2, "and?", sdkUuid="u"), told(3)]
    saved = (folder(store.fs) if cold else store).save("s", final)
    assert (saved.appended, saved.updated, saved.messages) == (1, True, 4)
    assert content(store, FILE) == b"".join(line(each) for each in final)
    assert stats_of(store) == store.recount("s")
    assert content(store, f"{OURS}/originals/s.replaced") == line(first[2]) + line(first[1])


@pytest.mark.mission("M3")
def test_a_list_that_differs_before_its_end_is_refused() -> None:
    """It belongs to another conversation."""
    store = begun(folder())
    store.save("s", [asked(0), told(1), asked(2)])
    before = everything(store.fs, "/")
    with pytest.raises(LeafMoved):
        store.save("s", [asked(0), told(7), asked(2), told(3)])
    assert everything(store.fs, "/") == before


@pytest.mark.mission("M3")
@pytest.mark.mission("M4")
def test_any_message_can_be_put_right_by_its_id() -> None:
    """The message may be old; a member that is None is removed, and without a change nothing is written."""
    store = begun(folder())
    messages = [asked(0), told(1, wrong=5), *(asked(number) for number in range(2, 40))]
    store.save("s", messages)
    news = {"usage": {"inputTokens": 99, "outputTokens": 1, "model": None}, "durationMs": 7, "wrong": None}
    assert store.update("s", "1", news).updated
    changed = {name: item for name, item in messages[1].items() if name != "wrong"}
    changed |= {"usage": {"inputTokens": 99, "outputTokens": 1}, "durationMs": 7}
    assert [each.value for each in store.load("s").messages] == [asked(0), changed, *messages[2:]]
    assert stats_of(store) == store.recount("s")
    assert not store.update("s", "1", {"durationMs": 7}).updated
    with pytest.raises(NotFound):
        store.update("s", "41", {"durationMs": 7})
    assert store.save("s", [*store.load("s").messages, told(40)]).appended == 1
