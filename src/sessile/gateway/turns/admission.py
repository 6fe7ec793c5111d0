"""Admission: from a message to a turn in the lane of its session, with the message durable.

Rules: of two messages with one name, at once or after a restart, one becomes a turn, and both get that, also if they came to two
gateways. Whoever finds the lane empty begins at once, with the message in the session; the others wait, with the message in the
line of turns.

Everything here blocks and runs on threads; what is told to those who wait is told on the loop.

What a model is asked in a turn: the context of the session, as its provider takes it.

    context → old tool results trimmed → messages of a model → hygiene of the provider

Nothing that is said changes by it. What was trimmed once is trimmed in every later request, so that a provider's cache keeps
holding; that is remembered in the session (`sessile.trimmed`).

Which models a person may choose in a chat: those that the configuration lists, and those that its agents use.

Rules: where nothing is listed, every "provider/model" of a configured provider may be chosen, and has to be written so, in one
word. A model also has a short name where that is clear: the last part of a longer id (`openrouter/anthropic/claude-opus-4`), and
the word for its family (`opus`), if no other model here has it. Other words of a name are no short names: `/new chat with me`
is a message.

Nothing is asked of an endpoint.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sessile.core.chat_commands import AllowedModels, ChatCommand, parse_command
from sessile.core.hygiene import clean
from sessile.core.messages import convert_to_llm
from sessile.core.providers import LIMITS
from sessile.core.resets import reset_notice
from sessile.core.result_trimming import Trims, apply_trims, has_prompt_cache, is_trim_due, read_trims, trim_results
from sessile.core.text import parse_timestamp
from sessile.gateway.turns.line import Overtaken
from sessile.gateway.turns.replies import Records, Stored, stored_reply
from sessile.gateway.turns.runners import RunRequest
from sessile.gateway.turns.turn import (
    NOTHING,
    Job,
    Message,
    Reply,
    Turn,
    forget_done,
    message_of,
    sending_of,
    toggles_of,
    turn_id_of,
)
from sessile.render.status import new_session_notice
from sessile.vendors.images import can_resize, resize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sessile.config import Config
    from sessile.core.context import SessionContext
    from sessile.gateway.conversations.bindings import Bound
    from sessile.gateway.service import Gateway
    from sessile.gateway.turns.care import Care
    from sessile.gateway.turns.line import Line
    from sessile.gateway.turns.runners import Answerer
    from sessile.session import Session


# --- prompts

TRIMMED = "sessile.trimmed"

Json = dict[str, Any]


def make_request(
    session: Session,
    context: SessionContext,
    answerer: Answerer,
    now: int,
    *,
    key: str,
    thinking: str | None = None,
    system: str | None = None,
    more: Sequence[Json] = (),
) -> RunRequest:
    """The request of a turn: a context of the session, and messages that are only said here.

    `system` stands behind the instructions of the agent.
    """
    messages = convert_to_llm([*_trimmed(session, context, answerer, now), *more])
    if answerer.policy is not None:
        limits = LIMITS._replace(side=answerer.agent.image_max_dimension_px)
        messages = clean(messages, answerer.policy, limits=limits, resize=resize if can_resize() else None).messages
    instructions = "\n\n".join(part for part in (answerer.agent.system_prompt, system) if part)
    return RunRequest(
        messages,
        system=instructions or None,
        model=answerer.settings.model,
        max_tokens=answerer.settings.max_tokens,
        thinking=thinking,
        session_key=key,
        session_id=session.id,
    )


# -- trimming


def _trimmed(session: Session, context: SessionContext, answerer: Answerer, now: int) -> list[Json]:
    """The messages with old tool results trimmed, where that is worth it."""
    messages, sources = context.messages, context.sources
    settings, window = answerer.agent.context_pruning.settings, answerer.window
    provider, model = answerer.settings.provider or answerer.settings.name, answerer.settings.model or ""
    if settings is None or window is None or not has_prompt_cache(provider, model):
        return messages
    if not any(message.get("role") == "toolResult" for message in messages):
        return messages
    kept = _kept(session, context)
    if not is_trim_due(_last_answer(messages), now, settings.ttl):
        return apply_trims(messages, sources, kept)
    trimmed = trim_results(messages, sources, window, kept, settings)
    if trimmed.trims != kept:
        session.append_custom_entry(TRIMMED, trimmed.trims)
    return trimmed.messages


def _kept(session: Session, context: SessionContext) -> Trims:
    """What was trimmed in the part of the session that the context comes from."""
    missing = {source for source in context.sources if source is not None}
    for row in session.walk_up():
        if not missing:
            break
        if row.id in missing:
            missing.discard(row.id)
            continue
        entry = session.read_row(row)
        if entry.get("customType") == TRIMMED:
            return read_trims(entry.get("data"))
    return {}


def _last_answer(messages: Sequence[Json]) -> int | None:
    """When the provider saw this conversation last, in milliseconds."""
    for message in reversed(messages):
        if message.get("role") == "assistant":
            told = message.get("timestamp")
            return told if isinstance(told, int) else parse_timestamp(told)
    return None


# --- allowed models

FAMILIES = frozenset(
    (
        *("opus", "sonnet", "haiku", "gpt", "gemini", "gemma", "grok", "llama", "qwen", "mistral", "codestral"),
        *("deepseek", "kimi", "glm", "phi"),
    )
)
"""Words that people say for a model."""

_LETTERS = re.compile(r"[a-z]+")


class AnyOfProviders(AllowedModels, frozen=True):
    """Every model of some providers, as "provider/model"."""

    configured: tuple[str, ...] = ()

    def named(self, name: str) -> str | None:
        """The model of that name, if it begins with a provider that is configured."""
        told, _, model = name.partition("/")
        provider = next((one for one in self.configured if one.lower() == told.lower()), None)
        return f"{provider}/{model}" if provider is not None and model else None


def allowed_models(config: Config) -> AllowedModels:
    """The models that may be chosen."""
    models = tuple(dict.fromkeys(_listed(config)))
    if not models:
        return AnyOfProviders(configured=tuple(config.models.providers))
    return AllowedModels(allowed=models, aliases=_short_names(models))


def _listed(config: Config) -> Iterator[str]:
    for agent in (config.agents.defaults, *config.agents.list):
        if agent.model_name is not None:
            yield agent.model_name
    for name, provider in config.models.providers.items():
        for model in provider.models:
            yield f"{name}/{model.id}"


def _short_names(models: tuple[str, ...]) -> dict[str, str]:
    """The names that mean one model only."""
    meant: defaultdict[str, set[str]] = defaultdict(set)
    for model in models:
        _, _, own = model.lower().rpartition("/")
        if model.count("/") > 1:
            meant[own].add(model)
        for word in FAMILIES.intersection(_LETTERS.findall(own)):
            meant[word].add(model)
    return {name: found.pop() for name, found in sorted(meant.items()) if len(found) == 1}


# --- admission

_REMEMBERED = 4096  # turns that are found again without looking into a session
_REFUSED = "The message could not be kept. Send it again."


class Repeated(NamedTuple):
    """A message that was sent before, and its turn."""

    turn: Turn


class Commanded(NamedTuple):
    """A message that is a command, and the turn of its answer."""

    bound: Bound
    command: ChatCommand
    turn: Turn


class Admitted(NamedTuple):
    """A turn that is in its lane; `runs` if somebody has to drive it now."""

    job: Job
    runs: bool


class Elsewhere(NamedTuple):
    """A message whose turn another gateway runs."""

    turn: Turn


class Admission:
    """Lets messages in."""

    def __init__(self, gateway: Gateway, line: Line, care: Care, refused: Callable[[Job], None]) -> None:
        self._gateway = gateway
        self._line = line
        self._care = care
        self._refused = refused
        self.records = Records(gateway, line)
        self._models = allowed_models(gateway.config)
        self._named: OrderedDict[tuple[str, str], Turn] = OrderedDict()  # by key and name
        self._naming = threading.Lock()

    def accept(self, message: Message) -> Repeated | Commanded | Admitted | Elsewhere:
        """Find the conversation of a message, and let it in."""
        bound = self._gateway.conversations.resolve(message.source)
        name = message.idempotency_key
        repeated = None if name is None else self._repeated(bound, name)
        if repeated is not None:
            return repeated
        if message.before:
            self.records.precede(bound, message.before)
        command = None if message.is_system else self._parsed(bound, message)
        turn = Turn("", bound.session_id, bound.text)
        first = turn if name is None else self._name(turn, name)
        if first is not turn:  # somebody sends the same at this moment
            return Repeated(first)
        if command is not None:
            return Commanded(bound, command, turn)
        try:
            return self.admit(bound, message, turn)
        except BaseException as error:
            self._gateway.tell_loop(self.give_up, turn, name, error)
            raise

    def admit(self, bound: Bound, message: Message, turn: Turn) -> Admitted | Elsewhere:
        """Put a message into the lane of its session, and make it durable."""
        job = self.job(bound, message, message.idempotency_key or self._gateway.store.random(16).hex(), turn)
        mode = message.queue or job.toggles.queue
        try:
            may_begin = self._line.enter(job, first=mode == "interrupt")
            if may_begin is None:
                return self._elsewhere(job.turn, job.name)
            if may_begin:
                self.begin(job)
        except Overtaken:
            self._gateway.tell_loop(self._refused, job)
            return Elsewhere(job.turn)
        except BaseException:
            self._line.give_up(job)
            self._gateway.tell_loop(self._refused, job)
            raise
        return Admitted(job, may_begin or self._line.takes_up_again)

    def _elsewhere(self, turn: Turn, name: str) -> Elsewhere:
        """A turn that another gateway runs, in the session in which that has it."""
        turn.session_id = self._line.where(turn.key, name) or turn.session_id
        turn.id = turn_id_of(turn.session_id, name)
        return Elsewhere(turn)

    def give_up(self, turn: Turn, name: str | None, error: BaseException) -> None:
        """Nothing came of a message: whoever waits for it hears why, and whoever sends it again begins anew. On the loop."""
        if name is not None:
            with self._naming:
                self._named.pop((turn.key, name), None)
        turn.refuse(error)

    def job(self, bound: Bound, message: Message, name: str, turn: Turn | None = None) -> Job:
        """A turn of a conversation, as its settings want it now."""
        toggles = toggles_of(bound.entry)
        job = Job(bound, message, name, self._gateway.answerers.of(bound.agent, toggles.model), toggles, turn)
        job.withheld = self._withheld(bound.text, bound.entry)
        job.notices += self.reset_told(bound)
        if bound.is_new and not job.notices and toggles.is_verbose:
            job.notices.append(new_session_notice(bound.session_id))
        return job

    def reset_told(self, bound: Bound) -> list[str]:
        """What a person is told of a session that has just begun by itself."""
        if bound.reason not in ("daily", "idle"):
            return []
        return [reset_notice(bound.reason, self._gateway.conversations.policy(bound.key))]

    def _withheld(self, key: str, entry: Mapping[str, Any]) -> str | None:
        """Why replies of a conversation are not delivered; `None` if they are."""
        verdict = sending_of(self._gateway.config.session.sending, key, entry)
        return None if verdict.allowed else verdict.why

    def _parsed(self, bound: Bound, message: Message) -> ChatCommand | None:
        if "/" not in message.text:
            return None
        agent = self._gateway.config.agents.named(bound.agent)
        return parse_command(
            message.text,
            authorised=message.authorised,
            models=self._models,
            mentions=[name for name in (agent.id, agent.name) if name],
            reset_triggers=self._gateway.config.session.reset_triggers,
        )

    # -- messages that come twice

    def _name(self, turn: Turn, name: str) -> Turn:
        """The turn of that name, which is this one unless there is another."""
        with self._naming:
            first = self._named.setdefault((turn.key, name), turn)
            forget_done(self._named, _REMEMBERED)
            return first

    def _repeated(self, bound: Bound, name: str) -> Repeated | Elsewhere | None:
        """The turn that a message of this name began, if it came before."""
        with self._naming:
            turn = self._named.get((bound.text, name))
        if turn is not None:
            return Repeated(turn)
        stored = self.records.find(bound, name)
        if stored is None:
            return None  # unless another gateway gets it at this moment, which shows when it enters the line
        found = self.stored(stored.session_id, stored.turn_id) if stored.reply is None else self._ended(stored)
        if found is None or found.reply is not None:
            return None if found is None else Repeated(found)
        first = self._name(found, name)
        return Elsewhere(found) if first is found else Repeated(first)

    def stored(self, session_id: str, turn_id: str) -> Turn | None:
        """A turn as its session holds it; without a reply as long as another gateway has it."""
        under_way = {turn_id_of(session_id, name): key for name, key in self._line.names(session_id).items()}
        path = self._gateway.store.find(session_id)  # behind that: a turn that is not under way any more has its reply
        stored = None if path is None else self.records.at(path, turn_id)
        if turn_id not in under_way or (stored is not None and stored.reply is not None):
            return None if stored is None else self._ended(stored)
        turn = Turn(turn_id, session_id, under_way[turn_id])
        turn.state = "queued" if stored is None else "running"
        return turn

    def reply_of(self, turn: Turn) -> Reply | None:
        """What another gateway has made of a turn; `None` as long as it has it."""
        found = self.stored(turn.session_id, turn.id)
        return Reply("", "error", error=_REFUSED) if found is None else found.reply

    def _ended(self, stored: Stored) -> Turn:
        """A turn that is over; what holds for its conversation now says whether its reply may be told again."""
        conversation = self._gateway.conversations.get(stored.key) if stored.key else None
        withheld = None if conversation is None else self._withheld(conversation.text, conversation.entry)
        return Turn(*stored[:3], stored_reply(stored, withheld))

    # -- beginning

    def begin(self, job: Job) -> None:
        """Append the message, see what is due, and if nothing is, make the request at once."""
        with self._gateway.opened(job.path) as session:
            self.records.begin(session, job)
            job.due = self._care.before(session, job)
            if job.due == NOTHING:
                job.request = self._request(session, job)

    def request(self, job: Job) -> RunRequest:
        """What the model is asked, as the session is now."""
        with self._gateway.opened(job.path) as session:
            return self._request(session, job)

    def _request(self, session: Session, job: Job) -> RunRequest:
        return make_request(
            session,
            session.context(),
            job.answerer,
            self._gateway.store.now(),
            key=job.bound.text,
            thinking=job.toggles.thinking,
            system=job.message.system,
        )

    # -- after the end of a gateway

    def left(self) -> list[Job]:
        """The turns that waited when another gateway ended, in their lanes; gives those that somebody has to drive."""
        first = []
        for bound, record in self.records.left():
            job = self.job(bound, message_of(record, bound.text), record["name"])
            job.turn.accept()
            self._name(job.turn, job.name)
            if self._line.enter_again(job, record):
                first.append(job)
        return first
