"""A missing parent at the command line: the family's answer with a finding, a bridge on request, and a repair that builds it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import entry, said
from figures import measured
from sessile import Store
from sessile.core.codec import member_span
from sessile.core.diagnosis import TROUBLES
from sessile.upkeep.check import check, plan_repair, repair
from sessions import answer, begun, dumps, header, say

from .conftest import Command

pytestmark = [pytest.mark.promise("P19"), pytest.mark.mission("X12")]


@pytest.fixture
def gap(home: Path) -> Path:
    """Return a session of three turns from which the second answer was removed, as a bad disk would."""
    store = Store(home / ".sessile")
    with begun(store) as session:
        for number in range(3):
            say(session, f"question {number}")
            answer(session, f"answer {number}")
    path = Path(session.path)
    path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(True) if b"answer 1" not in line))
    return path


def texts(document: dict[str, Any]) -> list[str]:
    found = []
    for message in document["messages"]:
        content = message["content"]
        found.append(content if isinstance(content, str) else content[0]["text"])
    return found


BRIDGED = ["question 0", "answer 0", "question 1", "question 2", "answer 2"]


def test_the_context_ends_at_a_missing_parent_and_says_so(sessile: Command, gap: Path) -> None:
    """The family's answer is given, with a finding and the flag that reads on."""
    done = sessile("--json", "context", str(gap))
    assert texts(done.json) == ["question 2", "answer 2"]
    assert [finding["code"] for finding in done.json["findings"]] == ["missing_parent"]
    shown = sessile("context", str(gap))
    assert "question 1" not in shown.out
    assert "is not in the session; the history starts there" in shown.out
    assert "--bridge" in shown.err
    assert shown.code == 5


def test_the_context_continues_across_the_gap_on_request(sessile: Command, gap: Path) -> None:
    """The bridge leads to the nearest earlier entry; the finding stays, and nothing is written."""
    before = gap.read_bytes()
    done = sessile("--json", "context", str(gap), "--bridge")
    assert texts(done.json) == BRIDGED
    (finding,) = done.json["findings"]
    assert finding["code"] == "missing_parent"
    assert f"bridged to {done.json['sources'][2]}" in finding["detail"]
    shown = sessile("context", str(gap), "--bridge")
    assert "question 1" in shown.out
    assert "5 messages" in shown.out
    assert "repair" in shown.err
    request = sessile("context", str(gap), "--bridge", "--provider", "anthropic")
    assert "question 0" in request.out
    assert gap.read_bytes() == before


@pytest.mark.parametrize("verb", ["show", "check", "doctor", "repair"])
def test_every_verb_that_meets_the_gap_names_the_flag(sessile: Command, gap: Path, verb: str) -> None:
    """A reader who does not know the flag learns it where the history ends."""
    done = sessile(verb, str(gap))
    assert "--bridge" in done.out + done.err
    assert "missing" in done.out + done.err


def test_the_doctor_finds_the_gap_by_itself(sessile: Command, gap: Path) -> None:
    """Without arguments, too; a cut history is a warning."""
    done = sessile("doctor")
    assert "the history ends at 1 entry whose parent is missing" in done.out
    assert "--bridge" in done.out
    assert done.code == 1


@pytest.mark.promise("P16")
def test_a_repair_with_bridge_shows_its_plan_then_makes_the_bridge_real(sessile: Command, gap: Path) -> None:
    """The plan changes nothing. Afterwards every reader sees the history, and the original is kept."""
    before = gap.read_bytes()
    plan = sessile("repair", str(gap), "--bridge")
    assert "connected to the entry before it, " in plan.out
    assert gap.read_bytes() == before
    done = sessile("--json", "repair", str(gap), "--bridge", "--apply").json
    assert Path(done["original"]).read_bytes() == before
    context = sessile("--json", "context", str(gap))
    assert texts(context.json) == BRIDGED
    assert context.json["findings"] == []
    assert context.code == 0
    assert "question 1" in sessile("show", str(gap)).out
    assert "was connected to" in sessile("check", str(gap)).out
    changed = [
        (old, new) for old, new in zip(before.splitlines(), gap.read_bytes().splitlines(), strict=True) if old != new
    ]
    assert len(changed) == 1


@pytest.mark.promise("P16")
def test_a_bridge_is_removed_byte_for_byte_and_later_entries_stay(sessile: Command, gap: Path) -> None:
    """`--unbridge` is the inverse, whatever was appended since."""
    before = gap.read_bytes()
    assert sessile("repair", str(gap), "--bridge", "--apply").code == 0
    with Store(gap.parents[2]).open(str(gap)) as session:
        say(session, "later")
    assert "the bridge is removed" in sessile("repair", str(gap), "--unbridge").out
    assert sessile("repair", str(gap), "--unbridge", "--apply").code == 0
    assert gap.read_bytes().startswith(before)
    assert b"later" in gap.read_bytes()
    assert texts(sessile("--json", "context", str(gap)).json) == ["question 2", "answer 2", "later"]


def test_a_plain_repair_builds_no_bridge(sessile: Command, gap: Path) -> None:
    """Nothing is connected unless it is asked for."""
    with gap.open("ab") as file:
        file.write(b'{"torn')
    assert sessile("repair", str(gap), "--apply").code == 0
    assert texts(sessile("--json", "context", str(gap)).json) == ["question 2", "answer 2"]


def test_a_repair_mends_lines_and_bridges_what_they_held(sessile: Command, gap: Path) -> None:
    """An entry on a damaged line is damaged no more, and its child is connected to the entry before."""
    store = Store(gap.parents[2])
    lines = gap.read_bytes().splitlines(True)
    lines[2] = lines[2][:40] + b"\0" * 20 + b"\n"
    gap.write_bytes(b"".join(lines))
    assert sessile("repair", str(gap), "--bridge", "--apply").code == 0
    assert texts(sessile("--json", "context", str(gap)).json) == ["question 0", "question 1", "question 2", "answer 2"]
    assert {problem.kind for problem in check(store, str(gap)).problems} == {"bridged"}


def test_a_gap_above_a_compaction_is_reported_when_it_cuts_what_is_kept(sessile: Command, home: Path) -> None:
    """A compaction keeps entries above it; if the way to them is cut, the context says so."""
    store = Store(home / ".sessile")
    with begun(store) as session:
        kept = say(session, "kept")
        lost = say(session, "lost")
        say(session, "near")
        session.append_compaction("summary", kept, 10)
        say(session, "after")
    path = Path(session.path)
    path.write_bytes(
        b"".join(line for line in path.read_bytes().splitlines(True) if f'"id":"{lost}"'.encode() not in line)
    )
    done = sessile("--json", "context", str(path)).json
    assert [finding["code"] for finding in done["findings"]] == ["missing_parent"]
    bridged = sessile("--json", "context", str(path), "--bridge").json
    assert [message.get("content") for message in bridged["messages"]][1:] == ["kept", "near", "after"]


def test_another_agents_file_is_read_across_and_not_repaired(sessile: Command, home: Path) -> None:
    """The flag of `context` works for it; the hint does not send the reader to a repair that refuses."""
    rows = []
    for number, (kind, parent) in enumerate(
        [("user", None), ("assistant", "u0"), ("user", "gone"), ("assistant", "u2")]
    ):
        text: Any = f"text {number}" if kind == "user" else [{"type": "text", "text": f"text {number}"}]
        rows.append(
            {"type": kind, "uuid": f"u{number}", "parentUuid": parent, "sessionId": "c1", "cwd": "/w",
             "timestamp": f"2026-02-16T10:20:3{number}.000Z", "message": {"role": kind, "content": text}}
        )  # fmt: skip
    path = home / ".claude/projects/-w/11111111-1111-4111-8111-111111111111.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain, bridged = (sessile("--json", "context", str(path), *flags).json for flags in ((), ("--bridge",)))
    assert texts(plain)[-1] == texts(bridged)[-1] == "text 3"
    assert len(bridged["messages"]) >= len(plain["messages"])
    assert "repair" not in sessile("check", str(path)).err
    assert sessile("repair", str(path), "--bridge").code != 0


# -- any damage

IDS = "abcdefgh"


def any_session(random: Random, size: int) -> list[dict[str, Any]]:
    """Return entries with parents of every kind: earlier, later, own, missing; ids may repeat."""
    entries: list[dict[str, Any]] = []
    for _ in range(size):
        own, parent = random.choice(IDS), random.choice([*IDS, "lost", "gone", None])
        if random.random() < 0.1:
            entries.append(entry("custom", f"m{len(entries)}", parent, customType="sessile.leaf"))
        elif random.random() < 0.1:
            entries.append(entry("label", own, parent, targetId=random.choice(IDS), label="x"))
        else:
            entries.append(said(own, parent, f"text {len(entries)}"))
    return entries


def bridge_and_compare(root: Path, seed: int) -> int:
    """Repair one made-up session with bridges and remove them again; return the number of bridges."""
    random = Random(seed)
    store = Store(root)
    folder = Path(store.layout.folder("/w"))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"2026-02-16T10-20-30-000Z_s{seed}.jsonl"
    records = [header(f"s{seed}"), *any_session(random, random.randrange(1, 14))]
    before = "".join(dumps(record) + "\n" for record in records).encode()
    path.write_bytes(before)
    os.chmod(path, 0o600)
    with store.open(str(path), readonly=True) as session:
        places = [found.id for found in session.get_entries()]
        expected = [session.context(place, bridge=True).messages for place in places]
        ended = [session.context(place).messages for place in places]
        cycles = sum("cycle" in finding.code for finding in session.findings)
    plan = plan_repair(store, str(path), bridge=True)
    done = repair(store, str(path), bridge=True)
    after = check(store, str(path))
    assert sum(problem.kind == "cycle" for problem in after.problems) == cycles  # a bridge closes no cycle
    with store.open(str(path), readonly=True) as session:
        assert [session.context(place).messages for place in places] == expected
    assert all(whole[len(whole) - len(part) :] == part for whole, part in zip(expected, ended, strict=True))
    assert plan.changes == (done.original is not None)
    if done.original is not None:
        assert Path(done.original).read_bytes() == before
        repair(store, str(path), bridge=False)
    assert path.read_bytes() == before
    return sum(problem.kind == "bridged" for problem in after.problems)


@pytest.mark.parametrize(
    "seeds", [range(150), pytest.param(range(150, 2150), marks=pytest.mark.long)], ids=["short", "long"]
)
def test_the_repaired_file_says_what_the_bridged_context_said(tmp_path: Path, seeds: range) -> None:
    """For any tree: the same context as with the flag, no new cycle, the original kept, and the way back is exact."""
    bridges = sum(bridge_and_compare(tmp_path / "root", seed) for seed in seeds)
    assert bridges > len(seeds) / 2
    measured("P19", "bridges built and removed", sessions=len(seeds), bridges=bridges, differences=0)


@given(
    st.dictionaries(st.text(max_size=5) | st.sampled_from(["parentId", "id"]), st.recursive(
        st.none() | st.text(max_size=6) | st.integers() | st.sampled_from(['"', "{", "}", ',"parentId":', "\\"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=6,
    ), max_size=5),
    st.sampled_from([None, 1]),
)  # fmt: skip
def test_a_member_is_found_where_it_is(value: dict[str, Any], indent: int | None) -> None:
    """Whatever the other members hold, with any spacing."""
    raw = json.dumps(value, indent=indent).encode()
    for name in (*value, "absent"):
        span = member_span(raw, name)
        if name not in value:
            assert span is None
        else:
            assert span is not None
            assert json.loads(raw[span[0] : span[1]]) == value[name]


def test_bridges_of_a_long_file_take_linear_time(tmp_path: Path) -> None:
    """A file in which every parent is missing, and one in which all entries descend from the last, are bridged at once."""
    store = Store(tmp_path)
    folder = Path(store.layout.folder("/w"))
    folder.mkdir(parents=True, mode=0o700)
    for name in ("lost", "last"):
        path = folder / f"2026-02-16T10-20-30-000Z_{name}.jsonl"
        parents = [f"gone{n}" if name == "lost" or n == 19_999 else "e19999" for n in range(20_000)]
        records = [header(name), *(said(f"e{n}", parent) for n, parent in enumerate(parents))]
        path.write_text("".join(dumps(record) + "\n" for record in records))
        plan = plan_repair(store, str(path), bridge=True)
        assert plan.changes == (name == "lost")
    assert TROUBLES["bridged"].severity == "note"
