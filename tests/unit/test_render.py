"""Entries as HTML: escaping, Markdown, each kind of part, the tree, and that stored text never becomes markup."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import AT, AT_MS, Json, answered, entry, said, user
from sessile.render.html import (
    MAX_CODE,
    MAX_MARKDOWN,
    MAX_NESTING,
    Place,
    anchor_of,
    code,
    coloured_lines,
    entry_html,
    gap_html,
    language_of,
    markdown,
)
from sessile.render.page import PageTree, export_script, html_page, tree_html
from sessile.render.shown import Call, Data, Diff, Gap, Image, Output, Part, Shown, Spent, Text, Thinking, show
from strategies import NASTY
from transcripts import PNG, transcript


def shown(*parts: Part, **members: Any) -> Shown:
    plain: Json = {
        "id": "a1",
        "parent_id": None,
        "type": "message",
        "who": "assistant",
        "name": "assistant",
        "headline": "said",
        "parts": parts,
        "failed": False,
        "at": AT_MS,
        "model": None,
        "spent": None,
        "call_id": None,
    }
    return Shown(**plain | members)


def page(entries: list[Json], whole: int = 8000, **members: Any) -> str:
    return "".join(html_page(transcript(entries, **members), max_plain=whole))


class Elements(HTMLParser):
    """What a parser finds in HTML: tags with attributes, the text, and whether every element is closed."""

    VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.odd: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.odd.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.odd.append(f"<!--{data}")

    def handle_decl(self, decl: str) -> None:
        self.odd.append(f"<!{decl}")

    def handle_pi(self, data: str) -> None:
        self.odd.append(f"<?{data}")

    def first(self, tag: str) -> dict[str, str | None]:
        return next(attributes for name, attributes in self.found if name == tag)


# -- markup


def test_raw_html_in_markdown_is_text() -> None:
    """A tag in a text is shown as text."""
    html = markdown("hello <script>alert(1)</script> <img src=x onerror=alert(1)>")
    assert {tag for tag, _ in Elements(html).found} == {"p"}
    assert "<script>alert(1)</script>" in Elements(html).text


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "data:text/html,x", "vbscript:x", "file:///etc/passwd", "//x.example"]
)
def test_only_web_addresses_become_links(url: str) -> None:
    """Any other scheme stays text."""
    assert "<a" not in markdown(f"[here]({url}) and <{url}>")


def test_links_give_nothing_away() -> None:
    """A link to the web has neither opener nor referrer."""
    assert Elements(markdown("[x](https://a.example/?q=1&r=2)")).first("a") == {
        "href": "https://a.example/?q=1&r=2",
        "rel": "noopener noreferrer",
    }


def test_pictures_in_texts_are_links() -> None:
    """Reading a text loads nothing."""
    html = markdown("![chart](https://a.example/c.png)")
    assert "<img" not in html
    assert "[image: chart]" in Elements(html).text


def test_headings_of_a_text_stand_below_that_of_their_entry() -> None:
    """A text cannot have a second h1."""
    assert [tag for tag, _ in Elements(markdown("# one\n\n###### six")).found] == ["h4", "h6"]


def test_columns_are_aligned_by_class() -> None:
    """The policy of the page allows no style attribute."""
    html = markdown("|a|b|\n|--:|:-:|\n|1|2|")
    assert 'class="right"' in html
    assert 'class="center"' in html
    assert "style" not in html


def test_code_is_coloured_only_in_known_languages_and_up_to_a_size() -> None:
    """Each word of coloured code is an element; a long block is text."""
    assert '<span class="k">def</span>' in markdown("```python\ndef f(): pass\n```")
    assert "<span" not in markdown("```no-such-language\ndef f(): pass\n```")
    assert "<span" not in code("x = 1\n" * MAX_CODE, "python")


@pytest.mark.parametrize("make", [lambda i: "  " * i + f"- x{i}\n", lambda i: ">" * (i + 1) + f" x{i}\n\n"])
def test_what_is_nested_deeper_than_the_parser_goes_is_shown_unformatted(make: Any) -> None:
    """The parser drops content that is nested too deeply; such text is shown unformatted."""
    for depth in range(MAX_NESTING // 2 - 4, MAX_NESTING + 4):
        text = Elements(markdown("".join(map(make, range(depth))))).text
        assert all(f"x{i}" in text for i in range(depth))


def test_a_text_beyond_the_limit_is_shown_whole_and_unformatted() -> None:
    """A pasted log is not Markdown, and nothing of it is missing."""
    text = "*line* <b>\n" * (MAX_MARKDOWN // 10)
    html = markdown(text)
    assert html.startswith('<pre class="plain">')
    assert Elements(html).text == text


def test_characters_that_turn_or_hide_text_are_named() -> None:
    """Neither a character nor its number in Markdown changes the writing direction."""
    html = markdown("a\u202eb &#x202e; &#8203; `\u2066`") + gap_html("\u202e\x1b[2J")
    assert not re.search("[\u200b\u202e\u2066\x1b]", html)
    assert html.count("⟨U+202E⟩") == 3


def test_east_asian_texts_name_their_language() -> None:
    """Han characters are drawn differently in Chinese and Japanese."""
    assert [language_of(text) for text in ("abc é", "重试", "再試行する", "재시도")] == [
        "",
        ' lang="zh"',
        ' lang="ja"',
        ' lang="ko"',
    ]


@given(st.text("ab .,'\"()/?!…") | st.text(NASTY + "ab *_<&[]()#>|`\n-"))
def test_plain_words_and_markdown_keep_their_letters(text: str) -> None:
    """Every way of formatting keeps the letters of a text in order."""
    letters = re.sub("[^ab]", "", text)
    rendered = re.sub("⟨U\\+[0-9A-F]+⟩|\\\\x..", "", Elements(markdown(text)).text)
    assert re.sub("[^ab]", "", rendered) == letters or "[" in text  # a reference names a link and is not shown


# -- what tools print


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("\x1b[31mred\x1b[0m plain", ['<span class="f1">red</span> plain']),
        ("\x1b[1;92;44mall\x1b[m", ['<span class="f10 b4 bold">all</span>']),
        ("\x1b[31mtwo\nlines\x1b[39m!", ['<span class="f1">two</span>', '<span class="f1">lines</span>!']),
        ("\x1b[38;5;1mx\x1b[38;5;200my\x1b[38;2;1;2;3mz", ['<span class="f1">x</span>yz']),
        ("\x1b[01;31m\x1b[Khit\x1b[m\x1b[K", ['<span class="f1 bold">hit</span>']),
        ("\x1b[2J\x1b]8;;http://x\x07<b>", ["\\x1b[2J\\x1b]8;;http://x\\x07&lt;b&gt;"]),
        ("a\rb\x08", ["a\\x0db\\x08"]),
        ("\x1b[31m<b>\u202e", ['<span class="f1">&lt;b&gt;⟨U+202E⟩</span>']),
        ("\x1b[1m\x1b[22m\x1b[4;38mx", ['<span class="underline">x</span>']),
        ("\x1b[99999999999999999999mx", ["x"]),
    ],
)
def test_colours_become_classes_and_all_else_is_visible(text: str, html: list[str]) -> None:
    """Terminal colours are kept; other control sequences are shown."""
    assert coloured_lines(text) == html


def test_a_storm_of_colours_is_shown_without_them() -> None:
    """Thousands of sequences do not become thousands of elements."""
    assert coloured_lines("\x1b[31mx\x1b[0m" * 5000) == ["x" * 5000]


# -- parts and entries


def test_an_entry_is_an_article_with_anchor_heading_time_and_link() -> None:
    """Every entry has a heading, a time and a link."""
    html = entry_html(shown(Text("hello")))
    elements = Elements(html)
    assert elements.first("article")["id"] == "e-a1"
    assert elements.first("time")["datetime"] == "2026-02-16T10:20:30Z"
    assert elements.first("a")["href"] == "#e-a1"
    assert "<h3>" in html
    assert not elements.odd


def test_an_entry_says_its_model_what_it_spent_its_label_and_that_it_failed() -> None:
    """An unknown price is called unknown, and a failure has a word."""
    spent = Spent(12100, 310, None, None, None, None)
    text = Elements(entry_html(shown(Text("x"), model="p/m", spent=spent, failed=True), label="tests-green")).text
    for words in ("p/m · 12.1k in · 310 out · cost n/a", "✗ failed", "tests-green"):
        assert words in text


def test_a_time_before_the_first_year_is_left_out() -> None:
    """A date out of range does not break a page."""
    assert "<time" not in entry_html(shown(Text("x"), at=-(10**17)))


def test_a_result_is_one_line_that_is_open_only_if_it_failed() -> None:
    """`bash · pytest -q · ✗ failed`."""
    call = Call("c1", "bash", "pytest -q", {})
    good, bad = (
        entry_html(shown(Output("1\n2\n3", failed), who="tool", name="bash", failed=failed), call=call)
        for failed in (False, True)
    )
    assert re.sub(r"\s+", " ", Elements(good).text).startswith("10:20#a1bash pytest -q3 lines")
    assert "<details><summary>" in good
    assert "<details open><summary>" in bad
    assert "bash pytest -q ✗ failed" in Elements(bad).text


def test_a_call_whose_result_says_all_is_not_shown_twice() -> None:
    """Arguments that the line of the result does not show stay with the call, folded."""
    small, large = (
        Call("c1", "bash", "ls", {"command": "ls"}),
        Call("c2", "bash", "ls", {"command": "ls", "timeout": 30}),
    )
    assert "ls" in Elements(entry_html(shown(small))).text
    assert "bash" not in Elements(entry_html(shown(small), answered={"c1"})).text
    assert "called with 2 arguments" in Elements(entry_html(shown(large), answered={"c2"})).text


def test_arguments_are_texts_where_they_are_texts() -> None:
    """A file that was written reads as a file, not as a string of JSON."""
    html = entry_html(shown(Call("c", "write", "a.py", {"path": "a.py", "content": 'x = "1"\ny = 2', "mode": [1]})))
    assert 'x = "1"\ny = 2' in Elements(html).text
    assert "[\n  1\n]" in Elements(html).text


def test_a_long_output_is_folded_in_the_middle_and_nothing_is_missing() -> None:
    """The fold says how much there is."""
    lines = [f"line {number}" for number in range(1240)]
    text = Elements(entry_html(shown(Output("\n".join(lines)), who="tool"))).text
    assert "show all 1,240 lines" in text
    assert all(f"line {number}" in text for number in range(1240))


def test_one_endless_line_is_folded_too() -> None:
    """A megabyte without a newline does not fill the page."""
    assert "show all 30,000 characters" in Elements(entry_html(shown(Output("x" * 30_000)))).text


def test_a_diff_keeps_its_signs_and_counts_its_lines() -> None:
    """A change is not marked by colour alone."""
    html = entry_html(shown(Diff("a.py", " same\n-old <b>\n+new"), who="tool", name="edit"))
    assert '<span class="del">-old &lt;b&gt;\n</span><span class="add">+new\n</span>' in html
    assert "+1 −1" in Elements(html).text


def test_thinking_is_folded_and_a_sealed_one_says_so() -> None:
    """Encrypted thinking is not shown as empty."""
    html = entry_html(shown(Thinking("let me see"), Thinking("", hidden=True)))
    assert "<details><summary><b>thinking</b>" in html
    assert "encrypted by the provider" in html


@pytest.mark.parametrize(
    ("start", "kind"),
    [(b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff\xe0", "jpeg"), (b"GIF89a", "gif"), (b"RIFF1234WEBP", "webp")],
)
def test_a_picture_is_what_its_bytes_are(start: bytes, kind: str) -> None:
    """The type that an entry claims is not trusted."""
    data = base64.b64encode(start + bytes(3000)).decode()
    picture = Elements(entry_html(shown(Image("text/html", data)))).first("img")
    assert picture["src"] == f"data:image/{kind};base64,{data}"
    assert picture["alt"] == f"image {kind.upper()} 3 kB"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (base64.b64encode(b"<svg onload=alert(1)>").decode(), "image SVG+XML 21 B, not a supported image type"),
        (PNG[:-1], "not a supported image type"),
        ('x" onerror="alert(1)', "not a supported image type"),
        ("", "without data"),
    ],
)
def test_what_is_no_picture_is_named_instead(data: str, words: str) -> None:
    """A placeholder says what is missing, and why."""
    html = entry_html(shown(Image("image/svg+xml", data)))
    assert "<img" not in html
    assert words in Elements(html).text


def test_a_picture_that_is_kept_apart_is_named_by_its_hash() -> None:
    """A page that can fetch the blob shows it; others show the alternative text."""
    picture = Elements(entry_html(shown(Image("image/png", "blob:sha256:" + "0f" * 32)))).first("img")
    assert picture["data-blob"] == "0f" * 32 and "src" not in picture
    assert picture["alt"] == "image PNG, stored outside this page"


def test_values_that_are_no_json_are_shown_all_the_same() -> None:
    """Any value can be shown, however deep."""
    for depth in (200, 900, 5000):
        deep: Any = "x"
        for _ in range(depth):
            deep = [deep]
        text = Elements(entry_html(shown(Data("d", deep)))).text
        is_json = "[" * 100 in re.sub(r"\s", "", text)
        assert is_json is not ("cannot be written as JSON" in text)
        assert is_json or depth == 5000  # how deep JSON may be depends on the release of Python
    assert "\\ud800" in entry_html(shown(Data("d", {"a": "\ud800"})))


def test_a_compaction_is_a_divider_with_its_summary_folded() -> None:
    """`Compacted · 48.2k → 6.1k tokens`."""
    seen = show(entry("compaction", "c1", "a1", summary="## Goal\nretry", tokensBefore=48200, tokensAfter=6100))
    html = entry_html(seen)
    assert 'class="entry divider summary' in html
    assert "Compacted 48.2k → 6.1k tokens" in Elements(html).text
    assert "<details><summary>" in html


def test_a_gap_stands_behind_its_entry() -> None:
    """Damage is shown where it is."""
    assert entry_html(shown(Text("x")), gaps=["87 <bytes>"]).endswith(
        '<p class="gap"><b>gap</b> 87 &lt;bytes&gt;</p></article>\n'
    )


def test_a_fork_has_a_switcher_at_the_message() -> None:
    """`‹ 2/3 ›`, without links at the ends."""
    middle = Elements(entry_html(shown(Text("x")), place=Place(2, 3, "e-b", "e-d")))
    assert [a["href"] for tag, a in middle.found if tag == "a"][:2] == ["#e-b", "#e-d"]
    assert "‹2/3›" in middle.text
    assert "rel" not in str(Elements(entry_html(shown(Text("x")), place=Place(1, 1, None, None))).found)


# -- the law: nothing stored becomes markup

TAGS = re.compile(
    "a|article|b|blockquote|br|code|dd|del|details|div|dl|dt|em|h3|h4|h5|h6|hr|img|li|ol|p|pre|s|span|strong|summary|table|"
    "tbody|td|th|thead|time|tr|ul"
)
ATTRIBUTES = re.compile(
    "alt|aria-hidden|aria-label|class|datetime|decoding|dir|href|id|lang|loading|open|rel|role|src|start|tabindex|title"
)
CLASS = re.compile(r"[a-z0-9 -]*")
PAYLOADS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "[x](javascript:alert(1))",
    "![x](https://x.example/y.png)",
    '```"><script>\n</code></pre><script>alert(1)</script>\n```',
    "</article></template></script><script>alert(1)</script>",
    "\x1b[31m<script>alert(1)</script>\u202e\x1b[0m",
    '<https://x.example/"onclick=alert(1)>',
    "&lt;script&gt; &#60;script&#62;",
    "<!--",
    "<![CDATA[",
    "<?xml",
    "| a |\n|:-:|\n| <b> |",
]
anything = st.text(max_size=20) | st.text(NASTY + "<>&\"'`*_[](){}!#|\n=", max_size=30) | st.sampled_from(PAYLOADS)
pictures = (
    anything | anything.map(lambda text: base64.b64encode(text.encode("utf-8", "replace")).decode()) | st.just(PNG)
)
values = st.recursive(
    anything | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(anything, inner), max_leaves=5
)
parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, anything),
    st.builds(Thinking, anything, st.booleans()),
    st.builds(Call, anything, anything, anything, values),
    st.builds(Output, anything, st.booleans()),
    st.builds(Diff, anything, anything),
    st.builds(Image, anything, pictures),
    st.builds(Data, anything, values),
)
seen_entries = st.builds(
    Shown,
    st.none() | anything,
    anything,
    anything,
    st.sampled_from(["user", "assistant", "system", "tool", "shell", "summary", "setting", "note"]),
    anything,
    anything,
    st.lists(parts, max_size=4).map(tuple),
    st.booleans(),
    st.none() | st.integers(-(10**15), 10**15),
    st.none() | anything,
    st.none() | st.builds(Spent, *[st.none() | st.integers(0, 10**9)] * 5, st.none() | st.floats(0, 9)),
    st.none() | anything,
)


def assert_harmless(html: str) -> None:
    html.encode()  # no half characters
    elements = Elements(html)
    assert not elements.odd
    assert not elements.open
    for tag, attributes in elements.found:
        assert TAGS.fullmatch(tag)
        assert all(map(ATTRIBUTES.fullmatch, attributes))
        assert re.match(r"#e-|https?://", attributes.get("href") or "#e-")
        assert re.match(
            r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$",
            attributes.get("src") or f"data:image/png;base64,{PNG}",
        )
        assert CLASS.fullmatch(attributes.get("class") or "")
        assert re.fullmatch(r"e-[A-Za-z0-9_.:-]*", attributes.get("id") or "e-")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", html)


@pytest.mark.promise("P36")
@given(seen_entries, anything, anything, st.builds(Call, anything, anything, anything, values))
def test_whatever_is_stored_an_entry_holds_only_the_tags_attributes_and_addresses_of_the_list(
    seen: Shown, label: str, gap: str, call: Call
) -> None:
    """With any text in any field the HTML is well formed and has nothing that runs, loads or is invisible."""
    assert_harmless(entry_html(seen, label=label, gaps=[gap], call=call))


@pytest.mark.promise("P36")
@given(st.lists(anything, min_size=14, max_size=14), values)
def test_whatever_an_entry_of_a_file_holds_its_fragment_is_harmless(texts: list[str], value: Any) -> None:
    """The same for any member of a stored entry."""
    role, text, name, model, error, kind, mime, data, summary, label, target, command, entry_id, thought = texts
    block = [{"type": "text", "text": text}, {"type": "thinking", "thinking": thought}, {"type": kind, "x": value}]
    block += [
        {"type": "image", "mimeType": mime, "data": data},
        {"type": "toolCall", "id": entry_id, "name": name, "arguments": value},
    ]
    messages: list[Json] = [
        {"role": role, "content": block, "model": model, "provider": name, "errorMessage": error},
        {"role": "assistant", "content": block, "model": model, "provider": name, "errorMessage": error},
        {"role": "toolResult", "toolName": name, "toolCallId": entry_id, "content": block, "details": {"diff": text}},
        {"role": "bashExecution", "command": command, "output": text, "exitCode": 1},
        {"role": "fileMention", "files": [{"path": name, "content": text, "image": block[3]}]},
    ]
    others = [
        entry("compaction", entry_id, None, summary=summary, details=value, tokensBefore=1),
        entry("branch_summary", entry_id, None, summary=summary),
        entry("custom", entry_id, None, customType=kind, data=value),
        entry("custom_message", entry_id, None, customType=kind, content=text, display=True),
        entry("label", entry_id, None, targetId=target, label=label),
        entry("model_change", entry_id, None, model=model, role=role),
        entry(kind, entry_id, None, anything=value),
    ]
    for one in [*(entry("message", entry_id, None, message=message) for message in messages), *others]:
        assert_harmless(entry_html(show(one)))


@given(st.lists(anything))
def test_anchors_are_plain_and_an_id_always_has_the_same(ids: list[str]) -> None:
    """An anchor needs no escaping anywhere, and different ids have different anchors."""
    assert all(re.fullmatch(r"e-[A-Za-z0-9_.-]*", anchor_of(entry_id)) for entry_id in ids)
    assert len({anchor_of(entry_id) for entry_id in ids}) == len(set(ids))
    assert anchor_of("9f31c2a0") == "e-9f31c2a0"


# -- outline and tree

FORKED = [
    said("a", None, "first prompt"),
    answered("b", "a"),
    answered("c", "b"),
    said("d", "c", "approach A"),
    answered("e", "d"),
    said("f", "c", "approach B"),
    answered("g", "f"),
    answered("h", "g"),
]


def outline(entries: list[Json], leaf: str | None = None, labels: Mapping[str, str] = {}) -> PageTree:
    return PageTree(entries, leaf, labels)


def test_the_tree_is_indented_only_at_forks_and_tells_runs_in_one_row() -> None:
    """A straight run of any length has one level."""
    rows = [(row.number, row.level, row.entries if row.shown is None else 0) for row in outline(FORKED).outline()]
    assert rows == [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 1, 0), (4, 1, 0), (5, 1, 0), (6, 1, 0), (7, 1, 0)]
    longer = [*FORKED, answered("i", "h"), answered("j", "i"), said("k", "j")]
    rows = [(row.number, row.level, row.entries) for row in outline(longer).outline() if row.shown is None]
    assert rows == [(6, 1, 4)]


def test_rows_are_tree_items_and_the_shown_branch_is_marked() -> None:
    """The tree has WAI-ARIA levels and marks the current leaf."""
    elements = Elements(tree_html(outline(FORKED, "e", {"b": "green"})))
    items = [attributes for tag, attributes in elements.found if tag == "li"]
    assert {item["role"] for item in items} == {"treeitem"}
    assert [item["aria-level"] for item in items] == ["1", "1", "1", "2", "3", "2", "3", "3"]
    assert ["aria-current" in item for item in items] == [False, False, False, False, True, False, False, False]
    assert "green" in elements.text


def test_a_tree_with_too_many_rows_says_how_many_more_there_are() -> None:
    """Nothing is left out silently."""
    assert "… 5 more rows" in tree_html(outline(FORKED), max_rows=3)


def test_a_chain_of_a_hundred_thousand_and_a_comb_need_no_recursion() -> None:
    """Neither the length nor the depth of the tree needs recursion."""
    chain = [said(str(n), str(n - 1) if n else None) for n in range(20_000)]
    comb = [said("0", None)]
    for n in range(1, 5_000):
        comb += [said(f"{n}", f"{n - 1}"), said(f"{n}x", f"{n - 1}")]
    assert len(outline(chain).path) == 20_000
    rows = list(outline(comb).outline())
    assert max(row.level for row in rows) == 4_999
    assert len(rows) == len(comb)


def test_entries_without_ids_form_one_chain() -> None:
    """Files of version 1 have no ids."""
    entries = [{"type": "message", "timestamp": AT, "message": user(str(n))} for n in range(3)]
    assert outline(entries).path == [0, 1, 2]


def test_entries_with_one_id_have_anchors_of_their_own() -> None:
    """The id refers to the later one; both have an anchor."""
    found = outline([said("a", None), said("a", None), said("x" * 500, None), said("x" * 499 + "y", None)])
    assert found.anchors[1] == "e-a"
    assert len(set(found.anchors)) == 4


def test_a_leaf_marker_is_no_entry_and_means_what_it_hangs_from() -> None:
    """The page shows the branch that the marker stores."""
    marker = entry("custom", "m", "e", customType="sessile.leaf")
    found = outline([*FORKED, marker], leaf="m")
    assert found.path == [0, 1, 2, 3, 4]
    assert len(found.rows) == len(FORKED)


def test_a_call_counts_as_answered_only_if_its_result_is_on_every_branch() -> None:
    """If a branch starts between call and result, the call is shown."""
    call = {"role": "assistant", "content": [{"type": "toolCall", "id": "c", "name": "ls", "arguments": {}}]}
    result = {"role": "toolResult", "toolCallId": "c", "content": "x"}
    entries = [entry("message", "a", None, message=call), entry("message", "b", "a", message=result)]
    assert outline(entries).answered == {0: {"c"}}
    assert outline([*entries, said("d", "a")]).answered == {}


# -- the page


def blocks(html: str, kind: str = "application/json") -> Iterator[tuple[str, Any]]:
    for match in re.finditer(rf'<script type="{kind}" id="([\w-]+)">(.*?)</script>', html, re.DOTALL):
        yield match.group(1), json.loads(match.group(2))


def test_a_page_holds_the_shown_branch_as_plain_html_and_the_others_in_a_template() -> None:
    """The whole branch is readable without JavaScript."""
    before, template = page(FORKED, leaf="e").split('<template id="others">')
    ids = re.compile(r'<article[^>]* id="e-(\w)"')
    assert ids.findall(before) == ["a", "b", "c", "d", "e"]
    assert ids.findall(template.split("</template>")[0]) == ["f", "g", "h"]


def test_a_page_in_chunks_holds_every_entry_once() -> None:
    """The fragments of a large file are the same, stored in blocks."""
    entries = [said(f"n{n}", f"n{n - 1}" if n else None, f"</script><!-- {n}") for n in range(250)]
    html = page(entries, whole=200)
    found = dict(blocks(html))
    assert sorted(found) == ["chunk-0", "chunk-1", "chunk-2", "outline"]
    articles = [article for name in ("chunk-0", "chunk-1", "chunk-2") for article in found[name]]
    assert [Elements(article).first("article")["id"] for article in articles] == [f"e-n{n}" for n in range(250)]
    assert found["outline"]["chunk"] == 100
    assert "190 entries in this file cannot be shown without JavaScript" in html


def test_chunks_keep_their_places_where_markers_are_left_out() -> None:
    """An entry is found by its number in the file."""
    marker = entry("custom", "m", "a", customType="sessile.leaf")
    found = dict(blocks(page([said("a", None), marker, said("b", "m")], whole=1)))
    assert [bool(article) for article in found["chunk-0"]] == [True, False, True]


def test_the_policy_names_the_script_and_the_style_by_their_hash() -> None:
    """One script and one style sheet are allowed; nothing may be loaded."""
    html = page(FORKED)
    policy = Elements(html.split("<style>")[0]).found[3][1]["content"] or ""
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert html.count('<script type="module">') == html.count("<style>") == 1
    assert "<script>" not in html


def test_the_script_of_a_page_is_one_small_module_without_imports() -> None:
    """The modules that it shares with the live page are part of it."""
    script = export_script()
    assert "class Outline" in script and "class TreeView" in script
    assert not re.search(r"^import\b|^\s*//|^\s*\*", script, re.MULTILINE)
    assert len(script.encode()) <= 40_000


def test_title_project_notes_and_gaps_are_told_at_the_top() -> None:
    """The reader learns what was left out, and where the file is damaged."""
    gaps = [Gap("b", "87 bytes"), Gap(None, "at first"), Gap("zz", "unknown place")]
    html = page(FORKED, title="<b>Retries", cwd="/w/<i>", notes=["3 secrets were <replaced>"], gaps=gaps)
    text = Elements(html.split("<main")[0].split("</style>")[1]).text
    for words in (
        "<b>Retries",
        "/w/<i>",
        "3 secrets were <replaced>",
        "3 places in the file could not be read",
        "branches2",
    ):
        assert words in text
    assert html.index("at first") < html.index('id="entries"') < html.index("87 bytes")


def test_an_empty_session_is_a_page() -> None:
    """An empty session gives a valid page."""
    assert page([]).rstrip().endswith("</html>")


def test_a_page_goes_through_the_entries_without_keeping_them() -> None:
    """The entries need not fit in memory: only a few exist at a time."""

    class Body(dict[str, Any]):
        alive = most = 0

        def __init__(self, *args: Any, **members: Any) -> None:
            super().__init__(*args, **members)
            Body.alive += 1
            Body.most = max(Body.most, Body.alive)

        def __del__(self) -> None:
            Body.alive -= 1

    class Stored:
        def __iter__(self) -> Iterator[Json]:
            for number in range(500):
                yield Body(said(f"n{number}", f"n{number - 1}" if number else None))

    for whole in (8000, 10):
        for _ in html_page(transcript([])._replace(entries=Stored(), entry_count=500), max_plain=whole):
            pass
    assert Body.most < 5
