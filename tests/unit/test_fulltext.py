"""Full-text search: which words match, in which fields, on every branch, and what a search reports as not searched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from builders import Json, assistant, entry, said
from sessile.agents.registry import AGENTS
from sessile.core.words import Query, excerpt, fold, indexed, passages
from sessile.storage import search
from sessile.storage.catalog import Catalog
from sessile.storage.filesystem import PosixFilesystem
from sessions import FOLDER, append_raw, header, write_file


def session_at(root: Path, name: str, *records: Json | str, **members: Any) -> str:
    return write_file(root / "sessions" / FOLDER / f"{name}.jsonl", header(name, **members), *records)


def catalog_of(root: Path) -> Catalog:
    catalog = Catalog(PosixFilesystem(), str(root / "cache"), AGENTS)
    catalog.catch_up([str(root / "sessions")], depth="index")
    return catalog


def found(root: Path, query: str, **options: Any) -> list[str]:
    with catalog_of(root) as catalog:
        return sorted(hit.entry_id or "" for hit in catalog.search(query, limit=1000, **options).hits)


# -- words


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("retry", "We retry twice."),
        ("retry", "RETRY"),
        ("resume", "un résumé"),
        ("résumé", "a RESUME"),
        ("re\u0301sume\u0301", "résumé"),
        ("resume", "re\u0301sume\u0301"),
        ("foo_bar", "the foo_bar here"),
        ("foo_bar", "foo-bar"),
        ("foo", "foo_bar"),
        ('"two words"', "exactly two  words here"),
        ("webh*", "webhooks"),
        ("会话", "恢复会话树"),
        ("会话树", "恢复会话树。"),
        ("树", "会话树"),
        ("话", "会话树"),
        ("会", "会话"),
        ("使用pi", "我使用 pi 会话"),
        ("pi", "使用pi会话"),
        ("テキスト", "日本語のテキストです"),
        ("한국", "한국어문장"),
        ("สวัส", "ก็สวัสดีครับ"),
        ("🙂", "fine 🙂🚀"),
        ("🚀", "fine 🙂🚀"),
        ("🤔", "hm 🤔"),
        ("οδός", "ΟΔΟΣ"),
        ("straße", "STRAßE"),
        ("abc", "ＡＢＣ"),
        ("istanbul", "İstanbul"),
        ("привет", "ПРИВЕТ мир"),
        ("الكتاب", "الكتـاب"),
        ("a", "a"),
        ("404", "error 404: gone"),
        ("𐐨𐐩", "𐐀𐐁"),
        ("Retry", "Retry it"),
    ],
)
def test_a_word_is_found(tmp_path: Path, query: str, text: str) -> None:
    """Case, diacritics and missing spaces do not prevent a match, in the index or in the text."""
    assert Query(query).find(text)
    session_at(tmp_path, "s1", said("u1", None, text))
    assert found(tmp_path, query) == ["u1"]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("retr", "We retry twice."),
        ("Retry", "We retry twice."),
        ("alpha beta", "alpha only"),
        ('"two words"', "words two"),
        ("foo_bar", "foobar"),
        ("会树", "会话树"),
        ("会话", "会，话"),
        ("pi", "pie"),
        ("é" + "t" * 3, "e ttt"),
    ],
)
def test_a_word_that_is_not_there_is_not_found(tmp_path: Path, query: str, text: str) -> None:
    """Only whole words match, capitals in the query are significant, and all words are required."""
    assert not Query(query).find(text)
    session_at(tmp_path, "s1", said("u1", None, text))
    assert found(tmp_path, query) == []


@pytest.mark.parametrize(
    "query",
    [
        "",
        " ",
        '"',
        '""',
        "*",
        "AND",
        "NOT a",
        "a OR",
        "(",
        'a"b',
        "text:x",
        "{text}",
        "a NEAR b",
        "^a",
        "-",
        "\0",
        "'",
        ";",
    ],
)
def test_any_text_is_a_safe_query(tmp_path: Path, query: str) -> None:
    """Text with a meaning in SQLite's query syntax is safe."""
    session_at(tmp_path, "s1", said("u1", None, "and or not near a b text x"))
    session_at(tmp_path, "s2", said("u2", None, "nothing of the kind"))
    assert "u2" not in found(tmp_path, query)


def test_what_no_index_can_find_is_said(tmp_path: Path) -> None:
    """Words of punctuation only are returned in `ignored`."""
    session_at(tmp_path, "s1", said("u1", None, "x => y"))
    with catalog_of(tmp_path) as catalog:
        results = catalog.search("x =>")
        assert [hit.entry_id for hit in results.hits] == ["u1"]
        assert results.ignored == ["=>"]
        assert catalog.search("=> ->") == search.Results([], [], {}, 0, ["=>", "->"])


def test_folding_keeps_places() -> None:
    """Folding keeps the length of a text, so that matches can be marked."""
    text = "İstanbul, re\u0301sumé, ﬁ, ＡＢＣ, 가나다, ガ, \ud800, 👩‍💻"
    assert len(fold(text)) == len(text) == len(fold(text, keep_case=True))
    assert [text[a:b] for a, b in Query("resume").find(text)] == ["re\u0301sumé"]
    assert [text[a:b] for a, b in Query("가나").find(text)] == ["가나"]


def test_long_runs_of_letters_are_indexed_in_linear_time() -> None:
    """A megabyte of base64 before a non-ASCII letter is scanned once."""
    text = "QUJD" * 250_000 + "é"
    assert indexed(text) == text.lower()[:-1] + "e"


# -- fields


def test_fields_are_kept_apart(tmp_path: Path) -> None:
    """A hit names its field, and matches in fields that were not searched are counted."""
    content = [
        {"type": "thinking", "thinking": "perhaps sesame"},
        {"type": "text", "text": "open sesame"},
        {
            "type": "toolCall",
            "id": "c",
            "name": "grep",
            "arguments": {"pattern": "sesame", "deep": [{"x": "poppy"}], "n": 7},
        },
    ]
    session_at(
        tmp_path,
        "s1",
        entry("message", "a1", None, message=assistant("") | {"content": content}),
        entry(
            "message", "r1", "a1", message={"role": "toolResult", "content": [{"type": "text", "text": "sesame oil"}]}
        ),
        entry("compaction", "k1", "r1", summary="about sesame"),
    )
    with catalog_of(tmp_path) as catalog:
        results = catalog.search("sesame")
        assert {(hit.entry_id, hit.field) for hit in results.hits} == {
            ("a1", "text"),
            ("a1", "thinking"),
            ("a1", "tool_input"),
            ("k1", "text"),
        }
        assert results.matches == {"text": 2, "thinking": 1, "tool_input": 1}
        narrow = catalog.search("sesame", fields=["thinking"])
        assert [hit.field for hit in narrow.hits] == ["thinking"]
        assert narrow.matches == results.matches
        assert [hit.field for hit in catalog.search("poppy").hits] == ["tool_input"]
        assert [hit.field for hit in catalog.search("grep 7").hits] == ["tool_input"]
        assert not catalog.search("perhaps open").hits  # all words, but in different fields


def test_passages_of_every_kind() -> None:
    """Commands, mentioned files, summaries, labels and custom messages are searched; images and data are not."""
    run = entry("message", "x", None, message={"role": "bashExecution", "command": "ls", "output": "a b"})
    assert passages(run) == {"tool_input": "ls", "tool_result": "a b"}
    files = entry("message", "x", None, message={"role": "fileMention", "files": [{"path": "p", "content": "c"}, 3]})
    assert passages(files) == {"tool_input": "p", "tool_result": "c"}
    assert passages(entry("custom_message", "x", None, content=[{"type": "text", "text": "note"}])) == {"text": "note"}
    assert passages(entry("label", "x", None, label="here")) == {"text": "here"}
    assert passages(entry("branch_summary", "x", None, summary="left")) == {"text": "left"}
    assert passages(entry("custom", "x", None, data="secret")) == {}
    assert passages(entry("message", "x", None, message={"role": {}, "content": [1, None, {"type": []}]})) == {}
    assert passages({"type": "message", "message": 3}) == {}


def test_an_excerpt_shows_the_match_in_its_surroundings() -> None:
    """An excerpt starts with a whole word and marks its matches."""
    text = "word " * 50 + "needle and thread " + "word " * 50 + "needle"
    cut = excerpt(text, Query("needle").find(text))
    assert [cut.text[a:b] for a, b in cut.marks] == ["needle"]
    assert cut.before and cut.after and cut.text.startswith("word") and len(cut.text) <= 160
    assert excerpt("short", []) == ("short", (), False, False)


# -- results


def test_every_branch_is_searched(tmp_path: Path) -> None:
    """Entries outside the path of the leaf are found, too."""
    session_at(tmp_path, "s1", said("u1", None), said("u2", "u1", "abandoned sesame"), said("u3", "u1"))
    assert found(tmp_path, "sesame") == ["u2"]


def test_a_hit_says_where_it_is(tmp_path: Path) -> None:
    """A hit has path, session, entry, offset of its line, excerpt with marks, and rank."""
    path = session_at(tmp_path, "s1", said("u1", None, "hello"), said("u2", "u1", "open sesame now"))
    with catalog_of(tmp_path) as catalog:
        (hit,) = catalog.search("sesame").hits
    assert (hit.path, hit.session_id, hit.entry_id, hit.field) == (path, "s1", "u2", "text")
    assert Path(path).read_bytes()[hit.offset :].startswith(b'{"type":"message","id":"u2"')
    assert [hit.excerpt.text[a:b] for a, b in hit.excerpt.marks] == ["sesame"]
    assert hit.rank is not None


def test_better_hits_come_first(tmp_path: Path) -> None:
    """A short text about the word ranks higher than a long text that mentions it."""
    session_at(
        tmp_path, "s1", said("u1", None, "sesame " + "and other things " * 50), said("u2", None, "sesame sesame")
    )
    with catalog_of(tmp_path) as catalog:
        assert [hit.entry_id for hit in catalog.search("sesame").hits] == ["u2", "u1"]


def test_a_rare_hit_among_thousands_of_candidates_is_found(tmp_path: Path) -> None:
    """Candidates that do not match are skipped, and the search continues with older ones."""
    common = [said(f"e{n}", None, "retry") for n in range(2500)]
    session_at(tmp_path, "s1", said("old", None, "Retry"), *common)
    assert found(tmp_path, "Retry") == ["old"]
    with catalog_of(tmp_path) as catalog:
        assert len(catalog.search("retry", limit=5000).hits) == 2501


def test_titles_are_found_by_parts_of_words(tmp_path: Path) -> None:
    """Three letters or one ideograph of a title are enough, indexed or not."""
    path = session_at(tmp_path, "s1", said("u1", None), title="Webhook retries 会话")
    with Catalog(PosixFilesystem(), None, AGENTS) as catalog:
        for depth in ("look", "index"):
            catalog.catch_up([str(tmp_path / "sessions")], depth=depth)
            for query in ("hook", "etri", "会话", "会", "we", "hook retr"):
                assert catalog.search(query).titles == [path], query
            assert catalog.search("webhooks").titles == []


def test_sessions_that_are_not_indexed_are_pending_or_read_directly(tmp_path: Path) -> None:
    """A search works while the index is being built, and reports which sessions it did not search."""
    session_at(tmp_path, "s1", said("u1", None, "sesame"))
    with Catalog(PosixFilesystem(), None, AGENTS) as catalog:
        catalog.catch_up([str(tmp_path / "sessions")])
        results = catalog.search("sesame")
        assert (results.hits, results.pending) == ([], 1)
        results = catalog.search("sesame", directly=True)
        assert ([hit.entry_id for hit in results.hits], results.pending) == (["u1"], 0)


def test_a_search_can_be_bound_to_some_sessions(tmp_path: Path) -> None:
    """A search can be limited to the rows of a listing."""
    session_at(tmp_path, "s1", said("u1", None, "sesame"))
    session_at(tmp_path, "s2", said("u2", None, "sesame"))
    with catalog_of(tmp_path) as catalog:
        rows = [row for row in catalog.list().rows if row.id == "s2"]
        results = catalog.search("sesame", sessions={row.number for row in rows})
        assert [hit.entry_id for hit in results.hits] == ["u2"]
        assert results.matches["text"] == 1
        assert catalog.search("sesame").matches["text"] == 2


def test_words_of_sessions_that_are_gone_are_not_found(tmp_path: Path) -> None:
    """Deleted sessions have no hits and no counts, and the index is rebuilt when most of its words are theirs."""
    for number in range(4):
        session_at(tmp_path, f"s{number}", *(said(f"u{n}", None, "sesame") for n in range(400)))
    catalog_of(tmp_path).close()
    for number in range(3):
        os.unlink(tmp_path / "sessions" / FOLDER / f"s{number}.jsonl")
        with catalog_of(tmp_path) as catalog:
            assert catalog.search("sesame").matches["text"] == 400 * (3 - number)
    with catalog_of(tmp_path) as catalog:
        (stale,) = catalog._file.database().execute("SELECT count(*) FROM gone").fetchone()
        assert stale == 0
        assert {hit.session_id for hit in catalog.search("sesame", limit=1000).hits} == {"s3"}


def test_a_hit_that_the_journal_no_longer_has_is_none(tmp_path: Path) -> None:
    """A session that is rewritten between catch-up and search returns no wrong hits."""
    path = session_at(tmp_path, "s1", said("u1", None, "sesame"), said("u2", None, "sesame"))
    with catalog_of(tmp_path) as catalog:
        Path(path).write_text(Path(path).read_text().replace("sesame", "poppy!", 1))
        assert [hit.entry_id for hit in catalog.search("sesame").hits] == ["u2"]
        os.unlink(path)
        assert catalog.search("sesame").hits == []


@pytest.mark.promise("P45")
def test_a_session_whose_lines_have_moved_is_read_instead(tmp_path: Path) -> None:
    """A file that was rewritten since the last catch-up is searched as it is now, each entry once."""
    path = session_at(tmp_path, "s1", said("u1", None, "needle one"), said("u2", "u1", "needle two"))
    with catalog_of(tmp_path) as catalog:
        write_file(
            path, header("s1"), said("u0", None, "needle"), said("u1", None, "a needle one"), said("u2", "u1", "two")
        )
        hits = catalog.search("needle").hits
        assert [(hit.entry_id, hit.excerpt.text) for hit in hits] == [("u0", "needle"), ("u1", "a needle one")]
        lines = Path(path).read_bytes()
        assert all(
            lines[hit.offset :].startswith(b'{"type":"message","id":"%b"' % str(hit.entry_id).encode()) for hit in hits
        )


def test_news_are_found_after_catching_up(tmp_path: Path) -> None:
    """A session that grew is indexed from the end of the indexed part."""
    path = session_at(tmp_path, "s1", said("u1", None, "sesame"))
    with catalog_of(tmp_path) as catalog:
        append_raw(path, said("u2", "u1", "more sesame"))
        catalog.catch_up([str(tmp_path / "sessions")], depth="index")
        assert sorted(hit.entry_id or "" for hit in catalog.search("sesame").hits) == ["u1", "u2"]
        assert catalog.search("sesame").matches["text"] == 2
