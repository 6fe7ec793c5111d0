"""The operation that shows what the model saw: which entries were in its context when an entry was made, and which were gone.

Rules: an answer of a model is asked about what came before it, any other entry about what the model sees with it. The rules of
the context are `core.context`'s; to apply them to any place of a long path, of most entries only kind and role are read, once.
What took an entry out is named; nothing is ever gone from the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sessile.core.compaction import context_size
from sessile.core.context import live_part
from sessile.core.kinds import BOUNDARY, CHAIN, DEFAULT_ROLE, MESSAGE, STATE, TALK
from sessile.core.tokens import Snapshot
from sessile.core.tree import NOWHERE
from sessile.core.usage import usage_of
from sessile.core.whereabouts import takings
from sessile.gateway.viewing import NameText, NumberText
from sessile.gateway.wire import Taken, Told

if TYPE_CHECKING:
    from sessile.core.entries import Entry
    from sessile.gateway.service import Gateway
    from sessile.gateway.viewing import View

Json = Mapping[str, Any]

_ASSISTANT = MESSAGE | STATE  # what an answer marks
_TAKERS = ("compaction", "reset_boundary", "context_edit")


class SawQuery(Taken, frozen=True):
    """Which entry of which session."""

    id: NameText
    at: NumberText


class Removal(Told, frozen=True):
    """The entries that one entry took out of the context."""

    by: int
    kind: str
    numbers: list[int]


class Saw(Told, frozen=True):
    """What the model saw. `numbers` are the entries whose messages were in the context, in the order of the context.

    `removed` are those of the path that were gone by then, `changed` those that were not as they are stored. `tokens` is
    the size of the context, by the word of the provider or estimated; `window` is how much the model can read.
    """

    numbers: list[int]
    removed: list[Removal]
    changed: list[int]
    tokens: int | None
    source: str
    window: int | None
    model: str | None


async def saw(gateway: Gateway, query: SawQuery) -> Saw:
    """What the model saw when an entry was made."""
    return await gateway.call(_saw, gateway, query)


def _saw(gateway: Gateway, query: SawQuery) -> Saw:
    with gateway.views.opened(query.id) as view:
        number = view.check(query.at)
        ((_, entry),) = view.read([number])
        is_answer = view.rows[number].flags & _ASSISTANT == _ASSISTANT
        tip = view.tree.parents[number] if is_answer else number
        path = [] if tip == NOWHERE else _deciding(view, view.tree.path(tip))
        messages, sources = live_part(path).messages()
        seen = [source for source, message in zip(sources, messages, strict=True) if not _is_kept_back(message)]
        removed, changed = _gone(view, path, seen)
        model = _model(view, number, entry)
        size = _size(view, tip, entry if is_answer else None)
        return Saw(
            numbers=list(dict.fromkeys(view.numbers_of(seen))),
            removed=removed,
            changed=changed,
            tokens=size.tokens,
            source=size.source,
            window=None if model is None else gateway.models.window(model),
            model=model,
        )


def _gone(view: View, path: Sequence[Json], seen: Sequence[str | None]) -> tuple[list[Removal], list[int]]:
    removed: dict[int, Removal] = {}
    changed: list[int] = []
    if not any(entry.get("type") in _TAKERS for entry in path):
        return [], []
    for taking in takings(path, frozenset(seen)):
        by, number = view.tree.number(str(taking.by["id"])), view.tree.number(taking.message)
        if by is None or number is None:
            continue
        if taking.changed:
            changed.append(number)
        else:
            removed.setdefault(by, Removal(by=by, kind=str(taking.by["type"]), numbers=[])).numbers.append(number)
    return list(removed.values()), changed


# -- entries, as far as the context asks for them


def _deciding(view: View, path: Sequence[int]) -> list[Json]:
    """The entries of a path with what decides about the context; what was read once is kept with the session."""
    kinds = view.kinds
    unknown = []
    for number in path:
        if number not in kinds:
            row = view.rows[number]
            if row.flags & _ASSISTANT == _ASSISTANT:
                kinds[number] = {"id": row.id, "type": "message", "message": _ANSWER}
            else:
                unknown.append(number)
    for number, entry in view.read(unknown):
        kinds[number] = _kind(entry, view.rows[number].flags)
    return [kinds[number] for number in path]


def _kind(entry: Entry, flags: int) -> Json:
    if flags & MESSAGE:
        return {"id": entry.id, "type": "message", "message": _message(entry)}
    if flags & (BOUNDARY | TALK) or flags == CHAIN:
        return {name: value for name, value in entry.items() if name in _DECIDING}
    return {"id": entry.id, "type": "other"}


def _message(entry: Entry) -> Json | None:
    """A message without what it says. Most need not be decoded for that."""
    raw = entry.raw
    if b'"message":{' in raw and b'"system"' not in raw and b'"excludeFromContext"' not in raw:
        return _SAID
    message = entry.get("message")
    return {name: message.get(name) for name in _KEPT_BACK} if isinstance(message, dict) else None


_ANSWER: Json = {"role": "assistant"}
_SAID: Json = {"role": "user"}
_KEPT_BACK = ("role", "excludeFromContext")
_DECIDING = (
    *("id", "type", "firstKeptEntryId", "summary", "systemMessage", "preserveData"),
    *("targetId", "replacement", "content", "timestamp"),
)


def _is_kept_back(message: Json) -> bool:
    return bool(message.get("excludeFromContext"))


# -- in numbers


def _model(view: View, number: int, entry: Entry) -> str | None:
    """The model that made an answer, or the one that was chosen there."""
    message = entry.get("message")
    if isinstance(message, dict) and isinstance(message.get("model"), str):
        provider = message.get("provider")
        return f"{provider}/{message['model']}" if isinstance(provider, str) else str(message["model"])
    return view.session.get_state(view.rows[number].id).models.get(DEFAULT_ROLE)


def _size(view: View, tip: int, answer: Entry | None) -> Snapshot:
    """How large the context was: what the provider counted for the answer, else what is known before it."""
    if answer is not None:
        message = answer.get("message")
        usage = usage_of(message.get("usage")) if isinstance(message, dict) else None
        parts = () if usage is None else (usage.input, usage.cache_read, usage.cache_write)
        read = sum(part for part in parts if part is not None)
        if read:
            return Snapshot(read, "provider", answer.id)
    if tip == NOWHERE:
        return Snapshot(0, "estimate")
    return context_size(view.session.walk_up(view.rows[tip].id), view.session.read_row)
