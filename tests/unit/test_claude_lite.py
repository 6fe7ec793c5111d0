"""What a listing shows of a session: titles, tags, prompts, branch and times, from the two ends of its file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sessile.agents.claude.listing import WINDOW, LiteFile, SessionInfo, first_prompt, session_info
from sessile.agents.claude.rows import View

pytestmark = pytest.mark.mission("C11")

PAD = json.dumps({"type": "other", "pad": "p" * WINDOW})


def said(content: Any, **members: Any) -> str:
    """Return a user row as Claude Code writes it."""
    message = {"role": "user", "content": content}
    return json.dumps(
        {"type": "user", "message": message, "timestamp": "2026-01-01T00:00:00.000Z", **members},
        separators=(",", ":"),
        ensure_ascii=False,
    )


def info(*rows: str, view: View = "ts", project: str | None = None) -> SessionInfo | None:
    data = "".join(row + "\n" for row in rows).encode()
    return session_info("id", LiteFile(data[:WINDOW], data[-WINDOW:], 1_500_000_001, len(data)), project, view)


def summary(*rows: str, view: View = "ts") -> str | None:
    found = info(*rows, view=view)
    return found.summary if found else None


def prompt(*rows: str, view: View = "ts") -> str | None:
    return first_prompt("\n".join(rows).encode(), view)


def title(text: str) -> str:
    return json.dumps({"type": "custom-title", "customTitle": text}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("text", "ts", "python"),
    [
        ("hello", "hello", "hello"),
        ("  a\nb  ", "a b", "a b"),
        ("<local-command-stdout>x", None, None),
        ("[Request interrupted by user for tool use] go", None, None),
        ("<ide_opened_file>x</ide_opened_file>", None, None),
        ("<ide_selection>x</ide_selection> why", None, "<ide_selection>x</ide_selection> why"),
        ("<task-notification>x", None, "<task-notification>x"),
        ("<channel a=1>x", None, "<channel a=1>x"),
        ("<foo:bar>", "<foo:bar>", "<foo:bar>"),
        ("<Foo>", "<Foo>", "<Foo>"),
        ("</foo>", "</foo>", "</foo>"),
        ("<f", "<f", "<f"),
        ("<bash-input> ls </bash-input>", "! ls", "<bash-input> ls </bash-input>"),
        ("<command-name>/clear</command-name>", "/clear", "/clear"),
        ("", None, None),
        ("x" * 200, "x" * 200, "x" * 200),
        ("x" * 199 + " y", "x" * 199 + "…", "x" * 199 + "…"),
        ("😀" * 101, "😀" * 100 + "…", "😀" * 101),
        ("a" + "😀" * 100, "a" + "😀" * 99 + "…", "a" + "😀" * 100),
    ],
)
def test_the_first_prompt_follows_the_rules_of_each_sdk(text: str, ts: str | None, python: str | None) -> None:
    """Skipped texts, shell input, slash commands and the limit of 200 characters are those of the SDK."""
    assert prompt(said(text)) == ts
    assert prompt(said(text), view="python-sdk") == python


def test_the_first_text_that_counts_is_the_prompt() -> None:
    """Skipped texts and rows are passed over; a slash command counts only if there is nothing else."""
    blocks = [{"type": "image"}, {"type": "text", "text": "<tick>"}, {"type": "text", "text": "real"}]
    assert prompt(said(blocks)) == "real"
    command = said("<command-name>/x</command-name>")
    assert prompt(command, said("real")) == "real"
    assert prompt(command, said("<command-name>/y</command-name>")) == "/x"
    hidden = [said("a", isMeta=True), said("b", isCompactSummary=True), said([{"type": "tool_result", "content": "c"}])]
    assert prompt(*hidden, "torn", said("d")[:-5], said("e")) == "e"
    assert prompt(*hidden) is None


def test_titles_come_before_prompts() -> None:
    """The order is: user title, generated title, last prompt, summary, first prompt."""
    rows = [said("first")]
    assert summary(*rows) == "first"
    rows.append('{"type":"summary","summary":"short","leafUuid":"x"}')
    assert summary(*rows) == "short"
    rows.append('{"type":"last-prompt","lastPrompt":"last"}')
    assert summary(*rows) == "last"
    rows.append('{"type":"ai-title","aiTitle":"made up"}')
    assert summary(*rows) == "made up"
    rows.insert(0, title("given"))
    assert summary(*rows) == summary(*rows, view="python-sdk") == "given"
    assert summary(*rows, title("")) == summary(*rows, title(""), view="python-sdk") == "made up"


def test_only_rows_of_the_type_are_titles_to_the_typescript_sdk() -> None:
    """A tool input with `customTitle` is a title only to the Python SDK."""
    decoy = json.dumps({"type": "assistant", "input": {"customTitle": "decoy"}}, separators=(",", ":"))
    assert summary(said("q"), decoy) == "q"
    assert summary(said("q"), decoy, view="python-sdk") == "decoy"
    inside = json.dumps({"type": "assistant", "input": {"summary": "decoy"}}, separators=(",", ":"))
    assert (summary(said("q"), inside), summary(said("q"), inside, view="python-sdk")) == ("q", "decoy")
    assert summary(said("q"), '{"type":"task-summary","summary":"told"}') == "told"
    torn = '{"type":"assistant","x":' + title("inside")
    assert summary(said("q"), torn) == "q"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (said("x") + title("glued"), True),
        (said("x")[:38] + title("glued"), True),
        ('{"torn":1,' + title("glued"), False),
        ("\0\0" + title("glued"), True),
        (title("glued") + said("x"), False),
        (title("glued")[:-1], False),
        ('{"customTitle": "glued", "type": "custom-title"}', True),
    ],
)
def test_a_title_behind_a_torn_row_counts(line: str, found: bool) -> None:
    """A title at the end of a line is found after a row without a newline; one that is followed by something is not."""
    assert summary(said("q"), line) == ("glued" if found else "q")


def test_tags_are_the_last_of_the_tail() -> None:
    """An empty tag is ignored, a tag before the tail is not seen, and the Python SDK needs the exact line start."""
    one, cleared, spaced = '{"type":"tag","tag":"t"}', '{"type":"tag","tag":""}', '{"type": "tag", "tag": "t"}'

    def tag(*rows: str, view: View = "ts") -> str | None:
        found = info(said("q"), *rows, view=view)
        return found.tag if found else None

    assert tag(one) == tag(one, view="python-sdk") == "t"
    assert tag(one, cleared) is tag(one, cleared, view="python-sdk") is None
    assert (tag(spaced), tag(spaced, view="python-sdk")) == ("t", None)
    assert tag(one, PAD, PAD) is None
    assert tag(said("x") + one) == "t"


def test_windows_decide_what_is_known() -> None:
    """A title between the windows is unknown; the tail takes precedence over the head."""
    assert summary(said("q"), PAD, title("mid"), PAD) == "q"
    assert summary(title("head"), said("q"), PAD, PAD) == "head"
    assert summary(title("head"), said("q"), PAD, PAD, title("tail")) == "tail"
    assert summary(said("z" * WINDOW)) is None
    assert summary(PAD, said("behind")) is None


def test_sessions_that_say_nothing_and_sidechains_are_not_listed() -> None:
    """A file with only metadata, and one whose first row is a sidechain, are not listed."""
    assert info('{"type":"mode","mode":"x"}') is None
    assert info(said("q", isSidechain=True)) is None
    assert info(said("q"), said("r", isSidechain=True)) is not None


def test_branch_cwd_and_times() -> None:
    """The last branch, the first directory and time, and the project's path if no row has one."""
    found = info('{"type":"mode"}', said("q", gitBranch="one", cwd="/a"), said("r", gitBranch="two", cwd="/b"))
    assert found is not None
    assert (found.git_branch, found.cwd, found.created_at) == ("two", "/a", 1_767_225_600_000)
    assert found.last_modified == 1500
    bare = info(json.dumps({"type": "user", "message": {"content": "q"}}), project="/p")
    assert bare is not None
    assert (bare.git_branch, bare.cwd, bare.created_at) == (None, "/p", None)
    wrong = info(said("q", timestamp="nope"))
    assert wrong is not None
    assert wrong.created_at is None


def test_programs_are_told_from_people() -> None:
    """Sessions started by an SDK or a daemon are marked."""
    for member, value, expected in (
        ("entrypoint", "cli", False),
        ("entrypoint", "sdk-py", True),
        ("sessionKind", "daemon", True),
        ("sessionKind", "bg", False),
    ):
        found = info(said("q", **{member: value}))
        assert found is not None
        assert found.is_programmatic is expected
