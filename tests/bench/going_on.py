"""S8: append and context in a large open session."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sessile import Session, Store

from .appending import LIVE, SAMPLES, bare_time, peer_folder
from .corpus import Corpus, corpus, sample_lines, sample_messages
from .measure import Rival, Row, Work, interleaved, median, ratio, timed
from .peers import Challenge, against
from .scale import Scale

_FEW_TURNS = 3  # turns of peers in a large session


def going_on(scale: Scale) -> list[Row]:
    """S8: append and context in a large open session."""
    large, small = (corpus(scale, size) for size in (scale.large_mb, scale.small_mb))
    lines, messages = sample_lines(small, SAMPLES), sample_messages(small, SAMPLES)
    count = min(LIVE, scale.appends)
    with _Borrowed(scale, large) as on_large, _Borrowed(scale, small) as on_small:
        times = interleaved(
            scale.rounds,
            ours=lambda: _going_on_time(on_large, messages, count),
            small=lambda: _going_on_time(on_small, messages, count),
            bare=lambda: bare_time(scale, lines, count),
        )
        rivals = _open_rivals(scale, large, messages, lambda: _going_on_time(on_large, messages, count))
    took = median(times["ours"])
    return [
        Row(
            "S8",
            f"append_message + context, {scale.large_mb:g} MB open",
            took,
            baseline="the target itself",
            baseline_median=40e-6,
            ratio=took / 40e-6,
            limit=1,
            rivals=rivals,
        ),
        Row(
            "S8",
            "… against a small session",
            took,
            baseline=f"{scale.small_mb:g} MB open",
            baseline_median=median(times["small"]),
            ratio=ratio(times["ours"], times["small"]),
            limit=1.25,
        ),
        Row(
            "S8",
            "… in bare writes (40 µs were 8.7 of them)",
            took,
            baseline="bare os.write",
            baseline_median=median(times["bare"]),
            ratio=ratio(times["ours"], times["bare"]),
        ),
    ]


def _open_rivals(scale: Scale, made: Corpus, messages: Sequence[dict[str, Any]], ours: Work) -> dict[str, Rival]:
    """Return the times of peers that have a copy of the session open."""
    if not scale.peers:
        return {}
    with peer_folder(scale, messages) as (folder, texts):
        copy = os.path.join(folder, os.path.basename(made.path))
        shutil.copyfile(made.path, copy)
        return against(scale, ours, Challenge("pi", "go-on", [copy, texts, str(_FEW_TURNS)], 5000))


def _going_on_time(session: Session, messages: Sequence[dict[str, Any]], count: int) -> float:
    session.append_compaction("what was said", session.leaf_id, 1000)
    session.context()

    def run() -> None:
        for number in range(count):
            session.append_message(messages[number % len(messages)])
            session.context()

    return timed(run, count)


class _Borrowed:
    """A corpus session that is open for appending; file and index are restored afterwards."""

    def __init__(self, scale: Scale, made: Corpus) -> None:
        self._made = made
        self._cache = Path(scale.scratch(), f"cache-{os.path.basename(made.root)}")

    def __enter__(self) -> Session:
        shutil.rmtree(self._cache, ignore_errors=True)
        if os.path.isdir(self._made.cache):
            shutil.copytree(self._made.cache, self._cache)
        self._session = Store(self._made.root, cache=self._cache, durability="process").open(self._made.path)
        return self._session

    def __exit__(self, *exception: object) -> None:
        self._session.close()
        os.truncate(self._made.path, self._made.size)
        shutil.rmtree(self._cache, ignore_errors=True)
