"""Which files a conversation read and changed: collected from its tool calls, and told at the end of a summary.

Lists are cumulative: the one of the summary before is added, unless an extension made it, which keeps whatever it likes there.
A file that was changed is not listed as read. The details of a summary hold all names, its text at most twenty of each, a line
for each: a name that holds line breaks or the end of its list cannot say anything behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

Json = Mapping[str, Any]

MOST = 20  # names of a list that the text of a summary shows

_READ, _CHANGED = "read", "changed"
_TOOLS = {
    "read": _READ,
    "write": _CHANGED,
    "edit": _CHANGED,
    "Read": _READ,
    "Write": _CHANGED,
    "Edit": _CHANGED,
    "MultiEdit": _CHANGED,
    "NotebookEdit": _CHANGED,
}
"""What tools of the family and of Claude Code do to the file that they are called with."""
_PATHS = ("path", "file_path", "notebook_path")
_NAMES, _ARGUMENTS = ("name", "toolName"), ("arguments", "args", "input")
_ENDS = re.compile(r"<(?=/?(?:read|modified)-files\b)")
_BREAKS = {ord(char): ascii(char)[1:-1] for char in "\n\r\v\f\x85\u2028\u2029"}
_TAGS = ("read-files", "modified-files")
_BLOCK = re.compile(rf"\n{{0,2}}<({'|'.join(_TAGS)})>\n")


class FileLists(NamedTuple):
    """Files that were only read, and files that were changed; each sorted as JavaScript sorts."""

    read: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()

    def details(self) -> dict[str, list[str]]:
        """The lists as the details of an entry."""
        return {"readFiles": list(self.read), "modifiedFiles": list(self.modified)}

    def blocks(self) -> str:
        """The lists as text to put behind a summary; empty if there is nothing to tell."""
        return _block("read-files", self.read) + _block("modified-files", self.modified)

    def told_in(self, summary: str) -> str:
        """A summary that ends with these lists, in place of those that it had."""
        return without_blocks(summary) + self.blocks()


class Files:
    """Collects the files of a conversation."""

    def __init__(self) -> None:
        self._files: dict[str, set[str]] = {_READ: set(), _CHANGED: set()}

    def add_message(self, message: Json) -> None:
        """Note the files that the calls in a message name; calls that were made by a tool too."""
        content = message.get("content")
        blocks = content if isinstance(content, list) else ()
        calls = (block for block in blocks if isinstance(block, Mapping) and block.get("type") == "toolCall")
        self._add_calls(calls if message.get("role") == "assistant" else ())
        self._add_calls(_nested(message))

    def _add_calls(self, calls: Iterable[Json]) -> None:
        waiting = list(calls)
        while waiting:
            call = waiting.pop()
            waiting.extend(_nested(call))
            does = next((_TOOLS[name] for name in _strings(call, _NAMES) if name in _TOOLS), None)
            arguments: Json = next((call[name] for name in _ARGUMENTS if isinstance(call.get(name), Mapping)), {})
            path = next(_strings(arguments, _PATHS), None)
            if does is not None and path is not None:
                self._files[does].add(path)

    def add_details(self, entry: Json | None) -> None:
        """Note the files that an earlier summary listed."""
        details = None if entry is None else entry.get("details")
        if entry is None or not isinstance(details, Mapping) or entry.get("fromHook") or entry.get("fromExtension"):
            return
        for name, does in (("readFiles", _READ), ("modifiedFiles", _CHANGED)):
            listed = details.get(name)
            names = listed if isinstance(listed, list) else ()
            self._files[does].update(file for file in names if isinstance(file, str))

    def lists(self) -> FileLists:
        """What was collected."""
        read, changed = self._files[_READ], self._files[_CHANGED]
        return FileLists(_sorted(read - changed), _sorted(changed))


def without_blocks(summary: str) -> str:
    """A summary without the file lists that were put behind it."""
    last = {name: summary.rfind(f"</{name}>") for name in _TAGS}  # behind which no beginning has an end
    pieces, told, at = [], 0, 0
    while block := _BLOCK.search(summary, at):
        at = block.end() - 1  # the next may begin with this line break
        if at < last[block[1]]:
            pieces.append(summary[told : block.start()])
            told = at = summary.index(">", summary.index(f"</{block[1]}>", at)) + 1
    return "".join((*pieces, summary[told:])).rstrip()


def _block(tag: str, names: tuple[str, ...]) -> str:
    if not names:
        return ""
    shown = [_ENDS.sub("&lt;", name).translate(_BREAKS) for name in names[:MOST]]
    if len(names) > MOST:
        shown.append(f"… ({len(names) - MOST} more files omitted)")
    return f"\n\n<{tag}>\n" + "\n".join(shown) + f"\n</{tag}>"


def _nested(holder: Json) -> Iterator[Json]:
    calls = holder.get("nestedCalls")
    return (call for call in calls if isinstance(call, Mapping)) if isinstance(calls, list) else iter(())


def _strings(holder: Json, names: tuple[str, ...]) -> Iterator[str]:
    return (value for name in names if isinstance(value := holder.get(name), str))


def _sorted(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass")))
