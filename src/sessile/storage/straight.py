"""HTTP requests that reach the named host and nobody else: through no proxy of the environment, and after no redirect.

What a request carries, keys and conversations, would go along to wherever it is sent on. An answer that only names another place
is an `HTTPError` like every refusal.
"""

from __future__ import annotations

import urllib.request
from typing import Any


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes an address to go on to for what it is: no answer."""

    def redirect_request(self, *_: Any) -> None:
        """Go nowhere; whoever opened the request is told the status."""


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


def straight(request: urllib.request.Request, timeout: float) -> Any:
    """The answer to a request, open for reading."""
    return _OPENER.open(request, timeout=timeout)
