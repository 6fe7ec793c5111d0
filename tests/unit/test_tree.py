"""The tree of any list of entries, however damaged."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from sessile.core.kinds import CHAIN, MARKER
from sessile.core.tree import NOWHERE, Node, Tree

DEEP = 100_000


def tree(*nodes: str) -> Tree:
    """`"b<a"` is an entry b under a, `"m<a!"` a leaf marker under a, `"a"` a root."""
    made = []
    for node in nodes:
        flags = MARKER if node.endswith("!") else CHAIN
        entry_id, _, parent = node.rstrip("!").partition("<")
        made.append(Node(entry_id, parent or None, flags))
    return Tree(made)


def codes(made: Tree) -> list[str]:
    return [finding.code for finding in made.findings]


def ids(made: Tree, numbers: list[int]) -> str:
    return " ".join(made.nodes[number].id for number in numbers)


def number(made: Tree, entry_id: str) -> int:
    found = made.number(entry_id)
    assert found is not None
    return found


def path(made: Tree, entry_id: str) -> str:
    return ids(made, made.path(number(made, entry_id)))


@pytest.mark.mission("X10")
def test_paths_children_heads_and_roots() -> None:
    """A tree with two branches and two roots, everything in file order."""
    made = tree("a", "b<a", "c<b", "d<a", "e", "f<d")
    assert path(made, "c") == "a b c"
    assert path(made, "f") == "a d f"
    assert ids(made, made.children(0)) == "b d"
    assert ids(made, made.children(NOWHERE)) == "a e"
    assert ids(made, made.heads()) == "c e f"
    assert made.children(5) == []
    assert made.number("z") is None
    assert codes(made) == []


@pytest.mark.mission("X10")
def test_common_ancestor_is_the_deepest_entry_on_both_paths() -> None:
    """Two branches share their fork, an entry and its ancestor share the ancestor, and two roots share nothing."""
    made = tree("a", "b<a", "c<b", "d<b", "e<d", "x")
    pairs = {("c", "e"): "b", ("e", "c"): "b", ("b", "e"): "b", ("e", "e"): "e", ("a", "c"): "a"}
    for (first, second), ancestor in pairs.items():
        assert made.common_ancestor(number(made, first), number(made, second)) == number(made, ancestor)
    assert made.common_ancestor(number(made, "c"), number(made, "x")) == NOWHERE


def test_an_empty_tree() -> None:
    """No entries, no heads, no roots."""
    made = tree()
    assert (made.heads(), made.children(NOWHERE), codes(made)) == ([], [], [])


@pytest.mark.promise("P19")
def test_a_missing_parent_makes_a_root_and_is_reported() -> None:
    """The entry stays reachable."""
    made = tree("a", "b<gone", "c<b")
    assert path(made, "c") == "b c"
    assert ids(made, made.children(NOWHERE)) == "a b"
    assert codes(made) == ["missing_parent"]
    assert "gone" in made.findings[0].detail


@pytest.mark.promise("P19")
def test_findings_of_the_tree_cover_no_bytes() -> None:
    """They are about links, not about bytes."""
    made = Tree([Node("a", "gone", CHAIN), Node("b", "b", CHAIN), Node("c", "d", CHAIN), Node("d", "c", CHAIN)])
    assert [finding[:3] for finding in made.findings] == [
        ("missing_parent", -1, 0),
        ("cycle", -1, 0),
        ("forward_parent", -1, 0),
        ("cycle", -1, 0),
    ]


@pytest.mark.promise("P19")
def test_an_entry_that_is_its_own_parent_is_a_root() -> None:
    """This holds even if a later entry has the same id."""
    assert codes(tree("a<a", "b<a")) == ["cycle"]
    assert path(tree("a<a", "b<a"), "b") == "a b"
    made = tree("a<a", "a<a")
    assert made.parents == [NOWHERE, NOWHERE]
    assert codes(made) == ["duplicate_id", "cycle", "cycle"]


@pytest.mark.promise("P19")
def test_a_circle_is_cut_at_its_earliest_entry() -> None:
    """Its descendants stay reachable, and each cycle is reported once."""
    made = tree("x", "a<c", "b<a", "c<b", "d<c", "e<f", "f<e")
    assert path(made, "d") == "a b c d"
    assert path(made, "f") == "e f"
    assert codes(made).count("cycle") == 2
    assert codes(made).count("forward_parent") == 2
    assert ids(made, made.children(NOWHERE)) == "x a e"


@pytest.mark.promise("P19")
def test_a_forward_parent_is_followed_and_reported() -> None:
    """A child that comes first still finds its parent."""
    made = tree("b<a", "a")
    assert path(made, "b") == "a b"
    assert codes(made) == ["forward_parent"]


@pytest.mark.promise("P20")
def test_of_two_entries_with_one_id_the_later_is_meant_and_both_stay() -> None:
    """Children belong to the later one; the earlier one is a separate node."""
    made = tree("a", "b<a", "a", "c<a")
    assert made.number("a") == 2
    assert made.parents == [NOWHERE, 2, NOWHERE, 2]
    assert ids(made, made.heads()) == "a b c"
    assert made.heads()[0] == 0
    assert codes(made) == ["duplicate_id", "forward_parent"]


@pytest.mark.mission("X9")
def test_leaf_markers_are_no_nodes() -> None:
    """Their children belong to their parent; they are neither heads nor children."""
    made = tree("a", "m<a!", "b<m", "n<m!", "c<n", "r!", "d<r")
    assert path(made, "b") == "a b"
    assert path(made, "c") == "a c"
    assert path(made, "d") == "d"
    assert ids(made, made.children(0)) == "b c"
    assert ids(made, made.children(NOWHERE)) == "a d"
    assert ids(made, made.heads()) == "b c d"
    assert made.parents[number(made, "n")] == 0
    assert codes(made) == []


def test_a_circle_of_markers_ends() -> None:
    """Markers that are each other's parents lead to the root."""
    made = tree("m<n!", "n<m!", "a<n")
    assert path(made, "a") == "a"
    assert codes(made) == ["forward_parent", "cycle"]


def chain(count: int) -> list[Node]:
    return [Node(str(n), str(n - 1) if n else None, CHAIN) for n in range(count)]


HOSTILE: dict[str, Callable[[], list[Node]]] = {  # made when needed: together they are large
    "chain": lambda: chain(DEEP),
    "reversed chain": lambda: list(reversed(chain(DEEP))),
    "circle": lambda: [Node(str(n), str((n - 1) % DEEP), CHAIN) for n in range(DEEP)],
    "reversed circle": lambda: [Node(str(n), str((n + 1) % DEEP), CHAIN) for n in range(DEEP)],
    "self parents": lambda: [Node(str(n), str(n), CHAIN) for n in range(DEEP)],
    "pairs": lambda: [Node(str(n), str(n ^ 1), CHAIN) for n in range(DEEP)],
    "one id": lambda: [Node("x", "x", CHAIN) for _ in range(DEEP)],
    "one parent": lambda: [Node(str(n), "0" if n else None, CHAIN) for n in range(DEEP)],
    "missing parents": lambda: [Node(str(n), f"-{n}", CHAIN) for n in range(DEEP)],
    "markers": lambda: [Node(str(n), str(n - 1) if n else None, MARKER) for n in range(DEEP)],
    "markers before their parents": lambda: [Node(str(n), str(n + 1), MARKER) for n in range(DEEP)],
    "circle of markers": lambda: [Node(str(n), str((n + 1) % DEEP), MARKER) for n in range(DEEP)],
    "rho": lambda: [Node(str(n), str(max(n - 1, 0)) if n else str(DEEP // 2), CHAIN) for n in range(DEEP)],
}


@pytest.mark.promise("P19")
@pytest.mark.promise("P25")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hundred_thousand_entries_take_linear_time_and_no_recursion(name: str) -> None:
    """The input may be a deep chain, a cycle or markers in any order."""
    nodes = HOSTILE[name]()
    started = time.process_time()
    made = Tree(nodes)
    assert len(made.path(0)) <= DEEP
    assert len(made.path(DEEP - 1)) <= DEEP
    made.common_ancestor(0, DEEP - 1)
    visible = sum(not node.flags & MARKER for node in made.nodes)
    assert bool(made.heads()) == bool(visible)
    seen = 0
    waiting = list(made.children(NOWHERE))
    while waiting:
        seen += 1
        waiting += made.children(waiting.pop())
    assert seen == visible
    assert time.process_time() - started < 30  # the square of a hundred thousand would take hours
