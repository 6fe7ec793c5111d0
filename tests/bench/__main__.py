"""`python -m tests.bench`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import msgspec

from .run import peers_rows, prepare, run, save
from .scale import FOLDER, Scale, smoke
from .tables import table
from .worker import SUBJECTS


def main() -> int:
    """Run the benchmark; return 1 if a target is missed and --strict is set."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure Sessile against its targets.")
    parser.add_argument("--only", metavar="S1,S4", help="these subjects only")
    parser.add_argument("--size-mb", type=float, default=1000, help="size of the large session (1000)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the result here too")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument(
        "--smoke", action="store_true", help="every subject once on tiny data; the figures mean nothing"
    )
    options = parser.parse_args()
    names = [name for name in SUBJECTS if options.only is None or name in options.only.split(",")]
    if not names:
        parser.error(f"--only knows {', '.join(SUBJECTS)}")
    scale = smoke(str(FOLDER / "smoke")) if options.smoke else Scale(str(FOLDER), large_mb=options.size_mb)
    scale = msgspec.structs.replace(scale, peers=True)
    prepare(scale)
    missing = peers_rows(scale, install=os.environ.get("PEERS") == "1")
    paths = [*([] if options.smoke else [FOLDER / "last.json"]), *([options.json] if options.json else [])]
    rows = run(scale, names, lambda rows: save(scale, [*rows, *missing], *paths))
    print(table([*rows, *missing]))
    failed = any(row.failed is not None for row in rows)
    return int(failed or (options.strict and not all(row.ok for row in rows)))


if __name__ == "__main__":
    raise SystemExit(main())
