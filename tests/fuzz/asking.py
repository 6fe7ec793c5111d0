"""Laws of user and program input: addresses, times, queries, commands, settings, requests and arguments of tools."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC
from functools import cache, partial
from typing import Any

import msgspec

from fuzz.mutator import text_of
from sessile import Library, Store
from sessile.config import load_config
from sessile.core.address import is_path, parse_address, relative, sub_agent
from sessile.core.chat_commands import AllowedModels, parse_command
from sessile.core.dates import parse_moment, parse_span
from sessile.core.ids import check_session_id
from sessile.core.words import Query, excerpt, indexed, marked, words_of
from sessile.errors import InvalidConfig, InvalidId, InvalidQuery, SessileError
from sessile.gateway.http.asgi import all_operations
from sessile.gateway.http.problems import Message
from sessile.gateway.http.wire import arguments
from sessile.mcp.access import Access, Call, Links, Masks, Scope
from sessile.mcp.tools import TOOLS, perform
from sessile.storage.filters import storable
from sessions import answer, begun, say

_NOW = 1_771_237_230_000
_MODELS = AllowedModels(("anthropic/claude-opus", "openai/gpt-5"))


def addresses(data: bytes) -> None:
    """An address is split without losing a character, or is refused."""
    text = text_of(data)
    try:
        parts = parse_address(text)
    except InvalidQuery:
        return
    marks = len(text) - sum(len(part or "") for part in parts)
    assert 0 <= marks <= 2, "a part of an address is lost"
    relative(parts.session)
    sub_agent(parts.session)
    is_path(parts.session)
    try:
        check_session_id(parts.session)
    except InvalidId:
        pass


def dates(data: bytes) -> None:
    """A time and a duration are whole milliseconds, or are refused."""
    text = text_of(data)
    for parse in (partial(parse_moment, text, _NOW, UTC), partial(parse_span, text)):
        try:
            assert isinstance(parse(), int)
        except InvalidQuery:
            pass


def queries(data: bytes) -> None:
    """Any text is a valid query for the index, and the index finds at least what a scan of the text finds."""
    asked, _, text = text_of(data).partition("\n")
    query = Query(asked)
    spans = query.find(text)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    "".join(part for part, _ in marked(excerpt(text, spans)))
    words_of(text)
    if query.terms:
        database = _table()
        database.execute("DELETE FROM texts")
        database.execute("INSERT INTO texts (text) VALUES (?)", (storable(indexed(text)),))
        found = database.execute("SELECT rowid FROM texts WHERE texts MATCH ?", (query.match(["text"]),)).fetchall()
        assert found or not spans, "the index promises less than there is"


@cache
def _table() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.execute('CREATE VIRTUAL TABLE texts USING fts5(text, tokenize = "unicode61 remove_diacritics 2")')
    return database


def commands(data: bytes) -> None:
    """Any message is parsed as a command or as none."""
    text = text_of(data)
    for authorised in (True, False):
        parse_command(text, authorised=authorised, models=_MODELS, mentions=("@bot", "sessile"))


def config(data: bytes) -> None:
    """Any file is a configuration, or is refused with its name."""
    for name in ("sessile.json", "sessile.toml"):
        try:
            load_config(data, name)
        except InvalidConfig as error:
            assert error.path == name


def requests(data: bytes) -> None:
    """Every operation of the gateway accepts any query, headers and body, or refuses them with a client error."""
    query, _, body = data.partition(b"\n")

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(name, query[:200]) for name in (b"idempotency-key", b"last-event-id", b"if-match", b"range")]
    for operation in _operations():
        scope: dict[str, Any] = {"type": "http", "query_string": query, "headers": headers}
        try:
            _finished(arguments(operation, scope, receive))
        except SessileError as error:
            assert error.status < 500


def _finished(work: Any) -> None:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("reading a request has waited")


@cache
def _operations() -> list[Any]:
    return [one for one in all_operations() if one.query or one.headers or one.body]


def tools(data: bytes) -> None:
    """Every tool answers any arguments with valid JSON."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return
    if not isinstance(value, dict):
        return
    for name in TOOLS:
        outcome = perform(_access(), Call(), name, value)
        json.loads(outcome.text)


@cache
def _access() -> Access:
    store = Store.in_memory()
    with begun(store) as session:
        say(session, "how do we retry the webhook")
        answer(session, "twice")
    return Access(
        lambda: Library(store, ()),
        store,
        scope=Scope(),
        masks=Masks(show_secrets=False),
        links=Links("sessile", lambda: None),
        zone=UTC,
    )
