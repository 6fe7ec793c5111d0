"""The faults that are put into a source, and the consistency of the list of survivors."""

from __future__ import annotations

import ast

import pytest

from mutation.mutants import mutants_of
from mutation.proofs import PROOFS, ROOT, listed, source_of


def changes(source: str) -> list[str]:
    return [mutant.after for mutant in mutants_of(source)]


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ("if a < b: pass", ["if a <= b: pass"]),
        ("x = a and not b", ["x = (a or not b)", "x = a and (b)"]),
        ("x = a + 1", ["x = (a - 1)", "x = a + 2"]),
        ("x += y", ["x -= y", "pass"]),
        ("call(a, limit=b)", ["pass", "call(a)"]),
        ("x.y = z", ["pass"]),
        ("while x: break", ["while (not x): break", "while x: continue"]),
        ("raise error", ["pass"]),
        ("x = 'a' if y else b'z'", ["x = 'a' if (not y) else b'z'", "x = 'aXX' if y else b'z'", "x = 'a' if y else b'zXX'"]),
    ],
)  # fmt: skip
def test_a_line_has_the_faults_that_people_make(line: str, faults: list[str]) -> None:
    """Each mutant has one change, and the rest of the line stays."""
    assert changes(line) == faults


@pytest.mark.parametrize(
    "line", ['"""A text."""', "x: int", "import a", "x = f'{1 + 1}'", "x = 'words for people'", "from a import b"]
)
def test_what_does_nothing_is_left_alone(line: str) -> None:
    """Docstrings, annotations, imports, the contents of f-strings and texts are not mutated."""
    assert changes(line) == []


def test_an_exception_that_is_not_caught_is_a_fault() -> None:
    """Each exception of a tuple may be dropped."""
    found = mutants_of("def f():\n    try:\n        g()\n    except (A, B):\n        return 1\n")
    assert [mutant.after for mutant in found] == ["except (B,):", "except (A,):", "pass", "return None", "return 2"]
    assert all(mutant.function == "f" and mutant.runs for mutant in found)


def test_defaults_and_classes_are_made_at_import() -> None:
    """Faults at import are distinguished from those in a function's body."""
    found = mutants_of("class A:\n    x = 1\n    def f(self, y=2):\n        return y\n")
    assert [(mutant.function, mutant.runs, mutant.after) for mutant in found] == [
        ("A", False, "x = 2"),
        ("A.f", False, "def f(self, y=3):"),
        ("A.f", True, "return None"),
    ]


@pytest.mark.parametrize("module", PROOFS)
def test_every_mutant_is_python_and_every_listed_survivor_is_one(module: str) -> None:
    """A survivor whose line has changed is tested again; each has a reason why it cannot be noticed."""
    mutants = mutants_of(source_of(module))
    for mutant in mutants[::25]:
        ast.parse(mutant.source)
    known = listed(module)
    assert set(known) <= {mutant.name for mutant in mutants}
    assert all(known.values())
    assert all((ROOT / path).exists() for path in PROOFS[module].tests)
