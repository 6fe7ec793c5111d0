"""S1, S2, S3: resuming with an index, without one, and at any leaf."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

from sessile import Session, SessionContext, Store

from . import limits
from .corpus import Corpus, corpus
from .measure import Row, Work, interleaved, median, ratio, timed
from .peers import Challenge, against
from .scale import Scale

_REPEATS = 3  # resumes in one round
_LEAVES = 8  # other leaves in one round


def warm(made: Corpus) -> Corpus:
    """Return the corpus with a warm index."""
    Store(made.root, cache=made.cache).open(made.path, readonly=True).close()
    return made


def resume(made: Corpus, *, labels: bool = True) -> Session:
    """Open for writing, with the context and everything that a user interface shows."""
    session = Store(made.root, cache=made.cache, durability="process").open(made.path)
    context = session.context()
    assert len(context.messages) > 50 and context.models and not context.findings
    assert session.title is None
    if labels:
        assert session.get_label(made.label_target) == "the end"
    return session


def _resume_time(made: Corpus, *, labels: bool = True) -> float:
    opened: list[Session] = []

    def run() -> None:
        for _ in range(_REPEATS):
            opened.append(resume(made, labels=labels))
            if len(opened) > 1:
                opened.pop(0).close()

    taken = timed(run, _REPEATS)
    opened[-1].close()
    return taken


def _live_time(made: Corpus) -> float:
    def run() -> None:
        for _ in range(_REPEATS):
            limits.read_and_decode_live(made)

    return timed(run, _REPEATS)


def _changed_time(made: Corpus) -> float:
    """Resume a file with a new stamp, as after another program's append: its bytes are compared once."""
    os.utime(made.path)
    return timed(lambda: resume(made).close())


def resuming(scale: Scale) -> list[Row]:
    """S1: open, context and full state with a warm index."""
    made = {size: warm(corpus(scale, size)) for size in scale.sizes}
    works: dict[str, Work] = {f"resume {size:g} MB": partial(_resume_time, each) for size, each in made.items()}
    large = made[scale.large_mb]
    times = interleaved(
        scale.rounds,
        **works,
        live=lambda: _live_time(large),
        bare=lambda: _resume_time(large, labels=False),
        changed=lambda: _changed_time(large),
    )
    baseline = f"read+decode {large.live_bytes / 1e6:.2f} MB live"
    live = median(times["live"])
    rows = [
        Row(
            "S1",
            f"resume {size:g} MB, context + full state",
            median(times[f"resume {size:g} MB"]),
            baseline=baseline,
            baseline_median=live,
            ratio=ratio(times[f"resume {size:g} MB"], times["live"]),
            limit=2,
            rivals=against(scale, works[f"resume {size:g} MB"], *_rivals(scale, size, pi=1000, oh_my_pi=700)),
            curve="resume",
            at=size,
        )
        for size in scale.sizes
    ]
    small = times[f"resume {scale.small_mb:g} MB"]
    return [
        *rows,
        Row(
            "S1",
            f"… {scale.large_mb:g} MB against {scale.small_mb:g} MB",
            rows[0].median,
            baseline=f"resume {scale.small_mb:g} MB",
            baseline_median=median(small),
            ratio=ratio(times[f"resume {scale.large_mb:g} MB"], small),
            limit=1.5,
        ),
        Row(
            "S1",
            f"… {scale.large_mb:g} MB without labels",
            median(times["bare"]),
            baseline=baseline,
            baseline_median=live,
            ratio=ratio(times["bare"], times["live"]),
        ),
        Row(
            "S1",
            f"… {scale.large_mb:g} MB after another program's change",
            speed := os.path.getsize(large.path) / 1e6 / median(times["changed"]),
            unit="MB/s",
            ratio=speed,
            sense="≥",
            limit=1000,
        ),
    ]


def _rivals(scale: Scale, size: float, *, pi: float, oh_my_pi: float) -> list[Challenge]:
    """Return the peers that read the same file; the minimum ratio applies to the largest size."""
    path = corpus(scale, size).path
    largest = size == scale.large_mb
    return [
        Challenge("pi", "resume", [path], pi if largest else None),
        Challenge("oh-my-pi", "resume", [path], oh_my_pi if largest else None),
    ]


def resume_once(scale: Scale) -> None:
    """Do the work of S1 to measure its memory."""
    resume(corpus(scale, scale.large_mb)).close()


def index_anew(made: Corpus, cache: Path) -> SessionContext:
    """Open with an empty cache: all bytes are read, and the index is built and saved."""
    shutil.rmtree(cache, ignore_errors=True)
    with Store(made.root, cache=cache).open(made.path, readonly=True) as session:
        return session.context()


def indexing(scale: Scale) -> list[Row]:
    """S2: resume with nothing cached."""
    name, scan = limits.read_scan(scale)
    return [_indexing_row(scale, size, name, scan) for size in scale.sizes]


def _indexing_row(scale: Scale, size: float, name: str, scan: Callable[[str], object]) -> Row:
    made = corpus(scale, size)
    cache = scale.scratch() / "index"
    largest = size == scale.large_mb

    def anew() -> float:
        return timed(lambda: index_anew(made, cache))

    times = interleaved(scale.heavy_rounds, ours=anew, limit=lambda: timed(lambda: scan(made.path)))
    return Row(
        "S2",
        f"resume {size:g} MB, nothing cached",
        median(times["ours"]),
        baseline=name,
        baseline_median=median(times["limit"]),
        ratio=ratio(times["ours"], times["limit"]),
        limit=6 if largest else None,
        rivals=against(scale, anew, *_rivals(scale, size, pi=8, oh_my_pi=5)) if largest else {},
        curve="resume",
        at=size,
    )


def index_once(scale: Scale) -> None:
    """Do the work of S2 to measure its memory."""
    index_anew(corpus(scale, scale.large_mb), scale.scratch() / "index")


def _context_at(made: Corpus, leaf: str) -> None:
    with Store(made.root, cache=made.cache).open(made.path, readonly=True) as session:
        assert session.context(leaf).models


def any_leaf(scale: Scale) -> list[Row]:
    """S3: the context at leaves all over the session."""
    made = warm(corpus(scale, scale.large_mb))
    leaves = cycle(made.some_ids or [made.label_target])

    def elsewhere() -> None:
        for _ in range(_LEAVES):
            _context_at(made, next(leaves))

    times = interleaved(scale.rounds, ours=lambda: timed(elsewhere, _LEAVES), limit=lambda: _resume_time(made))
    return [
        Row(
            "S3",
            "context at any leaf, with index",
            median(times["ours"]),
            baseline="S1",
            baseline_median=median(times["limit"]),
            ratio=ratio(times["ours"], times["limit"]),
            limit=1.5,
        )
    ]


def any_leaf_once(scale: Scale) -> None:
    """Do the work of S3 to measure its memory."""
    made = corpus(scale, scale.large_mb)
    with Store(made.root, cache=made.cache).open(made.path, readonly=True) as session:
        for leaf in made.some_ids[:50]:
            session.context(leaf)
