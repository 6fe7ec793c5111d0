"""Words in a database: queries find the same entries as in a folder, the best first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import Json, assistant, entry, said
from postgres.twins import Twins, journal
from sessile.core.words import Query, indexed, words_of
from sessile.storage.filters import Filter
from sessile.storage.postgres import listings
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.leases import Leases

pytestmark = pytest.mark.mission("B8")

ALPHABET = "aAbeE éÉe\u0301 会话树分支 ガか 한국 🙂🚀 _-/\\\"\n.7ßſKİς'"


@pytest.fixture
def twins(database: Database, leases: Leases) -> Iterator[Twins]:
    """An empty database and an empty folder with the same paths."""
    made = Twins(database, leases)
    yield made
    made.close()


def spoken(*texts: str) -> list[Json]:
    """Return one entry for each text."""
    return [said(f"e{number}", f"e{number - 1}" if number else None, text) for number, text in enumerate(texts)]


def found(twins: Twins, query: str) -> list[str]:
    """Return the ids of the found entries, best first."""
    return [hit.entry_id or "" for hit in twins.catalog.search(query, limit=1000).hits]


PAIRS = [
    ("retry", "We retry twice."),
    ("résumé", "a RESUME"),
    ("resume", "re\u0301sume\u0301"),
    ("foo_bar", "foo-bar"),
    ('"two words"', "exactly two  words here"),
    ("webh*", "webhooks"),
    ("会话树", "恢复会话树。"),
    ("话", "会话树"),
    ("会", "会话"),
    ("使用pi", "我使用 pi 会话"),
    ("テキスト", "日本語のテキストです"),
    ("한국", "한국어문장"),
    ("สวัส", "ก็สวัสดีครับ"),
    ("🚀", "fine 🙂🚀"),
    ("οδός", "ΟΔΟΣ"),
    ("istanbul", "İstanbul"),
    ("الكتاب", "الكتـاب"),
    ("𐐨𐐩", "𐐀𐐁"),
    ("Retry", "Retry it"),
    ("retr", "We shan't retry."),
    ("Twice", "retry twice"),
    ("会树", "会话树啊"),
]


def test_words_are_found_as_in_a_folder(twins: Twins) -> None:
    """Case, accents and scripts match as in a folder, and other words do not."""
    twins.put(twins.path("a"), journal("a", *spoken(*(text for _, text in PAIRS))))
    twins.catch_up()
    twins.assert_same(*(query for query, _ in PAIRS))
    for number, (query, text) in enumerate(PAIRS):
        assert (f"e{number}" in found(twins, query)) == bool(Query(query).find(text)), query


STRANGE = [
    "",
    " ",
    '"',
    '""',
    "*",
    "AND",
    "a OR",
    "(",
    'a"b',
    "text:x",
    "a & b",
    "a:*",
    "!a",
    "a <-> b",
    "\\",
    "'",
    "\0",
    "%s",
    "a\ud800",
]


def test_any_text_is_a_safe_query(twins: Twins) -> None:
    """No typed text has a special meaning for PostgreSQL."""
    twins.put(twins.path("a"), journal("a", *spoken("and or not a b text x", "nothing of the kind %s")))
    twins.catch_up()
    twins.assert_same(*STRANGE)


def test_search_finds_what_reading_finds(database: Database, leases: Leases) -> None:
    """The index finds the entries that a scan finds, and counts matches as the catalog of a folder does."""
    numbers = count()

    @settings(max_examples=30)
    @given(
        st.lists(st.text(ALPHABET, max_size=14) | st.text(max_size=6), min_size=1, max_size=12),
        st.lists(st.text(ALPHABET, min_size=1, max_size=6), min_size=1, max_size=6),
    )
    def law(texts: list[str], asked: list[str]) -> None:
        twins = Twins(database, leases, f"law{next(numbers)}")
        twins.put(twins.path("a"), journal("a", *spoken(*texts)))
        twins.catch_up()
        for text in asked:
            query = Query(text)
            wanted = {f"e{number}" for number, said in enumerate(texts) if query.terms and query.find(said)}
            assert set(found(twins, text)) == wanted
        twins.assert_same(*asked)
        twins.close()

    law()


@given(st.text(ALPHABET, max_size=30) | st.text(max_size=12))
def test_words_hold_no_character_that_means_anything(text: str) -> None:
    """Words contain neither spaces, which separate them, nor quotes, and equal those of SQLite's index."""
    for word in words_of(text):
        assert word and not set(word) & set(" '\\\n\0&|!:*()<>")
        assert word in indexed(text.lower())


def test_fields_are_kept_apart(twins: Twins) -> None:
    """Text, thinking and tool calls are separate fields; all terms must be in one; tool results are not indexed."""
    content = [
        {"type": "text", "text": "alpha said"},
        {"type": "thinking", "thinking": "alpha beta thought"},
        {"type": "toolCall", "id": "c", "name": "bash", "arguments": {"command": "alpha called", "n": 42}},
    ]
    reply = entry("message", "a1", "e0", message=assistant("x") | {"content": content})
    result = {"role": "toolResult", "content": [{"type": "text", "text": "alpha result"}]}
    twins.put(twins.path("a"), journal("a", *spoken("alpha"), reply, entry("message", "r1", "e0", message=result)))
    twins.catch_up()
    twins.assert_same("alpha", "beta", "said beta", "bash 42", "result", '"alpha thought"')
    for fields in (["text"], ["thinking"], ["tool_input", "text"], ["tool_result"], []):
        ours, theirs = (each.search("alpha", fields=fields) for each in (twins.catalog, twins.twin))  # type: ignore[arg-type]
        assert sorted(hit[:6] for hit in ours.hits) == sorted(hit[:6] for hit in theirs.hits)
        assert ours[1:] == theirs[1:]


def test_very_long_words_and_passages_are_found(twins: Twins) -> None:
    """Words that exceed the index limit, and long passages, are found."""
    random = Random(1)
    many = " ".join(f"{random.getrandbits(64):x}" for _ in range(80_000))
    texts = ["a" * 5000 + " end", "a" * 4999 + "b", "会" * 3000, many + " needle here", "needle"]
    twins.put(twins.path("a"), journal("a", *spoken(*texts)))
    twins.catch_up()
    twins.assert_same(
        "a" * 900, "a" * 900 + "*", "end", "会会会", "needle", '"needle here"', many[:16], many[:16] + "*"
    )
    assert set(found(twins, "needle")) == {"e3", "e4"}
    assert found(twins, '"needle here"') == ["e3"]


# -- the best first


def test_the_best_come_first(twins: Twins) -> None:
    """More occurrences, shorter texts, text before thinking, and newer among equals rank higher."""
    filler = "and so on and so forth for quite a while until nobody reads it any more"
    thought = {"type": "thinking", "thinking": "retry retry"}
    twins.put(twins.path("old"), journal("old", *spoken("retry it")))
    twins.put(
        twins.path("new"),
        journal(
            "new",
            *spoken(f"retry {filler}", "retry it", "retry retry"),
            entry("message", "t", None, message=assistant("x") | {"content": [thought]}),
        ),
    )
    twins.catch_up()
    hits = [(hit.session_id, hit.entry_id) for hit in twins.catalog.search("retry").hits]
    assert hits == [("new", "e2"), ("new", "e1"), ("old", "e0"), ("new", "t"), ("new", "e0")]
    ranks = [hit.rank for hit in twins.catalog.search("retry").hits]
    assert ranks == sorted(ranks, key=lambda rank: rank or 0)


def test_more_matches_than_are_ranked_at_once(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """All matches are returned once, those of the newest sessions first."""
    monkeypatch.setattr(listings, "_RANKED", 7)
    monkeypatch.setattr(listings, "_READ", 3)
    for number in range(5):
        twins.put(twins.path(f"s{number}"), journal(f"s{number}", *spoken(*["alpha"] * 9)))
    twins.catch_up()
    twins.assert_same("alpha")
    assert len(found(twins, "alpha")) == 45
    assert {hit.session_id for hit in twins.catalog.search("alpha", limit=7).hits} == {"s4"}


# -- where


def test_only_some_sessions_are_searched(twins: Twins) -> None:
    """Only sessions selected by a filter, and below the places of the last catch-up, are searched."""
    for number in range(4):
        twins.put(
            twins.path(f"s{number}", f"--p{number}--"), journal(f"s{number}", *spoken("alpha"), title=f"alpha {number}")
        )
    twins.catch_up()
    for pick in ("s1", "s3", "none"):
        results = []
        for catalog in (twins.catalog, twins.twin):
            numbers = {row.number for row in catalog.list(Filter(id_prefix=pick)).rows}
            results.append(catalog.search("alpha", sessions=numbers))
        assert [hit[:6] for hit in results[0].hits] == [hit[:6] for hit in results[1].hits]
        assert results[0].matches == results[1].matches
        assert results[0].titles == results[1].titles
    twins.catalog.catch_up([f"{twins.place}/--p1--"], depth="index")
    assert {hit.session_id for hit in twins.catalog.search("alpha").hits} == {"s1"}
    assert twins.catalog.search("alpha").matches["text"] == 1
    assert len(twins.catalog.search("alpha").titles) == 1


def test_what_is_not_indexed_is_said_or_read(twins: Twins) -> None:
    """Unindexed sessions are counted as pending; on request they are read completely."""
    twins.put(twins.path("a"), journal("a", *spoken("alpha")))
    twins.catch_up("index")
    twins.put(twins.path("b"), journal("b", *spoken("alpha", "beta")))
    twins.catch_up("count")
    twins.assert_same("alpha", "beta")
    assert twins.catalog.search("alpha").pending == 1
    ours, theirs = (each.search("alpha", directly=True) for each in (twins.catalog, twins.twin))
    assert [hit[:6] for hit in ours.hits] == [hit[:6] for hit in theirs.hits]
    assert (ours.pending, len(ours.hits)) == (0, 2)
    assert twins.catalog.search("alpha", count=False).matches == {}


def test_a_line_without_its_end_is_read(twins: Twins) -> None:
    """An unfinished line, in a journal or a file of bytes, is not indexed but found."""
    for name, take_in in (("a", True), ("b", False)):
        twins.put(twins.path(name), journal(name, *spoken("alpha", "alpha omega"))[:-1], take_in=take_in)
    twins.catch_up()
    twins.assert_same("omega", "alpha")
    assert len(found(twins, "omega")) == 2


def test_what_the_index_says_is_not_believed(twins: Twins) -> None:
    """A session that was deleted or replaced since returns only its current matches."""
    gone = twins.put(twins.path("a"), journal("a", *spoken("alpha")))
    other = twins.put(twins.path("b"), journal("b", *spoken("alpha", "beta")))
    moved = twins.put(twins.path("c"), journal("c", *spoken("alpha")))
    twins.catch_up()
    twins.delete(gone)
    twins.put(other, journal("b", *spoken("gamma", "beta")))
    twins.rename(moved, twins.path("d"))
    assert found(twins, "alpha") == []
    assert found(twins, "beta") == ["e1"]
    twins.assert_same("alpha", "beta", "gamma")


def test_the_lines_of_hits_are_read_at_once(twins: Twins) -> None:
    """A search takes few queries for any number of hits."""
    twins.put(twins.path("a"), journal("a", *spoken(*["alpha beta"] * 200)))
    twins.catch_up()
    before = twins.database.count
    assert len(twins.catalog.search("alpha", limit=30).hits) == 30
    assert twins.database.count - before == 5
