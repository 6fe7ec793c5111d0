"""Run the properties behind promises with as many examples as each promise states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings

import property.test_codec as codec
import property.test_hygiene as hygiene
import property.test_index as index
import property.test_journal as journal
import property.test_lines as lines
import property.test_tree as tree
import unit.test_checking as checking
from figures import measured


class Law(NamedTuple):
    """A property, the promise that it proves, and the number of examples."""

    promise: str
    rig: str
    test: Callable[..., None]
    examples: int
    of: tuple[object, ...] = ()  # the instance, for a method


LAWS = [
    Law("P6", "appends to any bytes", journal.test_an_append_adds_its_lines_and_at_most_a_newline, 60_000),
    Law("P6", "appends after foreign bytes", journal.test_an_append_after_bytes_of_others_alters_none_of_them, 40_000),
    Law("P10", "any value as one line", codec.test_an_encoded_value_is_one_line_and_decodes_to_an_equal_value, 30_000),
    Law("P10", "any text with lone surrogates", codec.test_lone_surrogates_survive_as_escapes, 60_000),
    Law("P10", "any context as strict JSON", codec.test_any_context_can_be_sent, 10_000),
    Law("P11", "rewrites of any bytes", journal.test_rewriting_changes_the_edited_line_and_no_other_byte, 10_000),
    Law(
        "P16",
        "repairs of any damage",
        checking.TestRepair.test_whatever_happened_a_repair_keeps_every_entry,
        10_000,
        (checking.TestRepair(),),
    ),
    Law("P17", "any bytes accounted for", lines.test_every_byte_of_any_bytes_is_accounted_for, 20_000),
    Law("P17", "damaged files, rest readable", lines.test_lines_outside_the_damage_are_all_read, 50_000),
    Law("P17", "parts of entries", lines.test_a_part_of_an_entry_is_never_taken_for_one, 10_000),
    Law("P19", "trees against a model", tree.test_the_tree_equals_the_model, 25_000),
    Law("P19", "anomalies reported", tree.test_every_anomaly_is_reported_and_nothing_else, 50_000),
    Law("P19", "contexts against a model", tree.test_the_context_equals_the_model, 25_000),
    Law(
        "P20", "equal ids in the index", index.test_every_answer_is_that_of_a_full_scan_with_a_cache_and_without, 10_000
    ),
    Law("P24", "any conversation for every provider", hygiene.test_every_provider_takes_what_was_cleaned, 25_000),
    Law("P24", "calls beside their results", hygiene.test_calls_and_results_stand_side_by_side, 25_000),
]


@pytest.mark.long
@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.promise} {law.rig}")
def test_a_law_holds_at_length(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    """The property finds no counterexample among the number of examples in its promise."""
    inner = law.test.hypothesis.inner_test  # type: ignore[attr-defined]
    examples = 0

    def counted(*values: Any, **named: Any) -> None:
        nonlocal examples
        examples += 1
        inner(*values, **named)

    many = settings(max_examples=law.examples, deadline=None, database=None, phases=[Phase.explicit, Phase.generate])
    monkeypatch.setattr(law.test.hypothesis, "inner_test", counted)  # type: ignore[attr-defined]
    monkeypatch.setattr(law.test, "_hypothesis_internal_use_settings", many)  # settings are stored on the test function
    law.test(*law.of)
    assert examples >= law.examples
    measured(law.promise, law.rig, examples=examples, counter_examples=0)
