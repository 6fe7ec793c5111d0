"""Create the mutants of a module: its source with one small fault each.

The faults are typical mistakes: an off-by-one comparison, a negated condition, `and` for `or`, a number one too large, a missing
statement, named argument or exception, nothing returned. Annotations, docstrings, the contents of f-strings and texts for people
(a string with a space in it) are left alone. A mutant is named by its place and by its line before and after, so that its name
stays the same when the lines above it change.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Mutant(NamedTuple):
    """A fault: its function or class (empty at module level), its line before and after, and the whole source.

    `runs` is true if it is in the body of a function, and false if it runs at import, as in defaults or a class.
    """

    function: str
    runs: bool
    before: str
    after: str
    source: str

    @property
    def name(self) -> tuple[str, str, str]:
        """Return the name for the list of survivors."""
        return self.function, self.before, self.after


def mutants_of(source: str) -> list[Mutant]:
    """Return every mutant of a module, in the order of lines."""
    text = source.encode()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for function, runs, node, replacement in _faults(ast.parse(source), "", False):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        mutated = text[:begin] + replacement.encode() + text[end:]
        first = text.rfind(b"\n", 0, begin) + 1
        before = text[first : _line_end(text, end)]
        after = mutated[first : _line_end(mutated, begin + len(replacement.encode()))]
        found.append(Mutant(function, runs, _shown(before), _shown(after), mutated.decode()))
    return found


def _line_end(text: bytes, at: int) -> int:
    end = text.find(b"\n", at)
    return end if end >= 0 else len(text)


def _shown(line: bytes) -> str:
    return " ".join(line.decode().split())


_Place = ast.expr | ast.stmt
_Fault = tuple[
    str, bool, _Place, str
]  # the function, whether it is in its body, the replaced node, and its replacement


def _faults(node: ast.AST, function: str, runs: bool) -> Iterator[_Fault]:
    for child in _children(node):
        if isinstance(child, _SCOPES):
            name = f"{function}.{child.name}" if function else child.name
            yield from _faults(child, name, not isinstance(child, ast.ClassDef))
        elif isinstance(child, ast.arguments):
            yield from _faults(child, function, False)
        else:
            if isinstance(child, ast.expr | ast.stmt):
                yield from ((function, runs, place, text) for place, text in _replacements(child) if text is not None)
            yield from _faults(child, function, runs)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children of a node that may be mutated."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_left_alone(child):
                yield child


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _replacements(node: _Place) -> Iterator[tuple[_Place, str | None]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield node, ast.unparse(ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])]()], node.comparators))
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, f"({ast.unparse(ast.BoolOp(other, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield node, f"({ast.unparse(ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right))})"
    elif isinstance(node, ast.Constant):
        yield node, _other_constant(node.value)
    elif isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(
        node.test, ast.Name | ast.Attribute | ast.Call
    ):
        yield node.test, f"(not {ast.unparse(node.test)})"
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield node, "return None"
    elif isinstance(node, ast.Call):
        for dropped in node.keywords:
            kept = [keyword for keyword in node.keywords if keyword is not dropped]
            yield node, ast.unparse(ast.Call(node.func, node.args, kept))
    elif isinstance(node, ast.Try):
        yield from _fewer_caught(node)
    elif isinstance(node, ast.Break):
        yield node, "continue"
    elif isinstance(node, ast.Continue):
        yield node, "break"
    elif isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
        yield node, ast.unparse(ast.AugAssign(node.target, _OPERATORS[type(node.op)](), node.value))
        yield node, "pass"
    elif isinstance(node, ast.Expr | ast.Raise | ast.Delete) or _is_kept_elsewhere(node):
        yield node, "super" if "super()" in ast.unparse(node) else "pass"  # a method with `super()` keeps its closure


def _fewer_caught(node: ast.Try) -> Iterator[tuple[_Place, str]]:
    for handler in node.handlers:
        caught = handler.type
        if isinstance(caught, ast.Tuple):
            for dropped in caught.elts:
                yield caught, ast.unparse(ast.Tuple([kind for kind in caught.elts if kind is not dropped], ast.Load()))


def _is_kept_elsewhere(node: _Place) -> bool:
    """Return whether the target of an assignment is not a plain name: dropping a name would fail at once."""
    return isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _other_constant(value: object) -> str | None:
    if isinstance(value, bool):
        return repr(not value)
    if isinstance(value, int):
        return repr(value + 1)
    if isinstance(value, str) and " " not in value.strip():
        return repr(f"{value}XX")
    if isinstance(value, bytes) and b" " not in value.strip():
        return repr(value + b"XX")
    return None
