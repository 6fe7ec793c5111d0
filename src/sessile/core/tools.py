"""What tools did: the files that a call reads and edits, the command that it runs, and its edits as diffs.

    touched("Edit", {"file_path": "a.py", …})     the files of one call
    changes("Edit", {…}, result)                  the edits of one call, as diffs
    files(entries)                                the files that a path read and edited; failed calls do not count

One table serves all agents: `_TOOLS` says what a tool does by its name, `_PATHS` and `_PAIRS` under which names its arguments
are. Names are compared without case, `_`, `-` and the name of a server or namespace in front: `developer__text_editor`,
`functions.exec_command` and `ReadFile` are found. A tool that is not in the table touches no files.

Rules:

- Patches, edits in scripts (Codex' code mode) and calls inside calls count as if they were calls of their own.
- Of shell commands only the plain ones are understood: `cat`, `head`, `tail`, `nl`, `sed`, `tee` and redirections to a file
  that is named in full. The others touch files that nobody can tell from the text.
- A path is as the tool was given it. Below the folder of the session it is relative, so that a file has one name.
- A diff is what the agent stored, else what the arguments say: old and new text, the whole file, or the patch.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import Match, SequenceMatcher
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from sessile.core.codec import decode

Json = Mapping[str, Any]
How = Literal["read", "edit"]

_KINDS: dict[str, str] = {
    "read": "cat fsread getfilecontents notebookread openfile read readfile readfiles readimage readmanyfiles readnotebook"
    " view viewfile viewimage",
    "write": "create createfile createnewfile fswrite newfile savefile write writefile writetofile",
    "edit": "applydiff astedit delete deletefile edit editexistingfile editfile editfiles editnotebook editnotebookfile insert"
    " insertcontent inserteditintofile multiedit multireplacestringinfile notebookedit removefile replace replaceinfile"
    " replacestringinfile searchandreplace searchreplace singlefindandreplace strreplace",
    "patch": "applypatch patch",
    "editor": "editor strreplacebasededittool strreplaceeditor texteditor",  # what it does is an argument
    "run": "bash exec execcommand executecommand localshell localshellcall powershell runcommand runcommands runinterminal"
    " runshellcommand runterminalcommand runterminalcmd shell shellcommand terminal",
    "call": "calltool toolcall usetool",  # calls another tool
}
_TOOLS = {name: kind for kind, names in _KINDS.items() for name in names.split()}

_PATHS = (
    *("file_path", "filePath", "filepath", "path", "notebook_path", "notebookPath", "absolute_path", "absolutePath"),
    *("target_file", "targetFile", "file", "filename", "file_name", "relative_path", "relativePath", "source"),
)
_LISTS = ("paths", "files", "file_paths", "filePaths", "edits", "changes", "replacements", "operations")
_PAIRS = (
    *(("old_string", "new_string"), ("oldString", "newString"), ("oldText", "newText"), ("old_text", "new_text")),
    *(("old_str", "new_str"), ("before", "after"), ("search", "replace"), ("find", "replace"), ("old", "new")),
    *(("oldContent", "newContent"), ("old_content", "new_content"), ("old_source", "new_source")),
)
_WHOLE = ("content", "contents", "file_text", "fileText", "text", "code", "new_content", "insert_text")
_TEXTS = ("input", "patch", "patchText", "patch_text", "diff", "code", "script")  # arguments that may contain a patch
_COMMANDS = ("command", "cmd", "commands", "script")
_NAMES, _ARGUMENTS = ("name", "toolName", "tool_name", "tool"), ("arguments", "args", "input", "parameters")


class Touched(NamedTuple):
    """A file, and whether a call reads or edits it."""

    path: str
    how: How


class Change(NamedTuple):
    """An edit of a file: lines that start with +, - or a space."""

    path: str
    text: str


class Files(NamedTuple):
    """The files that were only read and those that were edited, sorted."""

    read: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()


@lru_cache(maxsize=256)
def does(name: str) -> str | None:
    """Return what a tool does: read, write, edit, patch, editor, run or call; `None` if it is not known."""
    words = name.split("__")
    if words[0] == "mcp" and not any("file" in word or word == "fs" for word in words[1:-1]):
        return None  # a path of another system
    return _TOOLS.get(re.split(r"[.:/]", words[-1])[-1].replace("_", "").replace("-", "").lower())


def touched(name: str, arguments: object, shell: bool = True) -> list[Touched]:
    """Return the files that a call reads and edits, each once; `shell` includes those of shell commands."""
    return list(dict.fromkeys(_touched(name, arguments, shell, 0)))


def command_of(name: str, arguments: object) -> str | None:
    """Return the command that a call runs, or `None`."""
    if does(name) != "run":
        return None
    if not isinstance(arguments, Mapping):
        return arguments if isinstance(arguments, str) else None
    return next((text for member in _COMMANDS if (text := _command(arguments.get(member)))), None)


def changes(name: str, arguments: object, result: Json | None = None) -> list[Change]:
    """Return the edits of a call as diffs; `result` is the message that answers it. A failed call changed nothing."""
    details = result.get("details") if result is not None else None
    stored = details.get("diff") if isinstance(details, Mapping) else None
    if isinstance(details, Mapping) and isinstance(stored, str) and stored:
        edited = [file.path for file in touched(name, arguments, shell=False) if file.how == "edit"]
        given = [text for member in ("path", "filePath", "file_path") if (text := _text(details, member))]
        return [Change((edited or given or [""])[0], stored)]
    if result is not None and result.get("isError") is True:
        return []
    return [change for change in _changes(name, arguments, 0, [_MOST_STEPS]) if change.text]


def files(entries: Iterable[Json], folder: str = "") -> Files:
    """Return the files that the calls of entries read and edited; `folder` is that of the session."""
    known: dict[str, list[Touched]] = {}
    for number, entry in enumerate(entries):
        message = entry.get("message")
        if not isinstance(message, Mapping):
            continue
        if message.get("role") == "toolResult" and message.get("isError") is True:
            known.pop(str(message.get("toolCallId")), None)
        content = message.get("content")
        for place, block in enumerate(content if isinstance(content, list) else ()):
            if isinstance(block, Mapping) and block.get("type") == "toolCall":
                call_id = block.get("id") or f"{number}.{place}"  # a call without an id has no result
                known[str(call_id)] = touched(str(block.get("name") or ""), block.get("arguments"))
    found = {(name, file.how) for each in known.values() for file in each if (name := _below(file.path, folder))}
    edited = {name for name, how in found if how == "edit"}
    return Files(tuple(sorted({name for name, _ in found} - edited)), tuple(sorted(edited)))


def _below(path: str, folder: str) -> str:
    path = path.removeprefix("file://").removeprefix("./")
    return path.removeprefix(folder.rstrip("/") + "/") if folder else path


# -- files

_DEEPEST = 4  # calls inside calls


def _touched(name: str, arguments: object, shell: bool, depth: int) -> Iterator[Touched]:
    kind = does(name)
    if kind == "run" and shell and (command := command_of(name, arguments)):
        yield from _of_command(command)
    if kind in ("run", "patch", "edit", "call") and depth < _DEEPEST:
        for inner, given in _inner_calls(kind, name, arguments):
            yield from _touched(inner, given, shell, depth + 1)
    yield from (Touched(path, "edit") for path, _ in _patches(kind, arguments))
    how = _how(kind, arguments)
    if how is not None and isinstance(arguments, Mapping):
        yield from (Touched(path, how) for path in _paths(arguments))


def _how(kind: str | None, arguments: object) -> How | None:
    if kind == "editor":
        return "read" if isinstance(arguments, Mapping) and arguments.get("command") == "view" else "edit"
    return "read" if kind == "read" else "edit" if kind in ("write", "edit") else None


def _paths(arguments: Json) -> Iterator[str]:
    path = next((text for member in _PATHS if (text := _text(arguments, member))), None)
    if path is not None:
        yield path
    for member in _LISTS:
        items = arguments.get(member)
        for item in items if isinstance(items, list) else ():
            if isinstance(item, str) and member not in ("edits", "changes"):
                yield item
            elif isinstance(item, Mapping):
                yield from (text for name in _PATHS if (text := _text(item, name)))


# -- calls inside calls

_CALL = re.compile(r"\btools\.(\w+)\(\s*")
_STRING = r'"(?:[^"\\]|\\.)*"' + r"|'(?:[^'\\]|\\.)*'" + r"|`(?:[^`\\]|\\.)*`"
_LITERAL = re.compile(_STRING, re.DOTALL)
_MEMBER = re.compile(rf"""["']?(?<!\w)(\w+)["']?\s*:\s*({_STRING})""", re.DOTALL)


def _inner_calls(kind: str, name: str, arguments: object) -> Iterator[tuple[str, object]]:
    if kind == "call" and isinstance(arguments, Mapping):
        inner = next((text for member in _NAMES if (text := _text(arguments, member))), None)
        given = next((arguments[member] for member in _ARGUMENTS if arguments.get(member)), None)
        if inner is not None:
            yield inner, given
    for text in _texts(arguments) if kind == "run" else ():
        yield from _scripted(text)


def _scripted(text: str) -> Iterator[tuple[str, object]]:
    """Yield the calls in a script, such as `await tools.apply_patch("…")`; only arguments that are literals are known."""
    end, room = 0, 2 * len(text)  # calls inside the arguments of others are looked at again, but not without end
    for found in _CALL.finditer(text):
        if (literal := _LITERAL.match(text, found.end())) is not None:
            yield found[1], {"input": _unquoted(literal[0])}
        elif text.startswith("{", found.end()):
            if end < found.end():
                end = text.find("})", found.end())
                end = end if end >= 0 else len(text)
            room -= end - found.end()
            if room < 0:
                return
            members = _MEMBER.finditer(text, found.end(), end)
            yield found[1], {member[1]: _unquoted(member[2]) for member in members}


def _unquoted(literal: str) -> str:
    """Return the text of a string literal of JavaScript."""
    inner = literal[1:-1]
    if literal[0] != '"':
        inner = inner.replace("\\'", "'").replace("\\`", "`").replace('"', '\\"').replace("\n", "\\n")
    try:
        return str(decode(f'"{inner}"'.encode("utf-8", "surrogatepass")))
    except ValueError:
        return inner


# -- patches

_BEGIN = "*** Begin Patch"
_FILE = re.compile(
    r"\*\*\* (?:Add|Update|Delete) File: (.+)|\*\*\* Move to: (.+)|\+\+\+ (?:b/)?([^\t\n]+)|\[([^\]#\n]+)#\w+\]"
)
_SEARCH, _BETWEEN_BOTH, _REPLACE = (
    re.compile(r"(?:<{7}|-{7}) SEARCH"),
    "=======\n",
    re.compile(r"(?:>{7}|\+{7}) REPLACE"),
)


def _texts(arguments: object) -> list[str]:
    if isinstance(arguments, str):
        return [arguments]
    if not isinstance(arguments, Mapping):
        return []
    return [text for member in (*_TEXTS, *_COMMANDS) if (text := _command(arguments.get(member)))]


def _patches(kind: str | None, arguments: object) -> Iterator[tuple[str, str]]:
    """Yield the files of the patches in the arguments, each with its lines."""
    if kind not in ("patch", "edit", "run"):
        return
    for text in _texts(arguments):
        if _BEGIN in text:
            yield from _sections(text[text.index(_BEGIN) :].partition("*** End Patch")[0])
        elif kind != "run" and (text.startswith(("--- ", "diff ", "[")) or "\n+++ " in text):
            yield from _sections(text)


def _sections(text: str) -> Iterator[tuple[str, str]]:
    path, lines = "", []
    for line in text.split("\n"):
        found = _FILE.fullmatch(line.rstrip("\r"))
        if found is None:
            if line[:1] in ("+", "-", " ") and not line.startswith("--- "):
                lines.append(line)
            continue
        moved = found[2]
        if path and not moved:
            yield path, "\n".join(lines)
        elif moved:
            yield path, ""  # the file that was moved away
        path, lines = next(group for group in found.groups() if group).strip(), lines if moved else []
    if path:
        yield path, "\n".join(lines)


def _replaced(text: str) -> Iterator[tuple[str, str]]:
    """Yield old and new text of the blocks in a text that are marked with SEARCH and REPLACE."""
    at = 0
    while (found := _SEARCH.search(text, at)) is not None:
        start = text.find("\n", found.end()) + 1
        middle = text.find(_BETWEEN_BOTH, start) if start else -1
        after = middle + len(_BETWEEN_BOTH)
        if middle < 0 or (closing := _REPLACE.search(text, after)) is None:
            return  # the later ones have no end either
        yield text[start:middle].removesuffix("\n"), text[after : closing.start()].removesuffix("\n")
        at = closing.end()


# -- diffs

_CONTEXT = 3  # lines around a change
_MOST_LINES = 4000  # of a text
_MOST_STEPS = 1_000_000  # of comparing the texts of one call: lines that repeat take cubic time


class _Comparer(SequenceMatcher[str]):
    """Compares lines until the steps are used up; then only the equal lines at both ends are found."""

    def __init__(self, before: list[str], after: list[str], steps: list[int]) -> None:
        super().__init__(None, before, after, autojunk=False)
        self._before, self._after = before, after
        often = Counter(after)
        self._sums = [0, *accumulate(1 + often[line] for line in before)]
        self._steps = steps  # those that are left: a list, because the texts of a call share them

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        """Return the longest equal lines in a range of both texts."""
        before, after = self._before, self._after
        end, other_end = len(before) if ahi is None else ahi, len(after) if bhi is None else bhi
        steps = self._sums[end] - self._sums[alo]
        if steps <= self._steps[0]:
            self._steps[0] -= steps
            return super().find_longest_match(alo, end, blo, other_end)
        most, same = min(end - alo, other_end - blo), 0
        while same < most and before[alo + same] == after[blo + same]:
            same += 1
        if same:
            return Match(alo, blo, same)
        while same < most and before[end - same - 1] == after[other_end - same - 1]:
            same += 1
        return Match(end - same, other_end - same, same) if same else Match(alo, blo, 0)


def _changes(name: str, arguments: object, depth: int, steps: list[int]) -> Iterator[Change]:
    kind = does(name)
    if kind in ("run", "call") and depth < _DEEPEST:
        for inner, given in _inner_calls(kind, name, arguments):
            yield from _changes(inner, given, depth + 1, steps)
    patched = [Change(path, text) for path, text in _patches(kind, arguments) if text]
    yield from patched
    if patched or not isinstance(arguments, Mapping) or _how(kind, arguments) != "edit":
        return
    path = next(_paths(arguments), "")
    blocks = [pair for text in _texts(arguments) for pair in _replaced(text)]
    edits = [item for member in _LISTS if isinstance(arguments.get(member), list) for item in arguments[member]]
    for edit in (arguments, *(item for item in edits if isinstance(item, Mapping))):
        found = next(((edit.get(old), edit[new]) for old, new in _PAIRS if isinstance(edit.get(new), str)), None)
        if found is not None:
            blocks.append((found[0] if isinstance(found[0], str) else "", found[1]))
            own = next((text for member in _PATHS if (text := _text(edit, member))), path)
            yield Change(own, _difference(*blocks.pop(), steps))
    yield from (Change(path, _difference(old, new, steps)) for old, new in blocks)
    if not blocks and not edits and kind in ("write", "editor"):
        whole = next((arguments[member] for member in _WHOLE if isinstance(arguments.get(member), str)), "")
        yield Change(path, _difference("", whole, steps))


def _difference(old: str, new: str, steps: list[int]) -> str:
    """Return how a text becomes another, line by line."""
    before, after = _lines(old), _lines(new)
    if max(len(before), len(after)) > _MOST_LINES or not before or not after:
        return "\n".join([*(f"-{line}" for line in before), *(f"+{line}" for line in after)])
    lines: list[str] = []
    for group in _Comparer(before, after, steps).get_grouped_opcodes(_CONTEXT):
        for tag, start, end, other_start, other_end in group:
            if tag == "equal":
                lines += (f" {line}" for line in before[start:end])
                continue
            lines += (f"-{line}" for line in before[start:end])
            lines += (f"+{line}" for line in after[other_start:other_end])
    return "\n".join(lines)


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


# -- shell commands

_READERS = ("cat", "head", "tail", "nl", "less", "more", "bat")
_SHELLS = ("bash", "sh", "zsh", "dash")
_BETWEEN = ("|", "||", "&&", ";", "&", "\n", "(", ")", "|&")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_UNCERTAIN = re.compile(r"[*?$`{}<>\[\]~!\n]")
_LONGEST = 20_000  # characters of a command that are looked at


def _of_command(command: str) -> Iterator[Touched]:
    if _BEGIN in command or len(command) > _LONGEST:
        return
    lexer = shlex.shlex(_without_heredocs(command), posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    try:
        words = list(lexer)
    except ValueError:
        return
    part: list[str] = []
    for word in (*words, ";"):
        if word in _BETWEEN or (word and not word.strip("\n;&|()")):
            yield from _of_simple_command(part)
            part = []
        else:
            part.append(word)


def _without_heredocs(command: str) -> str:
    """Return a command without the texts that are given to its programs as input; one without an end stays."""
    lines = command.split("\n")
    ends: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        ends.setdefault(line.strip(), []).append(number)
    kept: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        for found in _HEREDOC.finditer(line):
            closing = ends.get(found[2], [])
            place = bisect_right(closing, number)
            if place < len(closing):
                line, number = line[: found.start()] + line[found.end() :], closing[place]
                break
        kept.append(line)
        number += 1
    return "\n".join(kept)


def _of_simple_command(words: Sequence[str]) -> Iterator[Touched]:
    given: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in (">", ">>", "<"):
            target = next(rest, "")
            if _is_file(target):
                yield Touched(target, "read" if word == "<" else "edit")
            if given and given[-1].isdecimal() and word != "<":
                given.pop()  # the number of a stream
        elif word.startswith((">", "<")):
            next(rest, None)  # joins streams
        else:
            given.append(word)
    if not given:
        return
    name, options = given[0].rpartition("/")[2], [word for word in given[1:] if word.startswith("-")]
    operands = [word for word in given[1:] if not word.startswith("-")]
    if name in _READERS:
        yield from (Touched(word, "read") for word in operands if _is_file(word) and not word.isdecimal())
    elif name == "tee":
        yield from (Touched(word, "edit") for word in operands if _is_file(word))
    elif name == "sed" and not any(option.startswith(("-e", "-f", "--expression")) for option in options):
        in_place = any(option.startswith(("-i", "--in-place")) for option in options)
        yield from (Touched(word, "edit" if in_place else "read") for word in operands[1:] if _is_file(word))


def _is_file(word: str) -> bool:
    return bool(word) and not word.startswith(("/dev/", "/proc/", "&")) and not _UNCERTAIN.search(word)


def _command(value: object) -> str:
    """Return a command as text; a list is the words of one, and what follows `bash -c` is the command."""
    if isinstance(value, Mapping):
        return next((text for member in _COMMANDS if (text := _command(value.get(member)))), "")
    if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        if value[0].rpartition("/")[2] in _SHELLS and len(value) > 2 and value[1].startswith("-"):
            return str(value[2])
        several = any(" " in word for word in value) and "\n" not in "".join(value)
        return ("\n" if several else " ").join(value)
    return value if isinstance(value, str) else ""


def _text(value: Json, member: str) -> str | None:
    text = value.get(member)
    return text if isinstance(text, str) and text else None
