"""Every stored text can be found: a needle is in every field of every kind of entry and of every agent's rows.

A search must find each needle, name the field that it is in, and count it if the field was not asked for. The tables say which
field that is; `NEVER` says what is not searched, and why.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders import Json
from figures import measured
from poisoned_rows import MARK, claude_rows, codex_rows, header, myagents_rows, told_entries
from security.test_stored_metadata import payloads
from sessile import Filter, Library, Store
from sessile.core.kinds import KINDS
from sessile.core.words import FIELDS, SHOWN, Field
from sessile.storage.layout import Source
from sessions import write_file

pytestmark = pytest.mark.promise("P49")

SESSION = "11111111-2222-4333-8444-555555555555"
# What is not searched, and why; by the last name of a place, or by the whole place.
NEVER = {
    "(name)": "a word of the format, unless it is no plain name",
    "type": "a word of the format",
    "role": "a word of the format",
    "thinkingSignature": "data that nobody can read",
    "signature": "data that nobody can read",
    "encrypted_content": "data that nobody can read",
}
NEVER_OF_A_RECORD = {
    "id": "no text; `show` and `tree` find entries by their ids",
    "version": "no text",
    "cwd": "the folder of the session: -p",
    "gitBranch": "in every row of Claude Code",
}
# Where texts are, of what a transcript shows. Everything else is in "other".
PLACES: dict[str, Field] = {
    "message:fileMention/files/*/path": "tool_input",
    "message:fileMention/files/*/content": "tool_result",
    "message:*/content/*/thinking": "thinking",
    "message:*/content/*/arguments*": "tool_input",
    "message:*/content/*/name": "tool_input",
    "message:toolResult/content/*/text": "tool_result",
    "message:toolResult/content": "tool_result",
    "message:*/content/*/text": "text",
    "message:*/content": "text",
    "message:user/errorMessage": "text",
    "message:assistant/errorMessage": "text",
    "message:bashExecution/command": "tool_input",
    "message:bashExecution/output": "tool_result",
    "message:pythonExecution/code": "tool_input",
    "message:pythonExecution/output": "tool_result",
    "message:branchSummary/summary": "text",
    "compaction/summary": "text",
    "compaction/shortSummary": "text",
    "branch_summary/summary": "text",
    "custom_message/content": "text",
    "custom/data/tag": "text",
    "label/label": "text",
    "session_info/name": "text",
    "session_init/task": "text",
    "title_change/title": "text",
}


def filled(value: Any, place: str, needles: dict[str, str], prefix: str) -> Any:
    """Return a template with its marks replaced by distinct needles, also in member names."""
    if isinstance(value, dict):
        named = [(filled(name, f"{place}/(name)", needles, prefix), name, item) for name, item in value.items()]
        return {new: filled(item, f"{place}/{name}", needles, prefix) for new, name, item in named}
    if isinstance(value, list):
        return [filled(item, f"{place}/{number}", needles, prefix) for number, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    for mark in (MARK, "?"):
        if mark in value:
            needle = f"{prefix}{len(needles)}y"
            needles[needle] = place
            return value.replace(mark, needle)
    return value


def named(record: Json) -> str:
    """Return the kind of a record, and the role of a message."""
    message = record.get("message")
    kind = str(record.get("type") or record.get("role"))
    role = message.get("role") if isinstance(message, dict) and kind == "message" else None
    return kind if role is None else f"{kind}:{role}"


def native() -> Iterator[tuple[str, Json]]:
    """Yield the records of a native session: an entry of every kind."""
    yield "session", header(SESSION)
    for number, payload in enumerate(payloads()):
        base = {
            "id": f"e{number}",
            "parentId": f"e{number - 1}" if number else None,
            "timestamp": "2026-02-16T10:20:30Z",
        }
        yield named(payload), {**payload, **base}
    for number, entry in enumerate(told_entries("t", f"e{len(payloads()) - 1}")):
        yield named(entry), entry | {"id": f"t{number}"}


def planted(rows: Sequence[tuple[str, Json]], prefix: str) -> tuple[list[Json], dict[str, str]]:
    """Return the rows with needles, and the place of each needle."""
    needles: dict[str, str] = {}
    made = []
    for name, row in rows:
        inner = row.get("message")
        if name.startswith("message:") and isinstance(inner, dict):
            made.append({**row, "message": filled(inner, name, needles, prefix) | {"role": inner["role"]}})
        else:
            made.append(filled(row, name, needles, prefix))
    return made, needles


def is_never(place: str) -> bool:
    """Return whether a place is one of those that are not searched."""
    last = place.rsplit("/", 1)[-1]
    image = last == "data" and any(f"/{holder}/" in place for holder in ("content", "image", "source"))
    return last in NEVER or image or (place.count("/") == 1 and last in NEVER_OF_A_RECORD)


def checked(library: Library, needles: dict[str, str]) -> dict[str, str]:
    """Check every needle, and return the fields that they were found in, by place."""
    found: dict[str, str] = {}
    for needle, place in needles.items():
        results = library.search(needle)
        assert not results.unread and not results.unscanned
        fields = {hit.field for hit in results.hits}
        if is_never(place):
            assert not fields, place
            continue
        if not fields:
            assert results.titles, f"{place} is found nowhere"
            found[place] = "title"
            continue
        field = sorted(fields, key=FIELDS.index)[0]
        found[place] = field
        assert all(needle in hit.excerpt.text for hit in results.hits), place
        assert library.search(needle, fields=[field]).hits, f"--in {field} does not find {place}"
        elsewhere: Field = "thinking" if field != "thinking" else "text"
        counted = library.search(needle, fields=[elsewhere])
        assert counted.matches[field] >= 1 and counted.hidden[field] >= 1, f"{place} is not counted"
    return found


def test_every_text_of_every_kind_is_found_where_the_table_says(tmp_path: Path) -> None:
    """Each field of each kind is found, by default or in "other", except names, ids, signatures and images."""
    rows, needles = planted(list(native()), "needlex")
    assert set(KINDS) <= {row["type"] for row in rows} and len(needles) > 200
    write_file(tmp_path / "sessions" / "--work--" / f"2026_{SESSION}.jsonl", *rows)
    with Library(Store(tmp_path), cache=str(tmp_path / "cache"), auto_catch_up=False) as library:
        assert library.catch_up("index").unindexed == 0
        assert library.list(Filter(hide=())).total == 1
        found = checked(library, needles)
    for place, field in found.items():
        expected = next((told for pattern, told in PLACES.items() if fnmatchcase(place, pattern)), "other")
        assert field == expected, place
    assert set(found.values()) == set(FIELDS)
    never = [place for place in needles.values() if place not in found]
    assert len(never) < len(needles) / 3
    measured("P49", "needles in fields of every kind", needles=len(needles), found=len(found), missed=0)


TEMPLATES: dict[str, list[tuple[str, Json]]] = {
    "claude": [(str(row["type"]), row) for row in claude_rows(SESSION, 1, None)],
    "codex": [(str(row["type"]), row) for row in codex_rows(SESSION)],
    "myagents": [(str(row["role"]), row) for row in myagents_rows()],
}
NAMES = {
    "claude": f"-work/{SESSION}.jsonl",
    "codex": f"2026/05/01/rollout-2026-05-01T10-00-00-{SESSION}.jsonl",
    "myagents": f"{SESSION}.jsonl",
}


def written(home: Path, agent: str, rows: Sequence[Json], *, ascii_only: bool = True) -> list[Source]:
    """Write a session of an agent, and return the folder to read."""
    folder = home / agent / "sessions"
    path = folder / NAMES[agent]
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows))
    return [Source(agent, str(home / agent), str(folder))]


@pytest.mark.parametrize("agent", ["claude", "codex", "myagents"])
def test_every_text_of_other_agents_is_found(tmp_path: Path, agent: str) -> None:
    """Rows that are not part of the conversation, such as queued prompts and attachments, are found in "other"."""
    rows, needles = planted(TEMPLATES[agent], "needlex")
    sources = written(tmp_path, agent, rows)
    with Library(Store(tmp_path / "own"), sources, cache=str(tmp_path / "cache"), auto_catch_up=False) as library:
        library.catch_up("index")
        assert [row.format for row in library.list(Filter(hide=())).rows] == [agent]
        found = checked(library, needles)
    assert {"text", "other"} <= set(found.values()) and set(SHOWN) & set(found.values())
    measured("P49", "needles in rows of other agents", needles=len(needles), found=len(found), missed=0)


def test_needles_in_random_rows_are_found(tmp_path: Path) -> None:
    """Some rounds with a fixed seed."""
    _rounds(tmp_path, seed=49, rounds=3)


@pytest.mark.long
def test_needles_in_random_rows_are_found_at_length(tmp_path: Path) -> None:
    """Many rounds with another seed."""
    _rounds(tmp_path, seed=4949, rounds=300)


def _rounds(folder: Path, seed: int, rounds: int) -> None:
    """Plant needles in random rows of random agents, among many hits or none, indexed or not, and search for them."""
    random = Random(seed)
    searched = 0
    for number in range(rounds):
        home = folder / str(number)
        agent = random.choice(["native", *TEMPLATES])
        template = list(native())[1:] if agent == "native" else TEMPLATES[agent]
        first = [("session", header(SESSION))] if agent == "native" else template[:1]
        rows, needles = planted([*first, *random.sample(template, min(len(template), 6))], f"needle{number}x")
        if agent == "native":
            chain = [{**row, "id": f"n{at}", "parentId": None} if at else row for at, row in enumerate(rows)]
            write_file(home / "own" / "sessions" / "--work--" / f"2026_{SESSION}.jsonl", *chain)
            sources = []
        else:
            sources = written(home, agent, rows, ascii_only=random.random() < 0.5)
        is_indexed = random.random() < 0.7
        with Library(Store(home / "own"), sources, cache=str(home / "cache"), auto_catch_up=False) as library:
            library.catch_up("index" if is_indexed else "look")
            for needle, place in random.sample(sorted(needles.items()), min(len(needles), 25)):
                results = library.search(needle if random.random() < 0.5 else f"{needle[:-1]}*")
                assert not results.unread and not results.unscanned
                texts = [hit.excerpt.text for hit in results.hits]
                assert is_never(place) or results.titles or any(needle in text for text in texts), (
                    number,
                    agent,
                    place,
                )
                searched += 1
        shutil.rmtree(home)
    measured("P49", "needles in random rows", rounds=rounds, needles=searched, missed=0)
