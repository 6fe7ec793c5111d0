"""How the bytes of a configuration file become values: TOML or JSON, then typed parts, with the exact place of what is wrong.

Rules: a file that cannot be read is refused with its line, a value that does not fit with its key, as a person would write it
(`agents.list[1].compaction.enabled`, `models.providers."my.box".baseUrl`). A key that no part knows is collected, never refused.
A key that is said twice is refused, because only one of the two would count. No message holds a value of the file, except a word
that is none of a few possible ones.

It does not know what the keys mean.
"""

from __future__ import annotations

import json
import re
import tomllib
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from sessile.core.secret import Secret
from sessile.errors import InvalidConfig

P = TypeVar("P", bound=msgspec.Struct)

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_CORRECT = "correct it, or take it out to have the default"


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a configuration; what a file does not say has its default."""


# -- from bytes to values


def parse(data: bytes, name: str) -> dict[str, Any]:
    """The values of a file: JSON if its name says so, else TOML."""
    try:
        text = data.decode("utf-8-sig")
        return _json(text) if name.lower().endswith(".json") else tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem, hint = f"line {line} is no UTF-8", "save the file as UTF-8"
    except UnicodeEncodeError:
        problem, hint = "an escape in the file stands for half a character", "write the character itself"
    except json.JSONDecodeError as error:
        problem, hint = f"line {error.lineno} is no JSON: {error.msg}", f"look at column {error.colno}"
    except tomllib.TOMLDecodeError as error:
        problem, hint = f"the file is no TOML: {error}", "a file of JSON has a name that ends in .json"
    except RecursionError:
        problem, hint = "the file is nested too deeply", "no setting is deeper than ten levels"
    except ValueError:
        problem, hint = "a number in the file has thousands of digits", "no setting is that large"
    # The errors of the parsers carry the whole text; ours must not.
    raise InvalidConfig(problem, path=name, hint=hint) from None


def _json(text: str) -> dict[str, Any]:
    values = json.loads(text, object_pairs_hook=_once) if text.strip() else {}
    if not isinstance(values, dict):
        raise InvalidConfig("the file holds no object", hint="begin it with { and end it with }")
    json.dumps(values, ensure_ascii=False).encode()  # raises for a lone surrogate, which no setting can hold
    return values


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise InvalidConfig(f"the key {_quoted(twice)} is said twice in one object", hint="take one of them out")
    return members


# -- from values to parts


def read_as(part: type[P], values: dict[str, Any]) -> tuple[P, list[str]]:
    """The part that values describe, and the places of the keys that it does not know."""
    unknown = list(_look(values, part, ""))
    return convert(part, values), unknown


def convert(part: type[P], values: dict[str, Any]) -> P:
    """The part that values describe; what is wrong with them was told before, by `read_as`."""
    return msgspec.convert(values, part, dec_hook=_secret)


def _look(value: object, kind: Any, place: str) -> Iterator[str]:
    """Go through a value beside its type; yields unknown keys, raises at what does not fit."""
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if isinstance(value, dict):
        for option in options:
            if isinstance(option, type) and issubclass(option, msgspec.Struct):
                return (yield from _look_into(value, option, place))
            if get_origin(option) is dict:
                for key, inner in value.items():
                    yield from _look(inner, get_args(option)[1], _below(place, key))
                return
    if isinstance(value, list):
        for option in options:
            if get_origin(option) is tuple:
                for number, inner in enumerate(value):
                    yield from _look(inner, get_args(option)[0], f"{place}[{number}]")
                return
    try:
        msgspec.convert(value, kind, dec_hook=_secret)
    except msgspec.ValidationError as error:
        wanted = _described(options) if isinstance(value, str) else None
        problem = f"is no {wanted}" if wanted else f"cannot be used: {error}"
        raise InvalidConfig(f"{place or 'the file'} {problem}", hint=_hint(options)) from None


def _look_into(value: dict[str, Any], part: type[msgspec.Struct], place: str) -> Iterator[str]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(part)}
    for name, field in fields.items():
        if field.required and name not in value:
            raise InvalidConfig(f"{_below(place, name)} is missing", hint=f"say {name} in {place}")
    for key, inner in value.items():
        if key in fields:
            yield from _look(inner, fields[key].type, _below(place, key))
        else:
            yield _below(place, key)


def _secret(kind: type, value: object) -> Secret:
    if kind is not Secret or not isinstance(value, str) or not value.strip():
        raise ValueError("Expected a `str` that is not empty")
    return Secret(value.strip())


def _described(options: tuple[Any, ...]) -> str | None:
    """What a text should be, in words; the pattern itself tells nobody anything."""
    notes = (note for option in options if get_origin(option) is Annotated for note in option.__metadata__)
    return next((note.description for note in notes if note.description), None)


def _hint(options: tuple[Any, ...]) -> str:
    words = [str(word) for option in options if get_origin(option) is Literal for word in get_args(option)]
    return f"use one of {', '.join(words)}" if words else _CORRECT


def _below(place: str, key: str) -> str:
    name = key if _BARE.fullmatch(key) else _quoted(key)
    return f"{place}.{name}" if place else name


def _quoted(key: str) -> str:
    return json.dumps(key)
