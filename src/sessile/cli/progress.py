"""Progress of work that takes long, on stderr: a bar at a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

_SHOW_AFTER = 0.4  # seconds: what is faster needs no bar
_SHOW_EVERY = 0.05  # seconds: nobody sees more
_SAY_EVERY = 5.0  # seconds, where there is no terminal


class Step(NamedTuple):
    """How far something is."""

    done: int
    total: int


class Bar:
    """A bar on a terminal, from the moment when somebody may wonder."""

    def __init__(self, doing: str, *, colours: bool) -> None:
        self._doing = doing
        self._colours = colours
        self._next = time.monotonic() + _SHOW_AFTER
        self._bar: Any = None
        self._task: Any = None

    def show(self, step: Any) -> None:
        """Show how far it is; called as often as one likes."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _SHOW_EVERY
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True, no_color=not self._colours), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._doing, total=None)
        self._bar.update(self._task, completed=step.done, total=step.total)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


class Lines:
    """A line now and then, where there is no terminal."""

    def __init__(self, doing: str, say: Callable[[str], None]) -> None:
        self._doing = doing
        self._say = say
        self._last = time.monotonic()

    def show(self, step: Any) -> None:
        """Say how far it is, if it has been quiet for long."""
        if time.monotonic() - self._last >= _SAY_EVERY:
            self._last = time.monotonic()
            share = 100 * step.done // max(1, step.total)
            self._say(f"{self._doing} … {share} %")

    def close(self) -> None:
        """There is nothing to take away."""
