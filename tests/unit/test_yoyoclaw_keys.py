"""Session keys: every documented pattern, the normal spelling, and the session of a message."""

from __future__ import annotations

import pytest

from sessile.agents.openclaw.keys import (
    PATTERNS,
    SessionKey,
    key_shape,
    modern_key,
    normalize_account_id,
    normalize_agent_id,
    normalize_channel,
    normalize_key,
    normalize_main_key,
    normalize_peer,
    parse_key,
    render_key,
)
from sessile.agents.openclaw.routing import (
    Binding,
    Group,
    Inbound,
    Peer,
    canonical_key,
    derive_key,
    forum_topic,
    group_of,
    in_thread,
    in_topic,
    linked_identity,
    main_session,
    parent_of,
    peer_key,
    resolve_route,
    shown_key,
)
from sessile.errors import InvalidConfig, InvalidId

pytestmark = pytest.mark.mission("Y3")

UUID = "0192aaaa-bbbb-cccc-dddd-eeeeffff0000"

# Every pattern of the documents, and what it means.
DOCUMENTED: dict[str, SessionKey] = {
    "agent:main:main": SessionKey(kind="main", agent="main"),
    "agent:main:work": SessionKey(kind="named", agent="main", id="work"),
    "agent:main:dm:joe": SessionKey(kind="direct", agent="main", peer="joe", legacy=True),
    "agent:main:direct:joe": SessionKey(kind="direct", agent="main", peer="joe"),
    "agent:main:telegram:dm:5": SessionKey(kind="direct", agent="main", channel="telegram", peer="5", legacy=True),
    "agent:main:telegram:direct:5": SessionKey(kind="direct", agent="main", channel="telegram", peer="5"),
    "agent:main:telegram:work:direct:5": SessionKey(
        kind="direct", agent="main", channel="telegram", account="work", peer="5"
    ),
    "agent:main:telegram:work:dm:5": SessionKey(
        kind="direct", agent="main", channel="telegram", account="work", peer="5", legacy=True
    ),
    "agent:main:whatsapp:group:12@g.us": SessionKey(kind="group", agent="main", channel="whatsapp", peer="12@g.us"),
    "agent:main:slack:channel:c1": SessionKey(kind="channel", agent="main", channel="slack", peer="c1"),
    "agent:main:discord:room:9": SessionKey(kind="room", agent="main", channel="discord", peer="9"),
    "agent:main:telegram:group:-100:topic:7": SessionKey(
        kind="group", agent="main", channel="telegram", peer="-100", topic="7"
    ),
    "agent:main:slack:channel:c1:thread:17.5": SessionKey(
        kind="channel", agent="main", channel="slack", peer="c1", thread="17.5"
    ),
    "agent:main:main:thread:17.5": SessionKey(kind="main", agent="main", thread="17.5"),
    "cron:nightly": SessionKey(kind="cron", id="nightly"),
    "agent:main:cron:nightly": SessionKey(kind="cron", agent="main", id="nightly"),
    "agent:main:cron:nightly:run:3": SessionKey(kind="cron", agent="main", id="nightly", run="3"),
    f"hook:{UUID}": SessionKey(kind="hook", id=UUID),
    "hook:gmail:m1": SessionKey(kind="hook", id="gmail:m1"),
    "agent:main:hook:gmail:m1": SessionKey(kind="hook", agent="main", id="gmail:m1"),
    "agent:main:node-7": SessionKey(kind="node", agent="main", id="7"),
    "node:7": SessionKey(kind="node", id="7", legacy=True),
    "agent:main:subagent:u1": SessionKey(kind="subagent", agent="main", id="u1"),
    "agent:main:subagent:u1:subagent:u2:subagent:u3": SessionKey(
        kind="subagent", agent="main", id="u1", sub=("u2", "u3")
    ),
    "acp:s1": SessionKey(kind="acp", id="s1"),
    "agent:main:acp:s1": SessionKey(kind="acp", agent="main", id="s1"),
    "agent:main:openai-user:joe": SessionKey(kind="http", agent="main", channel="openai", peer="joe"),
    f"agent:main:openai:{UUID}": SessionKey(kind="http", agent="main", channel="openai", id=UUID),
    "telegram:slash:5": SessionKey(kind="slash", channel="telegram", peer="5"),
    "agent:main:main:heartbeat": SessionKey(kind="main", agent="main", heartbeat=True),
    "agent:main:telegram:group:-1:topic:7:heartbeat": SessionKey(
        kind="group", agent="main", channel="telegram", peer="-1", topic="7", heartbeat=True
    ),
    f"agent:main:dashboard:{UUID}": SessionKey(kind="dashboard", agent="main", id=UUID),
    f"agent:main:explicit:model-run-{UUID}": SessionKey(kind="explicit", agent="main", id=f"model-run-{UUID}"),
    "temp:slug-generator": SessionKey(kind="temp", id="slug-generator"),
    "group:12@g.us": SessionKey(kind="group", peer="12@g.us"),
    "global": SessionKey(kind="global"),
    "unknown": SessionKey(kind="unknown"),
    "main": SessionKey(kind="main"),
}


@pytest.mark.parametrize("text", DOCUMENTED)
def test_a_documented_key_is_understood_and_written_back_unchanged(text: str) -> None:
    """Each documented pattern has one structure, and each structure one text."""
    assert parse_key(text) == DOCUMENTED[text]
    assert render_key(DOCUMENTED[text]) == text
    assert str(parse_key(text)) == text


def test_every_row_of_the_table_is_documented_by_an_example() -> None:
    """Every pattern has a test, and every kind but `other` has a pattern."""
    met = {(key.kind, key.legacy, key.channel is None, key.account is None) for key in DOCUMENTED.values()}
    for pattern in PATTERNS:
        assert (
            pattern.kind,
            pattern.legacy,
            "{channel}" not in pattern.shape,
            "{account}" not in pattern.shape,
        ) in met, pattern


@pytest.mark.parametrize(
    "text",
    ["+15551234567", "whatsapp:12@g.us", "agent:main::x", "agent:main:a:thread:b:thread:c", "agent:main:x:y:z", "a:"],
)
def test_an_unknown_shape_is_kept_verbatim(text: str) -> None:
    """A text that fits no pattern, or would not be rendered the same, is not parsed."""
    key = parse_key(text)
    assert key.kind in ("other", "named")
    assert render_key(key) == text
    assert key.channel is None and key.peer is None and key.thread is None


@pytest.mark.parametrize("text", ["agent:", "agent:main", "agent:main:", "agent::main", "agent:main:::", "AGENT:a:b"])
def test_a_malformed_agent_key_is_refused(text: str) -> None:
    """It is not assigned to the default agent."""
    assert key_shape(text) == "malformed_agent"
    with pytest.raises(InvalidId, match="invalid agent key"):
        parse_key(text)


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_key_is_refused(text: str) -> None:
    """Every session has a key."""
    assert key_shape(text) == "missing"
    with pytest.raises(InvalidId):
        parse_key(text)


def test_ids_that_hold_colons_are_written_as_they_are() -> None:
    """Matrix rooms and events have a server after a colon."""
    key = SessionKey(kind="channel", agent="main", channel="matrix", peer="!R:ex.org", thread="$E:ex.org")
    assert render_key(key) == "agent:main:matrix:channel:!R:ex.org:thread:$E:ex.org"
    assert parse_key(render_key(key)) == key


@pytest.mark.parametrize("peer", ["a:thread:b", "x:topic:1", "a:heartbeat", "a::b", ":a", "a:", "a%3Athread%3Ab"])
def test_an_id_that_would_be_read_as_something_else_is_quoted(peer: str) -> None:
    """Such an id is read back, and not taken for a thread."""
    key = SessionKey(kind="group", agent="main", channel="signal", peer=peer)
    text = render_key(key)
    assert text.startswith("agent:main:signal:group:") and "%" in text
    assert parse_key(text) == key


def test_percent_signs_that_quote_nothing_are_left_alone() -> None:
    """A key of another program that contains `%3A` is written back unchanged."""
    for text in ("agent:main:signal:group:a%3Ab", "agent:main:signal:group:100%25", "agent:main:x%:group:%"):
        assert render_key(parse_key(text)) == text
    assert parse_key("agent:main:signal:group:a%3Ab").peer == "a%3Ab"


@pytest.mark.parametrize(
    "key",
    [
        SessionKey(kind="group", agent="main", channel="cron", peer="x"),
        SessionKey(kind="direct", agent="main", channel="x", account="direct", peer="y"),
        SessionKey(kind="group", agent="main", channel="x", peer=""),
        SessionKey(kind="group", agent="a:b", channel="x", peer="y"),
        SessionKey(kind="global", agent="main"),
        SessionKey(kind="cron", agent="main"),
        SessionKey(kind="main", agent="main", run="3"),
        SessionKey(kind="other", agent="main", id="cron:x"),
        SessionKey(kind="named", id=""),
    ],
)
def test_a_key_that_no_text_can_stand_for_is_refused(key: SessionKey) -> None:
    """It would be parsed as another key."""
    with pytest.raises(InvalidId):
        render_key(key)


def test_words_inside_an_id_mean_nothing() -> None:
    """`:group:` counts only in the position of a kind."""
    assert parse_key("agent:main:hook:a:group:b").kind == "hook"
    assert parse_key("agent:main:signal:direct:x:group:y").kind == "direct"


def test_depth_counts_sub_agents() -> None:
    """The first sub-agent has depth one."""
    assert [
        parse_key(text).depth for text in ("agent:a:main", "agent:a:subagent:x", "agent:a:subagent:x:subagent:y")
    ] == [
        0,
        1,
        2,
    ]


def test_incognito_is_a_reserved_prefix_of_dashboard_sessions() -> None:
    """Other kinds may have such an id without this meaning."""
    assert parse_key("agent:main:dashboard:incognito-1").incognito
    assert not parse_key("agent:main:hook:incognito-1").incognito


# -- one spelling


@pytest.mark.parametrize(
    ("text", "agent", "account"),
    [
        ("", "main", "default"),
        ("  Ops ", "ops", "ops"),
        ("my agent!", "my-agent", "my-agent"),
        ("--x--", "x", "x"),
        ("!!!", "main", "default"),
        ("a" * 70, "a" * 64, "a" * 64),
        ("prototype", "prototype", "default"),
    ],
)
def test_names_of_agents_and_accounts_are_made_safe(text: str, agent: str, account: str) -> None:
    """They become parts of paths and keys."""
    assert normalize_agent_id(text) == agent
    assert normalize_account_id(text) == account


def test_empty_names_have_defaults() -> None:
    """The same as the owner's."""
    assert (normalize_main_key(" "), normalize_channel(None)) == ("main", "unknown")
    assert (normalize_peer(" ", "slack", "group"), normalize_peer("", "slack", "direct")) == ("unknown", None)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (" Agent:Main::Telegram:GROUP:ABC ", "agent:main:telegram:group:abc"),
        ("agent:main:Signal:Group:AbC=", "agent:main:signal:group:AbC="),
        ("agent:main:signal:group:AbC=:thread:X", "agent:main:signal:group:AbC=:thread:x"),
        ("AGENT:main:MATRIX:CHANNEL:!R:Ex.org:thread:$E", "agent:main:matrix:channel:!R:Ex.org:thread:$E"),
        ("agent:main:matrix:direct:@A:b", "agent:main:matrix:direct:@a:b"),
        ("agent:main:telegram:DM:5", "agent:main:telegram:dm:5"),
        ("agent:main", "agent:main"),
        (" : main \n: ", "main"),
    ],
)
def test_case_is_kept_only_where_ids_are_opaque(text: str, normal: str) -> None:
    """Lower case would merge two Matrix rooms or two Signal groups."""
    assert normalize_key(text) == normal


@pytest.mark.parametrize(
    ("text", "modern"),
    [
        ("main", "agent:ops:main"),
        ("subagent:x", "agent:ops:subagent:x"),
        ("group:12@g.us", "agent:ops:whatsapp:group:12@g.us"),
        ("group:abc", "agent:ops:unknown:group:abc"),
        ("12@g.us", "agent:ops:whatsapp:group:12@g.us"),
        ("whatsapp:12@g.us", "agent:ops:whatsapp:group:12@g.us"),
        ("+1555", "agent:ops:+1555"),
        ("agent:main:x", "agent:main:x"),
        ("global", "global"),
    ],
)
def test_keys_of_older_releases_have_a_modern_form(text: str, modern: str) -> None:
    """The form is that of the owner's own migration."""
    assert modern_key(text, "ops") == modern


# -- routes


@pytest.mark.parametrize(
    ("inbound", "group"),
    [
        (Inbound(sender="telegram:group:-100"), Group("telegram", "group", "-100")),
        (Inbound(sender="slack:channel:C1"), Group("slack", "channel", "c1")),
        (Inbound(sender="120@g.us"), Group("whatsapp", "group", "120@g.us")),
        (Inbound(sender="C1", chat_type="channel", provider="slack"), Group("slack", "channel", "c1")),
        (Inbound(sender="signal:group:AbC="), Group("signal", "group", "AbC=")),
        (Inbound(sender="discord:99", chat_type="group"), Group("discord", "group", "99")),
        (Inbound(sender="x:group:y", provider="irc"), Group("irc", "group", "x:group:y")),
        (Inbound(sender="x:group:y"), None),
        (Inbound(sender="signal:a:group:b", chat_type="direct"), None),
        (Inbound(sender="telegram:5"), None),
        (Inbound(), None),
    ],
)
def test_a_group_is_known_by_its_type_or_its_sender(inbound: Inbound, group: Group | None) -> None:
    """A chat type of "direct" is believed."""
    assert group_of(inbound) == group


def test_a_key_is_derived_from_a_message() -> None:
    """An explicit key wins, then the global scope, then the group, then the main session."""
    group = Inbound(sender="telegram:group:-100")
    assert str(derive_key(Inbound(session_key=" Agent:Main:X ", sender="telegram:group:1"))) == "agent:main:x"
    assert str(derive_key(group, scope="global")) == "global"
    assert str(derive_key(group, agent="Ops")) == "agent:ops:telegram:group:-100"
    assert str(derive_key(Inbound(sender="telegram:5"), main_key="Work")) == "agent:main:work"


@pytest.mark.parametrize(
    ("scope", "key"),
    [
        ("main", "agent:main:main"),
        ("per-peer", "agent:main:direct:joe"),
        ("per-channel-peer", "agent:main:telegram:direct:joe"),
        ("per-account-channel-peer", "agent:main:telegram:default:direct:joe"),
    ],
)
def test_the_scope_of_direct_chats_decides_who_shares_a_session(scope: str, key: str) -> None:
    """Without a peer there is only the main session."""
    assert str(peer_key("main", "Telegram", Peer("direct", "Joe"), dm_scope=scope)) == key  # type: ignore[arg-type]
    assert str(peer_key("main", "telegram", None, dm_scope=scope)) == "agent:main:main"  # type: ignore[arg-type]


def test_an_unknown_scope_is_refused() -> None:
    """A typo must not put strangers into one session."""
    with pytest.raises(InvalidConfig):
        peer_key("main", "telegram", Peer("direct", "joe"), dm_scope="per-pear")  # type: ignore[arg-type]


def test_a_linked_identity_has_one_session_in_all_channels() -> None:
    """Regardless of the scope; the old keys with the channel are available as an option."""
    links = {"Alice": ["telegram:5", "discord:9"]}
    for scope in ("per-peer", "per-channel-peer", "per-account-channel-peer"):
        keys = {
            str(peer_key("main", channel, Peer("direct", peer), dm_scope=scope, identity_links=links))
            for channel, peer in (("telegram", "5"), ("discord", "9"))
        }
        assert keys == {"agent:main:direct:alice"}
    old = peer_key(
        "main",
        "telegram",
        Peer("direct", "5"),
        dm_scope="per-channel-peer",
        identity_links=links,
        links_keep_channel=True,
    )
    assert str(old) == "agent:main:telegram:direct:alice"
    assert str(peer_key("main", "telegram", Peer("direct", "5"), identity_links=links)) == "agent:main:main"
    assert linked_identity(links, "slack", "5") is None


def test_topics_and_threads_have_sessions_of_their_own_and_a_parent() -> None:
    """Groups that are not forums have no topics, and a forum message without one is in the general topic."""
    group = peer_key("main", "telegram", Peer("group", "-100"))
    assert forum_topic(7, is_forum=False) is None
    topic = in_topic(group, forum_topic(None, is_forum=True))
    assert str(topic) == "agent:main:telegram:group:-100:topic:1"
    assert str(in_topic(group, None)) == str(group)
    thread = in_thread(group, "17.A")
    assert str(thread) == "agent:main:telegram:group:-100:thread:17.a"
    assert parent_of(topic) == parent_of(thread) == group
    assert parent_of(group) is None
    assert str(parent_of(parse_key("agent:a:x:group:1:topic:2:thread:3"))) == "agent:a:x:group:1:topic:2"
    assert str(in_thread(parse_key("agent:a:my:own:name"), 5)) == "agent:a:my:own:name:thread:5"
    assert str(parent_of(parse_key("agent:a:my:own:name:thread:5"))) == "agent:a:my:own:name"
    assert str(in_thread(parse_key("agent:a:main:heartbeat"), "T")) == "agent:a:main:thread:t:heartbeat"
    room = parse_key("agent:a:matrix:channel:!R")
    assert str(in_thread(room, "$Event")) == "agent:a:matrix:channel:!R:thread:$Event"


@pytest.mark.parametrize("text", ["main", "work", "agent:main:main", "agent:main:work", "Agent:MAIN:Work"])
def test_all_names_of_the_main_session_are_one(text: str) -> None:
    """In the global scope there is only one session."""
    assert canonical_key(text, main_key="work") == main_session("main", "work")
    assert str(canonical_key(text, main_key="work", scope="global")) == "global"


def test_other_bare_keys_belong_to_the_default_agent() -> None:
    """Sentinels have no agent."""
    assert str(canonical_key("cron:x", default_agent="ops")) == "agent:ops:cron:x"
    assert str(canonical_key("agent:../../etc:main")) == "agent:etc:main"
    assert str(canonical_key("main:thread:5", main_key="work")) == "agent:main:work:thread:5"
    assert [str(canonical_key(text)) for text in ("global", "unknown")] == ["global", "unknown"]


def test_tools_show_the_main_session_by_its_alias() -> None:
    """Sentinels are never shown."""
    assert shown_key(parse_key("agent:ops:main")) == "main"
    assert shown_key(parse_key("agent:ops:cron:x")) == "agent:ops:cron:x"
    assert shown_key(parse_key("global")) is None


def test_the_most_exact_binding_decides_who_answers() -> None:
    """Peer, guild, team, account, channel, regardless of the order of the bindings."""
    bindings = [
        Binding(agent="anyone", channel="discord", account="*"),
        Binding(agent="default-account", channel="discord"),
        Binding(agent="biz", channel="discord", account="Biz"),
        Binding(agent="team", channel="discord", account="*", team="T1"),
        Binding(agent="guild", channel="discord", account="*", guild="G1"),
        Binding(agent="peer", channel="discord", account="*", peer=Peer("channel", "C1")),
    ]

    def who(channel: str = "discord", **given: object) -> tuple[str, str]:
        route = resolve_route(bindings, channel, default_agent="nobody", **given)  # type: ignore[arg-type]
        return route.agent, route.matched_by

    assert who(peer=Peer("channel", "c1"), guild="G1", team="T1") == ("peer", "peer")
    assert who(guild="G1", team="T1") == ("guild", "guild")
    assert who(team="T1") == ("team", "team")
    assert who() == ("default-account", "account")
    assert who(account="biz") == ("biz", "account")
    assert who(account="other") == ("anyone", "channel")
    assert who("slack") == ("nobody", "default")


def test_a_route_carries_its_session_and_the_main_one() -> None:
    """The main session has its configured name."""
    route = resolve_route([Binding(agent="ops", channel="slack")], "slack", peer=Peer("channel", "C1"), main_key="work")
    assert (str(route.key), str(route.main_key)) == ("agent:ops:slack:channel:c1", "agent:ops:work")
