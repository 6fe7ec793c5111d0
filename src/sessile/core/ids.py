"""Ids of sessions and entries: how they are made, which are accepted.

Session ids are UUIDv7 in ours, any safe name in other people's files. Entry ids are eight letters and digits: eight hex
digits would collide about six times in 237,000 entries. Randomness and time are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sessile.core.hashes import sha256
from sessile.errors import InvalidId

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ENTRY_ID_LENGTH = 8

# 256 is no multiple of 62, so eight of the letters are drawn a little more often; it costs 0.01 bits a letter.
_LETTER_OF_BYTE = "".join(LETTERS[byte % len(LETTERS)] for byte in range(256)).encode("ascii")

# A session id becomes part of a file name: the first and last character are letters or digits, so neither `..` nor a
# hidden file nor a trailing space can be made from one. 128 keeps the name under every file system's limit.
_SESSION_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")

Random = Callable[[int], bytes]
"""Gives that many random bytes, as `os.urandom` does."""


def new_session_id(milliseconds: int, random: Random) -> str:
    """A UUIDv7: sorts by time, unique without asking anybody."""
    number = int.from_bytes(random(10), "big")
    value = (milliseconds & 0xFFFFFFFFFFFF) << 80 | number
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_plain_id(session_id: str) -> bool:
    """Whether an id may become part of a file name or of a command; files of others hold any."""
    return _SESSION_ID.fullmatch(session_id) is not None


def check_session_id(session_id: str) -> str:
    """The id itself if it may become part of a file name."""
    if not is_plain_id(session_id):
        raise InvalidId(
            f"{session_id[:80]!r} cannot be a session id",
            hint="use letters and digits, inside also . _ -, at most 128 characters",
        )
    return session_id


def new_entry_id(random: Random) -> str:
    """Eight letters and digits."""
    return _letters(random(ENTRY_ID_LENGTH))


def derived_entry_id(*parts: object) -> str:
    """The same eight letters and digits for the same parts, so that links survive rereading and retries."""
    digest = sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()
    return _letters(digest[:ENTRY_ID_LENGTH])


def _letters(drawn: bytes) -> str:
    return drawn.translate(_LETTER_OF_BYTE).decode("ascii")
