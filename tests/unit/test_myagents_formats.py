"""MyAgents' values, statistics, titles and displayed texts."""

from __future__ import annotations

from datetime import UTC

import pytest

from myagents_folder import AT, NOW_MS, asked, row, told
from sessile.agents.myagents import types
from sessile.agents.myagents.types import (
    Message,
    Metadata,
    check_session_id,
    decode_content,
    format_duration,
    format_tokens,
    row_text,
    row_time,
)
from sessile.errors import InvalidId

DAY = 86_400_000


@pytest.mark.mission("M8")
@pytest.mark.parametrize("session_id", ["a", "0-Z", "x" * 99, "session-1771237230000-a1b2c3"])
def test_an_id_of_letters_digits_and_hyphens_is_accepted(session_id: str) -> None:
    """One to ninety-nine characters."""
    assert check_session_id(session_id) == session_id


@pytest.mark.mission("M8")
@pytest.mark.parametrize("session_id", ["", "x" * 100, "../../evil", "a.b", "a_b", "a/b", "é", "a\n", "a\0"])
def test_any_other_id_is_refused(session_id: str) -> None:
    """A newline at the end is refused, which a careless pattern would accept."""
    with pytest.raises(InvalidId):
        check_session_id(session_id)


@pytest.mark.mission("M2")
def test_members_that_are_missing_or_of_another_type_are_unknown() -> None:
    """Unknown values are never zero."""
    message = Message({"id": 7, "role": None, "usage": [], "toolCount": "3", "durationMs": True, "attachments": "x"})
    assert (message.id, message.role, message.usage, message.tool_count, message.duration_ms) == (None,) * 5
    assert message.attachments == () and message.content is None and message.text == ""


@pytest.mark.mission("M2")
def test_a_message_gives_its_usage_by_model_and_its_attachments() -> None:
    """The documented members are read by name."""
    attachment = {"id": "a", "name": "x.png", "mimeType": "image/png", "path": "s/a.png"}
    usage = {"inputTokens": 3, "outputTokens": 4.0, "model": "m", "modelUsage": {"n": {"inputTokens": 1}, "bad": 5}}
    message = Message(told(1, usage=usage, attachments=[attachment, 5], toolCount=2, durationMs=900))
    assert message.usage is not None
    assert (message.usage.input_tokens, message.usage.output_tokens, message.usage.cache_read_tokens) == (3, 4, None)
    assert list(message.usage.by_model) == ["n"]
    assert [(each.id, each.name, each.mime_type, each.path) for each in message.attachments] == [
        ("a", "x.png", "image/png", "s/a.png")
    ]
    assert (message.tool_count, message.duration_ms) == (2, 900)


@pytest.mark.mission("M2")
@pytest.mark.parametrize(
    ("stored", "content"),
    [
        ("plain", "plain"),
        ('[{"type":"text","text":"x"}]', [{"type": "text", "text": "x"}]),
        ("[not json", "[not json"),
        (' ["x"]', ' ["x"]'),
        ('{"a":1}', '{"a":1}'),
        ("[]", []),
        (5, None),
    ],
)
def test_content_is_blocks_only_if_it_begins_with_a_bracket_and_is_an_array(stored: object, content: object) -> None:
    """Anything else stays a text."""
    assert decode_content(stored) == content


@pytest.mark.mission("M2")
def test_a_change_keeps_unknown_members_and_their_order() -> None:
    """Members of later versions are kept; a member that becomes None is removed."""
    known = Metadata(row("s", pinnedAt=AT, sdkSessionId="x"))
    changed = known.changed(title="t", sdkSessionId=None)
    assert list(changed.value) == ["id", "agentDir", "title", "createdAt", "lastActiveAt", "pinnedAt"]
    assert changed.pinned and changed.title == "t" and known.title == "New Chat"


@pytest.mark.mission("M2")
def test_the_time_of_activity_never_goes_back() -> None:
    """An earlier time changes nothing, and an invalid time is replaced."""
    known = Metadata(row("s"))
    assert known.touched(NOW_MS - 1) is known
    assert known.touched(NOW_MS + 1).last_active_at == "2026-02-16T10:20:30.001Z"
    assert Metadata(row("s", lastActiveAt="soon")).touched(NOW_MS).last_active_at == AT


@pytest.mark.mission("M2")
def test_titles_are_cut_and_a_picture_has_a_name_of_its_own() -> None:
    """Forty units and three dots, or twenty for new sessions; surrounding spaces are removed."""
    assert types.title_of("  hi  ") == types.title_of("\ufeff\u3000hi\n") == "hi"
    assert types.title_of("\x1chi\x85") == "\x1chi\x85"
    assert types.title_of("x" * 40) == "x" * 40
    assert types.title_of("x" * 41) == "x" * 40 + "..."
    assert types.title_of("x" * 21, types.SHORT) == "x" * 20 + "..."
    assert types.title_of(" \n ") == "图片消息"


@pytest.mark.mission("M2")
def test_only_a_default_title_may_be_replaced() -> None:
    """Another title stays, and so does the default one if the user chose it."""
    assert types.may_be_titled(Metadata(row("s")))
    assert not types.may_be_titled(Metadata(row("s", title="mine")))
    assert not types.may_be_titled(Metadata(row("s", titleSource="user")))


@pytest.mark.mission("M2")
def test_statistics_count_questions_and_the_tokens_of_answers() -> None:
    """Cache totals of zero are not stored, and unknown members stay."""
    counted = types.recount([Message(asked(0)), Message(told(1)), Message({"role": "assistant"})], {"later": 1})
    assert counted == {
        "later": 1,
        "messageCount": 1,
        "totalInputTokens": 10,
        "totalOutputTokens": 1,
        "totalCacheReadTokens": 2,
    }


@pytest.mark.mission("M4")
def test_usage_that_arrives_late_counts_once() -> None:
    """The difference of two tallies is added."""
    before, after = Message(told(1, tokens=10)), Message(told(1, tokens=30))
    late = types.tally([after]).minus(types.tally([before]))
    assert types.add(types.recount([before]), late) == types.recount([after])


@pytest.mark.mission("M2")
def test_use_by_model_and_the_list_of_answers() -> None:
    """An answer without a model counts for `unknown`; questions are cut at a hundred units."""
    usage = {"inputTokens": 5, "modelUsage": {"a": {"inputTokens": 2}, "b": {"inputTokens": 3}}}
    messages = [Message(asked(0, "q" * 200)), Message(told(1, usage=usage)), Message(told(2, usage={}))]
    assert [(use.model, use.answers, use.tally.input) for use in types.by_model(messages)] == [
        ("a", 1, 2),
        ("b", 1, 3),
        ("unknown", 1, 0),
    ]
    listed = types.answers(messages)
    assert [len(answer.query) for answer in listed] == [100, 100]
    assert types.Tally(cache_read=2, cache_creation=3).cached == 5
    assert listed[0].duration_ms is None


@pytest.mark.mission("M2")
@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (None, "-"),
        (0, "0"),
        (999, "999"),
        (1000, "1.0K"),
        (1250, "1.3K"),
        (1050, "1.1K"),
        (999_999, "1000.0K"),
        (1_000_000, "1.0M"),
        (1_250_000, "1.3M"),
        (999_949, "999.9K"),
        (1450, "1.4K"),
        (1_000_000_000, "1000.0M"),
    ],
)
def test_tokens_as_javascript_rounds_them(tokens: int | None, text: str) -> None:
    """One decimal, halves upwards, from the exact binary value."""
    assert format_tokens(tokens) == text


@pytest.mark.mission("M2")
@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, "-"),
        (0, "0ms"),
        (999, "999ms"),
        (1000, "1.0s"),
        (2250, "2.3s"),
        (59_999, "60.0s"),
        (60_000, "1m 0s"),
        (119_600, "1m 60s"),
        (65_499, "1m 5s"),
        (65_500, "1m 6s"),
        (3_600_000, "60m 0s"),
        (1450, "1.4s"),
    ],
)
def test_durations_as_their_window_shows_them(milliseconds: int | None, text: str) -> None:
    """The text is that of MyAgents' window, even if it says sixty seconds."""
    assert format_duration(milliseconds) == text


@pytest.mark.mission("M2")
def test_a_session_without_statistics_shows_hyphens() -> None:
    """Unknown values are not zero, and cached tokens are not in the sum."""
    assert row_text(None) == row_text({}) == row_text({"messageCount": "3"}) == "- 条消息 · - tokens"
    assert row_text({"messageCount": 3}) == "3 条消息 · - tokens"
    assert row_text({"messageCount": 0, "totalInputTokens": 0, "totalOutputTokens": 0}) == "0 条消息 · 0 tokens"
    assert row_text(types.recount([Message(asked(0)), Message(told(1, tokens=1500))])) == "1 条消息 · 1.5K tokens"


@pytest.mark.mission("M2")
@pytest.mark.parametrize(
    ("later", "text"),
    [(0, "10:20"), (DAY - 1, "10:20"), (DAY, "昨天"), (2 * DAY, "2天前"), (7 * DAY, "2月16日")],
)
def test_the_time_of_a_row_counts_days_of_24_hours(later: int, text: str) -> None:
    """Calendar days do not matter."""
    assert row_time(AT, NOW_MS + later, UTC) == text
    assert row_time(None, NOW_MS, UTC) == "-"
