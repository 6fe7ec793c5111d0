"""Parts of a page: which entries are near, and anchors that lead back to their entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.core.tree import Node, Tree
from sessile.render.page import NEAR, anchor_at, near, number_at

pytestmark = pytest.mark.mission("B1")


@given(st.sets(st.integers(0, 400)), st.booleans())
def test_what_is_near_is_what_lies_so_far_before_or_behind(wanted: set[int], after: bool) -> None:
    """Each existing number is returned once, in order."""
    ahead = NEAR if after else 0
    expected = {n for number in wanted for n in range(number - NEAR, number + ahead + 1) if 0 <= n < 401}
    assert near(sorted(wanted), 401, after=after) == sorted(expected)


@given(st.lists(st.text(min_size=1, max_size=200) | st.sampled_from(["a", "a:1", ".61.", "e-"]), max_size=8))
def test_an_anchor_leads_back_to_its_entry(ids: list[str]) -> None:
    """Any id works, even if several entries share it."""
    tree = Tree(Node(entry_id, None, 0) for entry_id in ids)
    anchors = [anchor_at(tree, number) for number in range(len(ids))]
    assert [number_at(tree, anchor) for anchor in anchors] == list(range(len(ids)))


@given(st.text() | st.from_regex(r"e-[a-f0-9.:]{0,20}"))
def test_an_anchor_of_nothing_leads_nowhere(anchor: str) -> None:
    """The anchor must match exactly."""
    assert number_at(Tree([Node("known", None, 0)]), anchor) is None or anchor == "e-known"
