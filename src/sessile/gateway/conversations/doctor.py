"""The doctor of a gateway's store: what is wrong with keys, bindings, transcripts and surroundings, and what to do.

    store        `sessions.json` is broken, or has values that nobody documents
    key          a key that nobody can reach, that is spelled in two ways, or that lies with another agent
    transcript   a binding without a file, a file outside, a file of another session, a file without a binding
    gateway      what a gateway that was killed has left behind
    token        the token can be read by others
    clock        changes in the future, time zones that are not known

and what `doctoring_talk` finds in the conversations themselves. Nothing is changed, and nothing is printed: a finding is a value.

What is wrong with how conversations go: compaction that comes too often, words that should not have been sent, lost notes.

    compaction    a session is compacted every few messages: because its window is small, because much of it is kept free, or
                  because tool results fill it. Which of these it is, is said
    silence       an answer that nearly stays silent (`NO_REPLY.`, `no_reply`) was delivered; one with more behind it was not
    memory        notes could not be kept before a compaction
    window        nobody knows how much a model can read, so nothing is compacted before it is too late

Only the newest entries of each session are read. Nothing is changed.
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
from sessile.core.messages import joined_text
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

# --- doctoring talk

Json = dict[str, Any]
Severity = Literal["damage", "warning", "note"]

LOOKED_AT = 400  # entries of each session, the newest
_COMPACTIONS = 3  # in these entries; fewer tell nothing about how often they come
_FEW = 5  # messages of a person between two compactions: whoever is compacted that often loses the thread
_SMALL = 32_000  # tokens; what is documented to warn of
_FREE = 4  # a quarter of the window is much to keep free
_FULL = 0.5  # of a context: then it is tool results that fill it
_EDGES = "*_`\"'.,:;!?()[]{}<>-–—…"  # what a model puts around a word
_EXCERPT = 40  # characters


class Advice(NamedTuple):
    """Something that is wrong: what, where, and what to do about it."""

    kind: str
    severity: Severity
    what: str
    where: str | None
    do: str


class Bloat(NamedTuple):
    """How much of a context tool results are, and the tool that says most; in tokens."""

    tokens: int
    results: int
    tool: str | None


def examine_session(
    key: str, agent: str, entry: SessionEntry, session: Session, config: Config, models: Models
) -> Iterator[Advice]:
    """What is wrong with how one conversation goes."""
    newest = [session.read_row(row) for row in islice(session.walk_up(), LOOKED_AT)]
    settings = config.agents.named(agent)
    window = _window(entry, settings, models)
    yield from _silence(key, newest)
    yield from _compaction(key, newest, window, settings.compaction)


# -- compaction


def _window(entry: SessionEntry, agent: Agent, models: Models) -> int | None:
    """How much the model of a conversation can read; `None` if nobody knows."""
    told = entry.known("contextWindow")
    if told is not None and told > 0:
        return int(told)
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
    told = f"{key} is compacted too often: {messages} messages between its last {_COMPACTIONS} compactions"
    for why, do in reasons or [("its messages are long", "compact with instructions: /compact keep …")]:
        yield Advice("compaction", "warning", f"{told}; the reason: {why}", key, do)


def _reasons(window: int | None, settings: CompactionSettings, bloat: Bloat) -> Iterator[tuple[str, str]]:
    """Why compactions come so often, and what helps."""
    if window is not None and window < _SMALL:
        yield (
            f"a small window, {window:,} tokens",
            "choose a model that reads more; if that figure is wrong, set contextWindow of the model in the configuration",
        )
    elif window is not None and (reserve := settings.reserve(window)) * _FREE > window:
        floor = settings.reserve_tokens_floor > settings.reserve_tokens
        name = "reserveTokensFloor" if floor else "reserveTokens"
        yield (
            f"a high reserve, {reserve:,} of {window:,} tokens are kept free by compaction.{name}",
            f"lower compaction.{name} of the agent; a quarter of the window, {window // _FREE:,}, is enough",
        )
    if bloat.tokens and bloat.results >= _FULL * bloat.tokens:
        most = "" if bloat.tool is None else f", most of it from {bloat.tool}"
        yield (
            f"tool-result bloat, {100 * bloat.results // bloat.tokens} % of the context is what tools answered{most}",
            "let tools answer with less, and set contextPruning of the agent so that old results are trimmed",
        )


def bloat_of(entries: Sequence[Json]) -> Bloat:
    """How much of some entries is what tools answered."""
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
    """What is wrong with how an agent is set, as far as compaction goes."""
    settings = config.agents.named(agent)
    provider, model = config.model_of(agent)
    if model is None or settings.context_tokens is not None:
        return
    name = f"{provider}/{model}" if provider else model
    if models.window(name) is None:
        yield Advice(
            "window",
            "warning",
            f"nobody knows how much {name} can read, so {agent} compacts only when a request has failed",
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
            behind = text.removeprefix(NO_REPLY).strip()
            if behind:
                told = f"an answer was held back although it has more to say than {NO_REPLY}: {_excerpt(behind)}"
                do = f"tell the model to answer with {NO_REPLY} alone, or with an answer"
                yield Advice("silence", "note", told, where, do)
        elif nearly_silent(text):
            told = f"a turn that was to be silent was delivered, because it is not exactly {NO_REPLY}: {_excerpt(text)}"
            yield Advice(
                "silence", "warning", told, where, f"tell the model to begin with {NO_REPLY} and a space or nothing"
            )


def nearly_silent(text: str) -> bool:
    """Whether a text that was delivered looks as if it should not have been."""
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
    """Whether notes were lost before a compaction."""
    detail = entry.known("memoryFlush")
    if detail is None or detail.get("kind") != "failed":
        return
    failures = flushed_of(entry).failures
    ended = failures >= MAX_FAILURES
    then = "and is not tried again before the next compaction" if ended else "and is tried again with the next message"
    told = f"the notes of {key} could not be kept: that failed {failures} times, {then}"
    yield Advice(
        "memory", "warning", told, key, "look at the workspace of the agent, its memory folder, and at its model"
    )


# --- doctoring

_MINUTE = 60_000  # milliseconds
_ENDING = ".jsonl"


class Patient(NamedTuple):
    """What is looked at. `workspace` gives the folder in which an agent works."""

    store: Store
    config: Config
    routing: Routing
    token_file: str
    workspace: Callable[[str], str]


def examine_conversations(patient: Patient) -> Iterator[Advice]:
    """Everything that is wrong with a store of conversations."""
    yield from _gateway(patient)
    yield from _token(patient)
    yield from _zones(patient.config)
    models = Models(patient.config.models.figures())
    for agent in agents_in(patient.store.fs, patient.store.layout.root, patient.routing.default_agent):
        yield from examine_agent(agent, patient.config, models)
        yield from _Examined(patient, agent, models).advice()


# -- the bindings of one agent


class _Examined:
    """The bindings and transcripts of one agent."""

    def __init__(self, patient: Patient, agent: str, models: Models) -> None:
        self._patient = patient
        self._agent = agent
        self._models = models
        self._keys = Keys(patient.routing)
        self._home = StateFolder(patient.store.layout.root)
        self._path = self._home.store(agent)
        self._sessions = BoundSessions(patient.store, self._home, patient.workspace, 0)

    def advice(self) -> Iterator[Advice]:
        """Everything that is wrong with this agent's conversations."""
        bindings = own_bindings(self._patient.store, self._agent)
        try:
            document = bindings.document()
        except BrokenStore as error:
            kept = bindings.good_entries()
            do = error.hint if kept is None else f"mend it there, or: cp {bindings.good} {self._path}"
            held = "" if kept is None else f"; {len(kept)} bindings of the last good copy are in force"
            yield Advice("store", "damage", f"{error.message}{held}", self._path, do or "")
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
            told = f"{misfit.name} of {key} is taken for unknown: {misfit.detail}"
            where = f"{self._path}, line {place.line}, column {place.column}"
            yield Advice("store", "warning", told, where, "correct it there, or take it out")

    # -- keys

    def _key(self, name: str) -> Iterator[Advice]:
        try:
            key = parse_key(self._keys.spelling(self._agent, name))
        except InvalidId as error:
            do = "give the entry a key that can be asked for, or delete it"
            yield Advice("key", "warning", f"no message can reach {name}: {error.message}", self._path, do)
            return
        if key.kind == OTHER:
            told = f"{name} fits no pattern of keys: only who asks for just that text finds it"
            yield Advice("key", "warning", told, self._path, "look whether a segment is missing or doubled")
        if key.agent is not None and normalize_agent_id(key.agent) != normalize_agent_id(self._agent):
            told = f"{name} is a key of the agent {key.agent}, but lies in the store of {self._agent}"
            do = f"move the entry to {self._home.store(key.agent)}"
            yield Advice("key", "warning", told, self._path, do)
        yield from self._reached(name, key)

    def _reached(self, name: str, key: SessionKey) -> Iterator[Advice]:
        """Whether messages of a direct chat still go to this key."""
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
            told = f"messages of the chat {name} go to {render_key(now)}, because session.dmScope is {rules.dm_scope!r}"
            yield Advice("key", "note", told, self._path, "set session.dmScope or identityLinks if that is not meant")

    def _spellings(self, entries: Mapping[str, SessionEntry]) -> Iterator[Advice]:
        names: dict[str, list[str]] = {}
        for name in entries:
            names.setdefault(self._keys.spelling(self._agent, name), []).append(name)
        for key, same in names.items():
            if len(same) > 1:
                used = key if key in same else max(same, key=lambda name: entries[name].updated_at or 0)
                told = f"{' and '.join(same)} are one conversation, spelled in {len(same)} ways; {used} is used"
                yield Advice("key", "warning", told, self._path, "keep the entry that you want, and delete the others")

    # -- transcripts

    def _transcript(self, name: str, entry: SessionEntry) -> Iterator[Advice]:
        if entry.session_id is None and entry.session_file is None:
            return  # nobody has spoken there yet
        try:
            path = self._sessions.path_of(self._agent, entry)
        except UnsafePath as error:
            told = f"{name} names a file outside of its sessions: {error.path}"
            yield Advice("transcript", "damage", told, self._path, error.hint or "")
            return
        except InvalidId as error:
            yield Advice("transcript", "damage", f"{name}: {error.message}", self._path, error.hint or "")
            return
        if path is None:
            told = f"the session {entry.session_id} of {name} has no file; the next message begins a new one"
            do = "bring it back if it is in the trash (sessile trash), or delete the entry"
            yield Advice("transcript", "warning", told, self._path, do)
            return
        try:
            with self._patient.store.open(path, readonly=True) as session:
                if entry.session_id is not None and session.id != entry.session_id:
                    told = f"{name} is bound to {entry.session_id}, but its file is of the session {session.id}"
                    yield Advice("transcript", "warning", told, path, "correct sessionId or sessionFile of the entry")
                yield from examine_session(name, self._agent, entry, session, self._patient.config, self._models)
        except SessileError as error:
            told = f"the session of {name} cannot be read: {error.message}"
            yield Advice("transcript", "damage", told, path, f"sessile check {path}")

    def _unbound(self, known: set[str]) -> Iterator[Advice]:
        folder = self._home.sessions(self._agent)
        for name in names_in(self._patient.store.fs, folder):
            session_id = name.removesuffix(_ENDING).partition("-topic-")[0]
            if name.endswith(_ENDING) and session_id not in known and _is_id(session_id):
                told = f"no key leads to the transcript {name}"
                do = f"read it: sessile show {folder}/{name}; or bind it by an entry with that sessionFile"
                yield Advice("transcript", "note", told, f"{folder}/{name}", do)
        yield from self._let_go(known)

    def _let_go(self, known: set[str]) -> Iterator[Advice]:
        """Sessions in the folder of the agent's own workspace; in a project of a person there are others' sessions, too."""
        if self._patient.config.agents.named(self._agent).workspace is not None:
            return
        folder = self._patient.store.layout.folder(self._patient.workspace(self._agent))
        names = [name for name in names_in(self._patient.store.fs, folder) if name.endswith(_ENDING)]
        count = sum(name.removesuffix(_ENDING).rpartition("_")[2] not in known for name in names)
        if count:
            those = "1 session" if count == 1 else f"{count} sessions"
            told = f"{those} of {self._agent} without a conversation: deleted there, or forked off"
            yield Advice("transcript", "note", told, folder, "sessile ls lists them, sessile prune takes old ones away")

    # -- around them

    def _times(self, entries: Mapping[str, SessionEntry]) -> Iterator[Advice]:
        limit = self._patient.store.now() + _MINUTE
        late = [name for name, entry in entries.items() if (entry.updated_at or 0) > limit]
        if late:
            more = f" and {len(late) - 1} more" if len(late) > 1 else ""
            told = f"{late[0]}{more} changed in the future: a clock is wrong, or was; resets come at a wrong time"
            yield Advice("clock", "warning", told, self._path, "set the clock; the next message corrects the entry")

    def _lock(self) -> Iterator[Advice]:
        fs, path = self._patient.store.fs, f"{self._path}.lock"
        name = posixpath.basename(path)
        if name in names_in(fs, posixpath.dirname(path)) and not is_held(fs, path):
            yield Advice(
                "gateway", "note", "a program left its lock behind", path, "it is taken over by the next change"
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
        told = f"the gateway{who} is gone without a word; it was killed, or the machine went down"
        yield Advice("gateway", "warning", told, noted.path, "start it again: sessile serve; that tidies up")
    elif noted is not None and noted.note is None:
        told = "the note of where the gateway is cannot be read"
        yield Advice("gateway", "warning", told, noted.path, "end the gateway and start it again")
    if not alive and (left := TurnLog(patient.store.fs, patient.store.layout.root).left()):
        told = f"turns of {len(left)} sessions were not finished when the gateway ended"
        do = "start it again: sessile serve; what waited is answered then, and what was under way is marked"
        yield Advice("gateway", "note", told, None, do)


def _token(patient: Patient) -> Iterator[Advice]:
    try:
        keep_secret(patient.token_file, make=False, fs=patient.store.fs)
    except NotFound as error:
        if patient.config.gateway.token_file is not None:
            yield Advice("token", "damage", error.message, patient.token_file, error.hint or "")
    except SessileError as error:
        yield Advice("token", "damage", error.message, patient.token_file, error.hint or "")


def _zones(config: Config) -> Iterator[Advice]:
    # The zone of the machine is looked at, too, unless the person names one.
    places: dict[str, str | None] = {"user.timeZone": config.user.time_zone, **zones_named(config.session.resets)}
    for place, zone in places.items():
        try:
            local_zone(zone)
        except InvalidConfig as error:
            do = error.hint or "use a name such as Europe/Berlin"
            yield Advice("clock", "damage", error.message, place if zone is not None else error.path, do)
