"""Properties of the catalog: it equals a fresh one after any changes, and search matches a naive search."""

from __future__ import annotations

import json
import os
import re
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import Json, assistant, entry, said, user
from sessile.agents.registry import AGENTS
from sessile.core.codec import encode
from sessile.core.digest import Digest
from sessile.core.kinds import flags_of
from sessile.core.lines import Scanner, read_head, scan
from sessile.core.tree import Node, Tree
from sessile.core.words import Query, pieces
from sessile.storage.catalog import Catalog
from sessile.storage.catch_up import NativeRows
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.filters import Filter
from sessile.storage.search import Needle, scan_file
from sessions import header
from strategies import chunks_of, damaged, json_objects

ALPHABET = 'aAbeE éÉe\u0301 会话树分支 ガか 한국 🙂🚀 _-/\\"\n.7ßſKİς'
spoken = st.text(ALPHABET, max_size=14) | st.text(max_size=6)
queries = st.text(ALPHABET, min_size=1, max_size=6)


# -- changes to files


def used(number: int, text: str) -> Json:
    """Return an answer of some model at some time, with a call and sometimes a price."""
    turn = number // 6
    usage: Json = {"input": 3, "totalTokens": number} | ({"cost": {"total": number / 7}} if turn % 3 else {})
    message = assistant(text, model=f"m{turn % 2}") | {"usage": usage}
    message["content"].append({"type": "toolCall", "id": "c", "name": f"t{turn % 3}", "arguments": {}})
    reply = entry("message", f"e{number}", f"e{number // 2}", message=message)
    return reply | {"timestamp": f"2026-02-16T10:{turn * 7 % 60:02d}:00.000Z" if turn % 5 else None}


def ran(number: int) -> Json:
    """Return a failed tool result or a command of the user."""
    turn = number // 6
    failed = {"role": "toolResult", "toolName": f"t{turn % 3}", "isError": True, "content": []}
    run = {"role": "bashExecution", "command": "true", "output": "", "exitCode": turn % 3}
    return entry("message", f"e{number}", f"e{number - 1}", message=failed if turn % 2 else run)


def entry_line(number: int, text: str) -> bytes:
    kinds: list[Json] = [
        said(f"e{number}", f"e{number - 1}", text),
        used(number, text),
        ran(number),
        entry("session_info", f"e{number}", None, name=text),
        entry("label", f"e{number}", None, targetId="e1", label=text),
        entry("compaction", f"e{number}", f"e{number - 1}", summary=text),
    ]
    return encode(kinds[number % len(kinds)]) + b"\n"


Step = tuple[str, int, str]
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "append", "append", "grow", "tear", "delete", "rename", "rewrite", "replace", "foreign", "cut"]
        ),
        st.integers(0, 3),
        st.sampled_from(["alpha", "beta gamma", "会话树", "x" * 5000, ""]),
    ),
    max_size=12,
)


class Files:
    """Some session files and the changes that may happen to them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._clock = 1_000_000_000_000_000_000
        folder.mkdir(parents=True)

    def apply(self, step: Step) -> None:
        how, which, text = step
        self._number += 1
        path = self._folder / f"s{which}.jsonl"
        data = path.read_bytes() if path.exists() else encode(header(f"s{which}")) + b"\n"
        line = entry_line(self._number, text)
        if how == "delete":
            path.unlink(missing_ok=True)
            return
        if how == "rename":
            if path.exists():
                os.replace(path, self._folder / f"s{(which + 1) % 4}.jsonl")
            return
        if how == "replace":  # a new inode, as after an atomic rewrite
            path.unlink(missing_ok=True)
        data = {
            "append": data + line,
            "grow": data + b"".join(entry_line(self._number + n, text) for n in range(30)),
            "tear": data + line[: len(line) // 2],
            "rewrite": data.replace(b"alpha", b"omega"),
            "replace": data.replace(b"alpha", b"delta"),
            "foreign": data + b"garbage\n" + line,
            "cut": data[: len(data) * 2 // 3],
        }[how]
        if how in ("append", "grow", "tear", "foreign") and path.exists():
            with open(path, "r+b") as file:
                file.write(data)
        else:
            path.write_bytes(data)
        self._clock += 1_000_000  # modification times of a fast test may be equal
        os.utime(path, ns=(self._clock, self._clock))


def facts(catalog: Catalog) -> Any:
    rows = sorted((row._replace(number=0) for row in catalog.list(Filter(hide=())).rows), key=lambda row: row.path)
    found: list[Any] = []
    for query in ("alpha", "omega", "gamma beta", "话树", "delta", "x*"):
        results = catalog.search(query, limit=100_000)
        found.append(sorted((hit.path, hit.offset, hit.entry_id or "", hit.field) for hit in results.hits))
        found.append([results.titles, results.matches, results.pending])
    return rows, found, sorted(catalog.usage().sessions, key=repr)


@settings(max_examples=40)
@given(st.lists(st.tuples(steps, st.sampled_from(["look", "count", "index"])), max_size=4))
@pytest.mark.promise("P12")
def test_a_catalog_that_followed_equals_a_fresh_one(story: list[tuple[list[Step], Any]]) -> None:
    """Files may be appended to, deleted, renamed, rewritten or torn, with earlier listings at any depth."""
    with tempfile.TemporaryDirectory() as root:
        place = f"{root}/sessions"
        files = Files(Path(place) / "--p--")
        with Catalog(PosixFilesystem(), f"{root}/cache", AGENTS) as catalog:
            for happened, depth in story:
                for step in happened:
                    files.apply(step)
                catalog.catch_up([place], depth=depth)
            catalog.catch_up([place], depth="index")
            with Catalog(PosixFilesystem(), None, AGENTS) as fresh:
                fresh.catch_up([place], depth="index")
                assert facts(catalog) == facts(fresh)
            assert not catalog.notices


@given(st.lists(st.integers(-1, 30), max_size=30), st.data())
def test_branches_are_the_heads_of_the_tree(parents: list[int], data: st.DataObject) -> None:
    """Parents come before their children, with leaf markers between them; the journal may be read in two parts."""
    records: list[Json] = []
    for number, parent in enumerate(parents):
        parent_id = f"e{parent}" if 0 <= parent < number else None
        if data.draw(st.booleans()):
            records.append(said(f"e{number}", parent_id))
        else:
            records.append(entry("custom", f"e{number}", parent_id, customType="sessile.leaf"))
    digest = Digest()
    for record in records:
        digest.add(record)
    heads = [read_head(encode(record)) for record in records]
    tree = Tree(Node(str(head.id), head.parentId, flags_of(head)) for head in heads)
    assert digest.counts().branches == len(tree.heads())


# -- a naive search


UNSPACED = "会话树分支ガか한국🙂🚀"


def naive_words(text: str) -> list[str]:
    """Return the words in lower case without accents; characters of scripts without spaces end a word."""
    plain = unicodedata.normalize("NFC", re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", text.lower())))
    return re.split(f"[^a-zß0-9]|[{UNSPACED}]", plain)


def naive_holds(word: str, text: str) -> bool:
    """Return whether a text has a word: as a whole word, or anywhere if its script has no spaces."""
    return word in text if word[0] in UNSPACED else naive_words(word)[0] in naive_words(text)


@settings(max_examples=100)
@given(st.lists(st.text(ALPHABET, max_size=14), min_size=1, max_size=12), st.lists(queries, min_size=1, max_size=6))
def test_search_finds_what_reading_finds(texts: list[str], asked: list[str]) -> None:
    """The index proposes every entry whose text matches, and only matching entries are returned."""
    with tempfile.TemporaryDirectory() as root:
        path = Path(root, "sessions", "s1.jsonl")
        path.parent.mkdir()
        records = [header(), *(said(f"e{number}", None, text) for number, text in enumerate(texts))]
        path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
        with Catalog(PosixFilesystem(), None, AGENTS) as catalog:
            catalog.catch_up([str(path.parent)], depth="index")
            for text in asked:
                query = Query(text)
                wanted = {f"e{number}" for number, said in enumerate(texts) if query.terms and query.find(said)}
                assert {hit.entry_id for hit in catalog.search(text, limit=1000).hits} == wanted


@given(
    st.text("abeé会话树🙂 _-.7ßÉ\n", max_size=24),
    st.text("abeé7ß", min_size=1, max_size=3) | st.text("会话树🙂", min_size=1, max_size=3),
)
def test_words_are_found_as_a_naive_reader_finds_them(text: str, word: str) -> None:
    """Letters match as whole words regardless of accents and case, characters of scripts without spaces anywhere."""
    assert bool(Query(word).find(text)) == naive_holds(word, text)


# -- scanning


def naive_scan(records: list[Json], needle: str) -> list[tuple[str, str]]:
    return [(record["id"], field) for record in records for field, text in pieces(record) if needle in text]


contents = st.one_of(
    spoken.map(user),
    spoken.map(lambda text: {"role": "toolResult", "content": [{"type": "text", "text": text}]}),
    st.lists(spoken, max_size=3).map(
        lambda texts: (
            assistant("x")
            | {
                "content": [
                    {"type": "thinking", "thinking": "".join(texts)},
                    {"type": "toolCall", "name": "t", "arguments": texts},
                ]
            }
        )
    ),
)


@given(
    st.lists(contents, min_size=1, max_size=8),
    st.text(ALPHABET, min_size=1, max_size=3) | st.text(min_size=1, max_size=2),
)
def test_a_scan_finds_what_reading_finds(messages: list[Json], needle: str) -> None:
    """Substrings in every field are found, with any characters and any JSON escaping."""
    records = [entry("message", f"e{number}", None, message=message) for number, message in enumerate(messages)]
    records = json.loads(json.dumps(records))
    with tempfile.TemporaryDirectory() as root:
        path = Path(root, "s1.jsonl")
        lines = [
            encode(record) if number % 2 else json.dumps(record).replace("/", "\\/").encode()
            for number, record in enumerate(records)
        ]
        path.write_bytes(b"".join(line + b"\n" for line in (encode(header()), *lines)))
        found = [
            (m.entry_id, m.field) for m in scan_file(PosixFilesystem(), str(path), Needle(needle, case=True), AGENTS)
        ]
        assert found == naive_scan(records, needle)


# -- fast and exact


lines = st.lists(
    json_objects.map(encode) | st.sampled_from([b"", b"[]", b"7", b'{"type":1,"id":"a"}', b'{"type":"a","id":1}'])
)


@given(lines.map(b"\n".join) | damaged().map(lambda damage: damage.data), st.integers(1, 50), st.sampled_from([1, 3]))
def test_plain_lines_are_read_as_the_scanner_reads_them(data: bytes, size: int, version: int) -> None:
    """Entries and findings are the same, whether or not the scanner has read a line first."""
    rows = NativeRows(0, version)
    scanner = Scanner()
    fast = [entry for chunk in chunks_of(data, [size]) for entry in rows.split(scanner.split(chunk))]
    fast += rows.judged(scanner.finish())
    assert fast == list(rows.judged(scan(data)))
