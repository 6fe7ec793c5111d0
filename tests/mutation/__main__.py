"""Count the small faults that the tests notice, per module: `make mutants` or `PYTHONPATH=tests python -m mutation [module …]`.

A fault that no test notices must be listed in survivors.toml with the reason why it cannot be noticed. Otherwise this fails, as
it does for a module whose tests notice less than nine of ten faults.
"""

from __future__ import annotations

import os
import sys

from figures import measured
from mutation.mutants import Mutant, mutants_of
from mutation.proofs import PROOFS, ROOT, listed, source_of
from mutation.running import survivors

_LEAST = 0.9  # minimum share of noticed mutants of a module


def examine(module: str) -> bool:
    """Test all mutants of a module. Return whether the tests are good enough."""
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
    """Examine all modules, or those whose names contain an argument."""
    asked = sys.argv[1:]
    modules = [module for module in PROOFS if not asked or any(module.endswith(name) for name in asked)]
    passed = [examine(module) for module in modules]
    return 0 if all(passed) else 1


sys.exit(main())
