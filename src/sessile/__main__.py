"""`python -m sessile` is the command."""

from __future__ import annotations

from sessile.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
