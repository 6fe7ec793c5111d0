"""An interruption at any instant at which Python lets one in: the rig for Ctrl-C, cancellation and other late exceptions.

Python delivers them between two instructions: at the beginning of a function, behind a call, and where a loop goes back.
`interrupted` counts these places while some work runs, and raises at the one that it is told, before the next instruction.
Where that instruction is no longer guarded as the call was, the place is left out: Python would raise inside the guard. The
file system of the rig is in memory and stands for the kernel, whose calls are not interrupted half-way.
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
AROUND = {threading.__file__, contextlib.__file__}  # what our code runs through that is written in Python itself
DELIVERING = ("RESUME", "CALL", "JUMP_BACKWARD")


class Interruption(BaseException):
    """Somebody wants the work to stop now."""


@cache
def _guards(code: CodeType) -> list[tuple[int, int, int]]:
    """Which instructions of a function are guarded, and by what: the first, the one behind the last, the guard."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    return [(entry.start, entry.end, entry.target) for entry in entries]


def _guard(code: CodeType, place: int) -> int | None:
    return next((target for start, end, target in _guards(code) if start <= place < end), None)


def _is_ours(code: CodeType) -> bool:
    name = code.co_filename
    return name not in KERNEL and (name.startswith(PACKAGE) or name in AROUND)


def interrupted(number: int, work: Callable[[], object]) -> tuple[str, int] | None:
    """Run some work with an interruption at its place `number`; gives the file and line, `None` if there are fewer places."""
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
        before.clear()  # what was interrupted is gone, with all that it held
    if struck is not None:
        raise AssertionError(f"the interruption at {struck} was swallowed")
    return None
