"""The tests of each module, and the faults that no test can notice."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SURVIVORS = Path(__file__).with_name("survivors.toml")


class Proof(NamedTuple):
    """The promise that a module serves, and its tests."""

    promise: str
    tests: tuple[str, ...]


_JOURNAL = (
    "tests/unit/test_journal.py",
    "tests/unit/test_journal_faults.py",
    "tests/unit/test_journal_locks.py",
    "tests/unit/test_journal_meddlers.py",
    "tests/unit/test_journal_own_lines.py",
    "tests/unit/test_journal_rewritten.py",
    "tests/property/test_journal.py",
    "tests/contract/test_journal.py",
    "tests/faults/test_interruptions.py",
)

PROOFS = {
    "sessile.core.lines": Proof(
        "P18", ("tests/unit/test_lines.py", "tests/unit/test_corpus.py", "tests/property/test_lines.py")
    ),
    "sessile.core.codec": Proof("P10", ("tests/unit/test_codec.py", "tests/property/test_codec.py")),
    "sessile.core.tree": Proof("P19", ("tests/unit/test_tree.py", "tests/property/test_tree.py")),
    "sessile.core.context": Proof("P24", ("tests/unit/test_context.py",)),
    "sessile.storage.journal": Proof("P6", _JOURNAL),
}


def listed(module: str) -> dict[tuple[str, str, str], str]:
    """Return the known survivors of a module, each with its reason."""
    rows = tomllib.loads(SURVIVORS.read_text()).get(module, [])
    return {(row["function"], row["before"], row["after"]): row["reason"] for row in rows}


def source_of(module: str) -> str:
    """Return the source of a module."""
    return (ROOT / "src" / (module.replace(".", "/") + ".py")).read_text()
