"""The outline of a tree: what is shown, what is counted, and how it looks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
from builders import Json, answered, assistant, entry, said
from sessile.core.kinds import CHAIN, LABEL, LEAF_MARKER, MARKER, MESSAGE, STATE, TALK, flags_of
from sessile.core.lines import Head
from sessile.core.tree import Node, Tree
from sessile.render.outline import MAX_LEVELS, OutlineRow, RunCounts, outline
from sessile.render.shown import Call, Shown, show
from sessile.render.styled import line_width, plain
from sessile.render.terminal import OutlineHead, outline_lines
from terminal import harmless, probes

EXAMPLE = """\
Webhook retries  6513270e  payments-api  pi  32 entries  3 branches  $0.19
○ user      Add retry with backoff to the webhook sender … [image]
~ 3 entries · 2 tools
├─○ user    Let's try approach A, no new dependency.
│ ~ 3 entries · 2 tools · 1 failed
│ ✗ asst    Two tests fail: TransientError is never raised …        deadbee1
└─◇ branch summary  Approach A: hand-made retry() … abandoned
  ○ user    Actually, use tenacity after all (approach B).
  ● [tests-green] All 8 tests pass …                                9f31c2a0
  ◆ compaction  48.2k → 6.1k tokens
  ├─○ user  Shorter please.                                         77aa01c4
  └─@ user  Make it a table row instead.          ← active leaf     0b1d22ef"""

WORDS = """\
session: Webhook retries  6513270e  payments-api  pi  32 entries  3 branches  $0.19
user: Add retry with backoff to the webhook sender … [image]
not shown: 3 entries, 2 tools
branch 1 of 2, level 1:
user: Let's try approach A, no new dependency.
not shown: 3 entries, 2 tools, 1 failed
assistant, failed: Two tests fail: TransientError is never raised …, id deadbee1
branch 2 of 2, level 1, active:
branch summary: Approach A: hand-made retry() … abandoned
user: Actually, use tenacity after all (approach B).
assistant, label tests-green: All 8 tests pass …, id 9f31c2a0
compaction: 48.2k → 6.1k tokens
branch 1 of 2, level 2:
user: Shorter please., id 77aa01c4
branch 2 of 2, level 2, active:
user, active leaf: Make it a table row instead., id 0b1d22ef"""

HEAD = OutlineHead("Webhook retries", "6513270e-0000", "payments-api", "pi", 32, 3, 0.19)
LABELS = {"9f31c2a0": "tests-green"}


def called(entry_id: str, parent_id: str | None, *tools: str) -> Json:
    """An answer that calls tools."""
    content = [{"type": "toolCall", "id": tool, "name": tool, "arguments": {}} for tool in tools]
    return entry("message", entry_id, parent_id, message={**assistant(""), "content": content})


def result(entry_id: str, parent_id: str | None, failed: bool = False) -> Json:
    message = {"role": "toolResult", "toolCallId": "bash", "content": [], "isError": failed}
    return entry("message", entry_id, parent_id, message=message)


def spoke(entry_id: str, parent_id: str | None, text: str, **members: Any) -> Json:
    """An answer in words."""
    return entry("message", entry_id, parent_id, message=assistant(text) | members)


def webhook_retries() -> list[Json]:
    """The session of the example, with settings where agents write them."""
    image = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
    first = said("p1", "s2")
    first["message"]["content"] = [
        {"type": "text", "text": "Add retry with backoff to the webhook sender …"},
        image,
    ]
    broken = spoke("deadbee1", "a4", "Two tests fail: TransientError is never raised …", stopReason="error")
    return [
        entry("model_change", "s1", None, provider="p", modelId="m"),
        entry("thinking_level_change", "s2", "s1", thinkingLevel="high"),
        first,
        called("p2", "p1", "read", "bash"),
        result("p3", "p2"),
        result("p4", "p3"),
        said("a1", "p4", "Let's try approach A, no new dependency."),
        called("a2", "a1", "edit", "bash"),
        result("a3", "a2"),
        result("a4", "a3", failed=True),
        broken,
        entry("branch_summary", "b1", "p4", fromId="p4", summary="Approach A: hand-made retry() … abandoned"),
        said("b2", "b1", "Actually, use tenacity after all (approach B)."),
        spoke("9f31c2a0", "b2", "All 8 tests pass …"),
        entry("label", "l1", "9f31c2a0", targetId="9f31c2a0", label="tests-green"),
        entry("label", "l2", "deadbee1", targetId="9f31c2a0", label="tests-green"),
        entry("compaction", "c1", "9f31c2a0", summary="", tokensBefore=48_200, tokensAfter=6_100),
        said("77aa01c4", "c1", "Shorter please."),
        said("0b1d22ef", "c1", "Make it a table row instead."),
    ]


def flags(record: Json) -> int:
    role = record.get("message", {}).get("role")
    head = Head(record["type"], customType=record.get("customType"))
    return flags_of(head) | (STATE if role == "assistant" else 0)


class Rig:
    """Entries, their tree, and which bodies were read."""

    def __init__(self, entries: Sequence[Json]) -> None:
        self.entries = entries
        self.tree = Tree(Node(each["id"], each["parentId"], flags(each)) for each in entries)
        self.looked: Counter[int] = Counter()

    def look(self, number: int) -> Shown:
        self.looked[number] += 1
        return show(self.entries[number])

    def count(self, numbers: Sequence[int]) -> RunCounts:
        seen = [show(self.entries[number]) for number in numbers]
        calls = sum(isinstance(part, Call) for each in seen for part in each.parts)
        return RunCounts(calls, sum(each.failed for each in seen))

    def rows(self, leaf: str | None = None, **options: Any) -> list[OutlineRow]:
        return list(outline(self.tree, self.look, leaf=leaf, **options))

    def drawn(self, leaf: str | None = None, columns: int | None = 76, **options: Any) -> list[str]:
        return [plain(line) for line in outline_lines(self.rows(leaf, **options), columns)]


def tree(*nodes: str) -> Rig:
    """`"b<a"` is a prompt b under a, `"l<a!"` a label under a."""
    entries = []
    for node in nodes:
        entry_id, _, parent = node.rstrip("!").partition("<")
        if node.endswith("!"):
            entries.append(entry("label", entry_id, parent or None, targetId=parent, label="x"))
        else:
            entries.append(said(entry_id, parent or None))
    return Rig(entries)


def test_the_example_looks_as_it_was_drawn() -> None:
    """Forks indent, runs are counted, the active branch comes last, heads and labels show ids."""
    rig = Rig(webhook_retries())
    rows = rig.rows("0b1d22ef", labels=LABELS, count=rig.count)
    drawn = [plain(line) for line in outline_lines(rows, 76, HEAD)]
    assert drawn[:-1] == EXAMPLE.split("\n")
    assert drawn[-1] == "… 10 hidden (6 entries in runs, 4 settings). Show: --full"


def test_the_example_in_words() -> None:
    """Each line starts with a word, nothing is drawn, branches state their number and level."""
    rig = Rig(webhook_retries())
    rows = rig.rows("0b1d22ef", labels=LABELS, count=rig.count)
    spoken = [plain(line) for line in outline_lines(rows, None, HEAD._replace(id="6513270e"), plain_words=True)]
    assert spoken[:-1] == WORDS.split("\n")
    assert spoken[-1] == "hidden: 6 entries in runs, 4 settings. Show: --full"


def test_bodies_of_runs_are_not_read() -> None:
    """Without a count, a run shows only the number of its entries."""
    rig = Rig(webhook_retries())
    drawn = rig.drawn("0b1d22ef", labels=LABELS)
    assert "~ 3 entries" in drawn
    hidden = {rig.tree.number(entry_id) for entry_id in ("s1", "s2", "p2", "p3", "p4", "a2", "a3", "a4", "l1", "l2")}
    assert not hidden & set(rig.looked)


def test_full_shows_every_entry_once_and_settings_make_no_fork() -> None:
    """Nothing is elided; a label beside the branch follows its parent, at the same level."""
    rig = Rig(webhook_retries())
    rows = rig.rows("0b1d22ef", labels=LABELS, full=True)
    assert sorted(row.number for row in rows) == list(range(len(rig.entries)))
    assert all(row.shown and not row.settings for row in rows)
    level = {row.id: row.level for row in rows}
    assert (level["l1"], level["l2"], level["c1"]) == (1, 1, 1)
    assert [row.id for row in rows if row.branch] == ["a1", "b1", "77aa01c4", "0b1d22ef"]


@pytest.mark.parametrize(
    ("only", "ids"),
    [
        ({"forks"}, "p1 a1 deadbee1 b2 77aa01c4 0b1d22ef"),
        ({"labels"}, "deadbee1 9f31c2a0 77aa01c4 0b1d22ef"),
        ({"compactions"}, "deadbee1 b1 c1 77aa01c4 0b1d22ef"),
        (set(), "deadbee1 77aa01c4 0b1d22ef"),
    ],
)
def test_only_leaves_out_other_rows_but_never_tips(only: set[Any], ids: str) -> None:
    """Excluded entries are counted in runs."""
    rig = Rig(webhook_retries())
    rows = rig.rows("0b1d22ef", labels=LABELS, only=only)
    assert " ".join(row.id for row in rows if row.shown) == ids
    assert sum(row.entries + row.settings for row in rows) == len(rig.entries)


def test_a_label_beside_a_branch_is_no_branch() -> None:
    """Its parent stays a head, or continues straight."""
    rows = tree("a", "l<a!", "b<a", "m<b!", "n<m!").rows("b")
    assert [(row.id, row.level, row.settings, row.is_head) for row in rows] == [("a", 0, 1, False), ("b", 0, 2, True)]


def test_a_label_that_people_stand_on_is_shown() -> None:
    """The leaf is a row even if it is a setting."""
    rows = tree("a", "b<a", "l<a!").rows("l")
    assert [(row.id, row.glyph, row.level) for row in rows] == [("a", "○", 0), ("b", "○", 1), ("l", "@", 1)]


def test_a_branch_that_begins_with_settings_begins_with_its_prompt() -> None:
    """The settings are counted on the first row; settings alone before a fork have their own row."""
    rig = tree("s!", "a<s", "b<a", "t<a!", "c<t")
    assert [(row.id, row.settings, row.branch) for row in rig.rows("c")] == [("a", 1, 0), ("b", 0, 1), ("c", 1, 2)]
    assert tree("s!", "a<s", "b<s").drawn("b")[0] == "~ 1 setting"


def test_the_first_prompt_is_found_behind_what_comes_before_it() -> None:
    """A system message does not count as the first prompt; if no prompt follows soon, the first message is shown."""
    told = {"role": "system", "content": "be good"}
    entries = [entry("message", "x", None, message=told), entry("message", "a", "x", message=told), said("b", "a")]
    entries += [answered(str(n), str(n - 1) if n else "b") for n in range(4)]
    assert [row.id for row in Rig(entries).rows("3") if row.shown] == ["b", "3"]
    assert [row.id for row in Rig(entries[3:]).rows("3") if row.shown] == ["0", "3"]


def test_no_more_than_a_few_messages_are_read_to_find_the_first_prompt() -> None:
    """A session that consists only of answers is not read to its end."""
    rig = Rig([answered(str(n), str(n - 1) if n else None) for n in range(100)])
    assert [row.id for row in rig.rows("99") if row.shown] == ["0", "99"]
    assert len(rig.looked) < 12


def test_a_note_is_no_summary_and_a_labelled_setting_is_shown() -> None:
    """A note goes into a run although the index cannot tell it from a branch summary; a labelled setting does not."""
    note = entry("custom_message", "n", "a", customType="x", content="hi", display=True)
    rows = Rig([said("a", None), note, answered("b", "n"), said("c", "b")]).rows("c")
    assert [row.id for row in rows if row.shown] == ["a", "c"]
    rows = tree("a", "s<a!", "b<a").rows("b", labels={"s": "here"})
    assert [(row.id, row.label) for row in rows] == [("a", None), ("s", "here"), ("b", None)]


def test_an_entry_alone_between_two_that_are_shown_is_shown() -> None:
    """It takes no more room than a run of one; settings around it are counted."""
    rows = tree("a", "s<a!", "b<s", "t<b!", "c<t").rows("c")
    assert [(row.id, row.settings) for row in rows] == [("a", 1), ("b", 1), ("c", 0)]
    assert [row.entries for row in tree("a", "b<a", "c<b", "d<c").rows("d")] == [1, 2, 1]


def test_several_roots_are_branches_of_the_beginning() -> None:
    """This happens when the first prompt was edited."""
    assert tree("a", "b").drawn("a") == [
        "├─○ user    b                                                       b",
        "└─@ user    a                                     ← active leaf     a",
    ]


def test_a_failed_entry_says_so_in_a_word() -> None:
    """The glyph has a word next to it."""
    drawn = Rig([spoke("a", None, "Half a sen", stopReason="error")]).drawn(columns=None)
    assert drawn == ["✗ asst      failed: Half a sen  a"]


def test_a_thousand_forks_down_the_active_path_stay_on_the_screen() -> None:
    """Branches below the deepest indent state their level."""
    nodes = ["0"]
    for n in range(1, 1001):
        nodes += [f"x{n}<{n - 1}", f"{n}<{n - 1}"]
    rig = tree(*nodes)
    rows = rig.rows("1000")
    assert len(rows) == 2001
    assert max(len(row.lead) for row in rows) == 2 * MAX_LEVELS + 2
    assert rows[-1].level == 1000
    drawn = [plain(line) for line in outline_lines(rows, 80)]
    assert "(level 1000) " in drawn[-1]
    assert all(row.is_active for row in rows if row.branch == 2)


def test_a_thousand_forks_off_the_active_path_stay_on_the_screen() -> None:
    """Each rewind goes further back, so that every earlier branch contains all deeper forks."""
    nodes = ["0", *(f"{n}<{n - 1}" for n in range(1, 1001)), *(f"x{n}<{n}" for n in range(999, -1, -1))]
    rows = tree(*nodes).rows("x0")
    assert len({row.id for row in rows}) == 2001
    assert max(len(row.lead) for row in rows) == 2 * MAX_LEVELS + 2


def straight(count: int) -> list[Node]:
    return [Node(str(n), str(n - 1) if n else None, CHAIN | MESSAGE | TALK) for n in range(count)]


MANY = 100_000
SHAPES: dict[str, Callable[[], list[Node]]] = {
    "straight": lambda: straight(MANY),
    "comb": lambda: [
        Node(str(n), str(max(n - 1 - n % 2, 0)) if n else None, CHAIN | MESSAGE | TALK) for n in range(MANY)
    ],
    "one fork": lambda: [Node(str(n), "0" if n else None, CHAIN | MESSAGE | TALK) for n in range(MANY)],
    "labels": lambda: [Node(str(n), str(n - 1) if n else None, CHAIN | LABEL) for n in range(MANY)],
    "twigs": lambda: [Node(str(n), str(n - n % 100) if n % 100 else None, CHAIN | LABEL) for n in range(MANY)],
    "circle": lambda: [Node(str(n), str((n + 1) % MANY), CHAIN | MESSAGE | TALK) for n in range(MANY)],
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_hundred_thousand_entries_are_outlined_in_seconds(name: str) -> None:
    """Every shape of tree is outlined without recursion."""
    made = Tree(SHAPES[name]())
    some = show(said("x", None))
    started = time.process_time()
    rows = list(outline(made, lambda number: some, leaf="5"))
    assert time.process_time() - started < 8  # a second on a quiet machine; a minute if it were not linear
    assert sum(row.entries + row.settings for row in rows) == MANY


ids = st.sampled_from("abcdefghij")
parents = st.none() | ids | st.sampled_from(["", "missing"])
kinds = st.sampled_from(["message", "message", "message", "label", "model_change", "compaction", "branch_summary", "x"])
records = st.builds(
    lambda kind, entry_id, parent, body: {**body, "type": kind, "id": entry_id, "parentId": parent},
    kinds,
    ids,
    parents,
    strategies.bodies
    | st.just({"customType": LEAF_MARKER})
    | st.builds(lambda text: {"message": {"role": "user", "content": text}, "summary": text, "label": text}, probes),
)
options = st.fixed_dictionaries(
    {
        "leaf": st.none() | ids,
        "labels": st.dictionaries(ids, probes, max_size=2),
        "only": st.sets(st.sampled_from(["forks", "labels", "compactions"])),
        "full": st.booleans(),
    }
)


@pytest.mark.promise("P19")
@given(st.lists(records, max_size=16), options)
def test_every_entry_is_shown_or_counted_exactly_once_and_every_tip_is_shown(
    entries: list[Json], chosen: dict[str, Any]
) -> None:
    """The list may have cycles, missing parents, duplicate ids and markers."""
    rig = Rig(entries)
    rows = rig.rows(**chosen)
    people = [n for n, node in enumerate(rig.tree.nodes) if not node.flags & MARKER]
    shown = [row.number for row in rows if row.shown]
    assert len(set(shown)) == len(shown)
    assert sum(row.entries + row.settings for row in rows) == len(people)
    hidden = set(people) - set(shown)
    assert not hidden or not chosen["full"]
    assert not any(rig.tree.nodes[n].flags & TALK and not rig.tree.children(n) for n in hidden)
    leaf = rig.tree.number(chosen["leaf"]) if chosen["leaf"] else None
    if leaf in people:
        assert [row.number for row in rows if row.is_leaf] == [leaf]
        assert [row.number for row in rows if row.shown and row.is_active] == [
            n for n in rig.tree.path(leaf) if n in shown
        ]
    for row in rows:
        assert (
            row.shown is None
            or not row.is_head
            or not [n for n in rig.tree.children(row.number) if rig.tree.nodes[n].flags & TALK]
        )


@pytest.mark.promise("P37")
@given(st.lists(records, max_size=8), options, probes, st.integers(1, 90) | st.none(), st.booleans())
def test_lines_fit_and_hold_no_control_characters(
    entries: list[Json], chosen: dict[str, Any], nasty: str, columns: int | None, words: bool
) -> None:
    """Stored text in any field cannot control a terminal, and no line is wider than requested."""
    head = OutlineHead(nasty, nasty, nasty, nasty, 1, 1, None, {nasty: 2})
    for line in outline_lines(Rig(entries).rows(**chosen), columns, head, plain_words=words, ids=True):
        assert harmless(plain(line))
        assert columns is None or line_width(line) <= columns


def test_an_empty_tree_has_no_rows() -> None:
    """Nothing is shown, nothing is counted."""
    assert Rig([]).rows() == []
