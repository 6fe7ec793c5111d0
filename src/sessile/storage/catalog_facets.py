"""By what sessions could be chosen further, asked of the catalog: how many a filter lets through, by project, model and more.

Rules: a facet counts what the filter matches without that facet, and each number is what a listing would have that chooses it:
a project is a folder with all below it, a model is any whose name holds that one. What is hidden is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sessile.core.codec import decode
from sessile.storage.catalog_rows import HAS, Asked, Filter


class Facets(NamedTuple):
    """Sessions by what they have in common, the most first; folders by the name that they were given."""

    below: dict[str, int]
    project: dict[str, int]
    model: dict[str, int]
    has: dict[str, int]


def facets(ask: Callable[[Filter], Asked], wanted: Filter, folders: Mapping[str, Sequence[str]]) -> Facets:
    """The facets of what a filter lets through; `folders` are names for places to choose by."""

    def question(**without: object) -> Asked:
        return ask(wanted._replace(**without))  # type: ignore[arg-type]

    below = {name: question(below=paths).hidden()[0] for name, paths in folders.items()}
    has = {name: question(has=(name,)).hidden()[0] for name in HAS}
    return Facets(
        _most_first(below),
        _most_first(_projects(question(project=None, worktrees=()))),
        _most_first(_models(question(model=None))),
        _most_first(has),
    )


def _projects(question: Asked) -> dict[str, int]:
    """How many sessions are of each folder, or of one below it."""
    found = Counter(cwd for (cwd,) in question.shown("cwd") if cwd)
    sums = dict(found)
    for folder, count in found.items():
        above = folder
        while (above := above.rpartition("/")[0]) != "":
            if above in sums:
                sums[above] += count
    return sums


def _models(question: Asked) -> dict[str, int]:
    """How many sessions have answers of each model, or of one whose name holds that."""
    found = Counter(raw for (raw,) in question.shown("models") if raw)
    several = [(tuple(decode(raw)), count) for raw, count in found.items()]
    names = {name for models, _ in several for name in models}
    return {
        name: sum(count for models, count in several if any(name.lower() in model.lower() for model in models))
        for name in names
    }


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count}
