"""Rig for Ctrl-C, cancellation and other late exceptions: interrupt at every instruction where Python allows it.

Python delivers them between two instructions: at the start of a function, after a call, and at a backward jump. `interrupted`
counts these places while the work runs, and raises at the given one, before the next instruction. A place is skipped if the
next instruction is not in the same `try` block as the call, because Python would raise inside the block. The rig's file system
is in memory and represents the kernel, whose calls are not interrupted.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import sessile
from sessile.storage import memory

PACKAGE = str(Path(sessile.__file__).parent)
KERNEL = {memory.__file__, *(str(path) for path in Path(PACKAGE, "testing").glob("*.py"))}
AROUND = {threading.__file__, contextlib.__file__}  # Python code of the standard library that our code runs through
DELIVERING = ("RESUME", "CALL", "JUMP_BACKWARD")


class Interruption(BaseException):
    """Raised at the chosen place."""


@cache
def _guards(code: CodeType) -> list[tuple[int, int, int]]:
    """Return the guarded ranges of instructions: the first, the one after the last, and the handler."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    return [(entry.start, entry.end, entry.target) for entry in entries]


def _guard(code: CodeType, place: int) -> int | None:
    return next((target for start, end, target in _guards(code) if start <= place < end), None)


def _is_ours(code: CodeType) -> bool:
    name = code.co_filename
    return name not in KERNEL and (name.startswith(PACKAGE) or name in AROUND)


def interrupted(number: int, work: Callable[[], object]) -> tuple[str, int] | None:
    """Run `work` with an interruption at place `number`. Return the file and line, or None if there are fewer places."""
    left = number
    before: dict[FrameType, int] = {}
    struck: tuple[str, int] | None = None

    def step(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left, struck
        if event != "opcode":
            return step
        code, now = frame.f_code, frame.f_lasti
        last, before[frame] = before.get(frame, 0), now
        if dis.opname[code.co_code[last]].startswith(DELIVERING) and _guard(code, last) == _guard(code, now):
            left -= 1
            if left == 0:
                struck = Path(code.co_filename).name, frame.f_lineno
                raise Interruption(struck)
        return step

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if not _is_ours(frame.f_code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    watching = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    except Interruption:
        return struck
    finally:
        sys.settrace(watching)
        before.clear()  # release the interrupted frames and everything they hold
    if struck is not None:
        raise AssertionError(f"the interruption at {struck} was swallowed")
    return None
