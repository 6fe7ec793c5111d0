"""Parallel tool calls put back in one piece: the calls and results of a response that the walk to the root passes by.

A response with several calls is several assistant rows, chained, and each result hangs from its own call; the walk follows
one of these ways. For each response on the chain, what the others hold is put behind its last row there: first the calls,
then the results, each by time.

A result that hangs from elsewhere (a stray) belongs to a response if it names one of its rows as its source or answers one
of its calls, was written by the same agent, and the call is not answered yet. A call id that two responses claim decides
nothing. Without a message id nothing is put back. Both SDKs do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sessile.formats.claude.heads import NOBODY, RESULT, SIDECHAIN, Heads

Times = Callable[[int], str]
"""The timestamp of a row, or "" if it has none that is a text."""

_CONTESTED = -2  # the owner of a call id that two responses claim


def with_parallel_rows(heads: Heads, chain: Sequence[int], times: Times) -> list[int]:
    """The chain with the calls and results of its responses that lie beside it."""
    beside = _beside(heads, chain)
    if not beside:
        return list(chain)
    anchors = {heads.response[row]: row for row in chain if heads.response[row]}
    groups = _groups(heads, anchors, chain, beside)
    on_chain = {heads.uuid[row] for row in chain}
    found = _Results(heads, groups, beside)
    behind: dict[int, list[int]] = {}
    for response, anchor in anchors.items():
        calls = [row for row in groups[response] if heads.uuid[row] not in on_chain]
        results = found.of(groups[response], chain, on_chain)
        if calls or results:
            behind[anchor] = _by_time(calls, times) + _by_time(results, times)
            on_chain.update(heads.uuid[row] for row in behind[anchor])
    whole: list[int] = []
    for row in chain:
        whole.append(row)
        whole.extend(behind.get(row, ()))
    return whole


def _beside(heads: Heads, chain: Sequence[int]) -> list[int]:
    """The calls and results that are not on the chain: in most sessions none, in a compacted one most."""
    on_chain = bytearray(len(heads.row_of))
    for row in chain:
        on_chain[heads.uuid[row]] = True
    row_of = heads.row_of
    return [
        row
        for row, (number, response, flags) in enumerate(zip(heads.uuid, heads.response, heads.flags, strict=True))
        if (response or flags & RESULT) and not on_chain[number] and row_of[number] == row
    ]


def _groups(heads: Heads, anchors: dict[int, int], chain: Sequence[int], beside: Sequence[int]) -> dict[int, list[int]]:
    """All rows of each response on the chain, in file order."""
    groups: dict[int, list[int]] = {response: [] for response in anchors}
    for rows in (chain, beside):
        for row in rows:
            group = groups.get(heads.response[row])
            if group is not None:
                group.append(heads.row_of[heads.uuid[row]])
    for group in groups.values():
        group.sort()
    return groups


def _by_time(rows: list[int], times: Times) -> list[int]:
    return sorted(rows, key=times) if len(rows) > 1 else rows


class _Results:
    """The tool results beside the chain, by the rows that they may belong to."""

    def __init__(self, heads: Heads, groups: dict[int, list[int]], beside: Sequence[int]) -> None:
        self._heads = heads
        self._members = {heads.uuid[row] for group in groups.values() for row in group}
        self._answered: set[int] | None = None
        self._below: dict[int, list[int]] = {}
        results = [row for row in beside if heads.flags[row] & RESULT and heads.parent[row] != NOBODY]
        self._owners = self._owners_of({call for row in results for call in heads.calls_of(row)})
        for row in results:
            for number in self._candidates(row):
                self._below.setdefault(number, []).append(row)

    def _candidates(self, row: int) -> Iterable[int]:
        """The uuids of the assistant rows that a result may belong to."""
        heads = self._heads
        yield heads.parent[row]
        source = heads.source[row]
        if source in self._members and self._same_writer(row, heads.row_of[source]):
            yield source
        for call in heads.calls_of(row):
            owner = self._owners.get(call, _CONTESTED)
            if owner != _CONTESTED and self._same_writer(row, owner):
                yield heads.uuid[owner]

    def _owners_of(self, wanted: set[int]) -> dict[int, int]:
        """The assistant row that makes each of these calls."""
        heads = self._heads
        owners: dict[int, int] = {}
        if not wanted:
            return owners
        for row in heads.live():
            if not heads.response[row]:
                continue
            for call in heads.calls_of(row):
                if call in wanted:
                    before = owners.get(call)
                    mine = before is None or (before != _CONTESTED and heads.response[before] == heads.response[row])
                    owners[call] = row if mine else _CONTESTED
        return owners

    def _same_writer(self, row: int, other: int) -> bool:
        heads = self._heads
        if (heads.flags[row] ^ heads.flags[other]) & SIDECHAIN:
            return False
        return heads.agent.get(row) == heads.agent.get(other)

    def of(self, group: list[int], chain: Sequence[int], on_chain: set[int]) -> list[int]:
        """The results of one response that are not on the chain."""
        heads = self._heads
        members = {heads.uuid[row] for row in group}
        direct: dict[int, None] = {}
        strays: dict[int, None] = {}
        for member in group:
            for row in self._below.get(heads.uuid[member], ()):
                if heads.uuid[row] not in on_chain:
                    (direct if heads.parent[row] in members else strays)[row] = None
        if not strays:
            return list(direct)
        answered = set(self._answered_by(chain))
        answered.update(call for row in direct for call in heads.calls_of(row))
        for row in sorted(strays):
            calls = heads.calls_of(row)
            if any(self._is_open(call, answered, members) for call in calls):
                answered.update(calls)
                direct[row] = None
        return list(direct)

    def _is_open(self, call: int, answered: set[int], members: set[int]) -> bool:
        owner = self._owners.get(call, _CONTESTED)
        return call not in answered and owner != _CONTESTED and self._heads.uuid[owner] in members

    def _answered_by(self, chain: Sequence[int]) -> set[int]:
        if self._answered is None:
            heads = self._heads
            self._answered = {call for row in chain if heads.flags[row] & RESULT for call in heads.calls_of(row)}
        return self._answered
