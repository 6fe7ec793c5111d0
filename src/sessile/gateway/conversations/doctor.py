"""Diagnosis of a gateway's store: problems with keys, bindings, transcripts and surroundings, and what to do about them.

    store         `sessions.json` is broken, or has undocumented values
    key           a key that cannot be reached, is spelled in two ways, or is in the store of another agent
    transcript    a binding without a file, a file outside, a file of another session, a file without a binding
    gateway       what a killed gateway left behind
    token         the token can be read by others
    clock         changes in the future, unknown time zones
    compaction    a session is compacted every few messages, because of a small window, a high reserve, or large tool results
    silence       an answer that is nearly silent (`NO_REPLY.`, `no_reply`) was delivered; one with more text was not
    memory        notes could not be saved before a compaction
    window        the context window of a model is unknown, so nothing is compacted before it is too late

Only the newest entries of each session are read. Nothing is changed or printed: findings are values.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

from sessile.agents.openclaw.binding_store import own_bindings
from sessile.agents.openclaw.document import BrokenStore, StoreDocument
from sessile.agents.openclaw.entries import SessionEntry
from sessile.agents.openclaw.keys import OTHER, SessionKey, normalize_agent_id, parse_key, render_key
from sessile.agents.openclaw.paths import StateFolder, agents_in, names_in
from sessile.agents.openclaw.routing import Peer, peer_key
from sessile.config import Agent, Config, local_zone
from sessile.core.compaction import CompactionSettings
from sessile.core.delivery import NO_REPLY, is_silent
from sessile.core.ids import check_session_id
from sessile.core.memory_flush import MAX_FAILURES, flushed_of
from sessile.core.messages.family import joined_text
from sessile.core.resets import previous_sessions, zones_named
from sessile.core.tokens import estimate
from sessile.errors import InvalidConfig, InvalidId, NotFound, SessileError, UnsafePath
from sessile.gateway.conversations.bindings import BoundSessions
from sessile.gateway.conversations.inbound import Keys, Routing
from sessile.gateway.conversations.presence import Presence
from sessile.session import Session
from sessile.storage.locks import is_held
from sessile.storage.secret_file import keep_secret
from sessile.storage.turn_log import TurnLog
from sessile.store import Store
from sessile.vendors.models import Models

Json = dict[str, Any]
Severity = Literal["damage", "warning", "note"]

MAX_ENTRIES = 400  # newest entries read of each session
_COMPACTIONS = 3  # in these entries; fewer say nothing about their frequency
_FEW = 5  # user messages between two compactions; with fewer the conversation loses its thread
_SMALL = 32_000  # tokens; the documented limit for a warning
_FREE = 4  # a quarter of the window is a high reserve
_FULL = 0.5  # of a context: tool results fill it
_EDGES = "*_`\"'.,:;!?()[]{}<>-–—…"  # characters that models put around a word
_EXCERPT = 40  # characters


class Advice(NamedTuple):
    """A problem: what, where, and what to do about it."""

    kind: str
    severity: Severity
    what: str
    where: str | None
    do: str


class Bloat(NamedTuple):
    """How many tokens of a context are tool results, and the tool with the most."""

    tokens: int
    results: int
    tool: str | None


def examine_session(
    key: str, agent: str, entry: SessionEntry, session: Session, config: Config, models: Models
) -> Iterator[Advice]:
    """Yield problems of one conversation."""
    newest = [session.read_row(row) for row in islice(session.walk_up(), MAX_ENTRIES)]
    settings = config.agents.named(agent)
    window = _window(entry, settings, models)
    yield from _silence(key, newest)
    yield from _compaction(key, newest, window, settings.compaction)


# -- compaction


def _window(entry: SessionEntry, agent: Agent, models: Models) -> int | None:
    """Return the context window of a conversation's model; `None` if unknown."""
    window = entry.known("contextWindow")
    if window is not None and window > 0:
        return int(window)
    provider, model = entry.known("modelProvider"), entry.known("model")
    name = f"{provider}/{model}" if provider and model else agent.model_name
    return (None if name is None else models.window(name)) or agent.context_tokens


def _compaction(key: str, newest: Sequence[Json], window: int | None, settings: CompactionSettings) -> Iterator[Advice]:
    places = [number for number, entry in enumerate(newest) if entry.get("type") == "compaction"][:_COMPACTIONS]
    if len(places) < _COMPACTIONS:
        return
    between = newest[places[0] : places[-1]]
    messages = sum(1 for entry in between if _role(entry) == "user")
    if messages >= _FEW * (_COMPACTIONS - 1):
        return
    reasons = list(_reasons(window, settings, bloat_of(newest[places[0] + 1 : places[1]])))
    problem = f"{key} is compacted too often: {messages} messages between its last {_COMPACTIONS} compactions"
    for why, do in reasons or [("long messages", "compact with instructions: /compact keep …")]:
        yield Advice("compaction", "warning", f"{problem}; reason: {why}", key, do)


def _reasons(window: int | None, settings: CompactionSettings, bloat: Bloat) -> Iterator[tuple[str, str]]:
    """Yield reasons for frequent compactions, and what helps."""
    if window is not None and window < _SMALL:
        yield (
            f"a small window, {window:,} tokens",
            "use a model with a larger window; if the number is wrong, set contextWindow of the model in the configuration",
        )
    elif window is not None and (reserve := settings.reserve(window)) * _FREE > window:
        floor = settings.reserve_tokens_floor > settings.reserve_tokens
        name = "reserveTokensFloor" if floor else "reserveTokens"
        yield (
            f"a high reserve, compaction.{name} keeps {reserve:,} of {window:,} tokens free",
            f"lower compaction.{name} of the agent; a quarter of the window, {window // _FREE:,}, is enough",
        )
    if bloat.tokens and bloat.results >= _FULL * bloat.tokens:
        most = "" if bloat.tool is None else f", most of it from {bloat.tool}"
        yield (
            f"tool-result bloat, {100 * bloat.results // bloat.tokens} % of the context are tool results{most}",
            "let tools return less, and set contextPruning of the agent so that old results are trimmed",
        )


def bloat_of(entries: Sequence[Json]) -> Bloat:
    """Return how much of some entries are tool results."""
    tokens = 0
    by_tool: Counter[str] = Counter()
    for entry in entries:
        message = entry.get("message")
        if not isinstance(message, dict):
            continue
        size = estimate(message)
        tokens += size
        if message.get("role") == "toolResult":
            by_tool[str(message.get("toolName") or "?")] += size
    most = by_tool.most_common(1)
    return Bloat(tokens, by_tool.total(), most[0][0] if most else None)


def examine_agent(agent: str, config: Config, models: Models) -> Iterator[Advice]:
    """Yield problems of an agent's compaction settings."""
    settings = config.agents.named(agent)
    provider, model = config.model_of(agent)
    if model is None or settings.context_tokens is not None:
        return
    name = f"{provider}/{model}" if provider else model
    if models.window(name) is None:
        yield Advice(
            "window",
            "warning",
            f"the context window of {name} is unknown, so {agent} compacts only after a request has failed",
            f"agents.{agent}",
            "set contextTokens of the agent, or contextWindow of the model, in the configuration",
        )


# -- silence


def _silence(key: str, newest: Sequence[Json]) -> Iterator[Advice]:
    for entry in newest:
        if _role(entry) != "assistant":
            continue
        text = joined_text(entry["message"].get("content")).strip()
        where = f"{key} at entry {entry.get('id')}"
        if is_silent(text):
            rest = text.removeprefix(NO_REPLY).strip()
            if rest:
                problem = f"an answer was not delivered although it has more text than {NO_REPLY}: {_excerpt(rest)}"
                do = f"tell the model to answer with {NO_REPLY} alone, or with an answer"
                yield Advice("silence", "note", problem, where, do)
        elif nearly_silent(text):
            problem = f"a silent answer was delivered, because it is not exactly {NO_REPLY}: {_excerpt(text)}"
            yield Advice(
                "silence",
                "warning",
                problem,
                where,
                f"tell the model to start with {NO_REPLY}, followed by a space or nothing",
            )


def nearly_silent(text: str) -> bool:
    """Return whether a delivered text looks as if it was meant to be silent."""
    words = text.split()
    if not words or is_silent(text):
        return False
    first, last = words[0], words[-1]
    return first.startswith(NO_REPLY) or NO_REPLY in (first.strip(_EDGES).upper(), last.strip(_EDGES))


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _EXCERPT else f"{line[:_EXCERPT]}…")


def _role(entry: Json) -> str | None:
    message = entry.get("message")
    return message.get("role") if isinstance(message, dict) else None


# -- notes


def examine_notes(key: str, entry: SessionEntry) -> Iterator[Advice]:
    """Yield a problem if notes were lost before a compaction."""
    detail = entry.known("memoryFlush")
    if detail is None or detail.get("kind") != "failed":
        return
    failures = flushed_of(entry).failures
    ended = failures >= MAX_FAILURES
    then = "not retried before the next compaction" if ended else "retried with the next message"
    problem = f"the notes of {key} could not be saved: {failures} failures, {then}"
    yield Advice("memory", "warning", problem, key, "check the agent's workspace, its memory folder, and its model")


# -- the whole store

_MINUTE = 60_000  # milliseconds
_ENDING = ".jsonl"


class Patient(NamedTuple):
    """What is examined. `workspace` returns the folder in which an agent works."""

    store: Store
    config: Config
    routing: Routing
    token_file: str
    workspace: Callable[[str], str]


def examine_conversations(patient: Patient) -> Iterator[Advice]:
    """Yield all problems of a store of conversations."""
    yield from _gateway(patient)
    yield from _token(patient)
    yield from _zones(patient.config)
    models = Models(patient.config.models.figures())
    for agent in agents_in(patient.store.fs, patient.store.layout.root, patient.routing.default_agent):
        yield from examine_agent(agent, patient.config, models)
        yield from _Examined(patient, agent, models).advice()


# -- the bindings of one agent


class _Examined:
    """Examines the bindings and transcripts of one agent."""

    def __init__(self, patient: Patient, agent: str, models: Models) -> None:
        self._patient = patient
        self._agent = agent
        self._models = models
        self._keys = Keys(patient.routing)
        self._home = StateFolder(patient.store.layout.root)
        self._path = self._home.store(agent)
        self._sessions = BoundSessions(patient.store, self._home, patient.workspace, 0)

    def advice(self) -> Iterator[Advice]:
        """Yield all problems of this agent's conversations."""
        bindings = own_bindings(self._patient.store, self._agent)
        try:
            document = bindings.document()
        except BrokenStore as error:
            kept = bindings.good_entries()
            do = error.hint if kept is None else f"repair it, or run: cp {bindings.good} {self._path}"
            in_force = "" if kept is None else f"; {len(kept)} bindings of the last good copy are in force"
            yield Advice("store", "damage", f"{error.message}{in_force}", self._path, do or "")
            return
        yield from self._oddities(document)
        yield from self._spellings(document.entries)
        yield from self._times(document.entries)
        known: set[str] = set()
        for name, entry in document.entries.items():
            yield from self._key(name)
            yield from examine_notes(name, entry)
            yield from self._transcript(name, entry)
            known |= {one.session_id for one in previous_sessions(entry)} | {entry.session_id or ""}
        yield from self._unbound(known)
        yield from self._lock()

    def _oddities(self, document: StoreDocument) -> Iterator[Advice]:
        for key, place, misfit in document.oddities():
            problem = f"{misfit.name} of {key} is ignored: {misfit.detail}"
            where = f"{self._path}, line {place.line}, column {place.column}"
            yield Advice("store", "warning", problem, where, "correct or remove it")

    # -- keys

    def _key(self, name: str) -> Iterator[Advice]:
        try:
            key = parse_key(self._keys.spelling(self._agent, name))
        except InvalidId as error:
            do = "give the entry a valid key, or delete it"
            yield Advice("key", "warning", f"no message can reach {name}: {error.message}", self._path, do)
            return
        if key.kind == OTHER:
            problem = f"{name} matches no key pattern: it is found by its exact text only"
            yield Advice("key", "warning", problem, self._path, "check whether a segment is missing or repeated")
        if key.agent is not None and normalize_agent_id(key.agent) != normalize_agent_id(self._agent):
            problem = f"{name} is a key of the agent {key.agent}, but is in the store of {self._agent}"
            do = f"move the entry to {self._home.store(key.agent)}"
            yield Advice("key", "warning", problem, self._path, do)
        yield from self._reached(name, key)

    def _reached(self, name: str, key: SessionKey) -> Iterator[Advice]:
        """Yield a problem if messages of a direct chat no longer go to this key."""
        if key.kind != "direct" or key.channel is None or key.peer is None:
            return
        rules = self._patient.routing
        now = peer_key(
            key.agent or self._agent,
            key.channel,
            Peer("direct", key.peer),
            account=key.account,
            dm_scope=rules.dm_scope,
            identity_links=rules.identity_links,
            links_keep_channel=rules.links_keep_channel,
            main_key=rules.main_key,
        )
        if render_key(now) != self._keys.spelling(self._agent, name):
            problem = (
                f"messages of the chat {name} go to {render_key(now)}, because session.dmScope is {rules.dm_scope!r}"
            )
            yield Advice(
                "key", "note", problem, self._path, "set session.dmScope or identityLinks if that is not intended"
            )

    def _spellings(self, entries: Mapping[str, SessionEntry]) -> Iterator[Advice]:
        names: dict[str, list[str]] = {}
        for name in entries:
            names.setdefault(self._keys.spelling(self._agent, name), []).append(name)
        for key, same in names.items():
            if len(same) > 1:
                used = key if key in same else max(same, key=lambda name: entries[name].updated_at or 0)
                problem = f"{' and '.join(same)} are {len(same)} spellings of one conversation; {used} is used"
                yield Advice("key", "warning", problem, self._path, "keep one of the entries, and delete the others")

    # -- transcripts

    def _transcript(self, name: str, entry: SessionEntry) -> Iterator[Advice]:
        if entry.session_id is None and entry.session_file is None:
            return  # no session yet
        try:
            path = self._sessions.path_of(self._agent, entry)
        except UnsafePath as error:
            problem = f"{name} names a file outside its sessions folder: {error.path}"
            yield Advice("transcript", "damage", problem, self._path, error.hint or "")
            return
        except InvalidId as error:
            yield Advice("transcript", "damage", f"{name}: {error.message}", self._path, error.hint or "")
            return
        if path is None:
            problem = f"the session {entry.session_id} of {name} has no file; the next message starts a new one"
            do = "restore it from the trash (sessile trash), or delete the entry"
            yield Advice("transcript", "warning", problem, self._path, do)
            return
        try:
            with self._patient.store.open(path, readonly=True) as session:
                if entry.session_id is not None and session.id != entry.session_id:
                    problem = f"{name} is bound to {entry.session_id}, but its file belongs to session {session.id}"
                    yield Advice(
                        "transcript", "warning", problem, path, "correct sessionId or sessionFile of the entry"
                    )
                yield from examine_session(name, self._agent, entry, session, self._patient.config, self._models)
        except SessileError as error:
            problem = f"the session of {name} cannot be read: {error.message}"
            yield Advice("transcript", "damage", problem, path, f"run `sessile check {path}`")

    def _unbound(self, known: set[str]) -> Iterator[Advice]:
        folder = self._home.sessions(self._agent)
        for name in names_in(self._patient.store.fs, folder):
            session_id = name.removesuffix(_ENDING).partition("-topic-")[0]
            if name.endswith(_ENDING) and session_id not in known and _is_id(session_id):
                problem = f"no key is bound to the transcript {name}"
                do = f"read it with `sessile show {folder}/{name}`, or bind it with an entry that has this sessionFile"
                yield Advice("transcript", "note", problem, f"{folder}/{name}", do)
        yield from self._unused(known)

    def _unused(self, known: set[str]) -> Iterator[Advice]:
        """Yield sessions without a conversation in the agent's default workspace. Other workspaces hold other sessions, too."""
        if self._patient.config.agents.named(self._agent).workspace is not None:
            return
        folder = self._patient.store.layout.folder(self._patient.workspace(self._agent))
        names = [name for name in names_in(self._patient.store.fs, folder) if name.endswith(_ENDING)]
        count = sum(name.removesuffix(_ENDING).rpartition("_")[2] not in known for name in names)
        if count:
            sessions = "1 session" if count == 1 else f"{count} sessions"
            problem = f"{sessions} of {self._agent} without a conversation: deleted conversations or forks"
            yield Advice(
                "transcript",
                "note",
                problem,
                folder,
                "list them with `sessile ls`, delete old ones with `sessile prune`",
            )

    # -- times and locks

    def _times(self, entries: Mapping[str, SessionEntry]) -> Iterator[Advice]:
        limit = self._patient.store.now() + _MINUTE
        late = [name for name, entry in entries.items() if (entry.updated_at or 0) > limit]
        if late:
            more = f" and {len(late) - 1} more" if len(late) > 1 else ""
            problem = f"{late[0]}{more} changed in the future: a clock is or was wrong, and resets are off"
            yield Advice("clock", "warning", problem, self._path, "set the clock; the next message corrects the entry")

    def _lock(self) -> Iterator[Advice]:
        fs, path = self._patient.store.fs, f"{self._path}.lock"
        name = posixpath.basename(path)
        if name in names_in(fs, posixpath.dirname(path)) and not is_held(fs, path):
            yield Advice(
                "gateway",
                "note",
                "a program left its lock file behind",
                path,
                "nothing to do: the next change reuses it",
            )


def _is_id(text: str) -> bool:
    try:
        check_session_id(text)
    except InvalidId:
        return False
    return True


# -- surroundings


def _gateway(patient: Patient) -> Iterator[Advice]:
    presence = Presence(patient.store)
    noted = presence.look()
    alive = presence.is_held()
    if noted is not None and not alive:
        who = "" if noted.note is None else f" {noted.note.url} (process {noted.note.pid})"
        problem = f"the gateway{who} was killed, or the machine went down"
        yield Advice("gateway", "warning", problem, noted.path, "start it again with `sessile serve`, which cleans up")
    elif noted is not None and noted.note is None:
        problem = "the address of the gateway cannot be read"
        yield Advice("gateway", "warning", problem, noted.path, "restart the gateway")
    if not alive and (left := TurnLog(patient.store.fs, patient.store.layout.root).left()):
        problem = f"turns of {len(left)} sessions were not finished when the gateway stopped"
        do = "start it again with `sessile serve`: waiting messages are answered, started turns are marked as interrupted"
        yield Advice("gateway", "note", problem, None, do)


def _token(patient: Patient) -> Iterator[Advice]:
    try:
        keep_secret(patient.token_file, make=False, fs=patient.store.fs)
    except NotFound as error:
        if patient.config.gateway.token_file is not None:
            yield Advice("token", "damage", error.message, patient.token_file, error.hint or "")
    except SessileError as error:
        yield Advice("token", "damage", error.message, patient.token_file, error.hint or "")


def _zones(config: Config) -> Iterator[Advice]:
    # The machine's time zone is checked, too, unless the user's is configured.
    places: dict[str, str | None] = {"user.timeZone": config.user.time_zone, **zones_named(config.session.resets)}
    for place, zone in places.items():
        try:
            local_zone(zone)
        except InvalidConfig as error:
            do = error.hint or "use a name such as Europe/Berlin"
            yield Advice("clock", "damage", error.message, place if zone is not None else error.path, do)
