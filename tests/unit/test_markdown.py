"""A transcript as Markdown: its structure, and that stored text cannot change it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

import strategies
from builders import AT_MS, Json, assistant, entry, said
from sessile.render.markdown import fenced, inline, markdown, prose
from sessile.render.shown import Depth, Gap, Transcript
from terminal import PROBE, harmless, probes

PNG = "iVBORw0KGgo="
CALL = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "pytest -q"}}


def transcript(entries: list[Json], depth: Depth = "tools", **members: Any) -> Transcript:
    usual: Json = {"id": "s1", "title": "Webhook retries", "cwd": "/work/app", "created": AT_MS, "leaf": None}
    usual |= {"labels": {}, "gaps": (), "notes": (), "entry_count": len(entries), "entries": entries, "depth": depth}
    return Transcript(**usual | members)


def written(entries: list[Json], depth: Depth = "tools", **members: Any) -> str:
    return "".join(markdown(transcript(entries, depth, **members)))


def called(entry_id: str, parent: str | None) -> Json:
    content = [{"type": "text", "text": "Let me see."}, CALL]
    return entry("message", entry_id, parent, message=assistant("") | {"content": content})


def result(entry_id: str, parent: str | None, text: str, failed: bool = False) -> Json:
    content = [{"type": "text", "text": text}]
    return entry(
        "message",
        entry_id,
        parent,
        message={"role": "toolResult", "toolCallId": "c1", "content": content, "isError": failed},
    )


def test_a_document_from_beginning_to_end() -> None:
    """Front matter, title, a heading for each prompt, tools folded, notes and labels where they belong."""
    entries = [said("e1", None, "Add *retries*."), called("e2", "e1"), result("e3", "e2", "2 failed", failed=True)]
    text = written(entries, labels={"e2": "here"}, notes=["1 secret was replaced"])
    assert text == (
        "---\n"
        'title: "Webhook retries"\n'
        'id: "s1"\n'
        'project: "/work/app"\n'
        'created: "2026-02-16T10:20:30.000Z"\n'
        "entries: 3\n"
        "depth: tools\n"
        "notes:\n"
        '  - "1 secret was replaced"\n'
        "---\n\n"
        "# Webhook retries\n\n"
        "## 1. Add \\*retries\\*.\n\n"
        "user · 2026-02-16T10:20:30.000Z · e1\n\n"
        "Add *retries*.\n\n"
        "### assistant · p/m · 2026-02-16T10:20:30.000Z · e2 · \\[here\\]\n\n"
        "Let me see.\n\n"
        "<details><summary>bash pytest -q</summary>\n\n"
        "```\ncommand: pytest -q\n```\n\n"
        "</details>\n\n"
        "### bash · **failed** · 2026-02-16T10:20:30.000Z · e3\n\n"
        "<details><summary>failed: pytest -q · 2 failed</summary>\n\n"
        "```text\n2 failed\n```\n\n"
        "</details>\n\n"
    )


def test_the_depth_is_respected_and_what_it_hides_is_counted() -> None:
    """A lower depth shows less; the last line says what is hidden."""
    entries = [said("e1", None, "Go."), called("e2", "e1"), result("e3", "e2", "done")]
    chat = written(entries, "chat")
    assert "Let me see." in chat and "pytest" not in chat and "done" not in chat
    assert chat.endswith("*hidden at depth chat: 1 tool call, 1 entry*\n\n")
    assert written(entries, "prompts").endswith("*hidden at depth prompts: 2 entries*\n\n")
    assert "hidden" not in written(entries, "all")


def test_pictures_become_files_once_each() -> None:
    """Files are named by their content; without `keep`, or without bytes, images are words."""
    image = {"type": "image", "data": PNG, "mimeType": "image/png"}
    lost = image | {"data": f"blob:sha256:{'0' * 64}"}
    broken = image | {"data": "not base64!"}
    entries = [entry("message", "e1", None, message={"role": "user", "content": [image, image, lost, broken]})]
    kept: list[tuple[str, bytes]] = []

    def keep(name: str, data: bytes) -> str:
        kept.append((name, data))
        return f"there/{name}"

    text = "".join(markdown(transcript(entries), keep))
    assert [data for _, data in kept] == [b"\x89PNG\r\n\x1a\n"]
    assert text.count(f"](there/{kept[0][0]})") == 2 and kept[0][0].endswith(".png")
    assert text.count("\\[image png") == 4
    assert "](" not in written(entries)


def test_damage_and_jumps_are_told_where_they_are() -> None:
    """Damage is shown before the first entry, after an entry, and for entries that are not in the transcript."""
    entries = [said("e1", None), said("e2", "e1"), said("e3", "e1")]
    text = written(entries, gaps=[Gap(None, "first"), Gap("e1", "second"), Gap("gone", "third")])
    order = [
        text.index(word) for word in ("first", "## 1.", "second", "## 2.", "*continues from e1*", "## 3.", "third")
    ]
    assert order == sorted(order)


FRAGMENTS = [
    "```",
    "````",
    "~~~",
    "   ```",
    "  ~~~",
    "- ```",
    "> ```",
    "    ```",
    "`",
    "``",
    "\\`",
    "|",
    "a",
    "x y",
    "",
    "",
    "é",
]
FRAGMENTS += [
    "</details>",
    "<details>",
    "<!--",
    "-->",
    "<script>",
    "<div>",
    "<?",
    "<![CDATA[",
    "</summary>",
    "&lt;",
    "<",
]
FRAGMENTS += [
    "---",
    "===",
    "- ",
    "1. ",
    "> ",
    "# x",
    "## 1. y",
    "### z",
    "  ",
    "    ",
    "[a]: b",
    "***",
    "<x",
    "- a",
    "1. a",
]
hostile = st.lists(
    st.lists(st.sampled_from(FRAGMENTS), max_size=4).map("".join) | st.sampled_from(FRAGMENTS), max_size=9
).map("\n".join)
parser = MarkdownIt("commonmark").enable("table")


def html_in(tokens: list[Token]) -> list[str]:
    inside = [child for token in tokens for child in token.children or ()]
    return [token.content for token in (*tokens, *inside) if token.type in ("html_block", "html_inline")]


@given(hostile)
def test_what_somebody_said_ends_where_it_ends(text: str) -> None:
    """Whatever a text leaves open, the next heading belongs to the document; the text contains no HTML and no large heading."""
    check_that_it_ends(text)


@pytest.mark.parametrize(
    "text",
    [
        "- a\n  ```\n```\nx",
        "1. a\n   ```\nx\n   ```\ny",
        "- ```\n```\nx",
        "\\`<b>`",
        "`a\n`<b>`",
        "a|b\n-|-\n`x|<b>`",
        "x\n```|\n---\n</details>",
        "```\n<b>\n    ```\n<b>",
        "~~~\n```\n~~~\n<b>",
        "a\n===\nb\n---",
        "```",
    ],
)
def test_known_ways_out_are_closed(text: str) -> None:
    """Fences in lists, code that ends elsewhere than it seems, tables that take a fence for a row."""
    check_that_it_ends(text)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("Use `<div>` or <b>.", ["Use `<div>` or &lt;b>."]),
        ("# Plan\n\n---\n\n- a", ["#### Plan", "", "---", "", "- a"]),
        ("```html\n<b>\n```", ["```html", "<b>", "```"]),
        ("1. a\n   ```\n   x\n   ```", ["1. a", "   ```", "   x", "   ```"]),
        ("```\nopen", ["```", "open", "```"]),
        ("- a\n  ```\nopen <b>", ["> - a", ">   ```", "> open &lt;b>"]),
        ("a < b && c <3", ["a < b && c <3"]),
    ],
)
def test_what_is_harmless_stays_as_it_was_written(text: str, lines: list[str]) -> None:
    """Code, lists and rules are kept; headings are lowered; unclosed blocks are closed or quoted."""
    assert list(prose(text)) == lines


def check_that_it_ends(text: str) -> None:
    tokens = parser.parse("\n".join([*prose(text), "", "## THE END", ""]))
    assert [token.type for token in tokens[-3:]] == ["heading_open", "inline", "heading_close"]
    assert (tokens[-3].level, tokens[-2].content) == (0, "THE END")
    assert html_in(tokens) == []
    large = [token for token in tokens[:-3] if token.type == "heading_open" and token.level == 0 and token.tag < "h4"]
    assert large == []


@given(hostile | probes, st.sampled_from(["", "text", "diff"]))
def test_a_fence_holds_any_text(text: str, language: str) -> None:
    """Parsed again, it is one code block with exactly that text."""
    tokens = parser.parse("\n".join(fenced(text, language)))
    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].info == language
    if harmless(text.replace("\n", "")):
        assert tokens[0].content.rstrip("\n") == text.rstrip("\n")


@given(hostile | strategies.text)
def test_an_inline_text_means_only_itself(text: str) -> None:
    """Parsed again, it contains no markup."""
    tokens = parser.parse(f"## {inline(text)} end")
    children = tokens[1].children or []
    assert {child.type for child in children} <= {"text", "text_special"}


@pytest.mark.promise("P37")
@given(hostile | probes, st.sampled_from(["prompts", "chat", "tools", "all"]))
def test_stored_text_cannot_change_the_document(text: str, depth: Depth) -> None:
    """Hostile text in every field leaves the structure unchanged and cannot control a terminal."""
    assert outline_of(entries_with(text), text, depth) == outline_of(entries_with("word"), "word", depth)


def entries_with(text: str) -> list[Json]:
    call = {"type": "toolCall", "id": "c1", "name": f"x{text}", "arguments": {text: text}}
    content = [{"type": "text", "text": f"x{text}"}, {"type": "thinking", "thinking": text}, call]
    answer = {
        "role": "assistant",
        "content": content,
        "provider": f"x{text}",
        "model": text,
        "errorMessage": f"x{text}",
    }
    details = {"diff": f"x{text}", "more": text}
    given_back = {
        "role": "toolResult",
        "toolCallId": "c1",
        "content": [{"type": "text", "text": text}],
        "details": details,
    }
    image = {"type": "image", "data": f"x{text}", "mimeType": text}
    return [
        entry(
            "message", "e1", None, message={"role": "user", "content": [{"type": "text", "text": f"x{text}"}, image]}
        ),
        entry("message", "e2", "e1", message=answer),
        entry("message", "e3", "e2", message=given_back),
        entry("compaction", "e4", "e3", summary=f"x{text}", shortSummary=f"y{text}", tokensBefore=5),
        entry("custom", "e5", "e4", customType=f"x{text}", data=text),
    ]


def outline_of(entries: list[Json], text: str, depth: Depth) -> list[str]:
    document = written(
        entries, depth, title=f"x{text}", id=f"x{text}", cwd=text, notes=[text], labels={"e2": f"x{text}"},
        gaps=[Gap("e1", f"x{text}")],
    )  # fmt: skip
    assert harmless(document.replace("\n", ""))
    _, front, body = document.split("---\n", 2)
    facts = [line.partition(": ") for line in front.splitlines()]
    assert [name for name, _, _ in facts] == [
        "title",
        "id",
        "project",
        "created",
        "entries",
        "depth",
        "notes:",
        facts[-1][0],
    ]
    for name, _, value in facts[:4]:
        assert isinstance(json.loads(value), str), name
    assert isinstance(json.loads(facts[-1][0].removeprefix("  - ") + "".join(facts[-1][1:])), str)
    tokens = parser.parse(body)
    html = html_in(tokens)
    tag = re.compile(r"<details><summary>[^<>]*</summary>\n?|</details>\n?")
    assert all(tag.fullmatch(piece) for piece in html), html
    top = [token for token in tokens if token.level == 0]
    kinds = [
        token.tag if token.type == "heading_open" else token.content[:8]
        for token in top
        if token.type in ("heading_open", "html_block")
    ]
    return [kind for kind in kinds if kind not in ("h4", "h5", "h6")]


def test_the_probe_is_written_in_words() -> None:
    """Stored text is escaped, as in all other output."""
    assert "\\x1b" in written([said("e1", None, PROBE)])
