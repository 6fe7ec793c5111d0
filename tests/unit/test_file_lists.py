"""File lists: what they contain, and how they are written."""

from __future__ import annotations

from typing import Any

import pytest

from builders import Json
from sessile.core.summaries import FileLists, Files, without_blocks

pytestmark = pytest.mark.mission("Y9")


def call(name: str, **arguments: Any) -> Json:
    return {"type": "toolCall", "id": "c", "name": name, "arguments": arguments}


def calling(*calls: Json) -> Json:
    return {"role": "assistant", "content": list(calls)}


def listed(*messages: Json, details: Json | None = None) -> FileLists:
    files = Files()
    files.add_details(details)
    for message in messages:
        files.add_message(message)
    return files.lists()


def test_reads_and_changes_are_told_apart() -> None:
    """A changed file is not listed as read."""
    message = calling(call("read", path="b"), call("read", path="a"), call("edit", path="a"), call("write", path="c"))
    assert listed(message) == FileLists(("b",), ("a", "c"))


def test_the_tools_of_claude_code_are_known() -> None:
    """The names of the tools and of their arguments are known."""
    message = calling(
        call("Read", file_path="r"),
        call("Write", file_path="w"),
        call("Edit", file_path="e"),
        call("MultiEdit", file_path="m"),
        call("NotebookEdit", notebook_path="n"),
    )
    assert listed(message) == FileLists(("r",), ("e", "m", "n", "w"))


@pytest.mark.parametrize(
    "odd",
    [
        call("read", path=3),
        call("read"),
        call("bash", path="a"),
        call("look", path="a"),
        {"type": "toolCall", "name": "read"},
        {"type": "text", "text": "read a"},
    ],
)
def test_what_names_no_file_is_passed_over(odd: Json) -> None:
    """Other tools, other types, no arguments."""
    assert listed(calling(odd)) == FileLists()
    assert listed({"role": "user", "content": [call("read", path="a")]}) == FileLists()


def test_calls_within_calls_count() -> None:
    """Nested calls count at any depth."""
    deep = {"name": "write", "arguments": {"path": "deep"}}
    nested = {"toolName": "read", "args": {"path": "n"}, "nestedCalls": [deep, None]}
    assert listed({"role": "toolResult", "content": [], "nestedCalls": [nested]}) == FileLists(("n",), ("deep",))
    chain: Json = deep
    for _ in range(10_000):
        chain = {"name": "batch", "nestedCalls": [chain]}
    assert listed({"role": "toolResult", "nestedCalls": [chain]}).modified == ("deep",)


def test_lists_are_cumulative() -> None:
    """Files of the previous summary stay listed; a read file may have been changed since."""
    details = {"details": {"readFiles": ["a", "b", 3], "modifiedFiles": ["c"]}}
    assert listed(calling(call("edit", path="a")), details=details) == FileLists(("b",), ("a", "c"))


@pytest.mark.parametrize("made_by", ["fromHook", "fromExtension"])
def test_the_details_of_an_extension_are_not_ours(made_by: str) -> None:
    """An extension may store anything under these names."""
    assert listed(details={"details": {"readFiles": ["a"]}, made_by: True}) == FileLists()
    assert listed(details={"details": {"readFiles": ["a"]}, made_by: False}) == FileLists(("a",))
    assert listed(details={"details": {"readFiles": "a"}}) == listed(details={}) == FileLists()


def test_names_are_sorted_as_javascript_sorts() -> None:
    """Names are sorted by UTF-16 units: emoji come before the last characters of the basic plane."""
    names = ["b", "a", "Z", "é", "\uffff", "🙂"]
    assert listed(calling(*(call("read", path=name) for name in names))).read == ("Z", "a", "b", "é", "🙂", "\uffff")


def test_lists_are_told_behind_the_summary() -> None:
    """Read files first; nothing for an empty list."""
    lists = FileLists(("a", "b"), ("c",))
    assert lists.appended_to("Done.") == (
        "Done.\n\n<read-files>\na\nb\n</read-files>\n\n<modified-files>\nc\n</modified-files>"
    )
    assert FileLists((), ("c",)).appended_to("Done.") == "Done.\n\n<modified-files>\nc\n</modified-files>"
    assert FileLists().appended_to("Done.") == "Done."


def test_at_most_twenty_names_are_told_and_all_are_kept() -> None:
    """The text counts the others; the details contain all."""
    names = tuple(f"f{number:02}" for number in range(23))
    blocks = FileLists(names).blocks()
    assert blocks.endswith("f18\nf19\n… (3 more files omitted)\n</read-files>")
    assert FileLists(names).details() == {"readFiles": list(names), "modifiedFiles": []}
    assert "omitted" not in FileLists(names[:20]).blocks()


def test_old_lists_are_taken_out_first() -> None:
    """A summary that was updated many times has one list of each."""
    once = FileLists(("a",), ("b",)).appended_to("Done.")
    assert FileLists(("c",)).appended_to(once) == "Done.\n\n<read-files>\nc\n</read-files>"
    assert without_blocks(once) == "Done."
    assert without_blocks("no lists, <read-files> is a word") == "no lists, <read-files> is a word"
