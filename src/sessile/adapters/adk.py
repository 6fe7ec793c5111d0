"""Session service for Google's Agent Development Kit, backed by a `Store`.

    service = SessileSessionService(Store("~/.sessile"))
    runner = Runner(app_name="farm", agent=agent, session_service=service)

Rules:

- An ADK session is a native session. An event becomes a readable entry (a message, tool results or a custom entry), and the
  rest of the event is stored beside it. The states of an app (`app:`) and of a user (`user:`) are sessions of their own, in
  which every entry is a change.
- An event is appended after the last event that its session has seen; otherwise `StaleSessionError` is raised. The revision is
  the id of the last event's entry.
- The same event is stored once. Partial events and `temp:` state are never stored. The event is stored before the states of
  app and user; after a crash in between, delivering the event again completes them.
- A state is the last snapshot and the changes since; every 64th change is stored with a snapshot. Values that JSON cannot
  represent are stored as text.
- Calls run in threads. A call that has started runs to its end, even if it is cancelled.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

from anyio import to_thread
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from pydantic_core import to_jsonable_python

from sessile.adapters.named_sessions import NamedSessions
from sessile.core import entries as make
from sessile.core.codec import decode, encode
from sessile.core.entries import Payload
from sessile.core.ids import derived_entry_id, sha256
from sessile.core.large import survives
from sessile.errors import LeafMoved
from sessile.session import Session as Log
from sessile.store import Store

Json = dict[str, Any]

MEMBER = "adk"  # the member of an entry with its note: the event and its state
_SNAPSHOT = 64  # changes between two snapshots of a state
_CREATED = "adk.session"


class SessileSessionService(BaseSessionService):
    """An ADK session service that keeps its sessions in a store.

    Args:
        store: The store; it may be a folder, a database or in memory. Several services and processes may share it.

    Example:
        ```python
        service = SessileSessionService(Store("~/.sessile"))
        session = await service.create_session(app_name="farm", user_id="ada")
        await service.append_event(session, event)
        ```
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions = NamedSessions(store, "adk")
        self._states = NamedSessions(store, "adk-state")

    def close(self) -> None:
        """Close the session files that are kept open."""
        self._sessions.close()
        self._states.close()

    # -- the service

    async def create_session(
        self, *, app_name: str, user_id: str, state: Json | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session.

        Args:
            app_name: The app.
            user_id: The user.
            state: The initial state; `app:` and `user:` members go to the shared states.
            session_id: The id; a new UUID by default.

        Returns:
            The session, without events.

        Raises:
            AlreadyExistsError: The id is in use.
        """
        own_id = (session_id or "").strip() or str(uuid.uuid4())
        return await to_thread.run_sync(partial(self._create, _Owner(app_name, user_id), own_id, state or {}))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events.

        Args:
            app_name: The app.
            user_id: The user.
            session_id: The id.
            config: Which events to include; all by default.

        Returns:
            The session, or `None` if it does not exist.
        """
        wanted = config or GetSessionConfig()
        return await to_thread.run_sync(partial(self._get, _Owner(app_name, user_id), session_id.strip(), wanted))

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of a user, or of all users, without events; the most recently changed one is last."""
        return ListSessionsResponse(sessions=await to_thread.run_sync(partial(self._list, app_name, user_id)))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Move a session to the trash of the store, from where `Store.undo` restores it; shared states stay.

        Does nothing if the session does not exist.
        """
        scope = _Owner(app_name, user_id).scope
        await to_thread.run_sync(partial(self._sessions.delete, scope, session_id.strip()))

    async def get_user_state(self, *, app_name: str, user_id: str) -> Json:
        """Return the state that all sessions of a user share, without the `user:` prefix."""
        return await to_thread.run_sync(partial(self._state, "user", _Owner(app_name, user_id).scope))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event to a session; it is durable when this returns.

        Args:
            session: The session, which is updated.
            event: The event. Partial events are not stored.

        Returns:
            The event.

        Raises:
            StaleSessionError: The session has events in the store that `session` lacks; get it again.
            SessionNotFoundError: The session does not exist.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        stored = await to_thread.run_sync(partial(self._append, session, event))
        if stored.repeated and stored.before != session._storage_update_marker:
            return event  # the session has it already, or lacks earlier events too
        session.last_update_time = event.timestamp
        session._storage_update_marker = stored.revision
        return self._commit_event_to_session(session, event)

    # -- in threads

    def _create(self, owner: _Owner, session_id: str, state: Json) -> Session:
        session_state, of_app, of_user = _scoped(_json_of(state))
        log = self._sessions.open(owner.scope, session_id)
        note = {"state": session_state, "time": self._store.now() / 1000}
        receipt = log.append_many(
            [make.custom(_CREATED, _storable(note))], expected_leaf=make.ROOT, key=_CREATED, on_leaf_moved="fail"
        )[0]
        if receipt.repeated:
            raise AlreadyExistsError(f"Session with id {session_id} already exists.")
        self._change_states(owner, of_app, of_user, key=str(uuid.uuid4()))
        return _session(owner, session_id, session_state | self._shared(owner), _Note(receipt.id, note))

    def _get(self, owner: _Owner, session_id: str, config: GetSessionConfig) -> Session | None:
        log = self._sessions.find(owner.scope, session_id)
        last = None if log is None else _last_note(log)
        if log is None or last is None:
            return None
        state = _state_at(log, last.id) | self._shared(owner)
        return _session(owner, session_id, state, last, _events(log, last.id, config))

    def _list(self, app_name: str, user_id: str | None) -> list[Session]:
        scope = None if user_id is None else _Owner(app_name, user_id).scope
        found = []
        shared: dict[_Owner, Json] = {}
        # Times have milliseconds; among equal ones the sort keeps the order in which the files were changed.
        for named in reversed(self._sessions.list(scope)):
            owner = _Owner.of(named.scope)
            log = self._sessions.find(named.scope, named.name) if owner.app == app_name else None
            last = None if log is None else _last_note(log)
            if log is not None and last is not None:
                if owner not in shared:
                    shared[owner] = self._shared(owner)
                found.append(_session(owner, named.name, _state_at(log, last.id) | shared[owner], last))
        return sorted(found, key=lambda session: session.last_update_time)

    def _append(self, session: Session, event: Event) -> _Stored:
        owner = _Owner(session.app_name, session.user_id)
        log = self._sessions.find(owner.scope, session.id)
        data: Json = decode(event.model_dump_json(exclude_none=True, by_alias=True).encode())
        key = f"{event.id} {sha256(encode(data)).hexdigest()}"
        own, of_app, of_user = _scoped(_delta_of({"event": data}))
        while True:
            last = None if log is None else _last_note(log)
            if log is None or last is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            known = log.get_entry(derived_entry_id(log.id, key, 0)) is not None
            if not known and _is_stale(session, last):
                raise StaleSessionError(f"Session {session.id} is stale; get it again.")
            payloads = self._payloads(data, _snapshot(log, last, own))
            try:
                receipts = log.append_many(payloads, expected_leaf=last.leaf, key=key, on_leaf_moved="fail")
                break
            except LeafMoved:
                continue  # by another event, or by an unrelated entry such as a title
        self._change_states(owner, of_app, of_user, key)
        before = next(_notes_up(log, receipts[0].parent_id)) if known else last
        return _Stored(receipts[-1].id, before.id, known)

    def _payloads(self, event: Json, snapshot: Json) -> list[Payload]:
        """Return the entries of an event; the last one has the note."""
        *others, last = entries_of(event)
        rest, how = rest_of(event, last)
        stored_as = {} if how is None else {"told": how}
        return [*others, {**last, MEMBER: _storable({"event": rest, **stored_as, **snapshot})}]

    # -- states of apps and users

    def _state(self, scope: str, name: str) -> Json:
        log = self._states.find(scope, name)
        last = None if log is None else _last_note(log)
        return {} if log is None or last is None else _state_at(log, last.id)

    def _shared(self, owner: _Owner) -> Json:
        """Return the states of app and user with their prefixes."""
        of_app = {f"{State.APP_PREFIX}{name}": value for name, value in self._state("app", owner.app).items()}
        of_user = {f"{State.USER_PREFIX}{name}": value for name, value in self._state("user", owner.scope).items()}
        return of_app | of_user

    def _change_states(self, owner: _Owner, of_app: Json, of_user: Json, key: str) -> None:
        if of_app:
            self._change("app", owner.app, of_app, key)
        if of_user:
            self._change("user", owner.scope, of_user, key)

    def _change(self, scope: str, name: str, delta: Json, key: str) -> None:
        log = self._states.open(scope, name, title=f"State of {scope} {name}")
        while True:
            last = _last_note(log)
            snapshot = {"state": delta} if last is None else _snapshot(log, last, delta)
            change = make.custom("adk.state", _storable({"delta": delta, **snapshot}))
            leaf = make.ROOT if last is None else last.leaf
            try:
                log.append_many([change], expected_leaf=leaf, key=key, on_leaf_moved="fail")
                return
            except LeafMoved:
                continue  # another change came first


class _Owner(NamedTuple):
    """The app and user of a session, with a unique scope."""

    app: str
    user: str

    @property
    def scope(self) -> str:
        return f"{self.app.replace('%', '%25').replace('/', '%2F')}/{self.user}"

    @classmethod
    def of(cls, scope: str) -> _Owner:
        app, _, user = scope.partition("/")
        return cls(app.replace("%2F", "/").replace("%25", "%"), user)


class _Stored(NamedTuple):
    revision: str
    before: str  # the revision before the event
    repeated: bool


# -- notes: events and states beside the entries of a log


class _Note(NamedTuple):
    """The note of an entry, and the leaf of the log when it was read: entries between them have no note."""

    id: str
    data: Json
    leaf: str = ""

    @property
    def time(self) -> float:
        return float(self.data.get("event", {}).get("timestamp") or self.data.get("time") or 0.0)


def _last_note(log: Log) -> _Note | None:
    log.follow()
    leaf = log.leaf_id
    note = None if leaf is None else next(_notes_up(log, leaf), None)
    return None if note is None or leaf is None else note._replace(leaf=leaf)


def _notes_up(log: Log, entry_id: str | None) -> Iterator[_Note]:
    """Yield the notes from an entry up to the first one."""
    rows = log.walk_up(entry_id)
    size = 1  # usually the first is enough
    while batch := list(islice(rows, size)):
        size = _SNAPSHOT
        for entry in reversed(list(log.read_rows(batch[::-1]))):
            data = _note_of(entry.body)
            if data is not None:
                yield _Note(entry.id, data)


def _note_of(body: Payload) -> Json | None:
    kept = body.get("data") if body.get("customType") in (_CREATED, "adk.state") else body.get(MEMBER)
    if isinstance(kept, dict) and "text" in kept:
        kept = decode(kept["text"].encode())
    if isinstance(kept, dict) and "told" in kept:
        return {**kept, "event": whole(kept["event"], kept["told"], body)}
    return kept


def _storable(note: Json) -> Json:
    """Return a note as it is stored: as text if JSON would change it."""
    raw = encode(note)
    return note if survives(raw) else {"text": raw.decode()}


def _snapshot(log: Log, last: _Note, delta: Json) -> Json:
    """Return the distance from the last snapshot, or a new snapshot when it is due."""
    since = last.data.get("since", 0) + 1
    return {"since": since} if since < _SNAPSHOT else {"state": {**_state_at(log, last.id), **delta}}


def _state_at(log: Log, entry_id: str) -> Json:
    state: Json = {}
    deltas = []
    for note in _notes_up(log, entry_id):
        if "state" in note.data:
            state = dict(note.data["state"])
            break
        deltas.append(_scoped(_delta_of(note.data))[0] if "event" in note.data else note.data["delta"])
    for delta in reversed(deltas):
        state |= delta
    return state


def _delta_of(note: Json) -> Json:
    return note["event"].get("actions", {}).get("stateDelta") or {}


def _scoped(delta: Json) -> tuple[Json, Json, Json]:
    """Split a change into those of session, app and user; temporary members are dropped."""
    scopes: dict[str, Json] = {State.APP_PREFIX: {}, State.USER_PREFIX: {}, State.TEMP_PREFIX: {}, "": {}}
    for name, value in delta.items():
        prefix = next(prefix for prefix in scopes if name.startswith(prefix))
        scopes[prefix][name.removeprefix(prefix)] = value
    return scopes[""], scopes[State.APP_PREFIX], scopes[State.USER_PREFIX]


def _json_of(state: Json) -> Json:
    return cast(Json, to_jsonable_python(state, fallback=str, inf_nan_mode="null"))


def _session(owner: _Owner, session_id: str, state: Json, last: _Note, events: list[Event] | None = None) -> Session:
    session = Session(
        id=session_id,
        app_name=owner.app,
        user_id=owner.user,
        state=state,
        events=events or [],
        last_update_time=last.time,
    )
    session._storage_update_marker = last.id
    return session


def _is_stale(session: Session, last: _Note) -> bool:
    if session._storage_update_marker is not None:
        return session._storage_update_marker != last.id
    # The session was constructed by hand, or restored from JSON.
    known = session.events[-1].id if session.events else None
    return last.time > session.last_update_time and last.data.get("event", {}).get("id") != known


def _events(log: Log, last: str, config: GetSessionConfig) -> list[Event]:
    """Return the events up to an entry, limited by `config`."""
    if config.num_recent_events == 0:
        return []
    events = (note.data["event"] for note in _notes_up(log, last) if "event" in note.data)
    after = config.after_timestamp
    wanted = events if after is None else (event for event in events if event["timestamp"] >= after)
    newest_first = list(islice(wanted, config.num_recent_events))
    return [Event.model_validate_json(encode(event)) for event in reversed(newest_first)]


# -- events as entries

_PLAIN, _URL_SAFE = str.maketrans("-_", "+/"), str.maketrans("+/", "-_")


def entries_of(event: Json) -> list[Payload]:
    """Return the entries of an event: one per tool result, and at least one.

    Content becomes a message of the user or the assistant, function responses become tool results, and everything else a
    custom entry.
    """
    messages = _messages(event)
    return [{"type": "message", "message": message} for message in messages] or [
        {"type": "custom", "customType": "adk.event"}
    ]


def rest_of(event: Json, entry: Payload) -> tuple[Json, str | None]:
    """Return the part of an event that its entry does not contain, and how `whole` restores the rest."""
    for how in ("parts", "response"):
        rest = _without_content(event, how)
        if rest is not None and "message" in entry and whole(rest, how, entry) == event:
            return rest, how
    return event, None


def whole(rest: Json, how: str, entry: Payload) -> Json:
    """Restore an event from `rest_of` and its entry."""
    content, blocks = rest["content"], entry["message"]["content"]
    if how == "parts":
        return {**rest, "content": {**content, "parts": [_part(block) for block in blocks]}}
    (part,) = content["parts"]
    response = dict.fromkeys(part["functionResponse"]["response"], blocks[0]["text"])
    return {**rest, "content": {**content, "parts": [_answering(part, response)]}}


def _without_content(event: Json, how: str) -> Json | None:
    """Return an event without what its message contains: all parts, or the text of its only tool result."""
    content = event.get("content", {})
    if how == "parts":
        return {**event, "content": {name: value for name, value in content.items() if name != "parts"}}
    parts = content.get("parts") or []
    response = parts[0].get("functionResponse", {}).get("response") or {} if len(parts) == 1 else {}
    if len(response) != 1:
        return None
    return {**event, "content": {**content, "parts": [_answering(parts[0], dict.fromkeys(response))]}}


def _answering(part: Json, response: Json) -> Json:
    return {**part, "functionResponse": {**part["functionResponse"], "response": response}}


def _messages(event: Json) -> list[Json]:
    parts = event.get("content", {}).get("parts") or []
    results = [part["functionResponse"] for part in parts if "functionResponse" in part]
    blocks = [_block(part) for part in parts if "functionResponse" not in part]
    at = {"timestamp": int(event["timestamp"] * 1000)}
    if results:
        messages = [{**_result(result), **at} for result in results]
        messages[-1]["content"] += blocks
        return messages
    if not blocks and "errorCode" not in event:
        return []
    if "user" in (event.get("author"), event.get("content", {}).get("role")):
        return [{"role": "user", "content": blocks, **at}]
    return [{**_answer(event, blocks), **at}]


def _answer(event: Json, blocks: list[Json]) -> Json:
    answer: Json = {"role": "assistant", "content": blocks, "api": "google-generative-ai", "provider": "google"}
    answer |= {"model": event.get("modelVersion") or "unknown", "usage": _usage(event.get("usageMetadata") or {})}
    calls = any(block["type"] == "toolCall" for block in blocks)
    answer["stopReason"] = "length" if event.get("finishReason") == "MAX_TOKENS" else "toolUse" if calls else "stop"
    if "errorCode" in event:
        answer |= {"stopReason": "error", "errorMessage": event.get("errorMessage") or event["errorCode"]}
    return answer


def _usage(counted: Json) -> Json:
    """Return the token counts of an entry: cached tokens are not input, thoughts are output, unknown counts are omitted."""
    cached = counted.get("cachedContentTokenCount")
    usage = {"cacheRead": cached, "totalTokens": counted.get("totalTokenCount")}
    if "promptTokenCount" in counted:
        usage["input"] = counted["promptTokenCount"] - (cached or 0)
    if "candidatesTokenCount" in counted:
        usage["output"] = counted["candidatesTokenCount"] + (counted.get("thoughtsTokenCount") or 0)
    return {name: count for name, count in usage.items() if count is not None}


def _result(result: Json) -> Json:
    response = result.get("response") or {}
    name, value = next(iter(response.items()), ("", "")) if len(response) == 1 else ("", None)
    text = value if isinstance(value, str) else encode(response).decode()
    message = {"role": "toolResult", "toolCallId": result.get("id") or "", "toolName": result.get("name") or ""}
    return {**message, "content": [{"type": "text", "text": text}], "isError": name == "error"}


def _block(part: Json) -> Json:
    """Return a part as a block of a native message; unknown parts are kept as they are."""
    sealed = {"thoughtSignature": part["thoughtSignature"]} if "thoughtSignature" in part else {}
    if part.get("thought") and "text" in part:
        return {"type": "thinking", "thinking": part["text"], **sealed}
    if "text" in part:
        return {"type": "text", "text": part["text"], **sealed}
    if "functionCall" in part:
        call = part["functionCall"]
        return {
            "type": "toolCall",
            "id": call.get("id"),
            "name": call.get("name"),
            "arguments": call.get("args"),
            **sealed,
        }
    if str(part.get("inlineData", {}).get("mimeType")).startswith("image/"):
        picture = part["inlineData"]
        return {"type": "image", "data": picture["data"].translate(_PLAIN), "mimeType": picture["mimeType"], **sealed}
    return {"type": next(iter(part), "nothing"), "part": part}


def _part(block: Json) -> Json:
    """Return the part of a block; the inverse of `_block`."""
    sealed = {"thoughtSignature": block["thoughtSignature"]} if "thoughtSignature" in block else {}
    kind = block["type"]
    if kind == "thinking":
        return {"text": block["thinking"], "thought": True, **sealed}
    if kind == "text":
        return {"text": block["text"], **sealed}
    if kind == "toolCall":
        call = {"id": block["id"], "name": block["name"], "args": block["arguments"]}
        return {"functionCall": {name: value for name, value in call.items() if value is not None}, **sealed}
    if kind == "image":
        return {"inlineData": {"data": block["data"].translate(_URL_SAFE), "mimeType": block["mimeType"]}, **sealed}
    return cast(Json, block["part"])
