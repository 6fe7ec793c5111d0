"""The demo as a store that people can look around in: made-up sessions, written as files of their own.

They are written only where nothing is yet, and can be deleted like any cache. A gateway that serves them has some of them as
conversations.

The demo: about forty made-up sessions that show every feature on the first day.

All times hang from `now`; ids, texts and everything else are the same whenever it is asked for, so that documents can name
them. Lines come one at a time, as they are taken. Nothing is written: that is for the caller, who knows where.

The other sessions of the demo: those of every day, dull ones, and one of 20,000 entries that is made up as it is read.

Nothing here is drawn by chance: every number comes from the name of a session and the place of an entry in it.

Scripts of made-up sessions: a transcript as a person would jot it down, told as the entries of a session.

A script has one mark at the start of each line:

    > what the user says, `[image]` for a picture         ? what the model thinks         < what the model answers
    $ tool argument                                       $! the same, and it fails       | a line of its output
    :word rest     anything else: `:model`, `:level`, `:label`, `:back`, … (the tables at the end of this module)

A line that begins with two spaces goes on with the text before it. `@deadbee1 > …` gives the entry that id, so that others can
name it. Thinking, answer and calls that follow each other are one message. `edit` and `write` take the lines below them as
what is changed: `|-old`, `|+new`.

Ids, pauses, tokens and prices come from the name of the session and its text alone: telling a script twice gives the same
entries. When the session took place is not known here.

The told sessions of the demo: one script each, under a line `= name project hours-ago title`; a title of `-` is none.

The scripts are in the notation of `demo_script`. All people, projects and numbers are made up. Secrets are fillers that
become values of the right shape when the stories are told, so that this file holds none.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.agents.openclaw.binding_store import Changes, Entries, own_bindings
from sessile.agents.openclaw.entries import SessionEntry
from sessile.core import entries as make
from sessile.core.codec import decode, encode
from sessile.core.entries import Payload
from sessile.core.ids import derived_entry_id
from sessile.core.migrate import VERSION
from sessile.core.secret_shapes import fill
from sessile.core.text import iso_timestamp
from sessile.storage import atomic
from sessile.storage.layout import JOURNAL, artifacts_of
from sessile.store import Store

# --- demo script

_SYSTEM = 4_000  # tokens of the system prompt and the tools
_WEIGHT = 98  # the stories are short; what their tools read and print would not be
_LINE = re.compile(r"(?:@(\w{8}) )?([>?<:]|\$!?) ?(.*)")
_IMAGE = " [image]"
# Milliseconds before a message.
_PAUSES = {"user": (35_000, 210_000), "assistant": (3_000, 24_000), "toolResult": (900, 5_000)}

# A chart of 240×140 pixels: failed deliveries by hour, a few at first, then a mountain.
_CHART = (
    "iVBORw0KGgoAAAANSUhEUgAAAPAAAACMAgMAAAA/28y7AAAADFBMVEX////d3d1KeL7IPDL0nPFBAAAAoUlEQVR42u3ZvQ3CMBRF4Qi6NOzBEqxAE6Vk"
    "FBiFEt0pWII90qQLumAELpD4eakc5ZzS9lfY1ZNcVUREU68Z0ZZno7dsg8FgMBj8vaU9gANzWGtfmzseNYfN+rU39hkMBoPBYPCzld0VgtNCKfjzDLaz"
    "+zyH7e1LWvh3Div6zmAw+IEX0ukXXEuHKM5bEZzOZiwpjGvpGMavszPCfIIQFdINHDvp12EiK1oAAAAASUVORK5CYII="
)

# How each model is reached, and its prices for a million tokens: input, output, read from the cache, written to it.
MODELS = {
    "anthropic/claude-opus-4-5": ("anthropic-messages", 5, 25, 0.5, 6.25),
    "anthropic/claude-sonnet-4-5": ("anthropic-messages", 3, 15, 0.3, 3.75),
    "openai/gpt-5.1": ("openai-responses", 1.25, 10, 0.125, 0),
    "google/gemini-3-pro": ("google-generative-ai", 2, 12, 0.2, 0),
    "ollama/qwen3-coder:30b": ("openai-completions", 0, 0, 0, 0),
}

# The argument of each tool that the rest of its line is.
_ARGUMENTS = {"bash": "command", "edit": "path", "grep": "pattern", "read": "path", "write": "path"}


class Step(NamedTuple):
    """One entry of a told session, `at` milliseconds after its beginning. A torn one was never written to its end."""

    entry_id: str
    parent_id: str | None
    at: int
    payload: Payload
    torn: bool = False


class _Block(NamedTuple):
    """A marked line with all that belongs to it."""

    entry_id: str | None
    mark: str
    text: str
    output: str


class _Standing(NamedTuple):
    """Where the conversation stands after an entry: the model that is asked, what it would read, what of it is cached."""

    model: str = "anthropic/claude-sonnet-4-5"
    tokens: int = _SYSTEM
    cached: int = 0


def tell(name: str, script: str, begun: Sequence[Step] = ()) -> list[Step]:
    """The entries of a script, after those with which the session began."""
    teller = _Teller(name, begun)
    for block in _blocks(script):
        teller.add(block)
    teller.answer()
    return teller.steps


def draw(low: int, high: int, *parts: object) -> int:
    """A number from a range, the same for the same parts."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return low + int.from_bytes(digest[:6], "big") % (high - low + 1)


def answer(model: str, content: list[Payload], cached: int, read: int, written: int) -> Payload:
    """A model's message: `read` tokens were before it, some of them cached."""
    provider, _, model_id = model.partition("/")
    api, *prices = MODELS[model]
    new = {"input": 0, "cacheWrite": read - cached} if prices[-1] else {"input": read - cached, "cacheWrite": 0}
    amounts = {"input": new["input"], "output": written, "cacheRead": cached, "cacheWrite": new["cacheWrite"]}
    cost = {part: amount * price / 1e6 for (part, amount), price in zip(amounts.items(), prices, strict=True)}
    usage = {**amounts, "totalTokens": read + written, "cost": {**cost, "total": sum(cost.values())}}
    stop = "toolUse" if content and content[-1]["type"] == "toolCall" else "stop"
    served = {"api": api, "provider": provider, "model": model_id}
    return {"role": "assistant", "content": content, **served, "usage": usage, "stopReason": stop}


def tool_call(call_id: str, tool: str, arguments: Payload) -> Payload:
    """The part of an answer that calls a tool."""
    return {"type": "toolCall", "id": call_id, "name": tool, "arguments": arguments}


def tool_result(call_id: str, tool: str, output: str, failed: bool = False, details: Any = None) -> Payload:
    """The message with which a tool answers."""
    message: Payload = {"role": "toolResult", "toolCallId": call_id, "toolName": tool, "content": text_of(output)}
    return message | ({"details": details} if details else {}) | {"isError": failed}


def text_of(text: str) -> list[Payload]:
    """A text as the content of a message."""
    return [{"type": "text", "text": text}]


def _blocks(script: str) -> Iterator[_Block]:
    block: _Block | None = None
    for line in filter(None, script.split("\n")):
        if block is not None and line.startswith("|"):
            block = block._replace(output=f"{block.output}\n{line[1:]}" if block.output else line[1:])
        elif block is not None and line.startswith("  "):
            block = block._replace(text=f"{block.text}\n{line[2:]}")
        elif match := _LINE.fullmatch(line):
            if block is not None:
                yield block
            block = _Block(match[1], match[2], match[3], "")
        else:
            raise ValueError(f"no script has a line {line!r}")
    if block is not None:
        yield block


class _Teller:
    """Appends one entry after another, as a session does."""

    def __init__(self, name: str, begun: Sequence[Step]) -> None:
        self.steps: list[Step] = []
        self._name = name
        self._leaf: str | None = None
        self._at = 0
        self._after: dict[str | None, _Standing] = {None: _Standing()}
        self._parts: list[_Block] = []  # of the answer that is not complete yet
        for step in begun:
            self._take(step)

    def add(self, block: _Block) -> None:
        """Tell the next block."""
        goes_on = block.mark in ("$", "$!") or (block.mark == "<" and self._parts and self._parts[-1].mark == "?")
        if not goes_on:
            self.answer()
        if block.mark in ("?", "<", "$", "$!"):
            self._parts.append(block)
        elif block.mark == ">":
            self._append(make.message({"role": "user", "content": _said(block.text)}), block.entry_id)
        else:
            self._obey(block)

    def answer(self) -> None:
        """Tell the answer that is complete now, and what its tools gave."""
        parts, self._parts = self._parts, []
        content: list[Payload] = []
        results = []
        for number, part in enumerate(parts):
            if part.mark == "?":
                content.append({"type": "thinking", "thinking": part.text})
            elif part.mark == "<":
                content += text_of(part.text)
            else:
                call_id = "call_" + derived_entry_id(self._name, "call", len(self.steps), number)
                call, result = _call(call_id, part)
                content.append(call)
                results.append(result)
        if content:
            standing = self._after[self._leaf]
            written = len(encode({"content": content})) // 3
            message = answer(standing.model, content, standing.cached, standing.tokens, written)
            self._append(make.message(message), next((part.entry_id for part in parts if part.entry_id), None))
        for result in results:
            self._append(make.message(result))

    def _append(self, payload: Payload, entry_id: str | None = None) -> None:
        number = len(self.steps)
        low, high = _PAUSES.get(payload.get("message", {}).get("role"), (150, 1_000))
        pause = draw(low, high, self._name, number, "pause")
        self._take(Step(entry_id or derived_entry_id(self._name, number), self._leaf, self._at + pause, payload))

    def _take(self, step: Step) -> None:
        self.steps.append(step)
        self._leaf, self._at = step.entry_id, step.at
        standing, payload = self._after[step.parent_id], step.payload
        if payload["type"] == "message":
            role = payload["message"]["role"]
            weight = _WEIGHT if role == "toolResult" else 1
            tokens = standing.tokens + weight * len(encode(payload["message"])) // 4
            standing = _Standing(standing.model, tokens, standing.tokens if role == "assistant" else standing.cached)
        elif payload["type"] == "model_change":
            standing = _Standing(payload["model"], standing.tokens)
        elif payload["type"] == "compaction":
            kept = standing.tokens - self._after[payload["firstKeptEntryId"]].tokens
            standing = _Standing(standing.model, _SYSTEM + len(payload["summary"]) // 4 + kept)
        self._after[step.entry_id] = standing

    def _obey(self, block: _Block) -> None:
        word, _, rest = block.text.partition(" ")
        if word in _MESSAGES:
            self._append(make.message(_MESSAGES[word](rest, block.output)), block.entry_id)
        elif word in _ENTRIES:
            self._append(_ENTRIES[word](rest), block.entry_id)
        else:
            _MOVES[word](self, rest)

    def back(self, rest: str) -> None:
        """Go on from an earlier entry; what was learned on the branch that is left may be summed up."""
        target, _, summary = rest.partition(" ")
        self._leaf = target
        if summary:
            self._append(make.branch_summary(target, summary))

    def compact(self, rest: str) -> None:
        """Sum up everything before an entry."""
        kept, _, summary = rest.partition(" ")
        short = summary.split("\n")[0].strip("# ")
        self._append(make.compaction(summary, kept, self._after[self._leaf].tokens, short_summary=short))

    def tear(self, _: str) -> None:
        """The last entry was never written to its end: whoever opens the file again goes on from the one before."""
        torn = self.steps[-1]
        self.steps[-1] = torn._replace(torn=True)
        self._leaf = torn.parent_id

    def fail(self, rest: str) -> None:
        """The provider gave an error instead of an answer."""
        message = answer(self._after[self._leaf].model, [], cached=0, read=0, written=0)
        self._append(make.message(message | {"stopReason": "error", "errorMessage": rest}))


def _said(text: str) -> Any:
    if not text.endswith(_IMAGE):
        return text
    return [*text_of(text.removesuffix(_IMAGE)), {"type": "image", "data": _CHART, "mimeType": "image/png"}]


def _call(call_id: str, block: _Block) -> tuple[Payload, Payload]:
    """A call and its result."""
    tool, _, rest = block.text.partition(" ")
    arguments = decode(rest.encode()) if rest.startswith("{") else {_ARGUMENTS[tool]: rest}
    output, details = block.output, None
    if tool == "edit":
        changes = output.split("\n")
        arguments |= {"oldText": _side(changes, "-"), "newText": _side(changes, "+")}
        details = {"diff": output}
        output = f"Successfully replaced text in {rest}."
    elif tool == "write":
        arguments["content"] = output
        output = f"Successfully wrote {len(output.encode())} bytes to {rest}"
    result = tool_result(call_id, tool, output, failed=block.mark == "$!", details=details)
    return tool_call(call_id, tool, arguments), result


def _side(changes: list[str], mark: str) -> str:
    return "\n".join(line[1:] for line in changes if line[:1] in (mark, " "))


_ENDED = {"exitCode": 0, "cancelled": False, "truncated": False}
_MESSAGES: dict[str, Callable[[str, str], Payload]] = {
    "bash": lambda command, output: {"role": "bashExecution", "command": command, "output": output, **_ENDED},
    "python": lambda code, output: {"role": "pythonExecution", "code": code, "output": output, **_ENDED},
    "file": lambda path, text: {"role": "fileMention", "files": [{"path": path, "content": text}]},
    "message": lambda rest, _: dict(decode(rest.encode())),
}
_ENTRIES: dict[str, Callable[[str], Payload]] = {
    "level": make.thinking_level_change,
    "model": make.model_change,
    "name": make.session_info,
    "mode": make.mode_change,
    "label": lambda rest: make.label(*rest.split(" ", 1)),
    "rules": lambda rest: make.ttsr_injection(rest.split(", ")),
    "entry": lambda rest: dict(decode(rest.encode())),
}
_MOVES: dict[str, Callable[[_Teller, str], None]] = {
    "back": _Teller.back,
    "compact": _Teller.compact,
    "fail": _Teller.fail,
    "torn": _Teller.tear,
}


# --- demo filler

LONG = 20_000  # entries of the long session
_TENANTS = "tenants"  # its name
_MODEL = "anthropic/claude-sonnet-4-5"
_PACE = 9_000  # milliseconds from one of its entries to the next
_BATCH, _COMPACTED = 20, 400  # entries of a batch, and between two compactions
_FIRST = (
    "Amber",
    "Brisk",
    "Copper",
    "Dapper",
    "Early",
    "Foggy",
    "Golden",
    "Humble",
    "Ivory",
    "Jolly",
    "Little",
    "Merry",
)
_SECOND = ("Bakery", "Bicycles", "Bookshop", "Brewery", "Cinema", "Florist", "Harbour", "Museum", "Orchard", "Theatre")
_SNAGS = ("duplicate key (invoice_no)", "lock wait timeout", "invalid byte sequence 0xff", "foreign key to nobody")
_CLOSING = (
    "Checksums agree on both sides, no rows left behind.",
    "One tenant had invoices without a customer; they went to `orphans`, listed in the report.",
    "Slower than the last batch: the index on `created_at` is built while we copy.",
)

# Sessions of every day. Each begins with a model that its name chooses.
EVERYDAY = r"""
= flaky payments-api 23 Flaky test in CI
> test_refund_window is a flaky test: green here, red in CI about once in ten runs. Always around midnight?
$ bash faketime '23:59:58' pytest -q -k refund_window
|FAILED test_refund_window - assert date(2026, 3, 1) == date(2026, 2, 28)
< Caught it: the test asks for today's date twice, and at midnight gets two different days. I freeze the clock.
$ edit tests/conftest.py
|+def pytest_runtest_setup(): freezer.move_to("2026-02-28T12:00:00Z")
< 500 runs in a loop, none red.
= timezone mobile-app 38 Birthdays one day early
> Customers in New York see their birthday a day early. A timezone thing, surely.
? A date without a time is parsed as midnight in UTC and shown in local time: the day before, west of Greenwich.
@b1d7da01 < `new Date("1990-05-17")` is midnight in UTC, still the 16th in New York. A birthday has no timezone.
> So store it as text?
< As a plain calendar date, yes: `Temporal.PlainDate`, and it is never converted.
:back b1d7da01
:entry {"type":"custom","customType":"sessile.leaf"}
= n-plus-one shop-frontend 50 Product page makes 412 queries
> The product page is slow. 2.4 s for 20 products!
$ bash grep -c SELECT log/development.log
|412
< An N+1 query: one for the products, then twenty for each of them. Eager loading brings it to 3 queries and 91 ms.
= regex data-pipeline 63 The regex that ate the server
> One log line makes the parser hang for minutes: lots of a's, then an exclamation mark.
$ grep re.compile
|parse.py:12:PATTERN = re.compile(r"^(\w+\s?)*$")
< Catastrophic backtracking: `(\w+\s?)*` splits the same text in countless ways. `^[\w\s]*$` means the same, in linear time.
= cors shop-frontend 71 -
> CORS again. It works in curl but not in the browser and I am losing my mind
$ bash curl -si -X OPTIONS -H 'Origin: https://shop.test' https://api.shop.test/cart | grep -i access-control
|access-control-allow-origin: *
< curl does not ask for permission, browsers do: a wildcard is refused as soon as cookies are sent. Echo the origin instead.
= rebase dotfiles 96 Lost commits after a rebase
> I rebased and three commits are GONE. Please tell me git keeps everything
$ bash git reflog -1 main@{1} --format='%h %gs'
|77be012 commit: Teach the parser about comments
< It does. `git branch rescued 77be012` and all three are back. Breathe. 🙂
= oom infra-tools 130 Pod is OOMKilled every hour
> The report worker gets OOMKilled every full hour. A memory leak?
$ edit report/export.py
|-    rows = list(query.all())
|+    rows = query.yield_per(1000)
< No leak, just a very large list: the hourly export held 900,000 rows. Now it streams, with 140 MB instead of 1.9 GB.
= plurals mobile-app 165 -
> Polish translators complain: "5 plik" should be "5 plików". We only have singular and plural.
< Polish has four plural categories: one, few, many, other. ICU messages know them. How many strings have a number?
> I hoped that you would tell me.
$ grep %d
|37 matches in 12 files
< 37 strings. I made a list with the English text beside each, ready for the translators.
= certificate infra-tools 210 Certificate expires on Sunday
> TLS certificate for api.shop.test expires on Sunday and renewal fails since last week
$! bash certbot renew --dry-run
|Challenge failed: 404 for /.well-known/acme-challenge/
< The new proxy answers 404 before the challenge arrives. One location block fixes it. And a calendar is no monitoring.
= rounding payments-api 235 Invoices off by a cent
> VAT on invoices is off by a cent compared with the tax office. Only on some.
? Sum of rounded lines against rounded sum. Both are allowed, but it must be the same everywhere.
$ bash pytest -q tests/test_invoice.py
|64 passed in 1.02s
< We round each line, the tax office rounds the sum. `invoice_total` now rounds once, with `Decimal`; all 64 tests pass.
= pagination payments-api 333 Rows missing between pages
> Exported payments skip rows when new ones come in during the export. Offset pagination?
$ write migrations/0042_payments_cursor.sql
|CREATE INDEX CONCURRENTLY payments_cursor ON payments (created_at, id);
< Yes: each new row pushes others across the edge of a page. A cursor over `(created_at, id)` does not care.
= race payments-api 402 Two refunds for one click
> A customer was refunded twice. The button was clicked once, says the log.
$ bash pytest -q tests/test_refund_race.py --count 200
|200 passed in 31.40s
< Two workers took the same job, a race condition. `FOR UPDATE SKIP LOCKED` closes the gap: 200 races, one refund each.
:entry {"type":"reset_boundary"}
> New topic: what do I tell the customer?
< "You were refunded twice by our mistake; please keep the second one." It is 4 euros, and cheaper than the letter.
= sourdough notes 450 Sourdough as a state machine
> Model my sourdough starter as a state machine. Yes, seriously.
< Hungry → fed → rising → peak → falling → hungry. Only *peak* bakes bread; everything else makes pancakes. 🥞
> Add the fridge.
< `chilled` can be reached from any state and makes all timers six times longer. It also forgives you for holidays.
= unicode data-pipeline 520 José is not José
> Joining customers by name misses people called José. Both sides look the same!
$ bash python -c 'print([len(name) for name in names])'
|[4, 5]
< One is composed (é), the other is an e and an accent. Normalise both to NFC on the way in.
= cron infra-tools 700 Cron job ran twice on Sunday
> The nightly invoice job ran twice on Sunday and not at all in spring. Haunted?
< Daylight saving time: 02:30 exists twice in autumn and never in spring. Run it in UTC.
> And the report at 04:00?
< Safe: nearly all countries change their clocks before three.
= csv data-pipeline 820 CSV import swallows the last column
> Import of the partner's CSV loses the last column, only for files from their Windows machine.
$ bash head -1 partner.csv | xxd | tail -1
|00000030: 616d 6f75 6e74 0d0a                      amount..
< CR before LF: the last header is `amount\r`. Opened with `newline=""`, as the csv module asks, all columns are there.
"""

# Long and dull work: name, project, hours ago and title; what is replaced in every module, and by what; the modules.
_DULL = """\
rename payments-api 88 Rename customer to account ~ who: Customer ~ who: Account ~ api auth billing dunning export ledger tax
temporal shop-frontend 260 Replace moment.js by Temporal ~ moment().add(1, 'day') ~ today.add({ days: 1 }) ~ agenda diff week
alt-texts shop-frontend 575 Alternative texts for all pictures ~ <img> ~ <img alt={t('alt')}> ~ cart footer hero legal news team
docker infra-tools 300 Smaller docker images ~ FROM python:3.13 ~ FROM python:3.13-slim ~ api cron mailer proxy web worker
flags mobile-app 640 Remove old feature flags ~ if (flags.newCheckout) ~ // always ~ banner checkout login onboarding search
links notes 1020 Mend dead links in my notes ~ http://old.wiki.test/ ~ https://wiki.test/ ~ bread bikes garden guitar maps sewing
types payments-api 1100 Make mypy strict ~ def load(path): ~ def load(path: str) -> Book: ~ bank cards fees fraud fx mail vat
"""


def dull_stories() -> str:
    """The dull sessions, as scripts."""
    lines = []
    for row in _DULL.splitlines():
        story, old, new, modules = row.split(" ~ ")
        lines += [f"= {story}", f"> {story.split(' ', 3)[-1]}, please. One module after the other, with its tests."]
        for module in modules.split():
            lines += [f"$ read src/{module}", f"|{old}", f"< {module.capitalize()} next.", f"$ edit src/{module}"]
            lines += [f"|-{old}", f"|+{new}", f"$ bash make test-{module}", f"|{draw(4, 60, story, module)} passed"]
        lines.append("< All modules are done, and every test passed on the way.")
    return "\n".join([*lines, ""])


def long_steps() -> Iterator[Step]:
    """A migration of thousands of tenants: compacted every 400 entries, some batches done again, some labelled."""
    ids: list[str] = []
    for number in range(LONG):
        ids.append(derived_entry_id(_TENANTS, number))
        # Every 2,400 entries a batch is done again: it hangs from the end of the one before the last.
        back = _BATCH + 1 if number % 2_400 == 7 * _BATCH + 1 else 1
        yield Step(ids[-1], ids[number - back] if number else None, long_at(number), _payload(number, ids))


def long_at(number: int) -> int:
    """When an entry of the long session was written, in milliseconds after its beginning."""
    return number * _PACE + number * 7_919 % _PACE


def _payload(number: int, ids: list[str]) -> Payload:
    batch, place = divmod(number, _BATCH)
    if number == 0:
        return make.model_change(_MODEL)
    if number % _COMPACTED == 0:
        summary = f"## Move every tenant to schema v7\n{batch} batches are done, up to {_tenant(number - 1)}."
        return make.compaction(summary, ids[number - _BATCH + 1], _context(number - 1))
    if number % 2_000 == 2 * _BATCH:
        return make.label(ids[number - _BATCH], f"batch-{batch - 1}")
    if place == 1:
        return make.message({"role": "user", "content": f"Next is batch {batch + 1}, {_tenant(number + 1)} and on."})
    if place % 2:
        return make.message(_result(number))
    content = text_of(f"Batch {batch} is done. {_CLOSING[batch % len(_CLOSING)]}")
    if place:
        content = [tool_call(f"call_{number}", "bash", {"command": f"./migrate --to v7 --tenant '{_tenant(number)}'"})]
    read = _context(number)
    return make.message(answer(_MODEL, content, cached=read - 120, read=read, written=draw(40, 220, number)))


def _context(number: int) -> int:
    return 9_000 + number % _COMPACTED * 60


def _result(number: int) -> Payload:
    chance = draw(0, 10**6, _TENANTS, number)
    output = f"{_tenant(number - 1)}: {chance % 90_000:,} rows in {chance % 890 / 10} s, checksum {chance * 3_571:08x}"
    failed = chance % 97 == 0
    output += f"\nERROR: {_SNAGS[chance % len(_SNAGS)]}" if failed else "\ninvoices ok, customers ok, payments ok"
    return tool_result(f"call_{number - 1}", "bash", output, failed=failed)


def _tenant(number: int) -> str:
    return f"{_FIRST[number // 2 % len(_FIRST)]} {_SECOND[number // 24 % len(_SECOND)]} {number // 2:05d}"


# --- demo stories

STORIES = r"""
= webhook payments-api 2 -
:model anthropic/claude-sonnet-4-5
:level medium
> Add retry with backoff to the webhook sender. Deliveries fail in bursts whenever a merchant deploys, see the chart. [image]
? The chart shows a burst of failures between 6 and 10 o'clock. Before I propose anything I need the sender and its tests.
< I'll look at the sender and its tests first.
$ read src/payments/webhooks.py
|class TransientError(Exception):
|    "The merchant may answer if asked again."
|
|def send(delivery: Delivery) -> None:
|    response = httpx.post(delivery.url, json=delivery.body, timeout=5)
|    response.raise_for_status()
$ bash pytest -q tests/test_webhooks.py
|8 passed in 0.41s
@c0ffee15 < Failed deliveries are dropped today. **A**: a hand-made `retry()`. **B**: `tenacity`, with jitter. I lean towards B.
> Let's try approach A, no new dependency.
< A small decorator with exponential backoff, then.
$ edit src/payments/webhooks.py
|+@retry(TransientError, attempts=5, first_pause=0.5)
| def send(delivery: Delivery) -> None:
$! bash pytest -q tests/test_webhooks.py
|FAILED tests/test_webhooks.py::test_a_503_is_tried_again - assert 1 == 3
|FAILED tests/test_webhooks.py::test_gives_up_after_five - Failed: DID NOT RAISE GivenUp
|2 failed, 6 passed in 0.62s
@deadbee1 < Two tests fail: `TransientError` is never raised, since httpx has errors of its own. Approach A grows and grows.
:back c0ffee15 Approach A: hand-made retry() in webhooks.py. Two of eight tests failed, pauses could not be faked; abandoned.
> Actually, use tenacity after all (approach B).
:level high
:model anthropic/claude-opus-4-5
? tenacity retries on a predicate. 429 and 5xx are worth another try, other 4xx are not. Keep the pause injectable for tests.
< Then `retry_if_exception` with one predicate, and full jitter so that merchants are not hit in step.
$ bash uv add tenacity
|Resolved 31 packages in 212ms
| + tenacity==9.1.2
$ edit src/payments/webhooks.py
|-@retry(TransientError, attempts=5, first_pause=0.5)
|+@retry(retry=retry_if_exception(worth_another_try), wait=wait_random_exponential(multiplier=0.5, max=60),
|+       stop=stop_after_attempt(5), before_sleep=log_retry, reraise=True)
$ bash pytest -q tests/test_webhooks.py
|8 passed in 0.44s
@9f31c2a0 < All 8 tests pass. 429 and 5xx are tried again up to five times within about a minute, other 4xx fail at once.
:label 9f31c2a0 tests-green
:name Webhook retries
@5eed0001 > Great. Also log each retry with the merchant id, and never the body.
$ edit src/payments/webhooks.py
|+def log_retry(state: RetryCallState) -> None:
|+    log.warning("webhook to merchant %s: attempt %d failed", state.args[0].merchant, state.attempt_number)
$ bash pytest -q && ruff check
|212 passed in 9.80s
|All checks passed!
< Each retry is one warning with merchant and attempt. The body holds card data, so it stays out of the log.
:compact 5eed0001 ## Failed webhook deliveries are tried again, without a storm
  - done: `send` retries 429 and 5xx with tenacity, full jitter, five attempts; each retry is logged, never with the body
  - decided: approach A (hand-made retry) was abandoned, two tests failed and pauses could not be faked
  - next: a line for the changelog
> Now a line for the changelog.
@0dd5a1ad < Webhook deliveries that fail with 429 or 5xx are tried again up to five times, with growing, jittered pauses.
@77aa01c4 > Shorter please.
:back 0dd5a1ad
@0b1d22ef > Make it a table row instead.
= webhook-async payments-api 2 Webhook retries, async
> Same thing, but for the async sender. Keep the predicate, share it.
$ read src/payments/async_webhooks.py
|async def send(delivery: Delivery) -> None:
|    (await client.post(delivery.url, json=delivery.body)).raise_for_status()
$ edit src/payments/async_webhooks.py
|+@retry(**POLICY)
| async def send(delivery: Delivery) -> None:
< tenacity knows coroutines: both senders now share `POLICY`. One thing differs, cancelling a delivery also cancels its pause.
= leak infra-tools 5 Deploy script prints too much
:model anthropic/claude-sonnet-4-5
> The staging deploy stopped. Mails go to ana@payments-demo.dev, and here is the token I use: ghp_<w36>
$ bash cat /home/ana/.config/deploy/env
|ANTHROPIC_API_KEY=sk-ant-api03-<w93>AA
|AWS_ACCESS_KEY_ID=AKIA<u16>
|DATABASE_URL=postgres://deploy:<w20>@db.staging.internal:5432/shop
$! bash curl -sf -H 'X-Api-Key: sk-or-v1-<h64>' https://deploy.internal/v1/start
|curl: (22) The requested URL returned error: 403
< Refused (403): the token lacks the `deploy` scope. And all of these are burnt now: they are in this transcript.
> Oops. Rotated. Does the script print them in CI too?
$ edit deploy.sh
|-set -x
|+set +x  # the environment is not for the log
< It did: `set -x` echoed every command with its values. Removed.
= chinese shop-frontend 9 购物车价格显示错误
:model anthropic/claude-opus-4-5
> 购物车里的总价有时候会多一分钱,用户投诉了。帮我看看是不是浮点数的问题?🛒
? 典型的浮点误差:0.1 + 0.2。应当以“分”为单位用整数计算,只在显示的时候格式化。
< 我先看一下计算总价的代码。
$ read src/cart/total.ts
|// 计算购物车总价
|export const total = (items: Item[]) => items.reduce((sum, i) => sum + i.price * i.count, 0);
< 确实是浮点数的问题:`19.99 * 3` 得到 `59.97000000000001`。建议全部改成以分为单位的整数:
  ```ts
  export const totalCents = (items: Item[]) => items.reduce((sum, i) => sum + i.cents * i.count, 0);
  ```
> 好,就这样改。别忘了优惠券打八折的情况。
$ edit src/cart/total.ts
|+export const discounted = (cents: number, percent: number) => Math.round((cents * percent) / 100);
$ bash npm test -- cart
|Tests: 14 passed, 14 total
< 改好了 ✅ 打折只在最后取整一次,14 个测试全部通过。
= japanese mobile-app 31 文字数カウントと絵文字 🎌
:model google/gemini-3-pro
> プロフィールの文字数制限が絵文字でおかしくなります。「👨‍👩‍👧‍👦」が11文字と数えられます。
$ edit src/profile/count.ts
|-export const count = (text: string) => text.length;
|+export const count = (text: string) => [...new Intl.Segmenter("ja").segment(text)].length;
< `length` は UTF-16 の単位を数えるためです。`Intl.Segmenter` なら家族の絵文字も1文字になります 👍
= arabic shop-frontend 55 محاذاة القائمة من اليمين
:model anthropic/claude-sonnet-4-5
> القائمة الجانبية تظهر في الجهة الخطأ عند اختيار اللغة العربية. ما السبب؟
$ edit src/menu.css
|-  margin-left: 16px;
|+  margin-inline-start: 16px;
< السبب هو `margin-left`. الخصائص المنطقية مثل `margin-inline-start` تتبع اتجاه النص تلقائياً ✨
= outage infra-tools 14 checkout returns 500
:model openai/gpt-5.1
:entry {"type":"service_tier_change","serviceTier":"priority"}
:entry {"type":"mcp_tool_selection","selectedToolNames":["mcp_grafana_query","mcp_pager_ack"]}
:entry {"type":"context_change","contextName":"production","tenant":"shop","namespace":"edge"}
:entry {"type":"credential_pin","provider":"openai","hash":"not-a-hash-only-a-demo"}
:message {"role":"developer","content":"Production. Look, explain, and ask before you change anything."}
:file runbooks/disk.md
|1. `df -h`  2. find the largest folder  3. never delete a database file
@d15cf011 > The pager woke me: checkout returns 500. Start with the runbook. :(
:mode plan
:bash df -h /var
|/dev/vda1        80G   80G     0 100% /var
? 100 %. What grew? Logs, most likely; the runbook forbids touching database files.
$! bash du -sh /var/log/nginx
|du: cannot read directory '/var/log/nginx': Permission denied
< Not without more rights.
$ bash sudo du -sh /var/log/* | sort -h | tail -2
|1.2G	/var/log/journal
|71G	/var/log/nginx
:fail 529 overloaded_error: the provider is overloaded, try again later
:model anthropic/claude-opus-4-5
:rules ask-before-delete, no-force-push
:entry {"type":"custom_message","customType":"pager","content":"Incident 4711 acknowledged by ana.","display":true}
< 71 GB of nginx logs: logrotate has not run since Tuesday. I would compress all but the last day. Shall I?
@01dbeef0 > Do it.
:mode none
$ bash sudo logrotate -f /etc/logrotate.d/nginx && df -h /var | tail -1
|/dev/vda1        80G  9.1G   71G  12% /var
:python sum(5_000 * 0.031 for minute in range(42))
|6510.0
:entry {"type":"custom","customType":"incident","data":{"number":4711,"minutes":42}}
:entry {"type":"usage","kind":"summary","provider":"openai","model":"gpt-5.1","usage":{"input":812,"output":64}}
:entry {"type":"model_usage","purpose":"title","api":"openai-responses","provider":"openai","model":"gpt-5.1","stopReason":"stop"}
:entry {"type":"title_change","title":"Night of the full disk","previousTitle":"checkout returns 500","source":"auto"}
:entry {"type":"context_edit","targetId":"d15cf011","replacement":{"content":"Checkout returns 500. Start with the runbook."}}
:label 01dbeef0 approved
< Checkout answers again after 42 minutes. The cause was `daily;` instead of `daily` in the config of logrotate.
= local dotfiles 20 -
:model ollama/qwen3-coder:30b
> zsh takes 1.8 s to start. Offline please, this is my laptop on a train.
$ bash zprof | head -1
|1)  nvm_auto   1420.11 ms  78.9%
< `nvm` takes 79 % of it. Load it when `node` is first called, that leaves about 0.3 s.
= scouts data-pipeline 27 Where do duplicate orders come from?
:model anthropic/claude-opus-4-5
> About 0.3 % of orders arrive twice in the warehouse. Send a scout through the ingestion code, keep your own context small.
? A sub-agent can read the forty files; I only need its findings.
$ task {"agent": "scout-1", "task": "Find every place where an order may be ingested twice."}
|The consumer commits its offset before the insert is flushed (consumer.py:88). Full report: scout-1.md
< After a restart the consumer replays what it had already inserted. An upsert on `order_id` makes replays harmless.
= torn data-pipeline 34 Power cut during the backfill
:model anthropic/claude-sonnet-4-5
> Backfill the exchange rates, one month at a time. March first.
$ bash python backfill.py 2026-03-01 2026-03-31
|31 days, 4,216 rates
< March is complete: 31 days, 4,216 rates. April next?
> Yes, April.
< April is running. The lights just flickered, by the way; I hope that nobody has to read half of this sentence.
:torn
> We had a power cut. Where were we?
< March is complete. My last answer was cut off while it was written, and the file says so. I start April again.
= torn-end mobile-app 190 Battery drain on Android
:model openai/gpt-5.1
> The app drains the battery when it is in the background. Wake locks?
$ bash adb shell dumpsys batterystats | grep -i wake
|Wake lock com.shop.sync: 3h 12m 4s partial
< The sync worker holds a wake lock for three hours: its `finally` never runs, because the job is killed before it gets there.
:torn
= ancient dotfiles 1400 -
> git log with a graph, as an alias. I always forget the flags.
< `git config --global alias.lg "log --graph --oneline --decorate --all"`
@0ld00001 > And only the last ten?
:compact 0ld00001 The user has an alias `lg` for a log with a graph.
< `git lg -10` does it: arguments go behind the alias.
= hooked infra-tools 1210 Terraform drift
:model anthropic/claude-sonnet-4-5
:message {"role":"hookMessage","customType":"git-status","content":"On branch main, nothing to commit","display":true}
> terraform plan wants to recreate the load balancer. Nobody touched it!
$ bash terraform plan -no-color | grep forces
|  ~ name = "edge-lb" -> "edge-lb-1" # forces replacement
< Somebody did: the provider's new version adds a suffix to the name. Pin it to `~> 5.81` and the plan is empty.
= empty notes 77 -
:model anthropic/claude-sonnet-4-5
:level low
= question notes 42 -
:model google/gemini-3-pro
> How many grams are in a cup of flour?
< About 120 g if spooned, 140 g if scooped. A scale settles it.
"""

# The session of the sub-agent in the story `scouts`; it lies in the artifacts folder of that session.
SCOUT = r"""
:entry {"type":"session_init","systemPrompt":"You read code and report.","task":"Find duplicates.","tools":["read","grep"]}
:model anthropic/claude-sonnet-4-5
> Find every place where an order may be ingested twice.
$ read ingest/consumer.py
|        self.consumer.commit()  # before the flush!
|        self.buffer.flush()
< The consumer commits its offset before the insert is flushed (consumer.py:88). Nothing else ingests orders.
"""
SCOUT_REPORT = "# Scout 1\n\nThe consumer commits its offset before the insert is flushed (consumer.py:88).\n"


# --- demo

_HOME = "/home/ana"
_HOUR = 3_600_000  # milliseconds
_STORY = re.compile(r"^= (\S+) (\S+) (\S+) (.+)\n((?:[^=\n].*\n)*)", re.MULTILINE)
_WEBHOOK = "6513270e-2b1d-4c55-9a0e-7d1f3c5b9e42"  # the session that documents name
_FORKED_AT = "9f31c2a0"  # an entry of it
_OLD = {"ancient": 1, "hooked": 2}  # the stories in versions of the format that have been


class DemoSession(NamedTuple):
    """One made-up session: where it belongs, and what its file holds."""

    cwd: str
    file_name: str
    modified: int  # milliseconds since 1970: when its last entry was written
    lines: Iterator[bytes]  # without newlines, header first
    artifacts: Mapping[str, bytes]
    torn: bool = False  # the file ends in the middle of its last line

    def content(self) -> Iterator[bytes]:
        """The bytes of the file, in pieces. They can be taken once, as `lines` can."""
        between = b""
        for line in self.lines:
            yield between + line
            between = b"\n"
        if not self.torn:
            yield between


class _Story(NamedTuple):
    """What is known of a session before it is told."""

    name: str
    cwd: str
    hours_ago: float
    title: str | None
    script: str = ""
    parent: str | None = None

    @property
    def session_id(self) -> str:
        digest = hashlib.sha256(self.name.encode()).hexdigest()
        made = f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-a{digest[17:20]}-{digest[20:32]}"
        return _WEBHOOK if self.name == "webhook" else made


def demo_sessions(now: int) -> Iterator[DemoSession]:
    """The sessions of the demo, as they are at a moment in milliseconds since 1970; the newest ended two hours before."""
    webhook, fork, *others = _stories()
    steps = tell(webhook.name, webhook.script)
    start = _start(webhook, now, steps[-1].at)
    yield _session(webhook, start, steps)
    copied = _path(steps, _FORKED_AT)
    yield _session(fork._replace(parent=_WEBHOOK), start, tell(fork.name, fork.script, copied), len(copied))
    for story in others:
        steps = tell(story.name, story.script)
        yield _session(story, _start(story, now, steps[-1].at), steps)
    yield _long_session(now)


def _stories() -> Iterator[_Story]:
    yield from _read(STORIES)
    for story in _read(EVERYDAY + dull_stories()):
        model = list(MODELS)[draw(0, len(MODELS) - 1, story.name)]
        yield story._replace(script=f":model {model}\n:level low\n{story.script}")


def _read(stories: str) -> Iterator[_Story]:
    for name, project, hours, title, script in _STORY.findall(stories):
        told = fill(script, _not_real) if name == "leak" else script
        yield _Story(name, f"{_HOME}/{project}", float(hours), None if title == "-" else title, told)


def _not_real(alphabet: str, length: int) -> str:
    """The inside of a key of which everybody sees that it is none."""
    text = "deadbeef0123456789" if len(alphabet) == 16 else "N0tARealKey" if "a" in alphabet else "NOTAREALKEY23456"
    return (text * length)[:length]


def _start(story: _Story, now: int, duration: int) -> int:
    return now - int(story.hours_ago * _HOUR) - duration


def _path(steps: Iterable[Step], entry_id: str) -> list[Step]:
    """The entries from the root to one of them."""
    by_id = {step.entry_id: step for step in steps}
    path = [by_id[entry_id]]
    while (parent := path[-1].parent_id) is not None:
        path.append(by_id[parent])
    return path[::-1]


def _session(story: _Story, start: int, steps: list[Step], copied: int = 0) -> DemoSession:
    began = start + (steps[copied].at if copied else 0)
    artifacts = _scout(story, start) if story.name == "scouts" else {}
    end, lines = start + steps[-1].at, _lines(story, began, start, steps)
    return DemoSession(story.cwd, _file_name(story, began), end, lines, artifacts, steps[-1].torn)


def _long_session(now: int) -> DemoSession:
    story = _Story("tenants", f"{_HOME}/data-pipeline", 100, "Move every tenant to schema v7")
    duration = long_at(LONG - 1)
    start = _start(story, now, duration)
    lines = _lines(story, start, start, long_steps())
    return DemoSession(story.cwd, _file_name(story, start), start + duration, lines, {})


def _scout(story: _Story, start: int) -> dict[str, bytes]:
    """The session and the report of a sub-agent."""
    scout = _Story("scout-1", story.cwd, story.hours_ago, None, SCOUT, story.session_id)
    lines = _lines(scout, start, start, tell(scout.name, scout.script))
    return {"scout-1.jsonl": b"".join(line + b"\n" for line in lines), "scout-1.md": SCOUT_REPORT.encode()}


def _file_name(story: _Story, began: int) -> str:
    stamp = iso_timestamp(began).replace(":", "-").replace(".", "-")
    return f"{stamp}_{story.session_id}.jsonl"


def _lines(story: _Story, began: int, start: int, steps: Iterable[Step]) -> Iterator[bytes]:
    named = {"title": story.title, "titleSource": "auto"} if story.title else {}
    header = make.header(story.session_id, iso_timestamp(began), story.cwd, **named, parentSession=story.parent)
    version = header["version"] = _OLD.get(story.name, VERSION)
    if version == 1:
        del header["version"]
    yield encode(header)
    places: dict[str, int] = {}  # of entries, as version 1 counted them
    for step in steps:
        places[step.entry_id] = len(places) + 1
        yield _line(step, start + step.at, places if version == 1 else None)


def _line(step: Step, at: int, places: Mapping[str, int] | None) -> bytes:
    payload = step.payload
    if payload["type"] == "message":
        payload = {**payload, "message": {**payload["message"], "timestamp": at}}
    entry = make.with_base(payload, step.entry_id, step.parent_id, iso_timestamp(at))
    if places is not None:
        del entry["id"], entry["parentId"]
        if "firstKeptEntryId" in entry:
            entry["firstKeptEntryIndex"] = places[entry.pop("firstKeptEntryId")]
    raw = encode(entry)
    return raw[: len(raw) * 3 // 5] if step.torn else raw


# --- demo

_AGENT = "main"
# The beginnings of the ids of sessions that are conversations of the demo, with their keys and chats.
_BOUND = {
    "6513270e": ("agent:main:main", {"displayName": "Webhook retries"}),
    "e2d3b41d": (
        "agent:main:discord:channel:shop",
        {"chatType": "channel", "channel": "discord", "displayName": "discord:#shop"},
    ),
    "1f5087db": (
        "agent:main:telegram:group:-1001200345",
        {"chatType": "group", "channel": "telegram", "displayName": "Kitchen"},
    ),
    "bdbb9deb": ("agent:main:hook:ci", {"displayName": "CI"}),
    "1dbce02c": ("agent:main:cron:orders", {"displayName": "Nightly orders"}),
}


def make_demo(store: Store) -> int:
    """Write the sessions of the demo, unless they are there; says how many were written."""
    made = f"{store.layout.root}/made"  # the last thing to be written: a demo without it is not whole
    if atomic.exists(store.fs, made):
        return 0
    known = {info.id for info in store.list_all()}
    written = 0
    for session in demo_sessions(store.now()):
        session_id = session.file_name.removesuffix(JOURNAL).rpartition("_")[2]
        if session_id not in known:
            _write(store, session)
            written += 1
    atomic.replace(store.fs, made, (b"",), durable=False)
    return written


def _write(store: Store, session: DemoSession) -> None:
    path = f"{store.layout.folder(session.cwd)}/{session.file_name}"
    artifacts = artifacts_of(path)
    atomic.make_folders(store.fs, artifacts if session.artifacts else posixpath.dirname(path))
    for name, content in session.artifacts.items():
        atomic.replace(store.fs, f"{artifacts}/{name}", (content,), durable=False)
    atomic.replace(store.fs, path, session.content(), durable=False)
    atomic.set_modified(store.fs, path, session.modified * 1_000_000)


def bind_demo(store: Store) -> None:
    """Make some sessions of the demo conversations, unless there are conversations already."""

    def bind(entries: Entries) -> Changes:
        return {} if entries else dict(_bindings(store))

    own_bindings(store, _AGENT).update_all(bind, now=store.now())


def _bindings(store: Store) -> Iterator[tuple[str, SessionEntry]]:
    for info in store.list_all():
        if info.id[:8] in _BOUND:
            key, chat = _BOUND[info.id[:8]]
            moment = int(info.modified.timestamp() * 1000)
            yield key, SessionEntry({"sessionId": info.id, "updatedAt": moment, "sessionStartedAt": moment, **chat})
