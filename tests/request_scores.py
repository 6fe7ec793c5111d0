"""Scores: how many requests of a real agent are equal to what a session's context gives at the same entry.

    python tests/request_scores.py                     the table of all agents
    python tests/request_scores.py pi-0.87.1 -v        with the differences of each request
    python tests/request_scores.py --write             into docs/explanation/requests.md

For each recorded request: the entry after which it was sent, the context there, the request in the dialect of its agent, and a
comparison of both after `NORMAL`. A difference is explained only by a gap: something that the request's own `gaps` name, and
whose text occurs in none of the agent's files.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import agent_records
from agent_records import Sent, strings
from sessile import Store
from sessile.agents.registry import AGENTS
from sessile.core.kinds import MARKER
from sessile.core.sending import APIS
from sessile.next_request import next_request
from sessile.session import Session

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "requests.md"
_START, _END = "<!-- made by tests/request_scores.py -->", "<!-- end -->"

Body = dict[str, Any]
Item = tuple[str, ...]
Usages = Callable[[Mapping[str, Any]], int | None]


# -- what is compared


class Rule(NamedTuple):
    """A row of the normalisation: what does not count, and why."""

    what: str
    why: str


NORMAL = (
    Rule(
        "every member but the system prompt, the messages and the tools",
        "parameters of the call: model, stream, limits",
    ),
    Rule("`cache_control`", "marks for the provider's cache"),
    Rule("a content that is a string", "is the same as one text part; an empty text is none"),
    Rule('`is_error: false`, `status: "completed"`, `strict: false`, `null`', "are the same as nothing"),
    Rule("`eager_input_streaming` of a tool", "a parameter of the stream"),
    Rule("the order of members in arguments and schemas", "JSON objects have no order"),
    Rule("ids of items other than calls (Responses: `id`)", "are made anew by the API"),
    Rule("letters and digits of the system prompt and of descriptions of tools", "the records have them blanked"),
    Rule("letters and digits of a text that was sent in one part with a reminder", "the same"),
    Rule("the system prompt in one block or in several", "is one text; blocks are marks for the cache"),
    Rule(
        "a result that is in the same content already", "Gemini CLI stores results twice, and sends both after a resume"
    ),
)
"""What two requests may differ in and still count as equal. No text, call, result or image is left out."""


class Record(NamedTuple):
    """How the record of an agent is judged.

    Attributes:
        agent: The name of the agent in the registry.
        number: Returns the number of the request that an answer's usage tells, if it tells one.
        asides: Requests that are not part of a conversation, such as those for a summary or a title: a name and a test.
        gaps: Which parts a gap of the request covers: the start of the gap's text, and a test of the part.
        same_ids: Whether the ids of calls must be equal; otherwise they count by the order in which they appear.
        lost: The start of the gap that covers turns which the agent does not store, or has deleted.
        logged: Whether the agent records requests in rows beside the conversation, so that failed ones have entries too.
        removes: Whether the agent removes what was rewound from its files.
        overwrites: Whether the agent stores only the last system prompt.
        thread: Returns the id of the session that a request belongs to; if no file has it, the session was deleted.
        listed: Whether tools are stored as a list or not at all: other sessions may have the definition of one of them, which
            does not tell that it was offered here.
        shortened: The start of the gap's text that covers a text of which the agent leaves out whole lines when it sends it.
        also: Another agent that reads sessions of the same program, in another form.
    """

    agent: str
    number: Usages
    asides: Mapping[str, Callable[[Sent], bool]] = {}
    gaps: Mapping[str, Callable[[Item], bool]] = {}
    same_ids: bool = True
    lost: str | None = None
    logged: bool = False
    removes: bool = False
    overwrites: bool = False
    thread: Callable[[Sent], str] | None = None
    listed: bool = False
    shortened: str = ""
    also: str | None = None


def _by_sevens(usage: Mapping[str, Any]) -> int | None:
    """The scripted model of the pi family: input = 1000 + 7n."""
    given = usage.get("input", 0) - 1000
    return given // 7 if given > 0 and given % 7 == 0 else None


def _by_threes(usage: Mapping[str, Any]) -> int | None:
    """The scripted model of all other agents: output = 100 + 3n."""
    made = usage.get("output", 0) - 100
    return made // 3 if made > 0 and made % 3 == 0 else None


def _by_twenties(usage: Mapping[str, Any]) -> int | None:
    """The same by the total, which is 1100 + 20n: OpenCode counts thoughts apart from the output, and more of them."""
    made = usage.get("totalTokens", 0) - 1100
    return made // 20 if made > 0 and made % 20 == 0 else _by_threes(usage)


def _by_threes_apart(usage: Mapping[str, Any]) -> int | None:
    """The same where the program counts thoughts apart from the output."""
    return _by_threes({"output": usage.get("output", 0) - usage.get("reasoning", 0)})


def _without_tools(sent: Sent) -> bool:
    return not sent.body.get("tools")


def _no_choice(sent: Sent) -> bool:
    return bool(sent.body.get("tool_choice") == {"type": "none"})


def _is_summarized(sent: Sent) -> bool:
    return any(str(part.get("text")).startswith("<summary>") for part in sent.answer or ())


def _is_mock_summary(sent: Sent) -> bool:
    return any(str(part.get("text")).startswith("mock summary") for part in sent.answer or ())


def _is_beside(sent: Sent) -> bool:
    """Requests of Qwen Code for itself: they end with an order of the program, or are answered with a summary."""
    last = list(strings(sent.body["messages"][-1]))[-1]
    ordered = last.startswith(("Managed memory has", "[SUGGESTION MODE"))
    return ordered or any(str(part.get("text")).startswith("<state_snapshot>") for part in sent.answer or ())


def _turn(sent: Sent) -> dict[str, Any]:
    """Return what Codex tells its server about a request."""
    told: dict[str, Any] = json.loads(sent.body.get("client_metadata", {}).get("x-codex-turn-metadata", "{}"))
    return told


def _is(*kinds: str) -> Callable[[Item], bool]:
    return lambda item: item[0] in kinds


def _is_flush(sent: Sent) -> bool:
    return any(text.startswith("Pre-compaction memory flush.") for text in strings(sent.body["messages"]))


def _starts(*starts: str) -> Callable[[Item], bool]:
    """Texts that start so, after the time of a prompt."""
    return lambda item: item[0] == "text" and re.sub(r"^\[[^]]* UTC\] ", "", item[1]).startswith(starts)


def _is_reminder(item: Item) -> bool:
    return item[0] == "text" and _blank(item[1]).startswith(_blank("<system-reminder>"))


def _is_environment(item: Item) -> bool:
    return item[0] == "text" and _blank(item[1]).strip().startswith(_blank("<environment_details>"))


_SUMMARY = {"summary request: not part of the conversation": _without_tools}

_ELSEWHERE = {"its session is in another home": lambda sent: "new home" in sent.step}
_PROMPT = {"system prompt": _is("system"), "tools": _is("tool")}

RECORDS: dict[str, Record] = {
    "pi-0.87.1": Record("pi", _by_sevens, _SUMMARY),
    "pi-0.73.1": Record("pi", _by_sevens, _SUMMARY, {"system prompt": _is("system"), "tools": _is("tool")}),
    "oh-my-pi-18.2.3": Record(
        "omp",
        _by_sevens,
        {"summary request: not part of the conversation": lambda sent: _without_tools(sent) or _no_choice(sent)},
        {"system prompt": _is("system"), "header": _is("system"), "tools": _is("tool"), "reminder": _is_reminder},
    ),
    "openclaw-2026.2.3-1": Record(
        "openclaw", _by_sevens, _SUMMARY, {"system prompt": _is("system"), "tools": _is("tool")}
    ),
    "goose": Record("goose", _by_threes, _SUMMARY, {"system prompt": _is("system"), "tools": _is("tool")}),
    "openclaw-2026.9.6": Record(
        "openclaw-db",
        _by_sevens,
        {**_SUMMARY, "memory flush: not part of the conversation": _is_flush},
        {
            "system prompt": _is("system"),
            "tools": _is("tool"),
            "internal context": _starts("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"),
        },
        listed=True,
        also="openclaw",
    ),
    "claude-code": Record(
        "claude",
        _by_threes,
        {
            "summary request: not part of the conversation": _is_summarized,
            "its session is in another home, which is not in the record": lambda sent: "new home" in sent.step,
        },
        {"system block 1": _is("system")},
        logged=True,
    ),
    "qwen": Record(
        "qwen",
        _by_threes,
        {
            "request for memories, a suggestion or a summary: not part of the conversation": _is_beside,
        },
        {"system prompt": _is("system"), "tools": _is("tool"), "reminder": _is_reminder},
    ),
    "copilot": Record(
        "copilot",
        _by_threes,
        {"summary request: not part of the conversation": _is_mock_summary},
        {"tools": _is("tool"), "result": _is("result text")},
        removes=True,
    ),
    "cline": Record(
        "cline",
        _by_threes,
        {
            **_SUMMARY,
            "its session is in another home, which is not in the record": lambda sent: "new home" in sent.step,
        },
        {"tools": _is("tool"), "rules": _is("system")},
        overwrites=True,
    ),
    "codex": Record(
        "codex",
        _by_threes,
        {
            "summary request: not part of the conversation": lambda sent: (
                _turn(sent).get("request_kind") == "compaction"
            ),
            "title request: not part of the conversation": lambda sent: (
                _turn(sent).get("thread_source") == "thread_title"
            ),
        },
        {"tools": _is("tool")},
        thread=lambda sent: str(_turn(sent).get("thread_id")),
        listed=True,
        shortened="instructions",
    ),
    "continue": Record("continue", _by_threes, {**_SUMMARY, **_ELSEWHERE}, _PROMPT, lost="turns"),
    "opencode": Record("opencode", _by_twenties, {**_SUMMARY, **_ELSEWHERE}, _PROMPT),
    "kilo": Record(
        "kilo", _by_twenties, {**_SUMMARY, **_ELSEWHERE}, {**_PROMPT, "environment details": _is_environment}
    ),
    "gemini": Record("gemini", _by_threes_apart, _SUMMARY, _PROMPT, lost="turns"),
}

FINISHED: tuple[str, ...] = (
    "pi-0.87.1",
    "pi-0.73.1",
    "oh-my-pi-18.2.3",
    "openclaw-2026.2.3-1",
    "openclaw-2026.9.6",
    "goose",
    "claude-code",
    "codex",
    "continue",
    "qwen",
    "copilot",
    "cline",
)
"""The records whose requests must all be equal or explained."""


# -- the verdict


class Verdict(NamedTuple):
    """What became of one request.

    Attributes:
        n: Its number.
        step: The scene.
        outcome: "equal", "gap", "aside" (not part of a conversation) or "unexplained".
        names: The gaps or the sort of aside.
        diff: The differences, for reading.
        point: The session and entry after which it was sent.
    """

    n: int
    step: str
    outcome: str
    names: tuple[str, ...] = ()
    diff: tuple[str, ...] = ()
    point: str = ""


class Point(NamedTuple):
    """A place in a session: a request may have been sent after this entry."""

    path: str
    entry: str | None
    forked: bool


class Judge:
    """Judges the requests of one record."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.record = RECORDS[name]
        self.home = Home(folder / "home")
        self.sent = agent_records.requests(folder)
        self._store = Store(str(folder / "home" / ".sessile"))
        agent = AGENTS.get(self.record.agent)
        assert agent is not None
        self._agent = agent
        names = lambda path: sorted(item.name for item in Path(path).iterdir()) if Path(path).is_dir() else []  # noqa: E731
        also = None if self.record.also is None else AGENTS.get(self.record.also)
        places = [Path(source.sessions) for source in agent.sources(str(folder / "home"), {}, names)]
        if any(place.suffix == ".db" for place in places):  # databases that were moved to other places
            places += sorted({path for path in (folder / "home").rglob("*.db") if path.is_file()} - {*places})
        roots = [place for place in places if place.exists()]
        if agent.rendered:
            self.paths = sorted(each.path for root in roots for each in agent.stored(self._store.fs, str(root)) or ())
            roots = (
                [] if also is None else [Path(each.sessions) for each in also.sources(str(folder / "home"), {}, names)]
            )
        else:
            self.paths = []
        self.paths += sorted(str(path) for root in roots for path in root.rglob("*.jsonl*") if path.is_file())
        self._open: dict[str, Session] = {}

    def session(self, path: str) -> Session:
        """Return an open session."""
        if path not in self._open:
            self._open[path] = self._store.open(path, readonly=True)
        return self._open[path]

    @cached_property
    def points(self) -> tuple[dict[int, list[Point]], list[tuple[Point, str]], list[tuple[Point, str]]]:
        """Where each request was sent, as told by the usage of its answer; other messages and summaries, with their text."""
        answered: dict[int, list[Point]] = {}
        others: list[tuple[Point, str]] = []
        summaries: list[tuple[Point, str]] = []
        for path in self.paths:
            session = self.session(path)
            forked = bool(session.header.get("parentSession"))
            for entry in session.get_entries():
                body = entry.body
                message = {**body, "role": "custom"} if body.get("type") == "custom_message" else body.get("message")
                if isinstance(body.get("summary"), str):
                    summaries.append((Point(path, body.get("id"), forked), body["summary"]))
                if not isinstance(message, dict):
                    continue
                usage = message.get("usage")
                number = self.record.number(usage) if isinstance(usage, dict) else None
                if number is not None:
                    answered.setdefault(number, []).append(Point(path, body.get("parentId"), forked))
                elif message.get("role") != "assistant":
                    texts = list(strings(message.get("content")))
                    others.append((Point(path, body.get("id"), forked), texts[-1] if texts else ""))
        return answered, others, summaries

    @cached_property
    def _logged(self) -> list[Point]:
        """The rows that record a request."""
        sessions = [(path, self.session(path)) for path in self.paths]
        rows = ((path, session, row) for path, session in sessions for row in session.iter_rows() if row.flags & MARKER)
        return [
            Point(path, row.id, False)
            for path, session, row in rows
            if session.read_row(row).get("data", {}).get("customType") == "claude.api-request"
        ]

    def verdicts(self) -> list[Verdict]:
        """Return a verdict for each request, in order."""
        return [self._verdict(sent) for sent in self.sent]

    def _verdict(self, sent: Sent) -> Verdict:
        for name, test in self.record.asides.items():
            if test(sent):
                return Verdict(sent.n, sent.step, "aside", (name,))
        if self.record.thread is not None and self.record.thread(sent) not in self.home.texts:
            return Verdict(sent.n, sent.step, "aside", ("deleted: no file of the session is left",))
        answered, others, summaries = self.points
        if points := answered.get(sent.n):
            # A fork has copies of the answers before it: the session that it was made from sent the request.
            found = [self._compare(sent, point) for point in sorted(points, key=lambda point: point.forked)]
            return min(found, key=lambda verdict: verdict.outcome == "unexplained")
        # An answer that failed or was stopped tells no usage: the request was sent after an entry whose text it has.
        sequence = sent.body.get("messages") or sent.body.get("input") or sent.body["contents"]
        if self._is_lost(sequence):
            return Verdict(sent.n, sent.step, "gap", (str(self.record.lost),))
        turn = max((at for at, each in enumerate(sequence) if each.get("role") in ("assistant", "model")), default=-1)
        turn = min(turn + 1, len(sequence) - 1)
        last, whole = "\n".join(strings(sequence[turn:])), "\n".join(strings(sequence))
        candidates = [point for point, text in others if text and (text in last or _blank(text) in last)][-12:]
        candidates += [point for point, text in summaries if text in whole]
        found = [self._compare(sent, point) for point in candidates]
        if self.record.logged and all(verdict.outcome == "unexplained" for verdict in found):
            found += [self._compare(sent, point) for point in self._logged]
        if not found and self.record.removes and max(strings(sequence[-1]), key=len) not in self.home.texts:
            return Verdict(sent.n, sent.step, "aside", ("its prompt was rewound and removed from the file",))
        if not found:
            return Verdict(sent.n, sent.step, "unexplained", diff=("no entry has a text of the request",))
        return min(found, key=lambda verdict: (verdict.outcome == "unexplained", len(verdict.diff)))

    def _is_lost(self, sequence: list[Any]) -> bool:
        """Return whether the last prompt of a request is in no file, and the agent's gaps name that."""
        dialect = self._agent.dialect
        if (
            self.record.lost is None
            or dialect is None
            or not any(gap.startswith(self.record.lost) for gap in dialect.gaps)
        ):
            return False
        prompts = [list(strings(message)) for message in sequence if message.get("role") == "user"]
        said = [text for text in (prompts[-1] if prompts else []) if text not in ("user", "text")][-1:]
        return bool(said) and not any(self.home.has(text) for text in said)

    def _compare(self, sent: Sent, point: Point) -> Verdict:
        api = api_of(sent)
        if api not in APIS:
            return Verdict(sent.n, sent.step, "unexplained", diff=(f"requests to the API {api} are not made yet",))
        session = self.session(point.path)
        _, request = next_request(session, api, at=point.entry, agent=self._agent, fs=self._store.fs)
        ours = items(_cut(request, set(_CUT.findall(json.dumps(sent.body)))), api, self.record.same_ids)
        theirs = [self._unsigned(item, request.gaps) for item in items(sent.body, api, self.record.same_ids)]
        ours = _blanked_alike(ours, theirs)
        shortened = (
            self.record.shortened if any(gap.startswith(self.record.shortened or "?") for gap in request.gaps) else ""
        )
        ours, cut = _shortened_alike(ours, theirs) if shortened else (ours, False)
        where = f"{Path(point.path).name}#{point.entry}"
        if ours == theirs:
            return Verdict(sent.n, sent.step, "gap" if cut else "equal", (shortened,) if cut else (), point=where)
        missing, added = differences(theirs, ours)
        prompt = "\n\n".join(item[1] for item in missing if item[0] == "system")
        explained = {item: gap for item in missing if (gap := self._gap(item, prompt, request.gaps, sent.body))}
        left = _without(theirs, explained, missing)
        ours = _without(ours, dict.fromkeys(_replacing(added, explained, self.record.overwrites), ""), added)
        if left != ours:
            return Verdict(sent.n, sent.step, "unexplained", (), tuple(readable(left, ours)), where)
        names = [shortened] * cut + [*explained.values()]
        return Verdict(sent.n, sent.step, "gap", tuple(dict.fromkeys(names)), point=where)

    def _unsigned(self, item: Item, named: Iterable[str]) -> Item:
        """Return a call without its signature, if a gap says that signatures are not stored, and no file has it."""
        signed = item[0] == "call" and len(item) > 4 and item[4]
        if not signed or not any(name.startswith("signatures") for name in named) or self.home.has(item[4]):
            return item
        return (*item[:4], "")

    def _gap(self, item: Item, prompt: str, named: Iterable[str], body: Body) -> str | None:
        """Return the gap that explains a missing part: the request names it, and no file has its text."""
        for start, covers in self.record.gaps.items():
            if not covers(item) or not any(name.startswith(start) for name in named):
                continue
            texts = [prompt] if item[0] == "system" else texts_of(item, body)
            if item[0] == "tool" and self.record.listed:
                lost = [tool for tool in body["tools"] if not self.home.defines(tool)]
                return start if lost else None
            if not any(self.home.has(text) for text in texts):
                return start
        return None


def _replacing(added: list[Item], explained: Mapping[Item, str], overwrites: bool) -> list[Item]:
    """Return our parts in the place of explained ones: the start of a result, or a paragraph of a later system prompt."""
    whole = [item[1] for item in explained if item[0] == "result text"]
    found = [item for item in added if item[0] == "result text" and any(text.startswith(item[1]) for text in whole)]
    if overwrites and any(item[0] == "system" for item in explained):
        found += [item for item in added if item[0] == "system"]
    return found


def _shortened_alike(ours: list[Item], theirs: list[Item]) -> tuple[list[Item], bool]:
    """Return our parts with the first text as the agent sent it, if that is ours without some whole lines."""
    at = next((number for number, item in enumerate(ours) if item[0] == "text"), None)
    sent = next((item for item in theirs if item[0] == "text"), None)
    if at is None or sent is None or sent == ours[at]:
        return ours, False
    lines = iter(ours[at][1].split("\n"))
    if not all(line in lines for line in sent[1].split("\n")):  # each is found after the one before it
        return ours, False
    return [*ours[:at], sent, *ours[at + 1 :]], True


def texts_of(item: Item, body: Body) -> list[str]:
    """Return the texts of a part that must not be in any file for it to count as not stored."""
    if item[0] == "tool":
        tools = [tool.get("function") or tool for tool in body["tools"]]
        return [str(tool["description"]) for tool in tools if tool.get("name") == item[1] and tool.get("description")]
    return list(item[1:])


def _without(theirs: list[Item], explained: Mapping[Item, str], missing: list[Item]) -> list[Item]:
    """Return the agent's parts without the explained ones, as often as they are missing."""
    left: list[Item] = []
    emptied = False
    gone = Counter(item for item in missing if item in explained)
    for item in theirs:
        if gone[item]:
            gone[item] -= 1
            emptied = bool(left) and left[-1][0] == "message"
        else:
            if emptied and item[0] == "message":
                left.pop()  # a message of which nothing is left
            emptied = False
            left.append(item)
    return left[:-1] if emptied else left


# -- requests as a flat list of parts


def api_of(sent: Sent) -> str:
    """Return the API that a request was sent to."""
    known = {"messages": "anthropic", "completions": "openai", "responses": "responses"}
    last = sent.path.partition("?")[0].rpartition("/")[2]
    return known.get(last, "google")


def items(body: Mapping[str, Any], api: str, same_ids: bool = True) -> list[Item]:
    """Return the parts of a request in order: system prompt, tools, and each message with its parts."""
    found = list(_FLAT[api](body))
    system = "\n\n".join(item[1] for item in found if item[0] == "system")
    prompt = [("system", text) for text in _blank(system).split("\n\n") if text.strip()]
    rest = [item for item in found if item[0] != "system" and item != ("text", "")]
    rest = [part for item in rest for part in _apart(item)]
    if not same_ids:
        rest = _numbered(rest)
    rest = [(item[0], item[1], _blank(item[2])) if item[0] == "tool" else item for item in rest]
    return [*prompt, *rest]


def _numbered(found: list[Item]) -> list[Item]:
    numbers: dict[str, str] = {}
    return [
        (item[0], numbers.setdefault(item[1], f"#{len(numbers) + 1}"), *item[2:])
        if item[0] in ("call", "result")
        else item
        for item in found
    ]


def canonical(value: Any) -> str:
    """Return a value as JSON with sorted members."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _arguments(value: Any) -> str:
    """Return arguments that are JSON in a string, or a plain text."""
    try:
        return canonical(json.loads(value))
    except (TypeError, ValueError):
        return str(value)


def _image(mime: object, data: object) -> Item:
    text = str(data)
    return ("image", str(mime), f"{len(text)}:{hashlib.sha256(text.encode()).hexdigest()[:12]}")


_CUT = re.compile(r"<<cut: (\d+) characters, sha256 ([0-9a-f]+)>>")


_REMINDER = re.compile(re.escape("<xxxxxx-xxxxxxxx>") + ".*?" + re.escape("</xxxxxx-xxxxxxxx>\n"), re.DOTALL)


def _apart(item: Item) -> list[Item]:
    """Return a reminder and the text that it was put before as two parts."""
    found = _REMINDER.match(_blank(item[1])) if item[0] == "text" else None
    if found is None or found.end() == len(item[1]):
        return [item]
    return [("text", item[1][: found.end() - 1]), ("text", item[1][found.end() :])]


def _blanked_alike(ours: list[Item], theirs: list[Item]) -> list[Item]:
    """Blank the texts that the record has blanked, because they were sent together with prose of the program."""
    known = set(theirs)
    return [
        blank if item[0] == "text" and item not in known and (blank := ("text", _blank(item[1]))) in known else item
        for item in ours
    ]


def _cut(value: Any, known: set[tuple[str, str]]) -> Any:
    """Cut the long strings of our request as those of the record are, of which it has the ends, the length and the hash."""
    if isinstance(value, dict):
        return {name: _cut(item, known) for name, item in value.items()}
    if isinstance(value, list):
        return [_cut(item, known) for item in value]
    if not isinstance(value, str) or len(value) < _LONG or str(len(value)) not in {length for length, _ in known}:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()
    if (str(len(value)), digest) not in known:
        return value
    return f"{value[:1500]}<<cut: {len(value)} characters, sha256 {digest}>>{value[-500:]}"


_BLANKED = {
    ord(c): "X" if c.isupper() else "x" if c.isalpha() else "9"
    for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
}


def _blank(text: str) -> str:
    """Blank letters and digits, as the record does in the prose of programs."""
    return text.translate(_BLANKED)


_LONG = 3000  # characters; shorter strings are whole in the records
_MARKS = ("cache_control", "eager_input_streaming")


def _without_cache(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_cache(item) for name, item in value.items() if name not in _MARKS and item is not None}
    return [_without_cache(item) for item in value] if isinstance(value, list) else value


def _parts(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content or []


def _anthropic(body: Mapping[str, Any]) -> Iterator[Item]:
    for block in _parts(body.get("system")):
        yield "system", block["text"]
    for tool in body.get("tools") or ():
        yield "tool", tool.get("name", ""), canonical(_without_cache(tool))
    for message in body["messages"]:
        yield "message", message["role"]
        for block in _parts(message["content"]):
            yield from _anthropic_part(block)


def _anthropic_part(block: Body, inside: str = "") -> Iterator[Item]:
    kind = block.get("type")
    if kind == "text":
        yield f"{inside}text", block["text"]
    elif kind == "thinking":
        yield "thinking", block.get("thinking", ""), block.get("signature") or ""
    elif kind == "image" and block["source"].get("type") == "base64":
        yield _image(block["source"].get("media_type"), block["source"]["data"])
    elif kind == "tool_use":
        yield "call", block["id"], block["name"], canonical(block["input"])
    elif kind == "tool_result":
        yield "result", block["tool_use_id"], "failed" if block.get("is_error") else ""
        for part in _parts(block.get("content")):
            yield from _anthropic_part(part, "result ")
    else:
        yield "other", canonical(_without_cache(block))


def _openai(body: Mapping[str, Any]) -> Iterator[Item]:
    for message in body["messages"]:
        if message["role"] in ("system", "developer"):
            for part in _parts(message["content"]):
                yield "system", part["text"]
    for tool in body.get("tools") or ():
        function = {name: value for name, value in tool["function"].items() if (name, value) != ("strict", False)}
        yield "tool", tool["function"].get("name", ""), canonical(_without_cache(function))
    for message in body["messages"]:
        role = message["role"]
        if role in ("system", "developer"):
            continue
        yield "message", role
        if role == "tool":
            yield "result", message["tool_call_id"], ""
        if message.get("reasoning_content"):
            yield "thinking", message["reasoning_content"], ""
        for part in _parts(message.get("content")):
            if part.get("type") == "text":
                yield ("result text" if role == "tool" else "text"), part["text"]
            elif part.get("type") == "image_url":
                mime, _, data = part["image_url"]["url"].removeprefix("data:").partition(";base64,")
                yield _image(mime, data)
            else:
                yield "other", canonical(_without_cache(part))
        for call in message.get("tool_calls") or ():
            yield "call", call["id"], call["function"]["name"], _arguments(call["function"]["arguments"])


def _responses(body: Mapping[str, Any]) -> Iterator[Item]:
    if body.get("instructions"):
        yield "system", body["instructions"]
    for tool in body.get("tools") or ():
        yield "tool", str(tool.get("name") or tool.get("type")), canonical(_without_cache(tool))
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "message":
            yield "message", item["role"]
            for part in _parts(item["content"]):
                if part["type"] in ("text", "input_text", "output_text"):
                    yield "text", part["text"]
                elif part["type"] == "input_image":
                    mime, _, data = part["image_url"].removeprefix("data:").partition(";base64,")
                    yield _image(mime, data)
                else:
                    yield "other", canonical(part)
        elif kind == "function_call":
            yield "call", item["call_id"], item["name"], _arguments(item["arguments"]), item.get("namespace") or ""
        elif kind == "custom_tool_call":
            yield "call", item["call_id"], item["name"], item["input"], "custom"
        elif kind in ("function_call_output", "custom_tool_call_output"):
            yield "result", item["call_id"], kind
            for part in _parts(item["output"]):
                if part.get("type") in ("text", "input_text", "output_text"):
                    yield "result text", part["text"]
                elif part.get("type") == "input_image":
                    mime, _, data = part["image_url"].removeprefix("data:").partition(";base64,")
                    yield _image(mime, data)
                else:
                    yield "other", canonical(part)
        elif kind == "reasoning":
            texts = [part["text"] for part in [*(item.get("summary") or ()), *(item.get("content") or ())]]
            yield "thinking", "\n\n".join(texts), item.get("encrypted_content") or ""
        else:
            rest = {name: value for name, value in item.items() if name not in ("id", "status") and value is not None}
            yield "other", canonical(rest)


def _once(parts: list[Body]) -> Iterator[Body]:
    """Yield the parts of a content, without results that are there already, and their images."""
    seen: list[object] = []
    for part in parts:
        result = part.get("functionResponse")
        known = None if result is None else (result.get("id"), result["name"])
        known = part["inlineData"]["data"] if "inlineData" in part and seen else known
        if known is None or known not in seen:
            seen += [] if known is None else [known]
            yield part


def _google(body: Mapping[str, Any]) -> Iterator[Item]:
    for part in (body.get("systemInstruction") or {}).get("parts") or ():
        yield "system", part["text"]
    for group in body.get("tools") or ():
        for tool in group.get("functionDeclarations") or ():
            yield "tool", tool.get("name", ""), canonical(tool)
    for content in body["contents"]:
        yield "message", content.get("role", "user")
        for part in _once(content["parts"]):
            signature = part.get("thoughtSignature") or ""
            if "functionCall" in part:
                call = part["functionCall"]
                yield "call", call.get("id", ""), call["name"], canonical(call.get("args") or {}), signature
            elif "functionResponse" in part:
                response = part["functionResponse"]
                yield "result", response.get("id", ""), response["name"]
                yield "result text", canonical(response["response"])
                for inner in response.get("parts") or ():
                    yield "other", canonical(inner)
            elif "inlineData" in part:
                yield _image(part["inlineData"].get("mimeType"), part["inlineData"]["data"])
            elif part.get("thought"):
                yield "thinking", part.get("text", ""), signature
            elif "text" in part:
                yield ("text", part["text"], signature) if signature else ("text", part["text"])
            else:
                yield "other", canonical(part)


_FLAT: dict[str, Callable[[Mapping[str, Any]], Iterator[Item]]] = {
    "anthropic": _anthropic,
    "openai": _openai,
    "responses": _responses,
    "google": _google,
}


def differences(theirs: list[Item], ours: list[Item]) -> tuple[list[Item], list[Item]]:
    """Return the parts that only the agent sent, and those that only our request has."""
    missing: list[Item] = []
    added: list[Item] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes():
        if tag != "equal":
            missing += theirs[i:j]
            added += ours[k:m]
    return missing, added


def readable(theirs: list[Item], ours: list[Item]) -> Iterator[str]:
    """Yield the differences, `-` only the agent's and `+` only ours."""
    matcher = difflib.SequenceMatcher(None, theirs, ours, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            continue
        yield f"  @ part {i}, after {_short(theirs[i - 1]) if i else 'the start'}"
        one = j - i == m - k == 1 and theirs[i][0] == ours[k][0]
        if one:
            pairs = zip("|".join(theirs[i]), "|".join(ours[k]), strict=False)
            at = next((at for at, (a, b) in enumerate(pairs) if a != b), 0)
            yield f"    (they differ from character {at} on)"
            yield f"    - {theirs[i][0]} …{'|'.join(theirs[i])[max(0, at - 40) : at + 160]!r}"
            yield f"    + {ours[k][0]} …{'|'.join(ours[k])[max(0, at - 40) : at + 160]!r}"
            continue
        for item in theirs[i:j]:
            yield f"    - {_short(item)}"
        for item in ours[k:m]:
            yield f"    + {_short(item)}"


def _short(item: Item) -> str:
    text = " | ".join(item[1:])
    return f"{item[0]} {text[:200]!r}{f' … {len(text)} characters' if len(text) > 200 else ''}"


# -- what the agent stored


def _definitions(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        told = value.get("parameters") or value.get("format")
        if isinstance(value.get("name"), str) and isinstance(told, dict):
            yield _blank(canonical(told))
        for item in value.values():
            yield from _definitions(item)
    elif isinstance(value, list):
        for item in value:
            yield from _definitions(item)


class Home:
    """Every text in an agent's files: as it is there, in JSON strings, in databases, and unpacked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, bool] = {}

    @cached_property
    def texts(self) -> str:
        """All texts, one after the other."""
        found: list[str] = []
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and ".sessile" not in path.relative_to(self.folder).parts:
                found += self._of(path.read_bytes(), path)
        return "\0".join(found)

    @cached_property
    def blanked(self) -> str:
        """The same with letters and digits blanked, because the requests of the record are."""
        return _blank(self.texts)

    def has(self, text: str) -> bool:
        """Return whether a text is in any file, or each of its paragraphs, also with letters and digits blanked."""
        if text not in self._known:
            paragraphs = [_blank(part.strip()) for part in text.split("\n\n") if part.strip()]
            self._known[text] = text.strip() in self.texts or all(part in self.blanked for part in paragraphs)
        return self._known[text]

    def defines(self, tool: Body) -> bool:
        """Return whether a file has the definition of a tool: its parameters, or the grammar of its input."""
        told = tool.get("parameters") or tool.get("format")
        return bool(told) and _blank(canonical(told)) in self.definitions

    @cached_property
    def definitions(self) -> set[str]:
        """The definitions of tools in all rows."""
        found: set[str] = set()
        for path in sorted(self.folder.rglob("*.jsonl")):
            for line in path.read_text("utf-8", "replace").split("\n"):
                found.update(_definitions(json.loads(line) if line.startswith("{") else None))
        return found

    def _of(self, data: bytes, path: Path | None = None) -> Iterator[str]:
        if data.startswith(b"\x28\xb5\x2f\xfd"):
            data = agent_records.unpacked(data)
        if data.startswith(b"SQLite format 3\0") and path is not None:
            yield from self._rows(path)
            return
        text = data.decode("utf-8", "replace")
        yield text
        for line in [text] if text.startswith("{\n") else text.split("\n"):
            yield from self._nested(line)

    def _nested(self, line: str, depth: int = 3) -> Iterator[str]:
        if not depth or line[:1] not in ("{", "["):
            return
        try:
            value = json.loads(line)
        except ValueError:
            return
        for text in strings(value):
            yield text
            yield from self._nested(text, depth - 1)

    def _rows(self, path: Path) -> Iterator[str]:
        base = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            tables = [name for (name,) in base.execute("select name from sqlite_master where type = 'table'")]
            for table in tables:
                try:
                    rows = base.execute(f'select * from "{table}"').fetchall()
                except sqlite3.Error:  # a virtual table whose module is not here
                    continue
                for value in (value for row in rows for value in row):
                    if isinstance(value, str | bytes):
                        yield from self._of(value if isinstance(value, bytes) else value.encode("utf-8", "replace"))
        finally:
            base.close()


# -- scores


class Score(NamedTuple):
    """The outcomes of a record's requests."""

    name: str
    requests: int
    equal: int
    gap: int
    aside: int
    unexplained: int
    gaps: tuple[str, ...]


def score(name: str, verdicts: list[Verdict]) -> Score:
    """Count the outcomes."""
    count = Counter(verdict.outcome for verdict in verdicts)
    gaps = sorted({name for verdict in verdicts if verdict.outcome == "gap" for name in verdict.names})
    return Score(name, len(verdicts), count["equal"], count["gap"], count["aside"], count["unexplained"], tuple(gaps))


def judged(name: str) -> list[Verdict]:
    """Unpack a record and judge it."""
    with tempfile.TemporaryDirectory() as folder:
        return Judge(name, agent_records.unpack(name, Path(folder))).verdicts()


def table(scores: Iterable[Score]) -> str:
    """Return the scores as a table in Markdown."""
    lines = [
        "| agent | requests | equal | equal but for gaps | not of the conversation | unexplained | gaps |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in scores:
        numbers = f"{row.requests} | {row.equal} | {row.gap} | {row.aside} | {row.unexplained}"
        lines.append(f"| {row.name} | {numbers} | {', '.join(row.gaps) or 'none'} |")
    return "\n".join(lines) + "\n"


def page(scores: Iterable[Score]) -> str:
    """Return the generated part of the page about requests."""
    rules = "\n".join(f"| {rule.what} | {rule.why} |" for rule in NORMAL)
    return f"{table(scores)}\nWhat does not count:\n\n| difference | why |\n|---|---|\n{rules}\n"


def written(text: str, made: str) -> str:
    """Return the page with its generated part replaced."""
    before, _, rest = text.partition(_START)
    _, _, after = rest.partition(_END)
    return f"{before}{_START}\n\n{made}\n{_END}{after}"


def main(arguments: list[str]) -> None:
    """Print scores, and with `-v` the differences."""
    write = "--write" in arguments
    names = [name for name in arguments if not name.startswith("-")] or list(FINISHED if write else RECORDS)
    scores = []
    for name in names:
        verdicts = judged(name)
        scores.append(score(name, verdicts))
        for verdict in verdicts if "-v" in arguments else ():
            if verdict.outcome != "equal":
                names_ = ", ".join(verdict.names)
                print(f"{name} {verdict.n} {verdict.step}: {verdict.outcome} {names_} at {verdict.point}")
                print("\n".join(verdict.diff[:40]))
    if write:
        PAGE.write_text(written(PAGE.read_text(), page(scores)))
    print(table(scores))


if __name__ == "__main__":
    main(sys.argv[1:])
