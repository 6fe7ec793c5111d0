"""Sessions of Google's Agent Development Kit in a store of ours: its session service.

    runner = Runner(app_name="farm", agent=agent, session_service=SessileSessionService(Store("~/.sessile")))

Rules:

- A session is one of ours; an event becomes the entry that people can read, which carries the rest of the event. The states of
  an app (`app:`) and of a user (`user:`) are sessions of their own, in which every entry is a change.
- An event goes behind the last one that its session has seen; if there is another by now, `StaleSessionError`. The revision
  is the id of the last event's entry.
- The same event again is stored once. Partial events and `temp:` state are never stored. The event comes first, then the states
  of app and user: if a crash came between, delivering the event again completes it.
- A state is what the last snapshot says, with the changes since; every 64th change is stored with a snapshot. Values that JSON
  cannot say are stored as their text.
- Deleting moves to the trash of the store: `Store.deletions` lists it, `Store.undo` (`sessile undo`) brings it back. States of
  apps and users stay.

Calls run on threads; one that has begun runs to its end.

Events of Google's Agent Development Kit as entries of ours, and back.

    content with parts        a message of the user or of the assistant; blocks in our shapes
    function responses        tool results, one for each
    everything else           a custom entry

Rules: an event is what its JSON says, with the names that it has on the wire. What the message tells anyway need not be kept
beside it: `rest_of` gives what is missing to the event, `whole` puts it together again.
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
from sessile.core.large import may_hold_refs, survives
from sessile.errors import LeafMoved
from sessile.session import Session as Log
from sessile.store import Store

# --- adk events

_PLAIN, _URL_SAFE = str.maketrans("-_", "+/"), str.maketrans("+/", "-_")


def entries_of(event: Json) -> list[Payload]:
    """The entries that an event becomes: of several tool results one for each, and always at least one."""
    messages = _messages(event)
    return [{"type": "message", "message": message} for message in messages] or [
        {"type": "custom", "customType": "adk.event"}
    ]


def rest_of(event: Json, entry: Payload) -> tuple[Json, str | None]:
    """What is left of an event if the entry tells its content, and how it does; the whole event if it does not."""
    for how in ("parts", "response"):
        rest = _without_content(event, how)
        if rest is not None and "message" in entry and whole(rest, how, entry) == event:
            return rest, how
    return event, None


def whole(rest: Json, how: str, entry: Payload) -> Json:
    """The event again, of its rest and its entry."""
    content, told = rest["content"], entry["message"]["content"]
    if how == "parts":
        return {**rest, "content": {**content, "parts": [_part(block) for block in told]}}
    (part,) = content["parts"]
    response = dict.fromkeys(part["functionResponse"]["response"], told[0]["text"])
    return {**rest, "content": {**content, "parts": [_answering(part, response)]}}


def _without_content(event: Json, how: str) -> Json | None:
    """An event without what its message tells: all parts, or the text of its only tool result."""
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
    """Tokens as we count them: those from the cache are no input, thoughts are output; what nobody counted is left out."""
    cached = counted.get("cachedContentTokenCount")
    usage = {"cacheRead": cached, "totalTokens": counted.get("totalTokenCount")}
    if "promptTokenCount" in counted:
        usage["input"] = counted["promptTokenCount"] - (cached or 0)
    if "candidatesTokenCount" in counted:
        usage["output"] = counted["candidatesTokenCount"] + (counted.get("thoughtsTokenCount") or 0)
    return {name: count for name, count in usage.items() if count is not None}


def _result(result: Json) -> Json:
    response = result.get("response") or {}
    name, told = next(iter(response.items()), ("", "")) if len(response) == 1 else ("", None)
    text = told if isinstance(told, str) else encode(response).decode()
    message = {"role": "toolResult", "toolCallId": result.get("id") or "", "toolName": result.get("name") or ""}
    return {**message, "content": [{"type": "text", "text": text}], "isError": name == "error"}


def _block(part: Json) -> Json:
    """A part as one of our blocks; what we have none for stays as it is."""
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
    """The part that `_block` has made a block of."""
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


# --- adk

Json = dict[str, Any]

MEMBER = "adk"  # of an entry: its note, that is, the event and what is known of the state
_SNAPSHOT = 64  # changes between two snapshots of a state
_CREATED = "adk.session"


class SessileSessionService(BaseSessionService):
    """The sessions of ADK agents, in any store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions = NamedSessions(store, "adk")
        self._states = NamedSessions(store, "adk-state")

    def close(self) -> None:
        """Free the files that are kept open."""
        self._sessions.close()
        self._states.close()

    # -- the service

    async def create_session(
        self, *, app_name: str, user_id: str, state: Json | None = None, session_id: str | None = None
    ) -> Session:
        """Begin a session; `AlreadyExistsError` if there is one of that id."""
        own_id = (session_id or "").strip() or str(uuid.uuid4())
        return await to_thread.run_sync(partial(self._create, _Owner(app_name, user_id), own_id, state or {}))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """A session with its events, or with those that `config` asks for; `None` if there is none."""
        wanted = config or GetSessionConfig()
        return await to_thread.run_sync(partial(self._get, _Owner(app_name, user_id), session_id.strip(), wanted))

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """The sessions of a user, or of all, without events; the one that was changed last comes last."""
        return ListSessionsResponse(sessions=await to_thread.run_sync(partial(self._list, app_name, user_id)))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Move a session to the trash, if there is one."""
        scope = _Owner(app_name, user_id).scope
        await to_thread.run_sync(partial(self._sessions.delete, scope, session_id.strip()))

    async def get_user_state(self, *, app_name: str, user_id: str) -> Json:
        """The state that all sessions of a user share, without the prefix."""
        return await to_thread.run_sync(partial(self._state, "user", _Owner(app_name, user_id).scope))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event, and bring the session up to it; it is durable when this returns."""
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        stored = await to_thread.run_sync(partial(self._append, session, event))
        if stored.repeated and stored.before != session._storage_update_marker:
            return event  # the session has it already, or lacks more than it
        session.last_update_time = event.timestamp
        session._storage_update_marker = stored.revision
        return self._commit_event_to_session(session, event)

    # -- on threads

    def _create(self, owner: _Owner, session_id: str, state: Json) -> Session:
        session_state, of_app, of_user = _scoped(_json_of(state))
        log = self._sessions.open(owner.scope, session_id)
        note = {"state": session_state, "time": self._store.now() / 1000}
        receipt = log.append_many(
            [make.custom(_CREATED, _kept(note))], expected_leaf=make.ROOT, key=_CREATED, on_leaf_moved="fail"
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
        for named in self._sessions.list(scope):
            owner = _Owner.of(named.scope)
            log = self._sessions.find(named.scope, named.name) if owner.app == app_name else None
            last = None if log is None else _last_note(log)
            if log is not None and last is not None:
                if owner not in shared:
                    shared[owner] = self._shared(owner)
                found.append(_session(owner, named.name, _state_at(log, last.id) | shared[owner], last))
        return sorted(found, key=lambda session: (session.last_update_time, session.user_id, session.id))

    def _append(self, session: Session, event: Event) -> _Stored:
        owner = _Owner(session.app_name, session.user_id)
        log = self._sessions.find(owner.scope, session.id)
        told: Json = decode(event.model_dump_json(exclude_none=True, by_alias=True).encode())
        key = f"{event.id} {sha256(encode(told)).hexdigest()}"
        own, of_app, of_user = _scoped(_delta_of({"event": told}))
        while True:
            last = None if log is None else _last_note(log)
            if log is None or last is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            known = log.get_entry(derived_entry_id(log.id, key, 0)) is not None
            if not known and _is_stale(session, last):
                raise StaleSessionError(f"Session {session.id} has events that the caller has not seen; get it again.")
            payloads = self._payloads(told, _standing(log, last, own))
            try:
                receipts = log.append_many(payloads, expected_leaf=last.leaf, key=key, on_leaf_moved="fail")
                break
            except LeafMoved:
                continue  # by another event, or only by somebody who named the session
        self._change_states(owner, of_app, of_user, key)
        before = next(_notes_up(log, receipts[0].parent_id)) if known else last
        return _Stored(receipts[-1].id, before.id, known)

    def _payloads(self, event: Json, standing: Json) -> list[Payload]:
        """The entries that an event becomes; the last of them has the note."""
        *others, last = entries_of(event)
        rest, how = rest_of(event, last)
        told = {} if how is None else {"told": how}
        return [*others, {**last, MEMBER: _kept({"event": rest, **told, **standing})}]

    # -- states of apps and users

    def _state(self, scope: str, name: str) -> Json:
        log = self._states.find(scope, name)
        last = None if log is None else _last_note(log)
        return {} if log is None or last is None else _state_at(log, last.id)

    def _shared(self, owner: _Owner) -> Json:
        """The states of app and user, as the state of a session names them."""
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
            standing = {"state": delta} if last is None else _standing(log, last, delta)
            change = make.custom("adk.state", _kept({"delta": delta, **standing}))
            leaf = make.ROOT if last is None else last.leaf
            try:
                log.append_many([change], expected_leaf=leaf, key=key, on_leaf_moved="fail")
                return
            except LeafMoved:
                continue  # another change was faster, and is looked at first


class _Owner(NamedTuple):
    """Whose session it is. The scope that is made of it is that of no other."""

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
    before: str  # the revision that the event came behind
    repeated: bool


# -- notes: what the entries of a log tell of events and states


class _Note(NamedTuple):
    """The note of an entry, and the leaf of the log when it was looked for: what hangs from the entry since has none."""

    id: str
    told: Json
    leaf: str = ""

    @property
    def time(self) -> float:
        return float(self.told.get("event", {}).get("timestamp") or self.told.get("time") or 0.0)


def _last_note(log: Log) -> _Note | None:
    log.follow()
    leaf = log.leaf_id
    note = None if leaf is None else next(_notes_up(log, leaf), None)
    return None if note is None or leaf is None else note._replace(leaf=leaf)


def _notes_up(log: Log, entry_id: str | None) -> Iterator[_Note]:
    """The notes from an entry to the first."""
    rows = log.walk_up(entry_id)
    size = 1  # mostly the first is enough
    while batch := list(islice(rows, size)):
        size = _SNAPSHOT
        for entry in reversed(list(log.read_rows(batch[::-1]))):
            told = _note_of(log.get_full_entry(entry.id) if may_hold_refs(entry.raw) else entry.body)
            if told is not None:
                yield _Note(entry.id, told)


def _note_of(body: Payload) -> Json | None:
    kept = body.get("data") if body.get("customType") in (_CREATED, "adk.state") else body.get(MEMBER)
    if isinstance(kept, dict) and "text" in kept:
        kept = decode(kept["text"].encode())
    if isinstance(kept, dict) and "told" in kept:
        return {**kept, "event": whole(kept["event"], kept["told"], body)}
    return kept


def _kept(note: Json) -> Json:
    raw = encode(note)
    return note if survives(raw) else {"text": raw.decode()}


def _standing(log: Log, last: _Note, delta: Json) -> Json:
    """What a new note says of the state: how far the last snapshot is, or a new one."""
    since = last.told.get("since", 0) + 1
    return {"since": since} if since < _SNAPSHOT else {"state": {**_state_at(log, last.id), **delta}}


def _state_at(log: Log, entry_id: str) -> Json:
    state: Json = {}
    deltas = []
    for note in _notes_up(log, entry_id):
        if "state" in note.told:
            state = dict(note.told["state"])
            break
        deltas.append(_scoped(_delta_of(note.told))[0] if "event" in note.told else note.told["delta"])
    for delta in reversed(deltas):
        state |= delta
    return state


def _delta_of(note: Json) -> Json:
    return note["event"].get("actions", {}).get("stateDelta") or {}


def _scoped(delta: Json) -> tuple[Json, Json, Json]:
    """What changes in the session, in the app and for the user; what is temporary is left out."""
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
    # A session that was made by hand, or has been written to JSON and back.
    seen = session.events[-1].id if session.events else None
    return last.time > session.last_update_time and last.told.get("event", {}).get("id") != seen


def _events(log: Log, last: str, config: GetSessionConfig) -> list[Event]:
    """The events up to an entry, as many of the last ones as wanted."""
    if config.num_recent_events == 0:
        return []
    told = (note.told["event"] for note in _notes_up(log, last) if "event" in note.told)
    after = config.after_timestamp
    wanted = told if after is None else (event for event in told if event["timestamp"] >= after)
    newest_first = list(islice(wanted, config.num_recent_events))
    return [Event.model_validate_json(encode(event)) for event in reversed(newest_first)]
