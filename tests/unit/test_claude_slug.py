"""Slugs, the hash of long paths, session ids, and paths built from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.agents.claude.paths import (
    Current,
    agent_of,
    is_uuid,
    long_prefix,
    project_dir,
    python_sdk_slug,
    session_of,
    slug,
    string_hash,
    subagent_path,
    transcript_path,
)
from sessile.errors import InvalidId

pytestmark = pytest.mark.mission("C1")

SESSION = "11111111-2222-4333-8444-555555555555"
OTHER = "99999999-2222-4333-8444-555555555555"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/b-c", "-a-b-c"),
        ("/a/b_c.d e", "-a-b-c-d-e"),
        ("/ä/x", "---x"),
        ("/a\u0308/x", "---x"),  # composed first
        ("/😀", "---"),
        ("/C:\\Users", "-C--Users"),
    ],
)
def test_every_other_unit_becomes_one_hyphen(path: str, expected: str) -> None:
    """Other characters than letters and digits become hyphens, one per UTF-16 unit."""
    assert slug(path) == expected


def test_the_python_sdk_counts_characters() -> None:
    """An emoji is two hyphens to Claude Code and one to the Python SDK."""
    assert (slug("/😀x"), python_sdk_slug("/😀x")) == ("---x", "--x")
    assert slug("/plain") == python_sdk_slug("/plain")


def test_a_long_path_is_cut_and_hashed() -> None:
    """Two hundred characters are kept; a longer slug is cut there and gets a hash of the path."""
    assert slug("/" + "x" * 199) == "-" + "x" * 199
    name = slug("/" + "x" * 200)
    assert name == "-" + "x" * 199 + "-" + string_hash(map(ord, "/" + "x" * 200))
    assert long_prefix(name) == "-" + "x" * 199 + "-"
    assert long_prefix("-short") is None
    assert slug("/" + "😀" * 150) != python_sdk_slug("/" + "😀" * 150)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "0"), ("a", "2p"), ("abc", "22ci"), ("hello", "1n1e4y"), ("polygenelubricants", "zik0zk")],
)
def test_the_hash_is_javas_without_its_sign(text: str, expected: str) -> None:
    """Hashes of known strings, also the one with the lowest number, are in base 36."""
    assert string_hash(map(ord, text)) == expected


@given(st.text())
def test_a_slug_is_a_safe_name(path: str) -> None:
    """The slug of any path has only letters, digits and hyphens, and fits a file system."""
    name = slug(path)
    assert all(char.isascii() and (char.isalnum() or char == "-") for char in name)
    assert len(name) <= 210


@pytest.mark.parametrize(
    ("text", "expected"),
    [(SESSION, True), (SESSION.replace("1", "A"), True), (SESSION + "\n", False), (SESSION[:-1], False), ("", False)],
)
def test_a_session_id_is_a_uuid_and_nothing_else(text: str, expected: bool) -> None:
    """Eight, four, four, four and twelve hex digits in any case, without a newline."""
    assert is_uuid(text) is expected


def test_the_current_session_has_one_path() -> None:
    """A session with its own project folder has the same path as the current session and by its id."""
    current = Current(SESSION, "/work", "/elsewhere")
    assert transcript_path("/home", current) == f"/elsewhere/{SESSION}.jsonl"
    assert transcript_path("/home", current, SESSION) == f"/elsewhere/{SESSION}.jsonl"
    assert transcript_path("/home", current, OTHER) == f"/home/projects/-work/{OTHER}.jsonl"
    assert transcript_path("/home", Current(SESSION, "/work")) == f"/home/projects/-work/{SESSION}.jsonl"
    assert project_dir("/home", "/work") == "/home/projects/-work"


def test_sub_agents_lie_below_their_session() -> None:
    """A sub-agent's transcript is in the session's folder, grouped if requested, and never outside of it."""
    assert subagent_path("/p", SESSION, "x") == f"/p/{SESSION}/subagents/agent-x.jsonl"
    assert subagent_path("/p", SESSION, "x", "workflows/w") == f"/p/{SESSION}/subagents/workflows/w/agent-x.jsonl"
    for agent, subdir in (("", None), ("../x", None), ("x", ".."), ("x", "a//b"), ("x", "/etc")):
        with pytest.raises(InvalidId):
            subagent_path("/p", SESSION, agent, subdir)
    with pytest.raises(InvalidId):
        subagent_path("/p", "../etc", "x")


def test_names_tell_what_a_file_is() -> None:
    """Names tell transcripts of sessions and sub-agents from other files."""
    assert session_of(f"{SESSION}.jsonl") == SESSION
    assert session_of("agent-x.jsonl") is None
    assert session_of(SESSION) is None
    assert agent_of("agent-x.jsonl") == "x"
    assert agent_of("journal.jsonl") is None
    assert agent_of("agent-x.meta.json") is None
