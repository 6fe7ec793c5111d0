"""What sessions have used, asked of the catalog: the rows from which `core.statistics` makes its tables.

Rules: a filter chooses sessions, but its times choose what was used in them, whenever a file was last touched. Its order and
page mean nothing here. Rows are kept as they are stored, and become objects one at a time when a table is made.
"""

from __future__ import annotations

from collections.abc import Callable

from sessile.core.spending import QUARTER
from sessile.core.statistics import SessionUsage, Usage
from sessile.storage.catalog_rows import Asked, Filter

USED = Filter(hide=("imported",))  # what sub-agents use is used; what was imported is not used twice
_QUARTER = QUARTER * 1_000_000  # nanoseconds


def usage(ask: Callable[[Filter], Asked], wanted: Filter) -> Usage:
    """What was used, in the quarter-hours that the filter's times touch."""
    question = ask(wanted._replace(since=None, until=None))
    rows = question.shown("id, cwd, title, spending")
    sessions = [SessionUsage(*row) for row in rows if row[-1] is not None]  # else it has used nothing
    _, hidden = question.hidden()
    return Usage(
        sessions=sessions,
        since=None if wanted.since is None else wanted.since // _QUARTER,
        until=None if wanted.until is None else -(-wanted.until // _QUARTER),
        hidden=hidden,
        uncounted=question.uncounted(),
    )
