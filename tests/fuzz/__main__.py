"""Fuzz one target for some seconds: `PYTHONPATH=tests python -m fuzz <target> <seconds> <folder>`. Prints the number of inputs.

With atheris the inputs are guided by the branches that they reach; without it they come from the seeded mutator alone. An input
that breaks the law is written to the folder, and ends the run with its traceback.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz.targets import Target

_LONG = 64 * 1024  # bytes: enough for every parser, and fast


def seeded(target: Target, seconds: float, folder: Path) -> int:
    """Run damaged seeds until the time is over. Return the number of inputs."""
    from fuzz.mutator import damaged
    from fuzz.targets import watched

    random, law, seeds = Random(target.name), target.law(), target.seeds()
    end = time.monotonic() + seconds
    inputs = 0
    with watched() as wind:
        while time.monotonic() < end:
            data = seeds[inputs] if inputs < len(seeds) else damaged(seeds, random)
            inputs += 1
            wind()
            try:
                law(data)
            except BaseException:
                (folder / f"crash-{hashlib.sha1(data).hexdigest()}").write_bytes(data)
                raise
    return inputs


def guided(name: str, seconds: float, folder: Path) -> None:
    """Run libFuzzer, which ends the process and prints the number of inputs."""
    atheris: Any = importlib.import_module("atheris")  # not installed everywhere
    with atheris.instrument_imports(include=["sessile"]):  # must be its first import
        from fuzz.targets import TARGETS

        law, seeds = TARGETS[name].law(), TARGETS[name].seeds()
    from fuzz.mutator import LARGEST, damaged

    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for data in seeds:
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)

    def mutate(data: bytes, largest: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.5:
            return damaged([data, data, data, random.choice(seeds)], random)[:largest]
        mutated: bytes = atheris.Mutate(data, largest)
        return mutated

    longest = min(LARGEST, max(_LONG, *map(len, seeds)))
    options = [f"-max_total_time={max(1, round(seconds))}", f"-max_len={longest}", "-timeout=60", "-rss_limit_mb=3000"]
    options += [f"-artifact_prefix={folder}/", "-seed=1", "-len_control=0"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], law, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> None:
    """Fuzz the target named on the command line."""
    name, seconds, folder = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    if importlib.util.find_spec("atheris") is not None:
        guided(name, seconds, folder)
    else:
        from fuzz.targets import TARGETS

        print(f"Done {seeded(TARGETS[name], seconds, folder)} runs", file=sys.stderr)


main()
