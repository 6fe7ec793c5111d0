"""Properties of session keys: the text and the structure of a key are equivalent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.agents.openclaw.keys import PATTERNS, SessionKey, key_shape, normalize_key, parse_key, render_key
from sessile.agents.openclaw.routing import parent_of
from sessile.errors import InvalidId

pytestmark = pytest.mark.mission("Y3")

WORDS = [pattern.shape.split(":")[0] for pattern in PATTERNS if "{" not in pattern.shape.split(":")[0]]
WORDS += ["agent", "channel", "room", "slash", "thread", "topic", "run", "heartbeat", "openai-user", "node-1"]
WORDS += ["%", "%3A", "%25", "a:b", ":", "a%3Athread%3Ab", "Ä", "🙂", "x"]
# Ids made of reserved words, colons, quotes and any other characters.
nasty = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(":".join) | st.text(min_size=1, max_size=8)
names = st.sampled_from(["telegram", "matrix", "signal", "slack"])


@st.composite
def keys(draw: st.DrawFn) -> SessionKey:
    """Return a key of any row of the table, with any ids."""
    pattern = draw(st.sampled_from(PATTERNS))
    members: dict[str, object] = {"kind": pattern.kind, "legacy": pattern.legacy}
    if not pattern.bare:
        members["agent"] = draw(st.none() | st.sampled_from(["main", "ops"]))
    for name in ("channel", "account"):
        if f"{{{name}}}" in pattern.shape:
            members[name] = draw(names)
    for name in ("peer", "id"):
        if f"{{{name}" in pattern.shape:
            members[name] = draw(nasty)
    if "{uuid}" in pattern.shape:
        members["id"] = str(draw(st.uuids()))
    for name in pattern.suffixes:
        if name == "heartbeat":
            members[name] = draw(st.booleans())
        elif name == "subagent":
            members["sub"] = tuple(draw(st.lists(nasty, max_size=2)))
        else:
            members[name] = draw(st.none() | nasty)
    return SessionKey(**members)  # type: ignore[arg-type]


@given(keys())
def test_a_key_survives_being_written_and_read(key: SessionKey) -> None:
    """This holds for any ids; only a named session whose name is reserved is refused."""
    try:
        text = render_key(key)
    except InvalidId:
        assert key.kind == "named"
        return
    assert parse_key(text) == key


@given(nasty | st.tuples(st.sampled_from(["main", "ops", ""]), nasty).map(lambda pair: f"agent:{pair[0]}:{pair[1]}"))
def test_a_text_survives_being_read_and_written(text: str) -> None:
    """Every accepted text is restored exactly; only empty and malformed ones are refused."""
    try:
        key = parse_key(text)
    except InvalidId:
        assert key_shape(text) in ("missing", "malformed_agent")
        return
    assert render_key(key) == text


@given(nasty.map(lambda rest: f"agent:main:{rest}") | keys().filter(lambda key: key.kind != "named").map(str))
def test_the_one_spelling_of_a_key_is_its_own(text: str) -> None:
    """Normalising is idempotent."""
    normal = normalize_key(text)
    assert normalize_key(normal) == normal


@given(keys().filter(lambda key: key.kind != "named"))
def test_parents_of_threads_lie_nearer_to_the_root(key: SessionKey) -> None:
    """A parent is a key of the same chat with one suffix less, and the chain ends."""
    above = parent_of(key)
    steps = 0
    while above is not None:
        assert (above.channel, above.peer, above.id) == (key.channel, key.peer, key.id)
        above = parent_of(above)
        steps += 1
    assert steps == (key.thread is not None) + (key.topic is not None)
