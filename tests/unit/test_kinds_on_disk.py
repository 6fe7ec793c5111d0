"""The exact text of every kind of entry."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import AT, user
from sessile import Session
from sessions import CWD, begun, lines_of, records_of, say, store_at

pytestmark = [pytest.mark.mission("X1"), pytest.mark.mission("X2")]


def written(tmp_path: Path, append: Callable[[Session], Any]) -> str:
    """Return the line of an entry, with id and parent replaced by `ID` and `PARENT`."""
    with begun(store_at(tmp_path)) as session:
        parent = say(session, "first")
        append(session)
        leaf = session.leaf_id
    assert leaf is not None
    return lines_of(session.path)[2].decode().replace(leaf, "ID").replace(parent, "PARENT")


def base(kind: str) -> str:
    return f'{{"type":"{kind}","id":"ID","parentId":"PARENT","timestamp":"{AT}"'


Row = tuple[Callable[[Session], Any], str]
MESSAGE = {"role": "user", "content": "Grüße 😀\n\u2028\x00", "z": None, "a": 1.0, "n": 1.5e300}

LINES: dict[str, Row] = {
    "message": (
        lambda s: s.append_message(MESSAGE),
        base("message") + ',"message":{"role":"user","content":"Grüße 😀\\n\u2028\\u0000","z":null,"a":1,"n":1.5e300}}',
    ),
    "thinking level": (
        lambda s: s.append_thinking_level_change("high"),
        base("thinking_level_change") + ',"thinkingLevel":"high"}',
    ),
    "no thinking level": (
        lambda s: s.append_thinking_level_change(None),
        base("thinking_level_change") + ',"thinkingLevel":null}',
    ),
    "default model": (
        lambda s: s.append_model_change("anthropic/claude/x"),
        base("model_change") + ',"model":"anthropic/claude/x","provider":"anthropic","modelId":"claude/x"}',
    ),
    "default model by role": (
        lambda s: s.append_model_change("p/m", "default"),
        base("model_change") + ',"model":"p/m","role":"default","provider":"p","modelId":"m"}',
    ),
    "other model": (
        lambda s: s.append_model_change("p/m", "smol"),
        base("model_change") + ',"model":"p/m","role":"smol"}',
    ),
    "compaction": (
        lambda s: s.append_compaction("sum", "PARENT", 1234),
        base("compaction") + ',"summary":"sum","firstKeptEntryId":"PARENT","tokensBefore":1234}',
    ),
    "compaction with everything": (
        lambda s: s.append_compaction(
            "sum",
            None,
            0,
            short_summary="short",
            details={"readFiles": []},
            from_extension=True,
            preserve_data={"a": 1},
        ),
        base("compaction")
        + ',"summary":"sum","shortSummary":"short","tokensBefore":0,"details":{"readFiles":[]},"fromExtension":true'
        + ',"preserveData":{"a":1}}',
    ),
    "branch summary": (
        lambda s: s.branch_with_summary(s.leaf_id, "learned"),
        base("branch_summary") + ',"fromId":"PARENT","summary":"learned"}',
    ),
    "custom": (
        lambda s: s.append_custom_entry("ext", {"b": 1, "a": [True, None]}),
        base("custom") + ',"customType":"ext","data":{"b":1,"a":[true,null]}}',
    ),
    "custom without data": (lambda s: s.append_custom_entry("ext"), base("custom") + ',"customType":"ext"}'),
    "custom message": (
        lambda s: s.append_custom_message_entry("ext", "text"),
        base("custom_message") + ',"customType":"ext","content":"text","display":true,"attribution":"agent"}',
    ),
    "hidden custom message": (
        lambda s: s.append_custom_message_entry("ext", [{"type": "text", "text": "t"}], False, {"d": 1}, "user"),
        base("custom_message")
        + ',"customType":"ext","content":[{"type":"text","text":"t"}],"display":false,"details":{"d":1},"attribution":"user"}',
    ),
    "label": (
        lambda s: s.append_label_change(s.leaf_id or "", "here"),
        base("label") + ',"targetId":"PARENT","label":"here"}',
    ),
    "cleared label": (lambda s: s.append_label_change(s.leaf_id or "", None), base("label") + ',"targetId":"PARENT"}'),
    "emptied label": (lambda s: s.append_label_change(s.leaf_id or "", ""), base("label") + ',"targetId":"PARENT"}'),
    "rules": (lambda s: s.append_ttsr_injection(("a", "b")), base("ttsr_injection") + ',"injectedRules":["a","b"]}'),
    "session init": (
        lambda s: s.append_session_init("prompt", "task", ["bash"]),
        base("session_init") + ',"systemPrompt":"prompt","task":"task","tools":["bash"]}',
    ),
    "session init with schema": (
        lambda s: s.append_session_init("prompt", "task", [], {"type": "object"}),
        base("session_init") + ',"systemPrompt":"prompt","task":"task","tools":[],"outputSchema":{"type":"object"}}',
    ),
    "mode": (lambda s: s.append_mode_change("plan", {"x": 1}), base("mode_change") + ',"mode":"plan","data":{"x":1}}'),
    "no mode": (lambda s: s.append_mode_change("none"), base("mode_change") + ',"mode":"none"}'),
    "context edit": (
        lambda s: s.append_context_edit(s.leaf_id or "", "new"),
        base("context_edit") + ',"targetId":"PARENT","replacement":{"content":"new"}}',
    ),
    "context removal": (
        lambda s: s.append_context_edit(s.leaf_id or "", None),
        base("context_edit") + ',"targetId":"PARENT","replacement":null}',
    ),
    "reset boundary": (lambda s: s.append_reset_boundary(), base("reset_boundary") + "}"),
    "name": (lambda s: s.set_session_name("N"), base("session_info") + ',"name":"N"}'),
    "automatic name": (
        lambda s: s.set_session_name("N", "auto"),
        base("session_info") + ',"name":"N","source":"auto"}',
    ),
    "any kind": (
        lambda s: s.append_many([{"serviceTier": None, "type": "service_tier_change", "id": "no", "parentId": "no"}]),
        base("service_tier_change") + ',"serviceTier":null}',
    ),
    "lone surrogate": (
        lambda s: s.append_custom_entry("ext", "\ud83d"),
        base("custom") + ',"customType":"ext","data":"\\ud83d"}',
    ),
}


@pytest.mark.parametrize(("append", "line"), LINES.values(), ids=LINES)
def test_an_entry_is_written_as_the_family_writes_it(
    tmp_path: Path, append: Callable[[Session], Any], line: str
) -> None:
    """Base members come first, the payload is in the documented order, without spaces or absent members."""
    assert written(tmp_path, append) == line


def test_the_header_is_the_first_line_and_says_no_more_than_it_must(tmp_path: Path) -> None:
    """Title and parent are written only if given."""
    store = store_at(tmp_path)
    with begun(store, session_id="s1") as session:
        head = f'{{"type":"session","version":3,"id":"s1","timestamp":"{AT}","cwd":"{CWD}"}}\n'
        assert Path(session.path).read_text() == head
    with begun(store, session_id="s2", title="T", parent_session="/p.jsonl") as session:
        assert lines_of(session.path)[0].decode() == head.replace("s1", "s2").removesuffix("}\n") + (
            ',"title":"T","parentSession":"/p.jsonl"}'
        )


def test_ids_are_eight_letters_and_digits_and_sessions_are_uuids_of_version_7(tmp_path: Path) -> None:
    """Session ids sort by time; the same clock and random bytes give the same file."""
    files = []
    for name in ("a", "b"):
        with begun(store_at(tmp_path / name)) as session:
            say(session, "one")
            session.append_message(user("two"))
        files.append(Path(session.path).read_bytes())
    assert files[0] == files[1]
    assert all(re.fullmatch("[0-9A-Za-z]{8}", record["id"]) for record in records_of(session.path)[1:])
    assert [len(part) for part in session.id.split("-")] == [8, 4, 4, 4, 12]
    assert session.id[14] == "7"
    assert int(session.id.replace("-", "")[:12], 16) == 1_771_237_230_000


@pytest.mark.parametrize(
    ("change", "models"),
    [
        ({"provider": "p", "modelId": "m"}, {"default": "p/m"}),
        ({"model": "p/m"}, {"default": "p/m"}),
        ({"model": "p/m", "role": "slow"}, {"slow": "p/m"}),
        ({"model": "p/m", "provider": "x", "modelId": "y"}, {"default": "p/m"}),
        ({"model": ""}, {}),
    ],
)
def test_both_shapes_of_a_model_change_are_read(change: dict[str, str], models: dict[str, str]) -> None:
    """The shapes of pi and oh-my-pi are read."""
    session = Session.in_memory()
    session.append_many([{"type": "model_change", **change}])
    assert session.context().models == models


def test_the_later_kinds_of_the_family_count_in_the_state() -> None:
    """Service tier, tool selection and context are read as other programs write them."""
    session = Session.in_memory()
    session.append_many(
        [
            {"type": "service_tier_change", "serviceTier": "flex"},
            {"type": "mcp_tool_selection", "selectedToolNames": ["a"]},
            {"type": "context_change", "contextName": "c", "tenant": "t", "namespace": "n"},
            {"type": "usage", "kind": "k"},
            {"type": "model_usage", "purpose": "p"},
            {"type": "credential_pin", "provider": "p", "hash": "h"},
        ]
    )
    context = session.context()
    assert (context.service_tier, context.selected_mcp_tool_names) == ("flex", ["a"])
    assert context.active_context == {"contextName": "c", "tenant": "t", "namespace": "n"}
    assert (context.messages, len(session.get_branch())) == ([], 6)
