"""`sessile status`, `sessions` and `send` with the local gateway, a remote gateway, and no gateway."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sessile import Store
from sessile.gateway.conversations.registry import Conversations

from .conftest import Command, at_a_terminal
from .gateways import Serving, serving

HOSTILE = "red \x1b[31m\x9b2J\u202e end"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Return a gateway shared by all tests of this module; each test uses its own conversations."""
    folder = tmp_path_factory.mktemp("asked")
    (folder / "own.toml").write_text("[session]\nmainKey = 'main'\n[models.providers.echo]\nmodels = []\n")
    with serving(folder / "root", "--config", str(folder / "own.toml")) as running:
        yield running


@pytest.fixture
def here(gateway: Serving) -> list[str]:
    """Return the options that select the gateway's store."""
    return ["--root", gateway.told["root"]]


# -- send


@pytest.mark.mission("Y1")
def test_a_message_is_answered_on_stdout(sessile: Command, here: list[str]) -> None:
    """Words are joined by spaces, and stdout contains only the reply."""
    done = sessile(*here, "send", "--key", "words", "hello", "there")
    assert (done.code, done.out) == (0, "hello there\n")


def test_a_message_may_come_from_stdin(sessile: Command, here: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Line breaks are kept; an empty message is refused."""
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    assert sessile(*here, "send", "--key", "stdin").out.split() == ["one", "two"]
    monkeypatch.setattr("sys.stdin", io.StringIO("  \n"))
    done = sessile(*here, "send", "--key", "stdin", "-")
    assert done.code == 2 and "the message is empty" in done.err


@pytest.mark.promise("P37")
@pytest.mark.parametrize("how", ["", "--plain", "--json"])
def test_a_reply_cannot_drive_the_terminal(sessile: Command, here: list[str], how: str) -> None:
    """Control characters in a reply are escaped."""
    done = sessile(*here, "send", "--key", "hostile", *([how] if how else []), HOSTILE)
    assert done.code == 0 and "red" in done.out and "end" in done.out
    assert not set("\x1b\x9b\u202e") & set(done.out + done.err)


def test_a_message_can_name_its_chat_instead_of_a_key(sessile: Command, here: list[str]) -> None:
    """A group has its own conversation; a key together with a chat is refused."""
    chat = ["--channel", "telegram", "--chat-type", "group", "--peer", "-77"]
    sent = sessile(*here, "send", "--json", *chat, "hi all").json
    assert sent["schema"] == "sessile.send/1" and sent["key"] == "agent:main:telegram:group:-77"
    assert sent["reply"]["text"] == "hi all" and sent["state"] == "done"
    assert sessile(*here, "send", "--key", "main", *chat, "hi").code == 2


def test_who_does_not_wait_gets_the_turn(sessile: Command, here: list[str]) -> None:
    """With --no-wait, stdout contains only the id of the turn, and the next message is answered as usual."""
    done = sessile(*here, "send", "--key", "later", "--no-wait", "some time")
    assert done.code == 0 and len(done.out.split()) == 1 and "agent:main:later" in done.err
    assert sessile(*here, "send", "--key", "later", "again").out == "again\n"


def test_commands_are_answered_like_messages(sessile: Command, here: list[str]) -> None:
    """`/status` is answered with the state of the conversation."""
    sessile(*here, "send", "--key", "commands", "hello")
    assert "Session: agent:main:commands" in sessile(*here, "send", "--key", "commands", "/status").out


@contextmanager
def breaking(place: tuple[str, int], after: int) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of a proxy that cuts the first connection after some bytes, and the traffic of each connection."""
    passed: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as door:

        def pass_on() -> None:
            for limit in (after, 1 << 20):
                client, _ = door.accept()
                with client, socket.create_connection(place) as server:
                    passed.append(_copied(client, server, limit))

        thread = threading.Thread(target=pass_on, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}", passed
        thread.join(10)


def _copied(client: socket.socket, server: socket.socket, limit: int) -> bytes:
    """Pass on a request and at most the given number of bytes of the response."""
    for side in (client, server):
        side.settimeout(0.2)
    request, answer = b"", b""
    while b"said once" not in request:
        request += client.recv(65536)
    server.sendall(request)
    while len(answer) < limit:
        try:
            piece = server.recv(min(limit - len(answer), 65536))
        except TimeoutError:
            break  # the response is complete
        client.sendall(piece)
        answer += piece
    return answer


@pytest.mark.mission("Y1")
@pytest.mark.parametrize("after", [0, 150, 1000])
def test_a_connection_that_breaks_says_nothing_twice(sessile: Command, gateway: Serving, after: int) -> None:
    """The message is resent with its idempotency key: it is stored once, and the reply is printed once."""
    key = f"broken-{after}"
    with breaking(gateway.place, after) as (url, passed):
        named = ["--url", url, "--token-file", gateway.told["tokenFile"]]
        done = sessile("send", *named, "--key", key, "a few words that are said once")
    assert (done.code, done.out) == (0, "a few words that are said once\n")
    assert [len(passed), len(passed[0])] == [2, after] and (b"event: delta" in passed[0]) == (after == 1000)
    store = Store(Path(gateway.told["root"]))
    with Conversations(store, workspace=lambda _: "/", hold=None) as conversations:
        path = conversations.path_of(key)
    assert path is not None
    with store.open(path, readonly=True) as session:
        said = [entry.body["message"]["role"] for entry in session.iter_branch() if entry.body["type"] == "message"]
    assert said == ["user", "assistant"]


def test_a_gateway_that_does_not_come_back_is_said_to_keep_what_has_come(
    sessile: Command, gateway: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partial reply is printed with a final newline, and the error says that it was incomplete."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    door = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{door.getsockname()[1]}"

    def answer_and_go() -> None:
        client, _ = door.accept()
        door.close()
        with client:
            asked = client.recv(65536)
            while b"hello" not in asked:  # closing earlier would reset the connection
                asked += client.recv(65536)
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 999\r\n\r\n")
            client.sendall(b'event: delta\ndata: {"text": "some words"}\n\n')

    thread = threading.Thread(target=answer_and_go, daemon=True)
    thread.start()
    done = sessile("send", "--url", url, "--token-file", gateway.told["tokenFile"], "hello")
    thread.join(10)
    assert done.code != 0 and done.out == "some words\n"
    assert "ended before the reply was complete" in done.err and "are kept" in done.err


# -- sessions


@pytest.mark.mission("Y12")
def test_the_list_is_the_same_from_the_gateway_the_store_and_elsewhere(
    sessile: Command, gateway: Serving, here: list[str], home: Path
) -> None:
    """The documented JSON is returned, newest first; unknown values are null."""
    sent = sessile(*here, "send", "--json", "--key", "listed", "hello").json
    document = sessile(*here, "sessions", "--json").json
    assert document["schema"] == "sessile.sessions/1" and document["activeMinutes"] is None
    assert document["path"].endswith("agents/main/sessions/sessions.json")
    assert document["count"] == len(document["sessions"]) > 0
    first = document["sessions"][0]
    assert (first["key"], first["kind"], first["model"]) == ("agent:main:listed", "direct", "echo")
    assert first["contextTokens"] == sent["reply"]["usage"]["totalTokens"]
    assert first["contextWindow"] is None and first["ageMs"] >= 0
    named = ["--url", gateway.url, "--token-file", gateway.told["tokenFile"]]
    assert _keys(sessile("sessions", "--json", *named).json) == _keys(document)
    assert sessile("sessions", "--json").json["sessions"] == []  # a different local store


@pytest.mark.mission("Y12")
def test_without_a_gateway_the_store_itself_is_read(sessile: Command, home: Path) -> None:
    """The JSON and the table have all agents; a broken store file is reported, and its last good copy is shown."""
    store = Store(home / ".sessile")
    with Conversations(store, workspace=lambda agent: str(home / agent)) as conversations:
        conversations.resolve("agent:ops:night")
        conversations.resolve("main")
        conversations.patch("main", {"thinkingLevel": "high"})
    document = sessile("sessions", "--json").json
    assert _keys(document) == ["agent:main:main", "agent:ops:night"]
    assert _keys(sessile("sessions", "--json", "--agent", "ops").json) == ["agent:ops:night"]
    table = sessile("sessions").out.splitlines()
    assert len(table) == 2 and "think:high" in table[0] and "id:" in table[0]
    (home / ".sessile/agents/ops/sessions/sessions.json").write_text("{,}")
    broken = sessile("sessions")
    assert "line 1" in broken.err and "agent:ops:night" in broken.out


@pytest.mark.mission("Y12")
def test_only_active_ones_are_listed_if_asked_for(sessile: Command, home: Path) -> None:
    """Hidden conversations are counted, an empty result exits with code 1, and numbers below one are refused."""
    old = Store(home / ".sessile", clock=lambda: 1_700_000_000.0)
    with Conversations(old, workspace=lambda _: str(home)) as conversations:
        conversations.resolve("old")
    store = Store(home / ".sessile")
    with Conversations(store, workspace=lambda _: str(home)) as conversations:
        conversations.resolve("new")
    document = sessile("sessions", "--json", "--active", "60").json
    assert _keys(document) == ["agent:main:new"] and document["activeMinutes"] == 60
    assert document["hidden"] == {"filtered": 1}
    done = sessile("sessions", "--agent", "nobody")
    assert done.code == 1 and "no conversation" in done.err
    assert sessile("sessions", "--active", "0").code == 2
    assert "1 more" in sessile("sessions", "-n", "1").err


def _keys(document: dict[str, object]) -> list[str]:
    rows = document["sessions"]
    assert isinstance(rows, list)
    return [row["key"] for row in rows]


def test_the_table_has_the_documented_columns(home: Path) -> None:
    """A terminal also gets the column headers."""
    with Conversations(Store(home / ".sessile"), workspace=lambda _: str(home)) as conversations:
        conversations.resolve("main")
    head = at_a_terminal(["sessions"], {"COLUMNS": "140"}).splitlines()[0]
    assert [head.index(name) for name in ("Kind", "Key", "Age", "Model", "Tokens (ctx %)", "Flags")]


# -- status


@pytest.mark.mission("Y12")
def test_status_tells_host_store_turns_and_how_full_conversations_are(
    sessile: Command, gateway: Serving, here: list[str]
) -> None:
    """Text and JSON are supported; with a key, the lines of /status are printed."""
    used = sessile(*here, "send", "--json", "--key", "full", "hello").json["reply"]["usage"]["totalTokens"]
    told = sessile(*here, "status").out
    for part in (gateway.url, gateway.told["root"], "agent:main:full", f"{used}/unknown\t0"):
        assert part in told, part
    assert re.search(r"^agent     main echo  (1 conversation|\d+ conversations)$", told, re.M)
    assert re.search(r"^turns     \d running, 0 queued$", told, re.M)
    document = sessile(*here, "status", "--json").json
    assert document["schema"] == "sessile.status/1" and document["url"] == gateway.url
    assert document["root"] == gateway.told["root"] and document["turns"]["queued"] == 0
    assert "Compactions: 0" in sessile(*here, "status", "full").out
    assert sessile(*here, "status", "full", "--json").json["conversation"]["contextTokens"] == used
    assert sessile(*here, "status", "nobody").code == 3


@pytest.mark.mission("Y1", "Y12")
def test_without_a_gateway_status_says_so_and_what_to_do(sessile: Command) -> None:
    """The command exits with code 3 and writes the error to stderr, as JSON on request."""
    done = sessile("status")
    assert (done.code, done.out) == (3, "") and "sessile serve" in done.err
    report = json.loads(sessile("status", "--json").err)
    assert report["error"]["kind"] == "not_found" and "sessile serve" in report["error"]["hint"]
    assert sessile("send", "hello").code == 3


# -- another machine's gateway


@pytest.mark.mission("Y1")
def test_remote_mode_works_the_same(sessile: Command, gateway: Serving, tmp_path: Path) -> None:
    """A client needs only the address and a token file."""
    token = tmp_path / "there.token"
    token.write_text(gateway.token)
    token.chmod(0o600)
    named = ["--url", f"{gateway.url}/", "--token-file", str(token)]
    assert sessile("send", *named, "--key", "remote", "from afar").out == "from afar\n"
    assert gateway.told["root"] in sessile("status", *named).out
    assert "agent:main:remote" in sessile("sessions", *named).out


@pytest.mark.promise("P33")
def test_a_wrong_token_gets_nothing_and_is_not_told(sessile: Command, gateway: Serving, tmp_path: Path) -> None:
    """The command exits with code 7 and prints neither token."""
    token = tmp_path / "wrong.token"
    token.write_text("w" * 43)
    token.chmod(0o600)
    done = sessile("status", "--url", gateway.url, "--token-file", str(token))
    assert done.code == 7 and "w" * 43 not in done.err and gateway.token not in done.err
    assert "gateway.token of the gateway's store" in done.err


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--url", "http://127.0.0.1:1"], 2, "--token-file"),
        (["--token-file", "token"], 2, "--url"),
        (["--url", "ftp://127.0.0.1", "--token-file", "token"], 2, "invalid gateway URL"),
        (["--url", "http://me:secret@127.0.0.1", "--token-file", "token"], 2, "invalid gateway URL"),
        (["--url", "http://127.0.0.1:99999", "--token-file", "token"], 2, "port"),
        (["--url", "http://127.0.0.1:1", "--token-file", "token"], 3, "no gateway at"),
        (["--url", "http://127.0.0.1:1", "--token-file", "nowhere"], 3, "secret file not found"),
    ],
)
def test_what_cannot_be_asked_is_said_so(
    sessile: Command, home: Path, options: list[str], code: int, told: str
) -> None:
    """The error names what is missing."""
    (home / "token").write_text("t" * 43)
    (home / "token").chmod(0o600)
    done = sessile("status", *options)
    assert done.code == code and told in done.err and "hint:" in done.err
