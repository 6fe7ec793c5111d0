"""pi and Sessile share session files: each opens, continues and branches the other's files, with equal contexts."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import sessile
from peers.peers import PI_87, Peer
from peers.samples import (
    CWD,
    MODEL,
    assert_agree,
    assert_same_context,
    assistant,
    bash,
    comparable,
    contents,
    records,
    tool_call,
    tool_result,
    user,
)
from sessile.discovery import load_entries_from_file

pytestmark = [pytest.mark.peers, pytest.mark.mission("X1")]

VECTORS = Path(__file__).parents[3] / "shared" / "vectors"


def begin(store: sessile.Store) -> tuple[sessile.Session, list[str]]:
    """Return a published native session with two turns, and the ids of its four messages."""
    session = store.create(cwd=CWD)
    messages = [user("héllo 🙂"), assistant("hi"), user("and now?"), assistant("done")]
    return session, [session.append_message(message).id for message in messages]


def begin_theirs(store: sessile.Store, peer: Peer, tmp_path: Path) -> str:
    """Return a session that the peer created in our sessions folder."""
    return peer.create(str(tmp_path / "root" / "sessions" / "--work-app--"), CWD, [user("from pi"), assistant("yes")])


class TestOurFiles:
    def test_every_kind_of_entry_that_pi_knows_reads_the_same(self, store: sessile.Store, peer: Peer) -> None:
        """Messages, state, labels, names, summaries and custom entries written by Sessile mean the same to pi."""
        session, ids = begin(store)
        session.append_thinking_level_change("high")
        session.append_model_change("openai/gpt-5.1")
        session.append_message(user([{"type": "text", "text": "in blocks"}]))
        session.append_message(tool_call("call_1", "openai/gpt-5.1"))
        session.append_message(tool_result("call_1"))
        session.append_message(bash("make test"))
        session.append_custom_entry("my-ext", {"state": [1, 2.5, None]})
        session.append_custom_message_entry("my-ext", "shown", True)
        session.append_custom_message_entry("my-ext", [{"type": "text", "text": "hidden"}], False, {"why": "test"})
        session.append_label_change(ids[0], "start")
        session.append_compaction("what happened", ids[2], 1234)
        session.set_session_name("a name")
        last = session.append_message(user("go on")).id
        count = len(session.get_entries())
        session.close()

        theirs = assert_agree(store, peer, session.path)
        assert [message["role"] for message in theirs.messages] == [
            *("compactionSummary", "user", "assistant", "user", "assistant", "toolResult"),
            *("bashExecution", "custom", "custom", "user"),
        ]
        assert theirs.model == "openai/gpt-5.1"
        assert theirs.thinking_level == "high"
        assert theirs.leaf_id == last
        assert theirs.entry_count == count
        assert peer.call(session.path, "getLabel", ids[0]) == "start"
        assert peer.call(session.path, "getSessionName") == "a name"

    def test_messages_reach_pi_as_they_were_given(self, store: sessile.Store, peer: Peer) -> None:
        """Nothing is escaped, normalised or lost between our append and pi's context."""
        given = [
            user('tab\t quote" backslash\\ nul\u0000 line\u2028separator half a pair \ud83d'),
            tool_call("call_1"),
            tool_result("call_1"),
            {**bash("true"), "unknown": {"kept": [0, -1.5, 1e-7, 2**53 - 1, None, ""]}},
        ]
        with closing(store.create(cwd=CWD)) as session:
            for message in given:
                session.append_message(message)
        assert peer.context(session.path).messages == given

    def test_header_is_the_one_pi_writes(self, store: sessile.Store, peer: Peer) -> None:
        """pi finds version, id and cwd."""
        session, _ = begin(store)
        session.close()
        header = peer.call(session.path, "getHeader")
        assert header["version"] == 3
        assert header["cwd"] == CWD
        assert Path(session.path).name.endswith(f"_{header['id']}.jsonl")

    def test_pi_appends_then_we_append_then_pi_still_agrees(self, store: sessile.Store, peer: Peer) -> None:
        """Both may append in turn, and written lines never change."""
        session, ids = begin(store)
        session.close()
        path = session.path

        before = contents(path)
        appended = peer.append(path, [user("pi here"), assistant("hello pi")])
        assert contents(path).startswith(before)
        assert records(path)[-2]["parentId"] == ids[-1]
        assert assert_agree(store, peer, path).leaf_id == appended.leaf_id

        before = contents(path)
        with closing(store.open(path)) as reopened:
            mine = reopened.append_message(user("sessile again")).id
        assert contents(path).startswith(before)
        assert records(path)[-1]["parentId"] == appended.leaf_id
        assert assert_agree(store, peer, path).leaf_id == mine

    def test_every_entry_of_the_path_gives_the_same_context(self, store: sessile.Store, peer: Peer) -> None:
        """The contexts agree at every entry, not only at the leaf."""
        session, ids = begin(store)
        session.append_compaction("short", ids[1], 10)
        ids.append(session.append_message(user("after")).id)
        for entry_id in reversed(ids):
            session.branch(entry_id)
            assert_same_context(session, peer.context(session.path, entry_id))
        session.reset_leaf()
        assert_same_context(session, peer.context(session.path, None))
        session.close()

    def test_explicit_model_beats_assistants_by_design(self, store: sessile.Store, peer: Peer) -> None:
        """The one intended difference (spec §0.1, mission X12): in pi the last model change or assistant message wins."""
        session, _ = begin(store)
        session.append_model_change("openai/gpt-5.1")
        session.append_message(assistant("still the old model", MODEL))
        assert session.build_session_context().models["default"] == "openai/gpt-5.1"
        assert peer.context(session.path).model == MODEL
        session.close()


class TestTheirFiles:
    def test_opens_for_reading(self, store: sessile.Store, peer: Peer, tmp_path: Path) -> None:
        """A session in pi's folder reads the same and is not changed."""
        path = peer.create(str(tmp_path / "pi"), "/elsewhere", [user("from pi"), assistant("yes")])
        theirs = assert_agree(store, peer, path)
        assert len(theirs.messages) == theirs.entry_count == 2

    def test_continues_in_both(self, store: sessile.Store, peer: Peer, tmp_path: Path) -> None:
        """A session started by pi continues in Sessile and again in pi."""
        path = begin_theirs(store, peer, tmp_path)
        before = contents(path)
        with closing(store.open(path)) as session:
            session.append_message(user("sessile here"))
            last = session.append_message(assistant("hello sessile")).id
        assert contents(path).startswith(before)
        assert assert_agree(store, peer, path).leaf_id == last
        peer.append(path, [user("pi again")])
        assert len(assert_agree(store, peer, path).messages) == 5

    def test_every_call_of_pi_reads_the_same_here(self, store: sessile.Store, peer: Peer, tmp_path: Path) -> None:
        """After each public append of pi's manager both sides have the same context."""
        path = begin_theirs(store, peer, tmp_path)
        first = records(path)[1]["id"]
        calls: list[tuple[Any, ...]] = [
            ("appendThinkingLevelChange", "medium"),
            ("appendModelChange", "openai", "gpt-5.1"),
            ("appendLabelChange", first, "start"),
            ("appendLabelChange", first),
            ("appendCustomEntry", "my-ext", {"n": 1}),
            ("appendCustomEntry", "bare"),
            ("appendCustomMessageEntry", "my-ext", "hidden", False),
            ("appendCustomMessageEntry", "my-ext", [{"type": "text", "text": "shown"}], True, {"why": 1}),
            ("appendSessionInfo", "by pi"),
            ("appendCompaction", "what happened", first, 99, {"readFiles": []}, True),
            ("branchWithSummary", first, "went elsewhere", {"modifiedFiles": ["a"]}),
            ("branchWithSummary", None, "back to the root"),
            ("appendCompaction", "nothing kept", None, 5),
        ]
        for call in calls:
            peer.call(path, *call)
            assert_agree(store, peer, path)

    def test_entries_only_newer_pi_knows_survive_our_append(
        self, store: sessile.Store, peer: Peer, tmp_path: Path
    ) -> None:
        """`usage` and `context_edit` entries are unchanged in the file, and pi still applies them."""
        if peer.package != PI_87:
            pytest.skip("usage and context_edit came after 0.73")
        path = begin_theirs(store, peer, tmp_path)
        first = records(path)[1]["id"]
        peer.call(path, "appendUsage", "cache_warm", "anthropic", "m", assistant("")["usage"])
        peer.call(path, "appendContextEdit", first, {"content": "edited"})
        before = contents(path)
        with closing(store.open(path)) as session:
            session.append_message(user("more"))
        assert contents(path).startswith(before)
        assert [message["content"] for message in peer.context(path).messages if message["role"] == "user"] == [
            "edited",
            "more",
        ]


class TestBranches:
    def test_ours(self, store: sessile.Store, peer: Peer) -> None:
        """pi shows the branch that Sessile made."""
        session, ids = begin(store)
        session.branch(ids[1])
        last = session.append_message(user("another way")).id
        session.close()
        theirs = assert_agree(store, peer, session.path)
        assert theirs.leaf_id == last
        assert len(theirs.messages) == 3

    def test_ours_from_the_root(self, store: sessile.Store, peer: Peer) -> None:
        """After `reset_leaf()` the next message is a second root for pi too."""
        session, _ = begin(store)
        session.reset_leaf()
        session.append_message(user("from scratch"))
        session.close()
        assert len(assert_agree(store, peer, session.path).messages) == 1

    @pytest.mark.parametrize("from_root", [False, True])
    def test_ours_with_summary(self, store: sessile.Store, peer: Peer, from_root: bool) -> None:
        """pi reads our branch summaries; at the root they are the first message."""
        session, ids = begin(store)
        session.branch_with_summary(None if from_root else ids[1], "tried something")
        session.close()
        assert not from_root or records(session.path)[-1]["fromId"] == "root"
        roles = [message["role"] for message in assert_agree(store, peer, session.path).messages]
        assert roles == (["branchSummary"] if from_root else ["user", "assistant", "branchSummary"])

    @pytest.mark.parametrize("from_root", [False, True])
    def test_theirs(self, store: sessile.Store, peer: Peer, from_root: bool) -> None:
        """We reopen and continue the branch that pi made in our file."""
        session, ids = begin(store)
        session.close()
        target = None if from_root else ids[1]
        appended = peer.branch(session.path, target, [user("pi's way")])
        assert assert_agree(store, peer, session.path).leaf_id == appended.leaf_id
        with closing(store.open(session.path)) as reopened:
            reopened.append_message(assistant("our answer"))
        assert records(session.path)[-1]["parentId"] == appended.leaf_id
        assert len(assert_agree(store, peer, session.path).messages) == (2 if from_root else 4)


@pytest.mark.mission("X9")
class TestLeafWithoutAppend:
    @pytest.mark.parametrize("place", [0, 1, 2, None])
    def test_pi_reopens_where_we_closed(self, store: sessile.Store, peer: Peer, place: int | None) -> None:
        """The marker below the target leads pi to the same place; Sessile continues at the target itself."""
        session, ids = begin(store)
        target = None if place is None else ids[place]
        expected = peer.context(session.path, target)
        if target is None:
            session.reset_leaf()
        else:
            session.branch(target)
        assert_same_context(session, expected)
        session.close()

        marker = records(session.path)[-1]
        assert (marker["type"], marker["customType"], marker["parentId"]) == ("custom", "sessile.leaf", target)
        reopened = assert_agree(store, peer, session.path)
        assert (reopened.messages, reopened.thinking_level) == (expected.messages, expected.thinking_level)
        assert reopened.leaf_id == marker["id"]

        with closing(store.open(session.path)) as again:
            again.append_message(user("from here"))
        assert records(session.path)[-1]["parentId"] == target
        assert_agree(store, peer, session.path)

    @pytest.mark.parametrize("place", [1, None])
    def test_pi_continues_there(self, store: sessile.Store, peer: Peer, place: int | None) -> None:
        """Entries that pi appends are children of our marker, and both see them below the target."""
        session, ids = begin(store)
        if place is None:
            session.reset_leaf()
        else:
            session.branch(ids[place])
        session.close()
        appended = peer.append(session.path, [user("pi goes on")])
        theirs = assert_agree(store, peer, session.path)
        assert theirs.leaf_id == appended.leaf_id
        assert len(theirs.messages) == (1 if place is None else 3)
        with closing(store.open(session.path)) as again:
            again.append_message(assistant("so do we"))
        assert records(session.path)[-1]["parentId"] == appended.leaf_id
        assert_agree(store, peer, session.path)

    def test_no_marker_when_the_leaf_is_the_last_entry(self, store: sessile.Store, peer: Peer) -> None:
        """Closing adds nothing to the file."""
        session, ids = begin(store)
        before = contents(session.path)
        session.close()
        assert contents(session.path) == before
        assert peer.context(session.path).leaf_id == ids[-1]


class TestNames:
    def test_last_name_of_either_side_wins(self, store: sessile.Store, peer: Peer) -> None:
        """`session_info` has the name for both sides and does not change the context."""
        session, _ = begin(store)
        session.set_session_name("first, by us")
        session.close()
        assert peer.call(session.path, "getSessionName") == "first, by us"

        peer.append(session.path, [user("hm")], name="second, by pi")
        with closing(store.open(session.path)) as reopened:
            reopened.append_message(assistant("a name of pi's survives our append"))
        assert peer.call(session.path, "getSessionName") == "second, by pi"

        with closing(store.open(session.path)) as reopened:
            reopened.set_session_name("third 名前")
        assert peer.call(session.path, "getSessionName") == "third 名前"
        assert len(assert_agree(store, peer, session.path).messages) == 6


def intact_v3(row: dict[str, Any]) -> bool:
    """Return whether every line is an object and the version is 3; other files differ by design (spec §3, §4)."""
    try:
        values = [json.loads(line) for line in row["content"].split("\n") if line]
    except ValueError:
        return False
    return all(isinstance(value, dict) for value in values) and values[0].get("version") == 3


@pytest.mark.mission("X12")
def test_vectors_read_as_pi_reads_them(peer: Peer, tmp_path: Path) -> None:
    """pi and Sessile agree on every intact v3 file of the vectors.

    Intended differences, besides the members in `NOT_IN_PI`:
    - models: the vectors have omp-shaped `model_change` entries (`model`, `role`), which pi cannot read (§6.3), and an
      explicit model beats assistants only in ours (§0.1); compared where the file has no `model_change`.
    - mode, modeData, injected rules: pi has none.
    """
    source = VECTORS / "context.jsonl"
    if not source.exists():
        pytest.skip(f"no vectors at {source}")
    rows = [row for row in map(json.loads, source.read_text("utf-8").splitlines()) if intact_v3(row)]
    assert len(rows) > 200
    for row in rows:
        path = tmp_path / f"{row['name']}.jsonl"
        path.write_text(row["content"], "utf-8", newline="\n")
        ours = sessile.build_session_context(
            load_entries_from_file(str(path)), **({"leaf_id": row["leaf"]} if "leaf" in row else {})
        )
        theirs = peer.context(str(path), row.get("leaf", ...))
        assert comparable(ours.messages) == comparable(theirs.messages), row["name"]
        assert ours.thinking_level == theirs.thinking_level, row["name"]
        if '"type":"model_change"' not in row["content"]:
            assert ours.models.get("default") == theirs.model, row["name"]
        assert theirs.entry_count == row["expect"]["entryCount"], row["name"]


@pytest.mark.mission("X12")
@pytest.mark.parametrize("name", ["before-compaction", "large-v1"])
def test_long_real_sessions_read_as_pi_reads_them(store: sessile.Store, peer: Peer, tmp_path: Path, name: str) -> None:
    """Two of pi's own sessions are used; pi rewrites the v1 file on opening, and we change neither."""
    source = VECTORS / "real" / f"{name}.jsonl"
    if not source.exists():
        pytest.skip(f"no vectors at {source}")
    theirs, ours = tmp_path / "theirs.jsonl", tmp_path / "ours.jsonl"
    for copy in (theirs, ours):
        copy.write_bytes(source.read_bytes())
    with closing(store.open(str(ours), readonly=True)) as session:
        assert_same_context(session, peer.context(str(theirs)))
    assert ours.read_bytes() == source.read_bytes()
