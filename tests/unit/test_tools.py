"""What tools did: files and diffs of calls, whichever agent made them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Json, entry
from sessile.core.tools import Change, Files, Touched, changes, command_of, files, touched
from sessile.render.shown import Diff, show_all
from strategies import json_values

PATCH = (
    "*** Begin Patch\n*** Add File: new.txt\n+one\n*** Update File: old.py\n*** Move to: moved.py\n@@\n-a\n+b\n"
    "*** Delete File: gone\n*** End Patch\n"
)
SCRIPT = r'text(await tools.apply_patch("*** Begin Patch\n*** Add File: s.txt\n+one \"two\"\n*** End Patch\n"));'


def read(*paths: str) -> list[Touched]:
    return [Touched(path, "read") for path in paths]


def edited(*paths: str) -> list[Touched]:
    return [Touched(path, "edit") for path in paths]


@pytest.mark.mission("N6")
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("Read", {"file_path": "/p/a"}, read("/p/a")),  # Claude Code
        ("Edit", {"file_path": "/p/a", "old_string": "x", "new_string": "y"}, edited("/p/a")),
        ("Write", {"file_path": "/p/a", "content": "x"}, edited("/p/a")),
        ("MultiEdit", {"file_path": "/p/a", "edits": [{"old_string": "x", "new_string": "y"}]}, edited("/p/a")),
        ("NotebookEdit", {"notebook_path": "/p/n.ipynb", "new_source": "x"}, edited("/p/n.ipynb")),
        ("read", {"path": "a"}, read("a")),  # pi, oh-my-pi, OpenClaw
        ("edit", {"path": "a", "edits": [{"oldText": "x", "newText": "y"}]}, edited("a")),
        ("edit", {"i": "why", "input": "[a.txt#327F]\nPUT 2.=2:\n+new\n"}, edited("a.txt")),
        ("apply_patch", {"input": PATCH}, edited("new.txt", "old.py", "moved.py", "gone")),  # Codex, Copilot, Cline
        ("apply_patch", PATCH, edited("new.txt", "old.py", "moved.py", "gone")),
        ("shell", {"command": ["apply_patch", PATCH]}, edited("new.txt", "old.py", "moved.py", "gone")),
        ("shell", {"command": ["bash", "-lc", "cat a.txt"]}, read("a.txt")),
        ("exec", {"input": SCRIPT}, edited("s.txt")),
        ("exec", {"input": 'await tools.view_image({path: "/p/a.png", detail: "high"})'}, read("/p/a.png")),
        ("view_image", {"path": "/p/a.png"}, read("/p/a.png")),
        ("read_file", {"file_path": "/p/a"}, read("/p/a")),  # Gemini CLI, Qwen Code
        ("replace", {"file_path": "/p/a", "old_string": "x", "new_string": "y"}, edited("/p/a")),
        ("write_file", {"file_path": "/p/a", "content": "x"}, edited("/p/a")),
        ("read", {"filePath": "/p/a"}, read("/p/a")),  # OpenCode, Kilo
        ("edit", {"filePath": "/p/a", "oldString": "x", "newString": "y"}, edited("/p/a")),
        ("view", {"path": "/p/a"}, read("/p/a")),  # Copilot, Crush
        ("edit", {"path": "/p/a", "before": "x", "after": "y"}, edited("/p/a")),  # Goose
        ("developer__text_editor", {"command": "view", "path": "/p/a"}, read("/p/a")),
        ("developer__text_editor", {"command": "str_replace", "path": "/p/a", "old_str": "x", "new_str": "y"}, edited("/p/a")),
        ("read_image", {"source": "/p/a.png"}, read("/p/a.png")),
        ("read_files", {"files": [{"path": "/p/a"}, {"path": "/p/b"}]}, read("/p/a", "/p/b")),  # Cline
        ("run_commands", {"commands": ["cat a b", "echo x > c"]}, [*read("a", "b"), *edited("c")]),
        ("Write", {"filepath": "a", "content": "x"}, edited("a")),  # Continue
        ("tool_call", {"name": "write", "arguments": {"path": "a", "content": "x"}}, edited("a")),  # OpenClaw
        ("mcp__filesystem__read_file", {"path": "/p/a"}, read("/p/a")),
        ("mcp__github__create_file", {"path": "a", "repo": "r"}, []),
        ("unheard_of", {"path": "a"}, []),
        ("Task", {"prompt": "read a"}, []),
    ],
)  # fmt: skip
def test_a_call_tells_its_files(name: str, arguments: object, expected: list[Touched]) -> None:
    """The table knows the tools of every agent and the names of their arguments."""
    assert touched(name, arguments) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "cat a.txt && sed -n '1,20p' b.py | head -5 > out.txt 2>/dev/null",
            [*read("a.txt", "b.py"), *edited("out.txt")],
        ),
        ("cat > new.py <<'EOF'\nprint('x > y')\ncat other\nEOF\nhead -n 20 q.md", [*edited("new.py"), *read("q.md")]),
        ("sed -i 's/a/b/' 'my file.txt'", edited("my file.txt")),
        ("printf '%s' 'x' >> log 2>&1", edited("log")),
        ("echo x | tee -a notes.md", edited("notes.md")),
        ("cat $FILE *.py ~/x", []),
        ("ls > /dev/null; make", []),
        ("cat 'unclosed", []),
        ("echo 'cat a.txt'", []),
        ("cat <<A > one\ncat no\n  A\ncat <<B > two\ncat no\nB\ncat three", [*edited("one", "two"), *read("three")]),
    ],
)
def test_a_plain_command_tells_its_files(command: str, expected: list[Touched]) -> None:
    """Commands whose files can be told from the text are understood, others are not guessed."""
    assert touched("bash", {"command": command}) == expected


@pytest.mark.mission("N6")
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("Edit", {"file_path": "a", "old_string": "one\ntwo", "new_string": "1\ntwo"}, [Change("a", "-one\n+1\n two")]),
        ("Write", {"file_path": "a", "content": "one\ntwo\n"}, [Change("a", "+one\n+two")]),
        ("apply_patch", {"input": PATCH}, [Change("new.txt", "+one"), Change("moved.py", "-a\n+b")]),
        ("exec", {"input": SCRIPT}, [Change("s.txt", '+one "two"')]),
        (
            "edit",
            {"path": "a", "edits": [{"oldText": "x", "newText": "y"}, {"oldText": "v", "newText": "w"}]},
            [Change("a", "-x\n+y"), Change("a", "-v\n+w")],
        ),
        (
            "replace_in_file",
            {"path": "a", "diff": "<<<<<<< SEARCH\nold\n=======\nnew\n>>>>>>> REPLACE"},
            [Change("a", "-old\n+new")],
        ),
        (
            "replace_in_file",
            {
                "path": "a",
                "diff": "------- SEARCH\na\nb\n=======\n+++++++ REPLACE\n<<<<<<< SEARCH\n=======\nc\n>>>>>>> REPLACE",
            },
            [Change("a", "-a\n-b"), Change("a", "+c")],
        ),
        ("edit", {"path": "a", "before": "x", "after": ""}, [Change("a", "-x")]),
        ("NotebookEdit", {"notebook_path": "n", "new_source": "x"}, [Change("n", "+x")]),
        ("read", {"path": "a"}, []),
        ("bash", {"command": "cat a"}, []),
    ],
)
def test_an_edit_is_a_diff(name: str, arguments: object, expected: list[Change]) -> None:
    """Old and new text, whole files and patches become diffs."""
    assert changes(name, arguments) == expected


def test_a_stored_diff_is_preferred() -> None:
    """What the agent stored of an edit has lines around it; a failed edit without one changed nothing."""
    arguments = {"path": "a", "oldText": "x", "newText": "y"}
    stored = {"role": "toolResult", "details": {"diff": " 1 before\n-2 x\n+2 y"}}
    assert changes("edit", arguments, stored) == [Change("a", " 1 before\n-2 x\n+2 y")]
    assert changes("edit", arguments, {"role": "toolResult", "isError": True}) == []


def calling(number: int, name: str, arguments: Json) -> Json:
    block = {"type": "toolCall", "id": f"c{number}", "name": name, "arguments": arguments}
    return entry("message", f"a{number}", None, message={"role": "assistant", "content": [block]})


def answering(number: int, failed: bool = False) -> Json:
    message = {"role": "toolResult", "toolCallId": f"c{number}", "toolName": "", "content": [], "isError": failed}
    return entry("message", f"r{number}", None, message=message)


@pytest.mark.mission("N6")
def test_files_of_a_path_are_those_of_calls_that_worked() -> None:
    """An edited file is not listed as read, a failed call touched nothing, and a file has one name."""
    path = [
        calling(1, "Read", {"file_path": "/p/a"}),
        answering(1),
        calling(2, "apply_patch", {"input": PATCH}),
        answering(2, failed=True),
        calling(3, "write", {"path": "b", "content": ""}),
        answering(3),
        calling(4, "read", {"path": "/p/b"}),
        calling(5, "read", {"path": "/q/c"}),
    ]
    assert files(path, "/p") == Files(("/q/c", "a"), ("b",))


@pytest.mark.mission("N6")
def test_edits_of_any_agent_are_shown_as_diffs() -> None:
    """A result is shown with the diff of its call, and with its name."""
    shown = list(
        show_all([calling(1, "replace", {"file_path": "a", "old_string": "x", "new_string": "y"}), answering(1)])
    )
    assert shown[1].name == "replace"
    assert [part for part in shown[1].parts if isinstance(part, Diff)] == [Diff("a", "-x\n+y")]


def test_a_command_is_text() -> None:
    """Commands are given as text, words, several commands, or below an action."""
    assert command_of("shell", {"command": ["bash", "-lc", "make x"]}) == "make x"
    assert command_of("exec_command", {"cmd": "ls"}) == "ls"
    assert command_of("read", {"command": "ls"}) is None


names = st.sampled_from(["Edit", "edit", "apply_patch", "exec", "bash", "read", "tool_call", "str_replace_editor", "x"])
members = st.sampled_from(
    ["path", "file_path", "edits", "input", "command", "files", "old_string", "new_string", "content"]
)


@given(names, st.dictionaries(members, st.one_of(json_values, st.just(PATCH), st.just("cat a > b"))), json_values)
def test_odd_arguments_never_fail(name: str, arguments: dict[str, Any], result: Any) -> None:
    """Whatever a model wrote as arguments, files and diffs are lists of texts."""
    for given_arguments in (arguments, result):
        assert all(isinstance(file.path, str) for file in touched(name, given_arguments))
        assert all(change.text for change in changes(name, given_arguments, {"details": result}))


def edit(old: str, new: str) -> Json:
    return {"path": "a", "old_string": old, "new_string": new}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bash", {"command": "<<a\n" + "<<a x\n\n\n" * 500}),
        ("bash", {"command": "<<a\n" * 4900}),
        ("edit", edit("a\nb\n" * 500, "b\na\nc\n" * 333)),
        ("edit", edit("\n" * 3999, "x" + "\n" * 3998 + "x")),
        ("edit", {"path": "a", "edits": [edit("a\nb\n" * 100, "b\na\nc\n" * 60)] * 100}),
        ("replace_in_file", {"path": "a", "diff": "<<<<<<< SEARCH\n" * 4400}),
        ("replace_in_file", {"path": "a", "diff": "<<<<<<< SEARCH\n=======\n" * 2800}),
        ("exec", {"input": 'tools.a({x:"' * 2000}),
        ("exec", {"input": 'tools.a({x:"' * 2000 + "})"}),
        ("exec", {"input": "tools.a({" + "x" * 60_000}),
    ],
)
def test_repetitive_calls_take_no_longer(name: str, arguments: Json) -> None:
    """Whatever a model repeats, reading a call takes less than a second."""
    started = time.process_time()
    touched(name, arguments)
    changes(name, arguments)
    assert time.process_time() - started < 1


def test_a_difference_that_takes_too_long_keeps_the_ends() -> None:
    """Lines that repeat too often are replaced as a whole, between the equal lines at both ends."""
    old, new = ["x", *["a", "b"] * 1500, "y"], ["x", *["b", "a", "c"] * 1000, "y"]
    (change,) = changes("edit", edit("\n".join(old), "\n".join(new)))
    lines = change.text.split("\n")
    assert (lines[0], lines[-1]) == (" x", " y")
    assert [line[1:] for line in lines if line[0] != "+"] == old
    assert [line[1:] for line in lines if line[0] != "-"] == new
