"""Shapes of secrets, surroundings to put them in, and a detector of leaks that shares no code with the engine.

A shape is written as it occurs (`lead`, `prefix`, `body`, `tail`). Only the body is random, and no part of it may be recovered
from an output. A surrounding writes a shape in another way: behind other characters, escaped, wrapped, encoded.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import random
import re
import struct
import textwrap
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote, unquote

WINDOW = 10  # characters of a secret that must not appear together

WORD = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
HEX = "0123456789abcdef"
DIGITS = "0123456789"
BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
BASE64 = WORD + "+/"
SIGNS = WORD + "#$%!?^*"


class Shape(NamedTuple):
    """A secret as it is written; `{w36}` in `body` are 36 random characters of an alphabet."""

    name: str
    prefix: str
    body: str
    lead: str = ""
    tail: str = ""


class Written(NamedTuple):
    """A shape with a random body."""

    shape: Shape
    body: str

    @property
    def text(self) -> str:
        """The text as a person would paste it."""
        return self.shape.lead + self.shape.prefix + self.body + self.shape.tail

    @property
    def place(self) -> int:
        """Where the body starts."""
        return len(self.shape.lead) + len(self.shape.prefix)


SHAPES = (
    Shape("anthropic", "sk-ant-api03-", "{w86}-{w6}AA"),
    Shape("openai project", "sk-proj-", "{w48}"),
    Shape("openai", "sk-", "{w20}T3BlbkFJ{w20}"),
    Shape("openrouter", "sk-or-v1-", "{h64}"),
    Shape("other sk-", "sk-", "{h32}"),
    Shape("groq", "gsk_", "{w52}"),
    Shape("xai", "xai-", "{w80}"),
    Shape("perplexity", "pplx-", "{w48}"),
    Shape("replicate", "r8_", "{w37}"),
    Shape("huggingface", "hf_", "{w34}"),
    Shape("nvidia", "nvapi-", "{w64}"),
    Shape("github", "ghp_", "{w36}"),
    Shape("github server", "ghs_", "{w36}"),
    Shape("github fine-grained", "github_pat_", "{w22}_{w59}"),
    Shape("gitlab", "glpat-", "{w20}"),
    Shape("npm", "npm_", "{w36}"),
    Shape("pypi", "pypi-AgEIcHlwaS5vcmc", "{w60}"),
    Shape("docker", "dckr_pat_", "{w27}"),
    Shape("aws access", "AKIA", "{u16}"),
    Shape("aws secret", "", "{b40}", "AWS_SECRET_ACCESS_KEY="),
    Shape("google", "AIzaSy", "{w33}"),
    Shape("google oauth", "GOCSPX-", "{w28}"),
    Shape("google token", "ya29.", "{w80}"),
    Shape("azure storage", "", "{b86}==", "DefaultEndpointsProtocol=https;AccountKey="),
    Shape("digitalocean", "dop_v1_", "{h64}"),
    Shape("databricks", "dapi", "{h32}"),
    Shape("vault", "hvs.", "{w90}"),
    Shape("slack bot", "xoxb-", "{d12}-{d12}-{w24}"),
    Shape("slack app", "xapp-1-A", "{u10}-{d13}-{h64}"),
    Shape("slack webhook", "", "{w24}", "https://hooks.slack.com/services/T02ABCDEFGH/B03ABCDEFGH/"),
    Shape("discord webhook", "", "{w68}", "https://discord.com/api/webhooks/112345678901234567/"),
    Shape("telegram", "AA", "{w33}", "5012345678:"),
    Shape("twilio", "SK", "{h32}"),
    Shape("sendgrid", "SG.", "{w22}.{w43}"),
    Shape("mailgun", "key-", "{h32}"),
    Shape("stripe", "sk_live_", "{w24}"),
    Shape("stripe webhook", "whsec_", "{w32}"),
    Shape("square", "sq0atp-", "{w22}"),
    Shape("shopify", "shpat_", "{h32}"),
    Shape("notion", "ntn_", "{w46}"),
    Shape("linear", "lin_api_", "{w40}"),
    Shape("atlassian", "ATATT3", "{w180}"),
    Shape("postman", "PMAK-", "{h24}-{h34}"),
    Shape("sentry", "sntryu_", "{h64}"),
    Shape("grafana", "glsa_", "{w32}_{h8}"),
    Shape("age", "AGE-SECRET-KEY-1", "{u58}"),
    Shape("jwt", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx", "{w40}.{w43}"),
    Shape(
        "private key",
        "",
        "{b64}\n{b64}\n{b40}",
        "-----BEGIN RSA PRIVATE KEY-----\n",
        "\n-----END RSA PRIVATE KEY-----",
    ),
    Shape("database address", "", "{w18}", "postgres://app:", "@db.internal:5432/app"),
    Shape("basic", "", "Kq7{b29}", "Authorization: Basic "),
    Shape("bearer", "", "{h40}", "X-Auth: Bearer "),
    Shape("cookie", "", "Kq7{w29}", "Cookie: theme=dark; session=", "; lang=en"),
    Shape("password", "", "Kq7{s13}", "password: "),
    Shape("quoted password", "", "Kq7{s13}", 'DB_PASSWORD = "', '"'),
    Shape("shell password", "", "Kq7{w9}_%x{w4}", "PGPASSWORD="),
    Shape("member", "", "Kq7{w21}", '"api_key": "', '"'),
    Shape("setting", "", "Kq7{w21}", "MY_SERVICE_TOKEN="),
)
_ALPHABETS = {"w": WORD, "h": HEX, "d": DIGITS, "u": BASE32, "b": BASE64, "s": SIGNS}


def written(shape: Shape, seed: object) -> Written:
    """Return a shape with a body that depends on the seed."""
    source = random.Random(f"{shape.name} {seed}")
    pick = re.sub(r"\{([a-z])([0-9]+)\}", lambda m: "".join(source.choices(_ALPHABETS[m[1]], k=int(m[2]))), shape.body)
    return Written(shape, pick)


# -- surroundings

RUN = base64.b64encode(random.Random(11).randbytes(600)).decode()
_RED, _PLAIN = "\x1b[01;31m\x1b[K", "\x1b[0m"


def _joined(pieces: Iterable[str], by: str) -> str:
    return by.join(pieces)


def _every(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def _at(key: Written, share: float, by: str) -> str:
    """The text with something put into the body, at a share of its length."""
    text = key.text
    place = key.place + max(1, int(len(key.body) * share))
    return text[:place] + by + text[place:]


def _early(key: Written, by: str) -> str:
    """The text with something put into the prefix of the key, or behind the first characters of the body."""
    prefix = key.shape.prefix
    place = len(key.shape.lead) + (len(prefix) // 2 if len(prefix) > 1 else len(prefix) + 4)
    return key.text[:place] + by + key.text[place:]


def _signs(text: str, how: Callable[[str], str]) -> str:
    return "".join(each if each.isalnum() else how(each) for each in text)


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _percent(char: str) -> str:
    return f"%{ord(char):02X}"


def _unicode(char: str) -> str:
    return f"\\u{ord(char):04x}"


SURROUNDINGS: dict[str, Callable[[Written], str]] = {
    # in front and behind
    "alone": lambda key: key.text,
    "between words": lambda key: f"see {key.text} there",
    "my_": lambda key: f"my_{key.text}",
    "_ on both sides": lambda key: f"_{key.text}_",
    "key-": lambda key: f"key-{key.text}",
    "behind a letter": lambda key: f"x{key.text}",
    "behind a digit": lambda key: f"7{key.text}",
    "before letters": lambda key: f"{key.text}zz",
    "behind \\u003c": lambda key: f"\\u003c{key.text}\\u003e",
    "behind \\u0022": lambda key: f"\\u0022{key.text}\\u0022",
    "behind \\\\u0022": lambda key: f"\\\\u0022{key.text}\\\\u0022",
    "behind \\\\\\\\u0022": lambda key: f"\\\\\\\\u0022{key.text}\\\\\\\\u0022",
    "behind \\x00": lambda key: f"\\x00{key.text}\\x00",
    "behind a NUL": lambda key: f"\x00{key.text}\x00",
    "behind \\n": lambda key: f"line\\n{key.text}\\nline",
    "behind %3D": lambda key: f"k%3D{key.text}%26x",
    "behind %253D": lambda key: f"k%253D{key.text}%2526x",
    "behind &lt;": lambda key: f"&lt;{key.text}&gt;",
    "in another script": lambda key: f"密钥{key.text}。",
    "in a table": lambda key: f"| a | `{key.text}` |",
    "on numbered lines": lambda key: f"   17\t{key.text}\n   18\tnext",
    "in a diff": lambda key: f"-old\n+{key.text}\n",
    "behind base64": lambda key: f"{RUN}{key.text}",
    "before base64": lambda key: f"{key.text} {RUN}",
    # colours and invisible characters
    "coloured": lambda key: f"{_RED}{key.text}{_PLAIN}",
    "colours inside": lambda key: _joined(_every(key.text, 7), _RED),
    "a colour behind every character": lambda key: _joined(key.text, _PLAIN),
    "escaped colours inside": lambda key: _joined(_every(key.text, 9), "\\u001b[0m"),
    "\\x1b colours inside": lambda key: _joined(_every(key.text, 9), "\\x1b[31m"),
    "\\033 colours inside": lambda key: _joined(_every(key.text, 9), "\\033[31m"),
    "a link around": lambda key: f"\x1b]8;;http://x\x07{key.text}\x1b]8;;\x07",
    "zero-width spaces inside": lambda key: _joined(_every(key.text, 5), "\u200b"),
    "UTF-16": lambda key: _joined(key.text, "\x00"),
    # escapes
    "JSON": lambda key: json.dumps({"text": f"a\n{key.text}\nb"}),
    "JSON in JSON": lambda key: json.dumps(json.dumps({"text": f"a\n{key.text}\nb"})),
    "signs as \\u": lambda key: _signs(key.text, _unicode),
    "all as \\u": lambda key: _joined(map(_unicode, key.text), ""),
    "signs as \\u in JSON": lambda key: json.dumps(_signs(key.text, _unicode)),
    "all as \\x": lambda key: "".join(f"\\x{ord(each):02x}" for each in key.text),
    "signs as octal": lambda key: _signs(key.text, lambda each: f"\\{ord(each):03o}"),
    "signs as %": lambda key: quote(key.text, safe=""),
    "signs as %25": lambda key: quote(_signs(key.text, _percent), safe=""),
    "signs as %2525": lambda key: quote(quote(_signs(key.text, _percent), safe=""), safe=""),
    "all as %": lambda key: _joined(map(_percent, key.text), ""),
    "signs as entities": lambda key: _signs(key.text, lambda each: f"&#{ord(each)};"),
    "signs as hex entities": lambda key: _signs(key.text, lambda each: f"&#x{ord(each):X};"),
    "signs as entities twice": lambda key: _signs(key.text, lambda each: f"&amp;#{ord(each)};"),
    "escaped HTML": lambda key: f"<td>{html.escape(key.text)}</td>",
    # lines
    "wrapped": lambda key: _at(key, 0.5, "\n"),
    "wrapped early": lambda key: _early(key, "\n"),
    "wrapped early with indentation": lambda key: _early(key, "\n        "),
    "wrapped late": lambda key: _at(key, 0.75, "\n"),
    "wrapped with indentation": lambda key: _at(key, 0.4, "\n        "),
    "wrapped in a quote": lambda key: "> " + _at(key, 0.6, "\n> "),
    "wrapped with a backslash": lambda key: _at(key, 0.5, "\\\n"),
    "wrapped with a backslash and indentation": lambda key: _at(key, 0.3, " \\\n    "),
    "wrapped with CRLF": lambda key: _at(key, 0.5, "\r\n"),
    "wrapped with \\n": lambda key: _at(key, 0.5, "\\n"),
    "wrapped with \\\\n": lambda key: _at(key, 0.5, "\\\\n    "),
    "wrapped in quoted-printable": lambda key: _at(key, 0.5, "=\n"),
    "wrapped and coloured": lambda key: f"{_RED}{_at(key, 0.5, _PLAIN + chr(10) + _RED)}{_PLAIN}",
    # encodings
    "base64": lambda key: _b64(key.text),
    "base64 behind a user": lambda key: f"Basic {_b64('user:' + key.text)}",
    "base64 behind a word": lambda key: f"my_{_b64('k=' + key.text)}",
    "base64 without padding": lambda key: _b64(key.text).rstrip("="),
    "url-safe base64": lambda key: base64.urlsafe_b64encode(f"{key.text}\u00ff".encode()).decode(),
    "wrapped base64": lambda key: "\n".join(textwrap.wrap(_b64(f"a text in front of {key.text}"), 40)),
    "indented base64": lambda key: "\n".join(f"    {line}" for line in textwrap.wrap(_b64(key.text + " " * 60), 76)),
    "base64 of base64": lambda key: _b64(_b64(key.text)),
    "base64 of JSON": lambda key: _b64(json.dumps({"a": key.text})),
    "base64 in %": lambda key: quote(_b64(key.text), safe=""),
    "base64 in a data address": lambda key: f"data:text/plain;base64,{_b64(key.text)}",
    "hex": lambda key: key.text.encode().hex(),
    "upper-case hex": lambda key: key.text.encode().hex().upper(),
    "hex behind 0x": lambda key: f"0x{key.text.encode().hex()}",
    "wrapped hex": lambda key: "\n".join(textwrap.wrap(key.text.encode().hex(), 32)),
    "PNG text": lambda key: _b64_bytes(png(key.text)),
    "compressed PNG text": lambda key: _b64_bytes(png(key.text, compressed=True)),
    "JPEG comment": lambda key: _b64_bytes(jpeg(key.text)),
}


def _b64_bytes(data: bytes) -> str:
    return base64.b64encode(data).decode()


def png(text: str, *, compressed: bool = False) -> bytes:
    """Return a valid image with a text chunk."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    encoded = text.encode("utf-8")
    note = (
        chunk(b"zTXt", b"Comment\0\0" + zlib.compress(encoded))
        if compressed
        else chunk(b"tEXt", b"Comment\0" + encoded)
    )
    pixels = zlib.compress(b"\0" + random.Random(3).randbytes(3 * 40))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 40, 1, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + note + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def jpeg(text: str) -> bytes:
    """Return the start of a JPEG file with a comment, and some data."""
    comment = text.encode()
    app = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0"
    return (
        b"\xff\xd8"
        + app
        + b"\xff\xfe"
        + struct.pack(">H", len(comment) + 2)
        + comment
        + b"\xff\xda\0\x08\x01\x01\0\0\x3f\0"
        + random.Random(5).randbytes(120)
        + b"\xff\xd9"
    )


# -- the detector


class Detector:
    """Finds parts of secrets in an output, in any form that the decoders below can read."""

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}

    def expect(self, name: str, body: str) -> None:
        """Look for a body, under a name."""
        for line in body.split("\n"):
            for part in re.split(r"T3BlbkFJ", line):
                window = min(WINDOW, max(len(part) - 2, 6))
                for at in range(len(part) - window + 1):
                    self._parts[part[at : at + window]] = name

    def leaks(self, output: str) -> set[str]:
        """Return the names of the bodies of which a part can be read."""
        found: set[str] = set()
        sizes = {len(part) for part in self._parts}
        for text in decoded_forms(output, 4 if len(output) < 10_000 else 2):
            for size in sizes:
                found.update(
                    self._parts[text[at : at + size]]
                    for at in range(len(text) - size + 1)
                    if text[at : at + size] in self._parts
                )
        return found


def leaks(output: str, body: str) -> bool:
    """Return whether a part of a body can be read in an output."""
    parts = [line[at : at + WINDOW] for line in re.split("T3BlbkFJ|\n", body) for at in range(len(line) - WINDOW + 1)]
    return any(part in text for text in decoded_forms(output) for part in parts)


_MARKS = r"(?:[ \t]*(?:>|\||[0-9]+[\t:|→]))*"


def decoded_forms(text: str, depth: int = 4) -> Iterator[str]:
    """Yield a text and everything that decoders make of it, and of that again."""
    seen = {text}
    waiting = [(text, depth)]
    while waiting:
        text, left = waiting.pop()
        yield text
        if left:
            for decode in _DECODERS:
                new = decode(text)
                if new not in seen and len(new) >= 8:
                    seen.add(new)
                    waiting.append((new, left - 1))


def _unescaped(text: str) -> str:
    text = re.sub(r"\\+u([0-9a-fA-F]{4})|\\+x([0-9a-fA-F]{2})", lambda m: chr(int(m[1] or m[2], 16)), text)
    text = re.sub(r"\\+([0-3][0-7]{2})", lambda m: chr(int(m[1], 8)), text)
    return re.sub(r"\\+([nrt\"'/])", lambda m: {"n": "\n", "r": "\r", "t": "\t"}.get(m[1], m[1]), text)


def _unwrapped(text: str) -> str:
    return re.sub(rf"[ \t]*[\\=]?[ \t]*\r?\n{_MARKS}[ \t]*", "", text)


def _stripped(text: str) -> str:
    text = re.sub("\x1b\\[[0-9;?]*[A-Za-z]|\x1b\\][^\x07\n]*\x07", "", text)
    return re.sub("[\x00-\x08\x0e-\x1f\x7f\u200b-\u200f\u2060\ufeff]", "", text)


def _unbased(text: str) -> str:
    pieces = []
    for run in re.findall(r"[A-Za-z0-9+/_-]{16,}", text):
        plain = run.replace("-", "+").replace("_", "/")
        for shift in range(4):
            part = plain[shift:]
            part = part[: len(part) - 1] if len(part) % 4 == 1 else part
            pieces.append(base64.b64decode(part + "=" * (-len(part) % 4)))
    return "\n".join(_readable(piece) for piece in pieces)


def _readable(data: bytes) -> str:
    """The texts in binary data, also those of compressed PNG chunks."""
    texts = [match.decode() for match in re.findall(rb"[\x09\x0a\x0d\x20-\x7e]{8,}", data)]
    for match in re.finditer(b"zTXt[^\0]{1,79}\0\0", data):
        try:
            texts.append(zlib.decompressobj().decompress(data[match.end() :]).decode("latin-1"))
        except zlib.error:
            continue
    return "\n".join(texts)


def _unhexed(text: str) -> str:
    pieces = []
    for run in re.findall(r"[0-9a-fA-F]{16,}", text):
        for shift in (0, 1):
            part = run[shift:]
            pieces.append(binascii.unhexlify(part[: len(part) // 2 * 2]))
    return "\n".join(_readable(piece) for piece in pieces)


_DECODERS: tuple[Callable[[str], str], ...] = (
    _unescaped,
    unquote,
    html.unescape,
    _stripped,
    _unwrapped,
    _unbased,
    _unhexed,
    lambda text: re.sub(r"<[^<>]*>", "", text),
)
