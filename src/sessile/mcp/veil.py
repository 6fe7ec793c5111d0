"""What leaves the server: stored text without secrets, and without anything that could drive a terminal.

    veil = veils.over(session)      for the entries of a session
    veil = veils.plain()            for what belongs to none: lists, errors

Rules:

- Whoever starts the server decides whether secrets are shown; no call can.
- A text is made visible first and redacted then: what was hidden between the letters of a secret does not save it. It is redacted
  as a whole and cut afterwards: half a secret has no shape.
- A secret that only its surroundings give away (`PASSWORD=…`) is hidden wherever else the session has it: the veil reads the
  session for that, as far as the time reaches, and says if it was too short.
- The same secret has the same placeholder in all answers about a session.

May be used from any thread.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from sessile import Redactor
from sessile.core.visible import visible, visible_line, without_colours
from sessile.errors import TooLarge

if TYPE_CHECKING:
    from sessile import Session

LARGEST = 8 << 20  # bytes of an entry that is looked at: more than a line of ours can have
_LEARNING = 1.0  # seconds that a call may spend on reading a session for its secrets
_SESSIONS = 64  # whose secrets are remembered
_NESTED = "(nested too deeply to be shown)"


class Veil:
    """Hides secrets in texts that belong together."""

    def __init__(self, redactor: Redactor | None) -> None:
        self._redactor = redactor
        self._lock = threading.Lock()
        self._learning = threading.Lock()
        self._seen = 0  # lines of the session that were read
        self.complete = redactor is None

    def text(self, text: str) -> str:
        """A stored text as it may leave."""
        shown = visible(without_colours(text))
        if self._redactor is None:
            return shown
        with self._lock:
            return self._redactor.redact(shown)

    def line(self, text: str | None, most: int = 500) -> str | None:
        """The same on one line, and cut where it gets long; `None` stays `None`."""
        if text is None:
            return None
        told = visible_line(self.text(text))
        return told if len(told) <= most else f"{told[: most - 1]}…"

    def value(self, value: Any) -> Any:
        """A stored JSON value without secrets; names of members tell which texts are."""
        if self._redactor is None:
            return value
        with self._lock:
            try:
                return self._redactor.redact_value(value)
            except TooLarge:
                return {"type": "custom", "customType": _NESTED}

    def learn(self, session: Session, seconds: float = _LEARNING) -> None:
        """Read a session for secrets, from where the last call stopped."""
        if self._redactor is None:
            return
        deadline = time.monotonic() + seconds
        with self._learning:
            self.complete = False
            for entry in session.iter_lines(self._seen):
                if time.monotonic() > deadline:
                    return
                if len(entry.raw) <= LARGEST:
                    self.value(entry.body)
                self._seen += 1
            self.complete = True


class Veils:
    """The veils of a server; with `show_secrets` they hide none."""

    def __init__(self, *, show_secrets: bool = False) -> None:
        self._show_secrets = show_secrets
        self._lock = threading.Lock()
        self._over: OrderedDict[tuple[str, str], Veil] = OrderedDict()

    @property
    def hide(self) -> bool:
        """Whether secrets are hidden."""
        return not self._show_secrets

    def plain(self) -> Veil:
        """A veil that knows of no session."""
        return Veil(None if self._show_secrets else Redactor())

    def over(self, session: Session) -> Veil:
        """The veil of a session, which has read as much of it as the time allows."""
        key = (session.path, session.id)
        with self._lock:
            veil = self._over.setdefault(key, self.plain())
            self._over.move_to_end(key)
            if len(self._over) > _SESSIONS:
                self._over.popitem(last=False)
        veil.learn(session)
        return veil
