"""What people see of an entry, as values: the same for terminal, page and exports.

    Shown
      who        user · assistant · system · tool · shell · summary · setting · note
      headline   one line that says what happened, never empty
      parts      Text · Thinking · Call · Output · Diff · Image · Data, in the order of the entry

Rules:

- Every part has a depth, the lowest of `prompts`, `chat`, `tools` and `all` at which it is shown.
- Any entry gives a `Shown`, however malformed; depth `all` shows everything that it contains.
- A result is shown with the call that it answers: `show_all` remembers the calls of earlier entries.
- Texts are as stored: renderers escape them. Secrets are replaced before an entry gets here.

Colours, widths and markup are not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sessile.core import tools
from sessile.core.digest import FIRST_TEXT, shown, tool_of
from sessile.core.text import parse_timestamp
from sessile.core.usage import amount, cost_of, model_of, quarter_of, usage_of

Json = Mapping[str, Any]
Depth = Literal["prompts", "chat", "tools", "all"]
DEPTHS: tuple[Depth, ...] = ("prompts", "chat", "tools", "all")
Who = Literal["user", "assistant", "system", "tool", "shell", "summary", "setting", "note"]


class Text(NamedTuple):
    """A message or summary, in Markdown."""

    text: str
    depth: Depth = "chat"


class Thinking(NamedTuple):
    """The model's thinking; `hidden` if the provider returned it encrypted."""

    text: str
    hidden: bool = False
    depth: Depth = "all"


class Call(NamedTuple):
    """A tool call; `summary` is its most informative argument, on one line."""

    id: str
    name: str
    summary: str
    arguments: Any
    depth: Depth = "tools"


class Output(NamedTuple):
    """What a tool or command printed, with its terminal colours."""

    text: str
    failed: bool = False
    depth: Depth = "tools"


class Diff(NamedTuple):
    """A change to a file: lines that start with +, - or a space."""

    path: str
    text: str
    depth: Depth = "tools"


class Image(NamedTuple):
    """An image in base64, or a reference to a blob."""

    mime: str
    data: str
    depth: Depth = "chat"


class Data(NamedTuple):
    """Members of an entry that have no other form."""

    name: str
    value: Any
    depth: Depth = "all"


Part = Text | Thinking | Call | Output | Diff | Image | Data


class Spent(NamedTuple):
    """Tokens and cost of an answer; `None` is unknown."""

    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    total: int | None
    cost: float | None


class Shown(NamedTuple):
    """An entry as people see it."""

    id: str | None
    parent_id: str | None
    type: str
    who: Who
    name: str  # of the tool or the kind of setting; otherwise the same as `who`
    headline: str
    parts: tuple[Part, ...]
    failed: bool
    at: int | None  # milliseconds since 1970
    model: str | None
    spent: Spent | None
    call_id: str | None  # the call that a result answers

    @property
    def depth(self) -> Depth:
        """The lowest depth at which a part of it is shown."""
        depths = [part.depth for part in self.parts]
        return next((depth for depth in DEPTHS if depth in depths), "all")

    def at_depth(self, depth: Depth) -> tuple[Part, ...]:
        """Return the parts that a depth shows."""
        most = DEPTHS.index(depth)
        return tuple(part for part in self.parts if DEPTHS.index(part.depth) <= most)


_MAX_LINE = 400  # characters of a headline


def show_all(entries: Iterable[Json]) -> Iterator[Shown]:
    """Yield the entries of a path as people see them; results are shown with their calls."""
    calls: dict[str, Call] = {}
    for entry in entries:
        shown_entry = show(entry, calls)
        calls.update((part.id, part) for part in shown_entry.parts if isinstance(part, Call))
        yield shown_entry


def show(entry: Json, calls: Mapping[str, Call] = {}) -> Shown:
    """Return an entry as people see it; `calls` are those that a result may answer."""
    kind = str(entry.get("type"))
    message = entry.get("message")
    if kind == "message":
        content = _message(message, calls, entry) if isinstance(message, dict) else _unknown(entry)
    else:
        content = _KINDS.get(kind, _unknown)(entry)
    return Shown(  # in one step: a page of a large session creates thousands of them
        _string(entry.get("id")),
        _string(entry.get("parentId")),
        kind,
        content.who,
        content.name,
        shown(content.headline) or f"({_line(kind.replace('_', ' '))})",
        content.parts,
        content.failed,
        parse_timestamp(entry.get("timestamp")),
        content.model,
        content.spent,
        content.call_id,
    )


# -- messages

_SPEAKERS: dict[str, Who] = {"user": "user", "assistant": "assistant", "custom": "note", "hookMessage": "note"}


def _message(message: Json, calls: Mapping[str, Call], entry: Json) -> Shown:
    role = _string(message.get("role")) or ""
    if role == "toolResult":
        return _result(message, calls)
    if role in _RUN:
        return _run(message, _RUN[role])
    if role == "fileMention":
        return _mention(message)
    if role in ("branchSummary", "compactionSummary"):
        return _summary("branch summary" if role == "branchSummary" else "compaction", message)
    if role == "system" and any(message.get(name) for name in _PROMPT):
        return _prompt(message)
    depth: Depth = "prompts" if role == "user" else "chat"
    parts = tuple(_blocks(message.get("content"), depth))
    error = _string(message.get("errorMessage"))
    if error:
        parts = (*parts, Output(error, failed=True, depth="chat"))
    failed = message.get("stopReason") == "error" or bool(error)
    who = _SPEAKERS.get(role, "system")
    name = _string(message.get("customType")) if who == "note" else None
    if message.get("details"):
        parts = (*parts, Data("details", message["details"]))
    model = model_of(message)
    spent = _spent(message.get("usage"), model or "", quarter_of(entry, message)) if role == "assistant" else None
    return _content(who, _headline(parts), parts, name=name, failed=failed, model=model, spent=spent)


_PROMPT = ("sections", "toolsAdded", "toolsRemoved")


def _prompt(message: Json) -> Shown:
    """A change of the system prompt, by named sections, and of the tools."""
    sections, added, removed = (message.get(name) for name in _PROMPT)
    sections = sections if isinstance(sections, dict) else {}
    added = [tool for tool in added if isinstance(tool, dict)] if isinstance(added, list) else []
    removed = [str(name) for name in removed] if isinstance(removed, list) else []
    content = message.get("content")
    parts: list[Part] = list(_blocks(content, "chat")) if content else []
    for name, text in sections.items():
        parts.append(Text(text, "all") if isinstance(text, str) else Data("section removed", name))
    parts += [Data(f"tool {tool.get('name')}", tool) for tool in added]
    if removed:
        parts.append(Data("tools removed", removed))
    changes = (
        ("system prompt", list(sections)),
        ("tools", [str(tool.get("name")) for tool in added]),
        ("without", removed),
    )
    headline = " · ".join(f"{what}: {', '.join(names)}" for what, names in changes if names)
    return _content("system", headline, tuple(parts), name="system prompt")


def _blocks(content: object, depth: Depth) -> Iterator[Part]:
    if isinstance(content, str):
        yield Text(content, depth)
        return
    if not isinstance(content, list):
        if content is not None:
            yield Data("content", content)
        return
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str):
            yield Text(block["text"], depth)
        elif kind == "thinking" and isinstance(thought := block.get("thinking", ""), str):
            yield Thinking(thought, hidden=bool(block.get("redacted")))
        elif kind == "toolCall":
            name = _string(block.get("name")) or "unknown tool"
            arguments = block.get("arguments")
            yield Call(_string(block.get("id")) or "", name, call_summary(name, arguments), arguments)
        elif kind == "image":
            image = _image(block, depth)
            yield image
            if not image.data:  # show its other members instead
                yield Data("image", block)
        else:
            yield Data(str(kind or "content"), block)


def _image(block: Json, depth: Depth) -> Image:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    mime = _string(block.get("mimeType")) or _string(source.get("media_type")) or "image"
    return Image(mime, _string(block.get("data")) or _string(source.get("data")) or "", depth)


def _result(message: Json, calls: Mapping[str, Call]) -> Shown:
    call_id = _string(message.get("toolCallId"))
    call = calls.get(call_id) if call_id else None
    name = tool_of(message, {call.id: call.name} if call else {}) or "tool"
    failed = message.get("isError") is True
    parts: list[Part] = []
    for part in _blocks(message.get("content"), "tools"):
        parts.append(Output(part.text, failed) if isinstance(part, Text) else part)
    changes = tools.changes(name, call.arguments if call else None, message)
    parts += [Diff(change.path, change.text) for change in changes]
    details = message.get("details")
    if changes and isinstance(details, dict):
        details = {name: value for name, value in details.items() if name != "diff"}
    if details:
        parts.append(Data("details", details))
    first = next((line for part in parts if isinstance(part, Output) and (line := _line(part.text))), "")
    headline = " · ".join(filter(None, (call.summary if call else "", first)))
    return _content("tool", headline or name, tuple(parts), name=name, failed=failed, call_id=call_id)


_RUN = {"bashExecution": ("bash", "command"), "pythonExecution": ("python", "code")}


def _run(message: Json, names: tuple[str, str]) -> Shown:
    name, member = names
    command, output = _string(message.get(member)) or "", _string(message.get("output")) or ""
    code = message.get("exitCode")
    failed = isinstance(code, int) and not isinstance(code, bool) and code != 0
    parts = (Call("", name, _line(command), {member: command}), Output(output, failed))
    ended = "cancelled" if message.get("cancelled") is True else f"exit {code}" if failed else ""
    return _content("shell", " · ".join(filter(None, (_line(command), ended))), parts, name=name, failed=failed)


def _mention(message: Json) -> Shown:
    files = message.get("files")
    files = [file for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    names = [_string(file.get("path")) or "?" for file in files]
    parts: list[Part] = [Text(", ".join(names), "tools")]
    parts += [Output(text) for file in files if (text := _string(file.get("content")))]
    parts += [_image(image, "tools") for file in files if isinstance(image := file.get("image"), dict)]
    return _content("note", ", ".join(names), tuple(parts), name="files")


# -- other kinds


def _custom_message(entry: Json) -> Shown:
    depth: Depth = "tools" if entry.get("display") is True else "all"
    parts = tuple(_blocks(entry.get("content"), depth))
    if entry.get("details"):
        parts = (*parts, Data("details", entry["details"]))
    return _content("note", _headline(parts), parts, name=_string(entry.get("customType")) or "note")


def _summary(name: str, entry: Json) -> Shown:
    text = _string(entry.get("summary")) or ""
    short = _string(entry.get("shortSummary"))
    parts: tuple[Part, ...] = (Text(text, "prompts"),)
    if short and short != text:
        parts = (*parts, Data("short summary", short))
    if entry.get("details"):
        parts = (*parts, Data("details", entry["details"]))
    if isinstance(prompt := entry.get("systemMessage"), dict):
        parts = (*parts, *_prompt(prompt).parts)
    return _content("summary", _line(short or text), parts, name=name)


def _compaction(entry: Json) -> Shown:
    summary = _summary("compaction", entry)
    before, after = entry.get("tokensBefore"), entry.get("tokensAfter")
    sizes = f"{amount(before)} → {amount(after)} tokens" if after else f"{amount(before)} tokens before"
    size = sizes if isinstance(before, int) else ""
    return summary._replace(headline=" · ".join(filter(None, (size, summary.headline))))


def _setting(name: str, *members: str) -> Any:
    def show_setting(entry: Json) -> Shown:
        values = {member: entry[member] for member in members if entry.get(member) is not None}
        line = ", ".join(value if isinstance(value, str) else as_json(value) for value in values.values())
        return _content("setting", f"{name}: {_line(line) or 'none'}", (Data(name, values),), name=name)

    return show_setting


def _label(entry: Json) -> Shown:
    text, target = _string(entry.get("label")), _string(entry.get("targetId"))
    headline = f"label: {_line(text)} on {target}" if text else f"label removed from {target}"
    return _content("setting", headline, (Data("label", {"targetId": target, "label": text}),), name="label")


def _model_change(entry: Json) -> Shown:
    parts = (_string(entry.get("provider")), _string(entry.get("modelId")))
    model = _string(entry.get("model")) or "/".join(filter(None, parts))
    role = _string(entry.get("role"))
    headline = f"model: {_line(model)}" + (f" ({_line(role)})" if role else "")
    return _content("setting", headline, (Data("model", {"model": model, "role": role}),), name="model")


def _init(entry: Json) -> Shown:
    task = _string(entry.get("task")) or ""
    rest = {name: entry.get(name) for name in ("tools", "systemPrompt", "outputSchema") if entry.get(name)}
    return _content("note", _line(task), (Text(task, "prompts"), Data("session_init", rest)), name="task")


def _custom(entry: Json) -> Shown:
    name = _string(entry.get("customType")) or "custom"
    return _content("note", name, (Data(name, entry.get("data")),), name=name)


def _edit(entry: Json) -> Shown:
    target, replacement = _string(entry.get("targetId")), entry.get("replacement")
    headline = f"removed from the context: {target}" if replacement is None else f"replaced in the context: {target}"
    return _content("setting", headline, (Data("replacement", replacement),), name="context edit")


def _reset(entry: Json) -> Shown:
    return _content("summary", "the context starts over here", (Text("", "prompts"),), name="reset")


def _unknown(entry: Json) -> Shown:
    body = {name: value for name, value in entry.items() if name not in ("id", "parentId", "timestamp")}
    return _content("note", "", (Data(str(entry.get("type")), body),), name=str(entry.get("type")))


_KINDS: dict[str, Any] = {
    "custom_message": _custom_message,
    "branch_summary": lambda entry: _summary("branch summary", entry),
    "compaction": _compaction,
    "reset_boundary": _reset,
    "thinking_level_change": _setting("thinking", "thinkingLevel"),
    "model_change": _model_change,
    "mode_change": _setting("mode", "mode", "data"),
    "ttsr_injection": _setting("rules", "injectedRules"),
    "service_tier_change": _setting("service tier", "serviceTier"),
    "mcp_tool_selection": _setting("tools", "selectedToolNames"),
    "context_change": _setting("context", "contextName", "tenant", "namespace"),
    "label": _label,
    "session_info": _setting("title", "name"),
    "title_change": _setting("title", "title"),
    "session_init": _init,
    "context_edit": _edit,
    "custom": _custom,
}


# -- words


_SUBJECTS = (
    *(
        "command",
        "cmd",
        "commands",
        "path",
        "file_path",
        "filePath",
        "filepath",
        "notebook_path",
        "pattern",
        "query",
        "url",
    ),
    *("description", "task", "prompt", "code"),
)


def call_summary(name: str, arguments: object) -> str:
    """Return the most informative argument of a call, on one line."""
    if not isinstance(arguments, dict):
        return _line(arguments) if isinstance(arguments, str) else ""
    found = [_line(value) for key in _SUBJECTS if (value := _words(arguments.get(key)))]
    if name in ("grep", "find", "search", "glob"):
        return " in ".join(found[:2][::-1]) if len(found) > 1 else "".join(found)
    if found:
        return found[0]
    files = dict.fromkeys(file.path for file in tools.touched(name, arguments))
    return _line(", ".join(files) or as_json(arguments)) if arguments else ""


def _words(value: object) -> str:
    """Return an argument as text: some tools take a command as a list of words."""
    if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return value if isinstance(value, str) else ""


def _content(
    who: Who,
    headline: str,
    parts: tuple[Part, ...],
    name: str | None = None,
    *,
    failed: bool = False,
    model: str | None = None,
    spent: Spent | None = None,
    call_id: str | None = None,
) -> Shown:
    return Shown(None, None, "", who, name or who, headline, parts, failed, None, model, spent, call_id)


def _headline(parts: Iterable[Part]) -> str:
    """Return the first text, else the calls, else the thinking; and a word for each image."""
    parts = list(parts)
    texts = [line for part in parts if isinstance(part, Text | Output) and (line := _line(part.text))]
    calls = [f"{part.name} {part.summary}".strip() for part in parts if isinstance(part, Call)]
    thinking = [line for part in parts if isinstance(part, Thinking) and (line := _line(part.text))]
    images = ["[image]" for part in parts if isinstance(part, Image)]
    return " ".join([*(texts[:1] or calls[:3] or thinking[:1]), *images])


def _line(text: str) -> str:
    return (shown(text[: 2 * FIRST_TEXT]) or "")[:_MAX_LINE]


def as_json(value: object) -> str:
    """Return a value as JSON on one line."""
    import json  # listings import this module and do not need it

    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply to be shown)"


def _spent(reported: object, model: str, quarter: str) -> Spent | None:
    usage = usage_of(reported)
    if usage is None:
        return None
    cost = cost_of(reported, model, quarter)
    return Spent(usage.input, usage.output, usage.cache_read, usage.cache_write, usage.total, cost)


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


# -- transcripts


class Gap(NamedTuple):
    """Bytes of the file that could not be read, after an entry; `None` is before the first."""

    after: str | None
    message: str


class Transcript(NamedTuple):
    """A session, or one branch of it, for people to read."""

    id: str
    title: str | None
    cwd: str
    created: int | None  # milliseconds since 1970
    entries: Iterable[Json]  # in file order; can be iterated repeatedly, and need not fit in memory
    entry_count: int
    leaf: str | None  # of the branch that is shown first
    labels: Mapping[str, str]
    gaps: Sequence[Gap]
    depth: Depth
    notes: Sequence[str]  # for the reader: what was left out or redacted
