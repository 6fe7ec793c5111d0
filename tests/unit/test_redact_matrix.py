"""Every shape in every surrounding is found, and nothing of it can be recovered from the redacted text."""

from __future__ import annotations

import pytest

from figures import measured
from leaks import SHAPES, SURROUNDINGS, leaks, written
from sessile.core.redact import Redactor


@pytest.mark.promise("P29")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_no_part_of_a_secret_can_be_recovered(shape) -> None:
    """Wherever it stands and however it is written."""
    leaked = []
    for name, surround in SURROUNDINGS.items():
        key = written(shape, name)
        text = surround(key)
        assert leaks(text, key.body), f"the detector cannot read {name!r}"
        if leaks(Redactor().redact(text), key.body):
            leaked.append(name)
    assert leaked == []
    measured("P29", "shapes in surroundings", texts=len(SURROUNDINGS), leaks=0)
