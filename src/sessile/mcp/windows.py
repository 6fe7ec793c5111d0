"""Windows: which entries of a branch a call looks at, found without reading the rest of the session.

    end_of(session, tip)            the last entries before and at the tip of a branch
    beginning_of(session, tip)      the first
    before(session, entry, tip)     those before an entry
    after(session, entry, tip)      those behind an entry, on the way to a tip
    around(session, entry, tip)     both, and the entry itself

Rules: rows are walked from the tip upwards, as they are found at the end of a file; no body is read here. More rows than are
counted are not counted. Leaf markers are nobody's words and are passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from sessile.core.kinds import MARKER
from sessile.errors import EntryNotFound

if TYPE_CHECKING:
    from sessile import Row, Session

MOST = 1_000  # rows that one call looks at, whatever the depth shows of them
COUNTED = 100_000  # rows that are counted for an answer


class Window(NamedTuple):
    """Rows in the order of the branch; `at` is the one to begin with. `None` is more than are counted."""

    rows: list[Row]
    at: int
    earlier: int | None
    later: int | None


def end_of(session: Session, tip: str | None) -> Window:
    """The last entries of a branch."""
    return _up(_shown(session.walk_up(tip)), later=0)


def before(session: Session, entry: str, tip: str | None) -> Window:
    """The last entries before one of a branch."""
    later = 1 + sum(1 for _ in _until(session, entry, tip, inclusive=False))  # the entry itself, and what is behind it
    return _up(islice(_shown(_from(session, entry)), 1, None), later=later)


def beginning_of(session: Session, tip: str | None) -> Window:
    """The first entries of a branch."""
    return _down(_shown(session.walk_up(tip)), earlier=0)


def after(session: Session, entry: str, tip: str | None, *, inclusive: bool = False) -> Window:
    """The first entries behind one of a branch, or from it on."""
    earlier = _counted(islice(_shown(_from(session, entry)), 1 if inclusive else 0, None))
    return _down(_until(session, entry, tip, inclusive=inclusive), earlier=earlier)


def around(session: Session, entry: str, tip: str | None) -> Window:
    """An entry with those before and behind it."""
    behind = after(session, entry, tip, inclusive=True)
    first = _up(islice(_shown(_from(session, entry)), 1, None), later=None)
    return Window([*first.rows, *behind.rows], len(first.rows), first.earlier, behind.later)


def is_on(session: Session, entry: str, tip: str | None) -> bool:
    """Whether an entry is on the branch that ends at a tip."""
    return any(row.id == entry for row in session.walk_up(tip))


def _up(rows: Iterator[Row], later: int | None) -> Window:
    found = list(islice(rows, MOST))[::-1]
    return Window(found, max(0, len(found) - 1), _counted(rows), later)


def _down(rows: Iterable[Row], earlier: int | None) -> Window:
    """Of rows that come last first, the first ones."""
    kept: deque[Row] = deque(maxlen=MOST)
    count = 0
    for row in rows:
        kept.append(row)
        count += 1
    found = list(kept)[::-1]
    return Window(found, 0, earlier, count - len(found))


def _from(session: Session, entry: str) -> Iterator[Row]:
    if session.get_entry(entry) is None:
        hint = "search_sessions and open_session tell ids of entries"
        raise EntryNotFound(f"there is no entry {entry[:80]!r} in this session", hint=hint)
    return session.walk_up(entry)


def _until(session: Session, entry: str, tip: str | None, *, inclusive: bool) -> Iterator[Row]:
    """The rows from a tip up to an entry."""
    for row in _shown(session.walk_up(tip)):
        if row.id == entry:
            if inclusive:
                yield row
            return
        yield row
    raise EntryNotFound(f"the entry {entry[:80]!r} is not on this branch", hint="leave the branch out")


def _shown(rows: Iterable[Row]) -> Iterator[Row]:
    return (row for row in rows if not row.flags & MARKER)


def _counted(rows: Iterator[Row]) -> int | None:
    """How many rows are left; `None` if there are more than are counted."""
    count = sum(1 for _ in islice(rows, COUNTED + 1))
    return count if count <= COUNTED else None
