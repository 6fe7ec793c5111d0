"""Compaction loses nothing, for any tree and any number of compactions."""

from __future__ import annotations

from random import Random

import pytest

from builders import Json
from compacting import Conversations, Step, compacted, prepared, steps_of
from sessile.core.compaction import Fate, Preparation, account
from sessile.core.context import build_session_context
from sessile.core.messages.request import replayed

pytestmark = [pytest.mark.mission("Y9"), pytest.mark.mission("X12")]

PARTS = 10
BUDGETS = (0, 1, 5, 20, 60, 150)
LIVE = ("history", "turn_prefix", "kept")


def check(seeds: range) -> None:
    """Compact random trees repeatedly, and check every entry each time."""
    compactions = 0
    for seed in seeds:
        compactions += Run(seed).play()
    assert compactions > len(seeds)  # otherwise nothing was tested


def _is_prompt(message: Json) -> bool:
    return bool(message["role"] == "system")


class Run:
    """One tree, and the fate of its entries in each compaction."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.conversation = Conversations(self.random, wild=self.random.random() < 0.7)
        self.fates: dict[str, dict[str, Fate]] = {}  # by the id of the compaction

    def play(self) -> int:
        for _ in range(self.random.randrange(2, 7)):
            self.conversation.grow(self.random.randrange(1, 5))
            if self.random.random() < 0.25:
                self.conversation.go_back()
            self.compact()
        return len(self.fates)

    def compact(self) -> None:
        path = list(self.conversation.entries)
        preparation = prepared(path, self.random.choice(BUDGETS))
        if preparation is None:
            return
        fates = dict(account(steps_of(path), preparation))
        assert list(fates) == [entry["id"] for entry in reversed(path)]
        self.check_context_before(path, preparation, fates)
        self.check_no_pair_is_parted(path, fates)
        self.check_what_was_given_up_earlier(path, fates)
        self.check_spans(path, preparation, fates)
        carried = preparation.system_message
        members = {} if carried is None else {"systemMessage": carried}
        compaction = self.conversation.add(compacted(preparation.first_kept_id, self.random.choice((1, 7)), **members))
        self.check_context_after(compaction, fates)
        self.check_prompt(path[-1]["id"], compaction)
        self.fates[compaction] = fates

    def check_context_before(self, path: list[Json], preparation: Preparation[Step], fates: dict[str, Fate]) -> None:
        """Everything that the model saw is summarized or stays, in order and as it was seen, and nothing else."""
        context = build_session_context(self.conversation.tree, path[-1]["id"])
        seen = [
            (message, source)
            for message, source in zip(context.messages, context.sources, strict=True)
            if message["role"] not in ("compactionSummary", "system") and not message.get("excludeFromContext")
        ]
        assert [source for _, source in seen] == [entry["id"] for entry in path if fates[entry["id"]] in LIVE]
        told = [*preparation.history(), *preparation.turn_prefix(), *preparation.kept()]
        assert [message for message, _ in seen] == told

    def check_context_after(self, compaction: str, fates: dict[str, Fate]) -> None:
        """The entries to keep follow the summary."""
        context = build_session_context(self.conversation.tree, compaction)
        kept = [entry["id"] for entry in self.conversation.entries if fates.get(entry["id"]) == "kept"]
        excluded = {s for m, s in zip(context.messages, context.sources, strict=True) if m.get("excludeFromContext")}
        summary = [
            source for message, source in zip(context.messages, context.sources, strict=True) if not _is_prompt(message)
        ]
        assert [source for source in summary if source not in excluded] == [compaction, *kept]

    def check_prompt(self, before: str, after: str) -> None:
        """Tools are the same before and after; the system prompt has what stood within the conversation, too."""
        was, now = (build_session_context(self.conversation.tree, leaf) for leaf in (before, after))
        texts, tools = replayed(was.messages)
        assert (now.system, now.tools) == ("\n\n".join(texts), tools)

    def check_no_pair_is_parted(self, path: list[Json], fates: dict[str, Fate]) -> None:
        """No result stays whose call is summarized."""
        calls: dict[str, str] = {}
        for entry in path:
            message = entry.get("message", {})
            if message.get("role") == "assistant":
                calls |= {block["id"]: entry["id"] for block in message["content"] if block["type"] == "toolCall"}
            elif message.get("role") == "toolResult" and fates[entry["id"]] == "kept":
                call = calls.get(message["toolCallId"])
                assert call is None or fates[call] not in ("history", "turn_prefix")

    def check_what_was_given_up_earlier(self, path: list[Json], fates: dict[str, Fate]) -> None:
        """Entries summarized earlier were on this path, and entries kept last time are included now."""
        ids = {entry["id"] for entry in path}
        before = [past for compaction, past in self.fates.items() if compaction in ids]
        for entry in path:
            if fates[entry["id"]] == "earlier" and entry["type"] != "compaction":
                assert any(
                    past.get(entry["id"]) in ("history", "turn_prefix", "carried", "removed", "silent")
                    for past in before
                )
                assert before[-1].get(entry["id"]) != "kept"

    def check_spans(self, path: list[Json], preparation: Preparation[Step], fates: dict[str, Fate]) -> None:
        """The spans cover what is summarized, in order, and end before what stays."""
        order = {entry["id"]: number for number, entry in enumerate(path)}
        history, prefix = preparation.history_span, preparation.turn_prefix_span
        assert preparation.is_split_turn is (prefix is not None)
        ends = [order[end] for span in (history, prefix) if span is not None for end in span]
        assert ends == sorted(ends)
        assert ends[-1] + 1 == order[preparation.first_kept_id]
        for entry in path:
            for span, fate in ((history, "history"), (prefix, "turn_prefix")):
                if fates[entry["id"]] == fate:
                    assert span is not None
                    assert order[span.first] <= order[entry["id"]] <= order[span.last]


@pytest.mark.parametrize("part", range(PARTS))
def test_every_entry_of_the_path_has_one_fate(part: int) -> None:
    """Kept, summarized now or earlier, cleared, removed, or without a message: 500 trees."""
    check(range(part * 50, part * 50 + 50))


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_every_entry_of_the_path_has_one_fate_for_long(part: int) -> None:
    """The long form: 10,000 other trees."""
    check(range(10_000 + part * 1000, 11_000 + part * 1000))
