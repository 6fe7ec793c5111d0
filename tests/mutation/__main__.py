"""`make mutants`, or `PYTHONPATH=tests python -m mutation [module …]`: how many small faults the tests notice, module by module.

A fault that no test notices must be listed in survivors.toml with the reason why nobody could notice it; else this fails, as
it does for a module that notices less than nine of ten.
"""

from __future__ import annotations

import os
import sys

from figures import measured
from mutation.mutants import Mutant, mutants_of
from mutation.proofs import PROOFS, ROOT, listed, source_of
from mutation.running import survivors

_LEAST = 0.9  # of the mutants of a module


def examine(module: str) -> bool:
    """Try all mutants of a module; says whether the tests are good enough."""
    source = source_of(module)
    mutants = mutants_of(source)
    alive = survivors(module, source, mutants, [str(ROOT / path) for path in PROOFS[module].tests], _workers())
    known = listed(module)
    killed = len(mutants) - len(alive)
    short = module.removeprefix("sessile.").replace(".", "/")
    print(f"{module}: {killed} of {len(mutants)} noticed", flush=True)
    unknown = [mutant for mutant in alive if mutant.name not in known]
    for mutant in unknown:
        print(_row(module, mutant), flush=True)
    measured(PROOFS[module].promise, f"mutants of {short}", killed=killed, survived=len(alive))
    return not unknown and killed >= _LEAST * len(mutants)


def _row(module: str, mutant: Mutant) -> str:
    return "\n".join(
        [
            f'[["{module}"]]',
            f"function = {mutant.function!r}",
            f"before = '''{mutant.before}'''",
            f"after = '''{mutant.after}'''",
            "reason = ''",
            "",
        ]
    )


def _workers() -> int:
    return int(os.environ.get("WORKERS", "2"))


def main() -> int:
    """All modules, or those that are named by a part of their name."""
    asked = sys.argv[1:]
    modules = [module for module in PROOFS if not asked or any(module.endswith(name) for name in asked)]
    passed = [examine(module) for module in modules]
    return 0 if all(passed) else 1


sys.exit(main())
