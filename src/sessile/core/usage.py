"""Usage of models: tokens and costs of calls, and totals by quarter-hour.

`usage_of` reads the usage of one call under any of the names that agents use. `ledger` yields every call in a list of
entries, including calls that failed, used a side model or are on another branch, because they were paid for. It does not
measure the context; `core/tokens.py` does that from the last answer.

`Spending` counts answers, their cost and tool calls by quarter-hour, from which the days of any time zone can be computed.

Rules:
- Unknown numbers are `None`, never 0; values that cannot be a number of tokens are unknown.
- The cost is what the agent stored, else what `core.prices` knows; otherwise the answer is unpriced.
- An answer that is stored in several rows, each with its usage, is one answer with the largest numbers. One that a fork copied is
  known by its identity, so that tables of several sessions count it once.
- Texts that a program inserts in the place of an answer (`NOT_MODELS`) are not answers of a model.
- The quarter-hour is that of the entry, else that of its message; otherwise the usage is undated.
- Tool calls are counted at the time of the answer, failures at the time of the result. Commands that a user ran are counted
  separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from sessile.core.codec import decode, encode_plain
from sessile.core.ids import blake2b
from sessile.core.text import parse_timestamp

Json = Mapping[str, Any]

NAMES: dict[str, tuple[str, ...]] = {
    "input": ("input", "inputTokens", "input_tokens", "promptTokens", "prompt_tokens"),
    "output": ("output", "outputTokens", "output_tokens", "completionTokens", "completion_tokens"),
    "cache_read": ("cacheRead", "cache_read", "cache_read_input_tokens"),
    "cache_write": ("cacheWrite", "cache_write", "cache_creation_input_tokens"),
    "total": ("totalTokens", "total", "total_tokens"),
}
"""The names of each number in files; the first that contains a number counts."""

_MOST = 2**40  # tokens or dollars of one call; more is damage
_NUMBERS = (int, float)  # faster to check than a union


class Usage(msgspec.Struct, frozen=True):
    """The usage of one call; `None` is unknown."""

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    total: int | None = None

    @property
    def context(self) -> int | None:
        """The size of the context with the answer: the total, else the sum of the known parts; `None` if all are zero."""
        parts = (self.input, self.output, self.cache_read, self.cache_write)
        return self.total or sum(part for part in parts if part is not None) or None

    def stored(self) -> dict[str, int] | None:
        """Return the known numbers under the names that messages have; `None` if there are none."""
        counts = {
            "input": self.input,
            "output": self.output,
            "cacheRead": self.cache_read,
            "cacheWrite": self.cache_write,
        }
        known = {name: count for name, count in counts.items() if count is not None}
        if not known:
            return None
        return known | (
            {"totalTokens": self.total or sum(known.values())} if {"input", "output"} <= known.keys() else {}
        )


class Call(NamedTuple):
    """A call of a model: its entry, its purpose and its usage."""

    entry_id: str | None
    purpose: str  # "answer", "tool", the kind of the entry, or the purpose that the entry states
    model: str | None  # "provider/id"
    usage: Usage
    cost: float | None  # in dollars
    at: str | None  # the timestamp of the entry


def usage_of(value: object) -> Usage | None:
    """Return the usage in a `usage` member, or `None` if it is not an object."""
    if not isinstance(value, Mapping):
        return None
    return Usage(**{name: _first(value, aliases) for name, aliases in NAMES.items()})


def _first(value: Json, aliases: tuple[str, ...]) -> int | None:
    for alias in aliases:
        number = _number(value.get(alias))
        if number is not None:
            return int(number)
    return None


def ledger(entries: Iterable[Json]) -> Iterator[Call]:
    """Yield every call of a model in the entries, in their order."""
    for entry in entries:
        kind = entry.get("type")
        if kind == "message":
            yield from _message_call(entry, entry.get("message"))
        elif kind in ("usage", "model_usage"):
            purpose = entry.get("kind") if kind == "usage" else entry.get("purpose")
            yield _call(entry, entry, purpose if isinstance(purpose, str) and purpose else kind)
        elif kind in ("compaction", "branch_summary") and isinstance(entry.get("usage"), Mapping):
            yield _call(entry, entry, kind)


def _message_call(entry: Json, message: object) -> Iterator[Call]:
    if not isinstance(message, Mapping):
        return
    if message.get("role") == "assistant":
        yield _call(entry, message, "answer")
    elif message.get("role") == "toolResult" and isinstance(message.get("usage"), Mapping):
        yield _call(entry, message, "tool")  # a tool that called a model itself


def _call(entry: Json, holder: Json, purpose: str) -> Call:
    reported = holder.get("usage")
    usage = usage_of(reported) or Usage()
    model = model_of(holder)
    parts = {
        "input": usage.input,
        "output": usage.output,
        "cacheRead": usage.cache_read,
        "cacheWrite": usage.cache_write,
    }
    stored = reported.get("cost") if isinstance(reported, Mapping) else None
    entry_id, at = entry.get("id"), entry.get("timestamp")
    return Call(
        entry_id=entry_id if isinstance(entry_id, str) else None,
        purpose=purpose,
        model=model,
        usage=usage,
        cost=cost_of({**parts, "totalTokens": usage.total, "cost": stored}, model or "", quarter_of(entry, holder)),
        at=at if isinstance(at, str) else None,
    )


NOT_MODELS = (
    "<synthetic>",
    "gateway-injected",
    "delivery-mirror",
)  # what programs write as the model of their own texts


def model_of(holder: Json) -> str | None:
    """Return the model of a message as "provider/model"; `None` if it is not known or the text is not a model's."""
    provider, model = holder.get("provider"), holder.get("model")
    if not isinstance(model, str) or not model or model in NOT_MODELS:
        return None
    return f"{provider}/{model}" if isinstance(provider, str) and provider else model


def price_list() -> ModuleType:
    """Return the module `core.prices`."""
    from sessile.core import prices  # the table is large, and most agents store the cost

    return prices


def stored_cost(usage: Json) -> float | None:
    """Return the cost that the agent stored, or `None`."""
    price = usage.get("cost")
    cost = _number(price.get("total") if isinstance(price, Mapping) else price)
    # Agents of the pi family write 0 for a model without a price, so 0 counts only if nothing was used.
    known = cost or (cost is not None and not any(usage.get(name) for name in _TOKENS))
    return float(cost) if cost is not None and known else None  # 0 and 0.0 would be two forms of one sum in the catalog


def cost_of(usage: object, model: str, quarter: str | None = None) -> float | None:
    """Return the cost of an answer in dollars: what the agent stored, else by the price table; `None` is unknown."""
    if not isinstance(usage, Mapping):
        return None
    cost = stored_cost(usage)
    if cost is not None or not model:
        return cost
    listed: float | None = price_list().price(model, usage, _milliseconds(quarter))
    return listed


def _milliseconds(quarter: str | None) -> int | None:
    return int(quarter) * QUARTER if quarter and quarter != UNDATED else None


# -- totals by quarter-hour

QUARTER = 15 * 60 * 1000  # milliseconds; offsets of time zones are multiples of it
UNDATED = "undated"
_UNIQUE = 16  # characters of a name that occurs once
_IDENTITY = 7  # bytes of an identity; three bits less, so that every reader of JSON knows the number exactly
_LATEST = 253_370_764_800_000  # in the year 9999, where every time zone can still compute a date
_ISO_LENGTH, _MINUTE = len("2026-01-01T00:00:00.000Z"), len("2026-01-01T00:00:")
_TOKENS = ("input", "output", "cacheRead", "cacheWrite", "totalTokens")


class Answered(msgspec.Struct, array_like=True):
    """The usage of one answer. `id` is the same in every copy of it, and 0 if it has none."""

    id: int
    tools: list[str]
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    total: int | None = None
    cost: float | None = None
    listed: bool = False  # the cost is by the price table, not from the agent

    def take(self, usage: object, model: str, quarter: str) -> None:
        """Take the usage that a row reports: the larger number of each, because early rows report what was known by then."""
        if not isinstance(usage, dict):
            return
        get = usage.get
        self.input = _larger(self.input, get("input"))
        self.output = _larger(self.output, get("output"))
        self.cache_read = _larger(self.cache_read, get("cacheRead"))
        self.cache_write = _larger(self.cache_write, get("cacheWrite"))
        self.total = _larger(self.total, get("totalTokens"))
        stored = stored_cost(usage)
        cost = cost_of(usage, model, quarter) if stored is None else stored
        if cost is not None and (self.cost is None or cost > self.cost):
            self.cost, self.listed = float(cost), stored is None  # as it is decoded: a file may have a whole number


class Spent(msgspec.Struct, array_like=True):
    """The usage of some answers; `None` if none of them reported it. `each` has the answers that other sessions may contain."""

    answers: int = 0
    calls: int = 0
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    total: int | None = None
    cost: float | None = None
    unpriced: int = 0  # answers without a known cost
    listed: int = 0  # answers whose cost is by the price table
    each: list[Answered] = []

    def add(self, answer: Answered, sign: int = 1) -> None:
        """Count one more answer, or one less."""
        self.answers += sign
        self.calls += sign * len(answer.tools)
        self.input = _sum(self.input, answer.input, sign)
        self.output = _sum(self.output, answer.output, sign)
        self.cache_read = _sum(self.cache_read, answer.cache_read, sign)
        self.cache_write = _sum(self.cache_write, answer.cache_write, sign)
        self.total = _sum(self.total, answer.total, sign)
        self.listed += sign * answer.listed
        if answer.cost is None:
            self.unpriced += sign
        else:
            self.cost = (self.cost or 0.0) + sign * answer.cost

    def merge(self, other: Spent) -> None:
        """Add the usage of other answers."""
        self.answers += other.answers
        self.calls += other.calls
        self.input = _sum(self.input, other.input)
        self.output = _sum(self.output, other.output)
        self.cache_read = _sum(self.cache_read, other.cache_read)
        self.cache_write = _sum(self.cache_write, other.cache_write)
        self.total = _sum(self.total, other.total)
        if other.cost is not None:
            self.cost = (self.cost or 0.0) + other.cost
        self.unpriced += other.unpriced
        self.listed += other.listed


class Used(msgspec.Struct, array_like=True):
    """How often something was called, and how often it failed; `failed` names the failures as `Answered` does."""

    calls: int = 0
    failures: int = 0
    failed: list[int] = []


class Spending(msgspec.Struct, omit_defaults=True):
    """Usage by name and quarter-hour: answers by "provider/model", tools, and commands of the user. "" is unknown."""

    answers: dict[str, dict[str, Spent]] = {}
    tools: dict[str, dict[str, Used]] = {}
    shell: dict[str, dict[str, Used]] = {}

    def add_answer(self, model: str, quarter: str, usage: object, tools: Sequence[str], identity: int = 0) -> None:
        """Count an answer and the tools that it calls."""
        try:
            spent = self.answers[model][quarter]
        except KeyError:
            spent = self.answers.setdefault(model, {})[quarter] = Spent()
        answer = Answered(identity, list(tools))
        answer.take(usage, model, quarter)
        spent.add(answer)
        if identity:
            spent.each.append(answer)
        for tool in tools:
            _used(self.tools, tool, quarter).calls += 1

    def add_row(self, model: str, quarter: str, usage: object, tools: Sequence[str], identity: int) -> None:
        """Count another row of an answer that was counted before: its tool calls, and its usage if it knows more."""
        spent = self.answers.setdefault(model, {}).setdefault(quarter, Spent())
        answer = next((each for each in reversed(spent.each) if each.id == identity), None)
        if answer is None:
            spent.calls += len(tools)
        else:
            spent.add(answer, -1)
            answer.tools += tools
            answer.take(usage, model, quarter)
            spent.add(answer)
        for tool in tools:
            _used(self.tools, tool, quarter).calls += 1

    def add_failure(self, tool: str, quarter: str, identity: int = 0) -> None:
        """Count a failed tool call."""
        used = _used(self.tools, tool, quarter)
        used.failures += 1
        if identity:
            used.failed.append(identity)

    def leave_out(self, seen: dict[int, Answered | None]) -> None:
        """Do not count the answers and failures in `seen`, and add the others to it.

        If a copy knows more than the one that was counted, as Claude Code empties the usage of some, the difference is counted.
        """
        found: dict[int, Answered | None] = {}
        for quarters in self.answers.values():
            for quarter, spent in quarters.items():
                for answer in spent.each:
                    known = seen.get(answer.id)
                    if known is None:
                        found[answer.id] = answer
                        continue
                    more = (answer.total or 0) > (known.total or 0)
                    spent.add(known if more else answer, -1)
                    spent.calls += len(known.tools) - len(answer.tools) if more else 0
                    found[answer.id] = answer if more else known
                    for tool in answer.tools:
                        _used(self.tools, tool, quarter).calls -= 1
        for used in (used for quarters in self.tools.values() for used in quarters.values()):
            used.failures -= sum(failure in seen for failure in used.failed)
            found.update((failure, None) for failure in used.failed)
        seen.update(found)

    def add_run(self, shell: str, quarter: str, failed: bool) -> None:
        """Count a command that the user ran."""
        used = _used(self.shell, shell, quarter)
        used.calls += 1
        used.failures += failed

    def total(self) -> Spent:
        """Return the usage of all answers."""
        total = Spent()
        for quarters in self.answers.values():
            for spent in quarters.values():
                total.merge(spent)
        return total

    def unpriced(self) -> dict[str, int]:
        """Return the number of answers without a known cost, by model; "" is unknown."""
        sums = {model: sum(spent.unpriced for spent in quarters.values()) for model, quarters in self.answers.items()}
        return {model: count for model, count in sums.items() if count}

    def models(self) -> dict[str, int]:
        """Return the number of answers of each known model."""
        return {
            model: sum(spent.answers for spent in quarters.values())
            for model, quarters in self.answers.items()
            if model
        }

    def failures(self) -> int:
        """Return the number of failed tool calls."""
        return sum(used.failures for quarters in self.tools.values() for used in quarters.values())

    def encode(self) -> bytes | None:
        """Encode as JSON; return `None` if nothing was counted."""
        return encode_plain(msgspec.to_builtins(self)) if self.answers or self.tools or self.shell else None


def is_answer(message: Json) -> bool:
    """Return whether a message of an assistant is from a model; programs insert some in the place of an answer."""
    return message.get("model") not in NOT_MODELS and message.get("stopReason") != "injected"


def identity_of(entry: Json, message: Json) -> int:
    """Return the identity of a message, which is the same in every copy that a fork makes; 0 if it has none.

    It is the name that the provider gave, unless it is so short that a server may give it to all answers; otherwise the id and
    time of the entry.
    """
    response = message.get("responseId")
    if isinstance(response, str) and len(response) >= _UNIQUE:
        text = response
    elif isinstance(entry_id := entry.get("id"), str) and isinstance(at := entry.get("timestamp"), str):
        text = f"{entry_id} {at} {message.get('toolCallId')}"
    else:
        return 0
    raw = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(raw, _IDENTITY)) >> 3 or 1


def decode_spending(raw: bytes) -> Spending:
    """Decode the result of `Spending.encode`."""
    return msgspec.convert(decode(raw), Spending)


def quarter_of(entry: Json, message: Json) -> str:
    """Return the quarter-hour since 1970 in which a message was written, or `UNDATED`."""
    written = entry.get("timestamp")
    if isinstance(written, str) and len(written) == _ISO_LENGTH and written[-1] == "Z":
        quarter = _quarter_at(written[:_MINUTE])
        if quarter is not None:
            return quarter
    return _quarter(parse_timestamp(written)) or _quarter(message.get("timestamp")) or UNDATED


@lru_cache(maxsize=64)  # parsing a date is slow, and many answers share a minute
def _quarter_at(minute: str) -> str | None:
    return _quarter(parse_timestamp(f"{minute}00.000Z"))


def _quarter(milliseconds: object) -> str | None:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, _NUMBERS):
        return None
    return str(int(milliseconds) // QUARTER) if 0 <= milliseconds < _LATEST else None


def amount(tokens: object) -> str:
    """Format a number of tokens: 940, 48.2k, 1.3M."""
    if isinstance(tokens, bool) or not isinstance(tokens, int):
        return "?"
    if tokens < 1000:
        return str(tokens)
    return f"{tokens / 1000:.1f}k" if tokens < 999_950 else f"{tokens / 1_000_000:.1f}M"


def _used(table: dict[str, dict[str, Used]], name: str, quarter: str) -> Used:
    try:
        return table[name][quarter]
    except KeyError:
        used = table.setdefault(name, {})[quarter] = Used()
        return used


def _larger(before: int | None, value: object) -> int | None:
    number = value if type(value) is int and 0 <= value < _MOST else _number(value)
    if number is None or (before is not None and number <= before):
        return before
    return int(number)


def _sum(one: int | None, other: int | None, sign: int = 1) -> int | None:
    if one is None or other is None:
        return one if other is None else sign * other
    return one + sign * other


def _number(value: object) -> float | None:
    """Return a valid number of tokens or dollars, or `None`."""
    if isinstance(value, _NUMBERS) and 0 <= value < _MOST and value is not True and value is not False:
        return value
    return None
