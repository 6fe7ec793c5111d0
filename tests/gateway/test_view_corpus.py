"""Damaged files and files of other agents in the page's API: all responses must be consistent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import AT
from http_rig import Http, check_problem, http
from myagents_folder import asked, line, told
from page_sessions import outlined, whole_tree
from sessile.core.words import pieces
from sessile.storage.layout import Source
from sessions import write_file

pytestmark = [pytest.mark.anyio, pytest.mark.mission("B1")]

Json = dict[str, Any]

ID = "12345678-1234-4234-8234-123456789abc"
CORPUS = sorted((Path(__file__).parent.parent / "corpus").glob("*.jsonl"))
NO_SESSIONS = {"empty", "header_id_not_a_string", "no_header", "only_newline", "pretty_printed"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.promise("P36")
@pytest.mark.parametrize("source", CORPUS, ids=lambda path: path.stem)
async def test_a_damaged_file_is_shown_as_far_as_it_can_be_read(tmp_path: Path, source: Path) -> None:
    """Entry numbers and parents match the export; a file that is not a session is a problem."""
    path = tmp_path / "sessions" / "--work--" / source.name
    path.parent.mkdir(parents=True)
    shutil.copy(source, path)
    async with http(tmp_path) as gate:
        response = await gate.client.get("/v1/view/session", params={"id": str(path)})
        if source.stem in NO_SESSIONS:
            check_problem(response)
        else:
            await check(gate, str(path), response.json())
            await compare_with_export(gate, str(path))


async def check(gate: Http, name: str, session: Json) -> None:
    """Check that all responses about one session refer to the same entries."""
    outline = await outlined(gate, name, 7)
    shown = [number for number, mark in enumerate(outline["marks"]) if not mark & 64]
    assert session["total"] == outline["total"] == len(outline["lines"])
    assert {*session["heads"], *session["path"]} <= set(shown)
    articles: Json = {}
    for start in range(0, session["total"], 200):
        articles |= (await gate.get("/v1/view/entries", id=name, **{"from": start, "to": start + 200}))["articles"]
    assert sorted(map(int, articles)) == shown
    assert all(f'id="{outline["anchors"][int(number)]}"' in article for number, article in articles.items())
    for number in shown[-5:]:
        assert (await gate.get("/v1/view/raw", id=name, number=number))["parent"] == outline["parents"][number]
        seen = await gate.get("/v1/view/saw", id=name, at=number)
        assert set(seen["numbers"]) <= set(shown)
    found = await gate.get("/v1/view/find", id=name, q="e")
    assert set(found["numbers"]) <= set(shown)


async def compare_with_export(gate: Http, path: str) -> None:
    """Check that the outline has the anchors and parents of the export."""
    with gate.gateway.store.open(path, readonly=True) as stored:
        tree = whole_tree(stored)
    outline = await outlined(gate, path)
    assert outline["anchors"] == tree.anchors and outline["parents"] == tree.tree.parents


def wrote_codex(folder: Path) -> str:
    """Write a Codex rollout with a tool call, a compaction and a row that is not shown."""
    items: list[tuple[str, Json]] = [
        ("session_meta", {"id": ID, "timestamp": AT, "cwd": "/work/app"}),
        ("turn_context", {"model": "gpt-x"}),
        ("response_item", {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list"}]}),
        ("event_msg", {"type": "user_message", "message": "list"}),
        ("response_item", {"type": "function_call", "name": "shell", "arguments": '{"command":"ls"}', "call_id": "c"}),
        ("response_item", {"type": "function_call_output", "call_id": "c", "output": "a file"}),
        ("compacted", {"message": "the story so far"}),
        (
            "response_item",
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}]},
        ),
    ]
    rows = [{"timestamp": AT, "type": kind, "payload": payload} for kind, payload in items]
    return write_file(folder / f"rollout-2026-05-01T10-00-00-{ID}.jsonl", *rows)


def wrote_myagents(folder: Path) -> str:
    """Write a MyAgents session in which one row contains a call, its result and a reply."""
    tool = {"type": "tool_use", "tool": {"id": "t1", "name": "Read", "input": {"path": "x"}, "result": "found it"}}
    blocks = [{"type": "thinking", "thinking": "hm"}, tool, {"type": "text", "text": "done"}]
    path = folder / f"{ID}.jsonl"
    folder.mkdir(parents=True)
    path.write_bytes(line(asked(0)) + line(told(1, text=json.dumps(blocks))) + line(asked(2)))
    return str(path)


@pytest.mark.parametrize(("agent", "wrote", "entries"), [("codex", wrote_codex, 6), ("myagents", wrote_myagents, 4)])
async def test_a_file_of_another_format_is_asked_by_the_same_numbers(
    tmp_path: Path, agent: str, wrote: Callable[[Path], str], entries: int
) -> None:
    """Entry numbers are consistent, even if a row has several entries or none."""
    path = wrote(tmp_path / agent / "sessions")
    source = Source(agent, str(tmp_path / agent), str(tmp_path / agent / "sessions"))
    async with http(tmp_path / "own", sources=[source]) as gate:
        found = await gate.get("/v1/view/session", id=ID)
        assert found["agent"] == agent and len(found["path"]) == entries
        await check(gate, ID, found)
        await compare_with_export(gate, path)
        with gate.gateway.store.open(path, readonly=True) as stored:
            ids = [entry.id for entry in stored.iter_lines()]
            for number in found["path"]:
                raw = await gate.get("/v1/view/raw", id=ID, number=number)
                assert raw["id"] == ids[number]
                for _, text in pieces(raw["entry"]):
                    assert number in (await gate.get("/v1/view/find", id=ID, q=text))["numbers"]
