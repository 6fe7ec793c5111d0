"""The reference pages about settings and errors, generated from the code.

The meaning of a key is the comment after it; the purpose of a group of keys is the docstring of its class.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from sessile import errors
from sessile.cli import gateway_client as gateway
from sessile.config import VARIABLES, Config
from sessile.core.secret import Secret
from sessile.gateway.http import asgi, problems

_COMMENT = re.compile(r"^    (\w+): .*?  # (.*)$", re.M)
_WORDS = {bool: "true or false", int: "a number", float: "a number", str: "text", Secret: "text", Any: "anything"}


class Key(NamedTuple):
    """A key of a configuration file."""

    name: str
    value: str
    default: str
    meaning: str


class Table(NamedTuple):
    """The keys below one place in the file."""

    place: str
    about: str
    keys: list[Key]


def config_page() -> Iterator[str]:
    """Yield every key and every environment variable."""
    yield "# Configuration\n"
    yield "Generated from the code by `python tests/reference.py`; a test compares.\n"
    yield (
        "The command line and the gateway read `config.toml` (or `config.json`) in the store, or the file that `--config` names. "
        "The library reads neither files nor variables. An unknown key has no effect and is reported; an invalid value is an "
        "error that names its key. Where the default is empty, the meaning describes it.\n"
    )
    for table in tables():
        yield f"## {table.place}\n\n{table.about}\n"
        yield "| key | value | default | meaning |\n|---|---|---|---|"
        for key in table.keys:
            yield f"| `{key.name}` | {key.value} | {key.default} | {key.meaning} |"
        yield ""
    yield "## Environment\n"
    for group, variables in VARIABLES.items():
        yield f"### {group}\n\n| variable | default | meaning |\n|---|---|---|"
        for variable in variables:
            names = ", ".join(f"`{name}`" for name in variable.name.split(", "))
            yield f"| {names} | {variable.default} | {variable.meaning} |"
        yield ""


def tables() -> Iterator[Table]:
    """Yield all places of a configuration file that hold keys, outer before inner."""
    waiting: list[tuple[str, type[msgspec.Struct]]] = [("", Config)]
    while waiting:
        place, part = waiting.pop(0)
        meanings = _meanings(part)
        keys: list[Key] = []
        for field in msgspec.structs.fields(part):
            inner, shape = _part_of(field.type)
            if inner is None or field.name in meanings:
                value = _value(field.type)
                keys.append(
                    Key(field.encode_name, value, _default(field), meanings.get(field.name, "").replace("|", "\\|"))
                )
            if inner is not None:
                name = f"{place}.{field.encode_name}" if place else field.encode_name
                waiting.append((f"{name}{shape}", inner))
        if keys:
            yield Table(place, " ".join((inspect.getdoc(part) or "").split()), keys)


def _meanings(part: type) -> dict[str, str]:
    """Return the comments after the fields of a class and its bases."""
    found: dict[str, str] = {}
    for kind in reversed(part.__mro__):
        if kind.__module__.startswith("sessile."):
            found |= dict(_COMMENT.findall(inspect.getsource(kind)))
    return found


def _part_of(kind: Any) -> tuple[type[msgspec.Struct] | None, str]:
    """Return the group of keys of a value or of its members, and the suffix of its name."""
    for option in _options(kind):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option, ""
        if get_origin(option) in (tuple, dict):
            inner, _ = _part_of(get_args(option)[0 if get_origin(option) is tuple else 1])
            if inner is not None:
                return inner, "[]" if get_origin(option) is tuple else ".<name>"
    return None, ""


def _options(kind: Any) -> tuple[Any, ...]:
    found = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return tuple(option for option in found if option is not type(None))


def _value(kind: Any) -> str:
    return " or ".join(dict.fromkeys(_one(option) for option in _options(kind)))


def _one(option: Any) -> str:
    if get_origin(option) is Annotated:
        bare, meta = get_args(option)[0], get_args(option)[1]
        if meta.description and "duration" in meta.description:
            return "a duration (`5m`, `30d`)"
        least = meta.ge if meta.ge is not None else meta.gt
        bounds = f"{least:,} to {meta.le:,}" if meta.le is not None and least is not None else ""
        bounds = bounds or (f"at least {least:,}" if least is not None else "")
        return bounds or _one(bare)
    if get_origin(option) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(option))
    if get_origin(option) is tuple:
        return f"a list: {_one(get_args(option)[0])}"
    if get_origin(option) is dict:
        return "a table"
    if isinstance(option, type) and issubclass(option, msgspec.Struct):
        return "a table"
    return _WORDS[option]


def _default(field: Any) -> str:
    if field.required:
        return "required"
    default = field.default
    if default is None or default is msgspec.NODEFAULT or isinstance(default, msgspec.Struct) or default in ((), ""):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return ", ".join(f"`{word}`" for word in default)
    return f"`{default:,}`" if isinstance(default, int | float) and default >= 10_000 else f"`{default}`"


def errors_page() -> Iterator[str]:
    """Yield every error with its meaning, its remedy, its exit code and its HTTP status."""
    yield "# Errors\n"
    yield "Generated from the code by `python tests/reference.py`; a test compares.\n"
    tree = (inspect.getdoc(errors) or "").split("\n\n")[1]
    yield f"```text\n{inspect.cleandoc(tree)}\n```\n"
    yield (
        "Catch the class that you can handle; a class on the left includes all classes below it. Every error has a `message`, a "
        "`path` (the file concerned, if any) and a `hint` (what the user can do). The command prints message and hint on stderr "
        'and exits with the exit code; with `--json` it prints `{"error": …}`. The gateway answers with a problem document '
        "(RFC 9457), which has no path.\n"
    )
    yield "| error | meaning | remedy | exit code | HTTP |\n|---|---|---|---|---|"
    ours = [kind for kind in _tree(errors.SessileError) if kind.__module__ == errors.__name__]
    yield from map(_row, ours)
    yield "\n## Gateway and client\n\n| error | meaning | remedy | exit code | HTTP |\n|---|---|---|---|---|"
    surfaces = (asgi.__name__, problems.__name__, gateway.__name__)
    yield from map(_row, sorted((kind for kind in _tree(errors.SessileError) if kind.__module__ in surfaces), key=str))


def _tree(kind: type[errors.SessileError]) -> Iterator[type[errors.SessileError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _tree(inner)


def _row(kind: type[errors.SessileError]) -> str:
    meaning, _, remedy = (inspect.getdoc(kind) or "").partition("\n\n")
    return f"| `{kind.__name__}` | {meaning} | {' '.join(remedy.split())} | {kind.exit_code} | {kind.status} |"
