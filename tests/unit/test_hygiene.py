"""Hygiene: messages that one provider accepts, and a note on every change."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from builders import Json, assistant, user
from sessile.core.hygiene import BOOTSTRAP, EMPTY, INTER_SESSION, Cleaned, clean
from sessile.core.messages.family import ATTACHED, SEE_BELOW
from sessile.core.providers import ABORTED, DEFAULT, MISSING, TABLE, policy_for

pytestmark = pytest.mark.mission("Y6")

ANTHROPIC = policy_for("anthropic")
OPENAI = policy_for("openai")
RESPONSES = policy_for("openai", "openai-responses")
GOOGLE = policy_for("google")
POLICIES = [policy for policy, _ in TABLE] + [DEFAULT]

SEAL = "EqQBCgIYAhIM"  # base64, as Claude and Gemini sign
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 10, 10) + bytes(5)).decode()
IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}


def text(words: str, **members: Any) -> Json:
    return {"type": "text", "text": words, **members}


def thought(signature: Any = SEAL, **members: Any) -> Json:
    return {"type": "thinking", "thinking": "hm", "thinkingSignature": signature, **members}


def call(call_id: Any = "a", name: Any = "read", **members: Any) -> Json:
    return {"type": "toolCall", "id": call_id, "name": name, "arguments": {}, **members}


def said(*blocks: Any, **members: Any) -> Json:
    return {"role": "assistant", "content": list(blocks), **members}


def result(call_id: Any = "a", *blocks: Json, **members: Any) -> Json:
    content = list(blocks) or [text("ok")]
    return {"role": "toolResult", "toolCallId": call_id, "toolName": "read", "content": content, **members}


def did(cleaned: Cleaned) -> list[tuple[int, str]]:
    return [(note.place, note.did) for note in cleaned.notes]


def contents(cleaned: Cleaned) -> list[Any]:
    return [message.get("content") for message in cleaned.messages]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_what_is_clean_stays_the_very_same(policy: Any) -> None:
    """An ordinary turn needs no change for any provider."""
    given = [user("q"), said(text("look"), call("abcdefghi")), result("abcdefghi"), assistant("done"), user("next")]
    cleaned = clean(given, policy)
    assert all(one is other for one, other in zip(cleaned.messages, given, strict=True))
    assert cleaned.origins == [0, 1, 2, 3, 4]
    assert cleaned.notes == []


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_what_is_made_up_is_marked_and_has_no_origin(policy: Any) -> None:
    """Added messages are marked, not stored, and use the texts of the policy."""
    cleaned = clean([user("q"), said(call("abcdefghi"))], policy)
    assert cleaned.messages[2]["synthetic"] is True
    assert cleaned.messages[2]["content"] == [text(ABORTED if policy.name == "openai-responses" else MISSING)]
    assert cleaned.origins == [0, 1, None]
    assert did(cleaned) == [(1, "made")]
    assert clean(cleaned.messages, policy).messages == cleaned.messages


def test_the_messages_that_were_given_are_not_changed() -> None:
    """Cleaning returns new messages."""
    given = [said(text(" "), thought(None), call(5)), user("a"), user("b")]
    copy = [said(text(" "), thought(None), call(5)), user("a"), user("b")]
    clean(given, ANTHROPIC)
    assert given == copy


def test_blank_texts_go_where_the_policy_is_full() -> None:
    """Other policies remove only empty texts."""
    given = [said(text("x"), text(" \n"), text(""))]
    assert contents(clean([user("q"), *given], ANTHROPIC))[1] == [text("x")]
    assert contents(clean([user("q"), *given], OPENAI))[1] == [text("x"), text(" \n")]


@pytest.mark.parametrize("content", ["", [], None, 5, {}, [text("")], [{"type": "video"}], [None], [text(5)]])  # type: ignore[arg-type]
def test_an_empty_message_of_the_user_keeps_its_place(content: Any) -> None:
    """A short text replaces it; an empty result too."""
    for policy in (ANTHROPIC, OPENAI):
        cleaned = clean([{"role": "user", "content": content}], policy)
        assert contents(cleaned) == [[text(EMPTY["user"])]]
        assert (0, "made") in did(cleaned)
        cleaned = clean(
            [user("q"), said(call()), {"role": "toolResult", "toolCallId": "a", "content": content}], policy
        )
        assert contents(cleaned)[2] == [text(EMPTY["toolResult"])]


@pytest.mark.parametrize(
    "blocks", [[], [text("")], [text(" ")], [thought()], ["", {"type": "image"}], [call(name=" ")]]
)
def test_an_answer_that_says_nothing_is_dropped(blocks: list[Json]) -> None:
    """It may have failed, stopped while thinking, or have only invalid calls."""
    cleaned = clean([user("q"), said(*blocks, stopReason="length")], ANTHROPIC)
    assert len(cleaned.messages) == 1
    assert (1, "dropped") in did(cleaned)


def test_an_answer_that_failed_keeps_its_words() -> None:
    """Only empty answers are dropped."""
    failed = said(text("half of"), stopReason="error", errorMessage="boom")
    assert clean([user("q"), failed], ANTHROPIC).messages == [user("q"), failed]


def test_a_silent_answer_is_dropped() -> None:
    """It was not delivered; an answer with more than the token stays."""
    cleaned = clean([user("q"), said(thought(), text(" NO_REPLY\n")), assistant("NO_REPLY, she said")], ANTHROPIC)
    assert contents(cleaned) == ["q", [text("NO_REPLY, she said")]]
    assert did(cleaned) == [(1, "dropped")]


def test_an_empty_system_message_is_dropped_and_others_stay() -> None:
    """It gets no replacement text."""
    cleaned = clean([{"role": "system", "content": ""}, {"role": "system", "content": "kind"}, user("q")], OPENAI)
    assert contents(cleaned) == ["kind", "q"]
    assert did(cleaned) == [(0, "dropped")]


def test_unknown_roles_and_blocks_are_dropped_with_a_note() -> None:
    """They are never lost silently."""
    cleaned = clean([{"role": "later"}, {}, user("q"), said(text("x"), {"type": "server"}, IMAGE)], ANTHROPIC)
    assert contents(cleaned) == ["q", [text("x")]]
    assert did(cleaned) == [(0, "dropped"), (1, "dropped"), (3, "dropped"), (3, "dropped")]


def test_a_text_among_blocks_is_a_block() -> None:
    """Some agents store texts that way."""
    assert contents(clean([{"role": "user", "content": ["a", text("b")]}], ANTHROPIC)) == [[text("a"), text("b")]]
    assert contents(clean([user("q"), {"role": "assistant", "content": "a"}], ANTHROPIC))[1] == [text("a")]


@pytest.mark.parametrize("kind", ["toolUse", "functionCall"])
@pytest.mark.parametrize("member", ["input", "args", "arguments"])
def test_calls_under_other_names_are_calls(kind: str, member: str) -> None:
    """Their arguments and the id in their result may have other names, too."""
    block = {"type": kind, "id": "a", "name": "read", member: {"path": "x"}}
    cleaned = clean([user("q"), said(block), {"role": "toolResult", "toolUseId": "a", "content": "plain"}], ANTHROPIC)
    assert contents(cleaned)[1] == [{"type": "toolCall", "id": "a", "name": "read", "arguments": {"path": "x"}}]
    assert cleaned.messages[2]["toolCallId"] == "a"
    assert "toolUseId" not in cleaned.messages[2]
    assert cleaned.notes == []


@pytest.mark.parametrize(
    "members", [{"name": ""}, {"name": " "}, {"name": " read"}, {"name": None}, {"name": "rm"}, {"arguments": None}]
)
def test_a_call_that_cannot_be_made_is_dropped_with_its_result(members: Json) -> None:
    """Blank, padded or unknown names, and calls without arguments."""
    cleaned = clean([user("q"), said(text("x"), call() | members), result()], ANTHROPIC, tools={"read"})
    assert contents(cleaned) == ["q", [text("x")]]
    assert did(cleaned) == [(1, "dropped"), (2, "dropped")]


def test_a_name_that_providers_refuse_is_spelled_as_they_do() -> None:
    """The result gets the same name, and there is a note."""
    cleaned = clean([user("q"), said(call(name="mcp.read é" + "x" * 80)), result()], ANTHROPIC)
    assert contents(cleaned)[1][0]["name"] == ("mcp_read__" + "x" * 80)[:64]
    assert cleaned.messages[2]["toolName"] == contents(cleaned)[1][0]["name"]
    assert did(cleaned) == [(1, "changed")]


@pytest.mark.parametrize(
    ("arguments", "sent", "noted"),
    [
        ('{"a":1}', {"a": 1}, False),
        ("[1]", {"arguments": "[1]"}, True),
        ("half {", {"arguments": "half {"}, True),
        ([1], {"arguments": [1]}, True),
        (0, {"arguments": 0}, True),
    ],
)
def test_arguments_are_an_object(arguments: Any, sent: Json, noted: bool) -> None:
    """A JSON text is decoded; anything else is put into an object, with a note."""
    cleaned = clean([user("q"), said(call() | {"arguments": arguments}), result()], ANTHROPIC)
    assert contents(cleaned)[1][0]["arguments"] == sent
    assert bool(cleaned.notes) is noted


@pytest.mark.parametrize(
    ("signature", "kept"),
    [
        (SEAL, True),
        ("msg_0123456", False),
        ("reasoning_content", False),
        ("abc", False),
        ("", False),
        (None, False),
        (5, False),
        ('{"id":"rs_1","type":"reasoning"}', False),
    ],
)
def test_a_thought_stays_with_a_signature_that_claude_takes(signature: Any, kept: bool) -> None:
    """The signature must be base64."""
    cleaned = clean([user("q"), said(thought(signature), text("x"))], ANTHROPIC)
    assert len(contents(cleaned)[1]) == 1 + kept
    assert did(cleaned) == ([] if kept else [(1, "dropped")])


@pytest.mark.parametrize("alias", ["signature", "thought_signature", "thoughtSignature"])
def test_a_signature_under_another_name_is_found(alias: str) -> None:
    """It is sent under the native name."""
    block = {"type": "thinking", "thinking": "hm", alias: SEAL}
    cleaned = clean([user("q"), said(block, text("x"))], policy_for("google", model="claude-opus"))
    assert contents(cleaned)[1][0] == thought()


def test_sealed_thoughts_go_back_to_claude_only() -> None:
    """Sealed thoughts that pi stores as a thought are included."""
    sealed = {"type": "redactedThinking", "data": SEAL}
    given = [user("q"), said(sealed, thought(redacted=True), text("x"))]
    assert contents(clean(given, ANTHROPIC))[1] == [sealed, sealed, text("x")]
    for policy in (GOOGLE, OPENAI):
        cleaned = clean(given, policy)
        assert contents(cleaned)[1] == [text("x")]
        assert (1, "dropped") in did(cleaned)


@pytest.mark.parametrize(
    ("origin", "kept"),
    [
        ({"provider": "anthropic", "model": "claude"}, True),
        ({"provider": "amazon-bedrock"}, True),
        ({"provider": "somebody"}, True),
        ({"provider": 5, "model": None}, True),
        ({"provider": "google", "model": "gemini-3"}, False),
        ({"provider": "openai", "api": "openai-completions"}, False),
    ],
)
def test_signatures_of_another_family_are_not_sent(origin: Json, kept: bool) -> None:
    """Gemini's are base64 too, but Claude refuses them."""
    cleaned = clean([user("q"), said(thought(), text("x"), **origin)], ANTHROPIC)
    assert len(contents(cleaned)[1]) == 1 + kept


def test_signatures_on_calls_and_texts_go_back_to_gemini_only() -> None:
    """An id of an OpenAI message is not a signature."""
    given = [
        user("q"),
        said(text("x", textSignature="msg_1"), call(thoughtSignature=SEAL, thought_signature="msg_2")),
        result(),
    ]
    cleaned = clean(given, GOOGLE)
    assert contents(cleaned)[1] == [text("x"), call(thoughtSignature=SEAL)]
    assert did(cleaned) == [(1, "changed"), (1, "changed")]
    assert contents(clean(given, ANTHROPIC))[1] == [text("x"), call()]
    assert contents(clean(given, RESPONSES))[1] == [text("x", textSignature="msg_1"), call()]


def test_reasoning_that_nothing_follows_is_not_sent_to_openai() -> None:
    """The API refuses a reasoning item without the item after it."""
    reasoning = thought('{"id":"rs_1","type":"reasoning"}')
    given = [user("q"), said(reasoning, text("x"), reasoning), user("r"), said(reasoning)]
    cleaned = clean(given, RESPONSES)
    assert contents(cleaned) == ["q", [reasoning, text("x")], "r"]
    assert did(cleaned) == [(1, "dropped"), (3, "dropped"), (3, "dropped")]


def test_thoughts_go_when_their_call_was_stopped() -> None:
    """The answer would otherwise end with a thought."""
    cleaned = clean([user("q"), said(thought(), call(), stopReason="aborted")], ANTHROPIC)
    assert contents(cleaned) == ["q"]


def test_a_conversation_that_the_model_begins_gets_a_word_before_it() -> None:
    """A message is added after the system messages for providers that require it."""
    given = [{"role": "system", "content": "kind"}, assistant("hello")]
    for policy in (GOOGLE, ANTHROPIC):
        cleaned = clean(given, policy)
        assert contents(cleaned) == ["kind", BOOTSTRAP, [text("hello")]]
        assert cleaned.origins == [0, None, 1]
        assert did(cleaned) == [(1, "made")]
    assert clean(given, OPENAI).messages == given
    assert clean([], GOOGLE).messages == []
    assert clean([given[0]], GOOGLE).messages == [given[0]]


def test_answers_in_a_row_are_merged_for_gemini() -> None:
    """All blocks stay; usage and stop reason are the later ones; mixed origins are removed."""
    first = said(text("a"), provider="google", model="g", stopReason="error", errorMessage="e", usage={"input": 1}, x=1)
    cleaned = clean([user("q"), first, said(text("b"), provider="google", model="g", stopReason="stop")], GOOGLE)
    assert cleaned.messages[1] == said(text("a"), text("b"), provider="google", model="g", x=1, stopReason="stop")
    assert did(cleaned) == [(2, "merged")]
    mixed = clean([user("q"), first, said(text("b"), provider="openai", model="o")], GOOGLE)
    assert "provider" not in mixed.messages[1]
    assert len(clean([user("q"), first, said(text("b"))], ANTHROPIC).messages) == 3


def test_questions_in_a_row_are_merged_for_anthropic_without_losing_a_text() -> None:
    """Texts and blocks alike."""
    blocks = {"role": "user", "content": [text("b"), IMAGE], "timestamp": 2}
    cleaned = clean([user("a"), blocks, user("c")], ANTHROPIC)
    assert contents(cleaned) == [[text("a"), text("b"), IMAGE, text("c")]]
    assert cleaned.messages[0]["timestamp"] == user("a")["timestamp"]
    assert did(cleaned) == [(1, "merged"), (2, "merged")]
    assert cleaned.origins == [0]
    assert len(clean([user("a"), user("b")], GOOGLE).messages) == 2


def test_images_of_results_follow_where_results_cannot_hold_them() -> None:
    """The images are in one message after the last result, which does not count as a user message."""
    given = [user("q"), said(call("a"), call("b")), result("a", IMAGE), result("b", text("two"), IMAGE), assistant("x")]
    cleaned = clean(given, OPENAI)
    assert contents(cleaned)[2:5] == [[text(SEE_BELOW)], [text("two")], [text(ATTACHED), IMAGE, IMAGE]]
    assert cleaned.messages[4] == {"role": "user", "content": [text(ATTACHED), IMAGE, IMAGE], "synthetic": True}
    assert did(cleaned) == [(2, "moved"), (3, "moved")]
    assert clean(given, ANTHROPIC).messages == given
    assert contents(clean(given[:4], OPENAI))[4] == [text(ATTACHED), IMAGE, IMAGE]
    assert clean(given, OPENAI, history_limit=1).messages == cleaned.messages


def test_images_of_a_failed_result_follow_it_for_anthropic() -> None:
    """Anthropic accepts images in results, but only text in failed ones."""
    failed = {**result("a", text("boom"), IMAGE), "isError": True}
    cleaned = clean([user("q"), said(call("a"), call("b")), failed, result("b", IMAGE), assistant("x")], ANTHROPIC)
    assert contents(cleaned)[2:5] == [[text("boom")], [IMAGE], [text(ATTACHED), IMAGE]]
    assert did(cleaned) == [(2, "moved")] and clean(cleaned.messages, ANTHROPIC).messages == cleaned.messages


def test_an_image_that_cannot_be_sent_becomes_a_text() -> None:
    """It names the tool or role."""
    bad = IMAGE | {"data": "blob:sha256:00"}
    cleaned = clean([{"role": "user", "content": [bad]}, said(call()), result("a", bad)], OPENAI)
    assert contents(cleaned)[0][0]["text"].startswith("[user] omitted image payload")
    assert contents(cleaned)[2][0]["text"].startswith("[read] omitted image payload")
    assert did(cleaned) == [(0, "dropped"), (2, "dropped")]


def test_a_message_of_another_session_is_marked() -> None:
    """The mark is added once and names the sender."""
    sent = user("do it") | {"provenance": {"kind": "inter_session", "sourceSessionKey": "agent:main"}}
    cleaned = clean([sent], ANTHROPIC)
    assert contents(cleaned) == [[text(f"{INTER_SESSION} from agent:main"), text("do it")]]
    assert did(cleaned) == [(0, "made")]
    assert clean(cleaned.messages, ANTHROPIC).messages == cleaned.messages
    assert contents(clean([user("x") | {"provenance": {"kind": "external_user"}}], ANTHROPIC)) == ["x"]
    assert contents(clean([user("x") | {"provenance": {"kind": "inter_session"}}], ANTHROPIC))[0][0] == text(
        INTER_SESSION
    )


def test_the_history_ends_at_the_limit() -> None:
    """The last user messages and everything after them; system messages stay; dropped messages have notes."""
    system = {"role": "system", "content": "kind"}
    given = [system, user("1"), said(call("a")), result("a"), user("2"), assistant("x"), user("3")]
    cleaned = clean(given, OPENAI, history_limit=2)
    assert cleaned.messages == [system, *given[4:]]
    assert did(cleaned) == [(1, "dropped"), (2, "dropped"), (3, "dropped")]
    for limit in (None, 0, -1, 3, 9):
        assert clean(given, OPENAI, history_limit=limit).messages == given


def test_what_was_merged_and_then_cut_off_is_listed() -> None:
    """Each message has its own note."""
    cleaned = clean([user("1"), user("2"), assistant("x"), user("3")], ANTHROPIC, history_limit=1)
    assert contents(cleaned) == ["3"]
    assert did(cleaned) == [(0, "dropped"), (1, "merged"), (1, "dropped"), (2, "dropped")]


def test_images_of_results_that_were_merged_with_a_question_are_a_question() -> None:
    """The limit counts the merged message."""
    given = [user("1"), said(call()), result("a", IMAGE), user("2"), assistant("x"), user("3")]
    cleaned = clean(given, policy_for(api="openai-completions"), history_limit=2)
    assert contents(cleaned) == [[text(ATTACHED), IMAGE, text("2")], [text("x")], "3"]


def test_ids_that_agents_used_again_are_told_apart() -> None:
    """Providers refuse duplicate ids."""
    given = [user("q"), said(call("a")), result("a", text("1")), said(call("a")), result("a", text("2"))]
    cleaned = clean(given, ANTHROPIC)
    first, second = contents(cleaned)[1][0]["id"], contents(cleaned)[3][0]["id"]
    assert first == "a" != second
    assert [message["toolCallId"] for message in (cleaned.messages[2], cleaned.messages[4])] == [first, second]
    assert cleaned.notes == []


def test_a_bootstrap_is_no_question_of_the_user() -> None:
    """The limit counts only messages of the user."""
    given = [assistant("hello"), user("1"), assistant("x"), user("2")]
    assert contents(clean(given, GOOGLE, history_limit=2))[0] == BOOTSTRAP
    assert contents(clean(given, GOOGLE, history_limit=1)) == ["2"]


@pytest.mark.promise("P24")
def test_a_broken_session_can_be_sent() -> None:
    """Orphans, duplicates, blanks, late and missing results may occur together."""
    given = [
        result("zz"),
        said(thought(None), text("a"), call("x-1"), call("x_1"), call("none")),
        user("wait"),
        result("x_1"),
        user(""),
        result("x-1"),
        result("x-1"),
    ]
    cleaned = clean(given, ANTHROPIC)
    assert [message["role"] for message in cleaned.messages] == ["user", "assistant", *["toolResult"] * 3, "user"]
    assert [message.get("toolCallId") for message in cleaned.messages[2:5]] == [
        block["id"] for block in contents(cleaned)[1][1:]
    ]
    assert contents(cleaned)[5] == [text("wait"), text(EMPTY["user"])]
    assert [note.place for note in cleaned.notes] == sorted(note.place for note in cleaned.notes)
    assert clean(cleaned.messages, ANTHROPIC).notes == []


def test_the_parts_of_one_response_are_one_answer() -> None:
    """Claude Code stores each block as a row, with results between them."""
    signed = {"type": "thinking", "thinking": "hm", "thinkingSignature": "c2lnbmVkc2lnbmVk"}
    calls: list[Json] = [{"type": "toolCall", "id": name, "name": "run", "arguments": {}} for name in ("ta", "tb")]
    origin = {"provider": "anthropic", "api": "anthropic-messages", "model": "m", "responseId": "r1"}

    def part(block: dict[str, Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": [block], "stopReason": "toolUse", **origin}

    def result(name: str) -> dict[str, Any]:
        text = [{"type": "text", "text": f"{name} done"}]
        return {"role": "toolResult", "toolCallId": name, "toolName": "run", "content": text, "isError": False}

    said = [{"role": "user", "content": "go"}, part(signed), part(calls[0]), result("ta"), part(calls[1]), result("tb")]
    cleaned = clean(said, policy_for("anthropic"))
    assert [message["role"] for message in cleaned.messages] == ["user", "assistant", "toolResult", "toolResult"]
    assert [block["type"] for block in cleaned.messages[1]["content"]] == ["thinking", "toolCall", "toolCall"]
    assert {note.did for note in cleaned.notes} == {"merged"}
    other = [said[0], part(calls[0]), result("ta"), {"role": "user", "content": "more"}, part(calls[1]), result("tb")]
    assert [message["role"] for message in clean(other, policy_for("anthropic")).messages].count("assistant") == 2


@pytest.mark.mission("N1")
@pytest.mark.parametrize(
    "part",
    [
        {"type": "document", "text": "notes", "name": "a.txt"},
        {"type": "audio", "data": "UklG", "mimeType": "audio/wav"},
        {"type": "other", "api": "responses", "value": {"type": "web_search_call"}},
        {"type": "image", "url": "https://example.com/a.png"},
        {"type": "image", "fileId": "file_1"},
    ],
    ids=["document", "audio", "other", "image by URL", "image by id"],
)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_parts_that_a_conversion_knows_are_left_to_it(part: Json, policy: Any) -> None:
    """Whether the API takes them is for the conversion to say; here they pass without a note."""
    cleaned = clean([{"role": "user", "content": [text("see"), part]}], policy)
    assert contents(cleaned) == [[text("see"), part]]
    assert cleaned.notes == []


@pytest.mark.mission("N1")
def test_calls_with_a_text_and_refusals_stay_what_they_are() -> None:
    """A custom call keeps its mark, and a refusal is a text."""
    patch = {"type": "toolCall", "id": "c1", "name": "apply_patch", "arguments": {"input": "***"}, "custom": True}
    refusal = text("I cannot", refusal=True)
    cleaned = clean(
        [user("q"), said(refusal, patch), {"role": "toolResult", "toolCallId": "c1", "content": "ok"}], OPENAI
    )
    assert cleaned.messages[1]["content"] == [refusal, patch]


@pytest.mark.mission("N1")
def test_sealed_thoughts_go_back_to_openai_only() -> None:
    """Encrypted content needs no signature."""
    sealed = {"type": "thinking", "thinking": "", "encrypted": "gAAA"}
    talk = [user("q"), said(sealed, text("a"))]
    assert clean(talk, RESPONSES).messages[1]["content"] == [sealed, text("a")]
    assert clean(talk, ANTHROPIC).messages[1]["content"] == [text("a")]
