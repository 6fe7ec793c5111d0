"""Random conversations in which pi and Sessile take turns on one file agree after every turn."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pytest

import sessile
from peers.peers import Message, Peer
from peers.samples import CWD, MODEL, assert_agree, assistant, bash, contents, tool_call, tool_result, user

pytestmark = [pytest.mark.peers, pytest.mark.mission("X1")]

SESSIONS = 60
MODELS = (MODEL, "openai/gpt-5.1", "openrouter/meta/llama-4", "google/gemini-3")
LEVELS = ("off", "low", "high", "xhigh")
TEXTS = ("", "plain", "naïve 测试 🙂", 'quotes " and \\ and \t', "a\nb\r\nc", "\u2028\u0000\x7f", "half \udc00")


class Side(Protocol):
    """One of the two writers; each call makes one entry and returns its id."""

    def message(self, message: Message) -> str: ...
    def thinking(self, level: str) -> str: ...
    def model(self, model: str) -> str: ...
    def compaction(self, summary: str, kept: str, tokens: int) -> str: ...
    def custom(self, data: Any) -> str: ...
    def custom_message(self, content: Any, display: bool, details: Any) -> str: ...
    def label(self, target: str, label: str | None) -> str: ...
    def summary(self, target: str | None, summary: str) -> str: ...
    def branch(self, target: str | None) -> None: ...


class Ours:
    """Sessile with an open session."""

    def __init__(self, session: sessile.Session) -> None:
        self._session = session

    def message(self, message: Message) -> str:
        return self._session.append_message(message).id

    def thinking(self, level: str) -> str:
        return self._session.append_thinking_level_change(level).id

    def model(self, model: str) -> str:
        return self._session.append_model_change(model).id

    def compaction(self, summary: str, kept: str, tokens: int) -> str:
        return self._session.append_compaction(summary, kept, tokens).id

    def custom(self, data: Any) -> str:
        return self._session.append_custom_entry("random", data).id

    def custom_message(self, content: Any, display: bool, details: Any) -> str:
        return self._session.append_custom_message_entry("random", content, display, details).id

    def label(self, target: str, label: str | None) -> str:
        return self._session.append_label_change(target, label).id

    def summary(self, target: str | None, summary: str) -> str:
        return self._session.branch_with_summary(target, summary).id

    def branch(self, target: str | None) -> None:
        if target is None:
            self._session.reset_leaf()
        else:
            self._session.branch(target)


class Theirs:
    """pi, which opens the file again for each call; a branch is delayed until the next append, or it would be lost."""

    def __init__(self, peer: Peer, path: str) -> None:
        self._peer = peer
        self._path = path
        self._place: dict[str, str | None] = {}

    def message(self, message: Message) -> str:
        return self._call("appendMessage", message)

    def thinking(self, level: str) -> str:
        return self._call("appendThinkingLevelChange", level)

    def model(self, model: str) -> str:
        return self._call("appendModelChange", *model.split("/", 1))

    def compaction(self, summary: str, kept: str, tokens: int) -> str:
        return self._call("appendCompaction", summary, kept, tokens)

    def custom(self, data: Any) -> str:
        return self._call("appendCustomEntry", "random", data)

    def custom_message(self, content: Any, display: bool, details: Any) -> str:
        extra = [] if details is None else [details]
        return self._call("appendCustomMessageEntry", "random", content, display, *extra)

    def label(self, target: str, label: str | None) -> str:
        return self._call("appendLabelChange", target, *([] if label is None else [label]))

    def summary(self, target: str | None, summary: str) -> str:
        return self._call("branchWithSummary", target, summary)

    def branch(self, target: str | None) -> None:
        self._place = {"at": target}

    def _call(self, method: str, *args: Any) -> str:
        place, self._place = self._place, {}
        return str(self._peer.call(self._path, method, *args, **place))


class Conversation:
    """Draws operations that both sides support, and tracks the tree so that assistants use the current model.

    (With another model the two differ by design: see `test_explicit_model_beats_assistants_by_design`.)
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._parents: dict[str, str | None] = {}
        self._models: dict[str | None, str] = {None: MODEL}
        self.leaf: str | None = None

    def opening(self) -> list[Message]:
        """Return two messages that make a session appear on disk on either side."""
        return [user(self._text()), assistant(self._text())]

    def appended(self, entry_id: str, model: str | None = None) -> None:
        """Move the leaf to a new entry below it."""
        self._parents[entry_id] = self.leaf
        self._models[entry_id] = model or self._models[self.leaf]
        self.leaf = entry_id

    def turn(self, side: Side) -> None:
        """Run a few operations of one side."""
        steps = (self._exchange, self._exchange, self._tool_use, self._state, self._extra, self._summary, self._branch)
        for _ in range(self._random.randint(1, 5)):
            self._random.choice(steps)(side)

    def go_back(self, side: Side) -> None:
        """Move to an earlier entry without appending."""
        self.leaf = self._place()
        side.branch(self.leaf)

    def _exchange(self, side: Side) -> None:
        content: str | list[Message] = self._text()
        if self._random.random() < 0.5:
            content = [{"type": "text", "text": content}]
        self.appended(side.message(user(content)))
        self.appended(side.message(assistant(self._text(), self._models[self.leaf])))

    def _tool_use(self, side: Side) -> None:
        call_id = f"call_{len(self._parents)}"
        self.appended(side.message(tool_call(call_id, self._models[self.leaf])))
        self.appended(side.message(tool_result(call_id)))
        self.appended(side.message(bash(self._text())))

    def _state(self, side: Side) -> None:
        if self._random.random() < 0.5:
            self.appended(side.thinking(self._random.choice(LEVELS)))
        else:
            model = self._random.choice(MODELS)
            self.appended(side.model(model), model)

    def _extra(self, side: Side) -> None:
        kind = self._random.randrange(3)
        if kind == 0:
            self.appended(side.custom({"text": self._text(), "list": [1, 0.5, None, True]}))
        elif kind == 1:
            content = self._random.choice((self._text(), [{"type": "text", "text": self._text()}]))
            details = self._random.choice((None, {"n": self._random.randrange(1000)}))
            self.appended(side.custom_message(content, self._random.random() < 0.5, details))
        else:
            target = self._random.choice(list(self._parents))
            self.appended(side.label(target, self._random.choice((None, "mark", "標"))))

    def _summary(self, side: Side) -> None:
        path = self._path()
        if path and self._random.random() < 0.6:
            kept = self._random.choice(path)
            self.appended(side.compaction(self._text(), kept, self._random.randrange(100_000)))
        else:
            self.leaf = self._place()
            self.appended(side.summary(self.leaf, self._text()))

    def _branch(self, side: Side) -> None:
        self.go_back(side)
        self._exchange(side)

    def _path(self) -> list[str]:
        path = []
        at = self.leaf
        while at is not None:
            path.append(at)
            at = self._parents[at]
        return path

    def _place(self) -> str | None:
        return None if self._random.random() < 0.1 else self._random.choice(list(self._parents))

    def _text(self) -> str:
        return f"{self._random.choice(TEXTS)} {self._random.randrange(10**6)}"


@pytest.mark.parametrize("seed", range(SESSIONS))
def test_both_agree_after_every_turn(store: sessile.Store, peer: Peer, tmp_path: Path, seed: int) -> None:
    """Contexts and leaves are equal for any order of writers, and no line ever changes."""
    random = Random(seed)
    conversation = Conversation(random)
    if random.random() < 0.5:
        with closing(store.create(cwd=CWD)) as session:
            for message in conversation.opening():
                conversation.appended(session.append_message(message).id)
        path = session.path
    else:
        folder = str(tmp_path / "root" / "sessions" / "--work-app--")
        path = peer.create(folder, CWD, messages := conversation.opening())
        for entry in peer.call(path, "getEntries")[: len(messages)]:
            conversation.appended(entry["id"])
    assert_agree(store, peer, path)

    for _ in range(random.randint(3, 7)):
        before = contents(path)
        if random.random() < 0.5:
            with closing(store.open(path)) as session:
                conversation.turn(Ours(session))
                if random.random() < 0.3:
                    conversation.go_back(Ours(session))
        else:
            conversation.turn(Theirs(peer, path))
        assert contents(path).startswith(before)
        theirs = assert_agree(store, peer, path)
        assert theirs.messages == peer.context(path, conversation.leaf).messages
