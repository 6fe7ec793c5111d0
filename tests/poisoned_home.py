"""A home with a payload in every stored text: raw sessions of several agents, and conversations.

A template has a mark in every place for stored text: values, member names, ids and file names. Each place gets its own
payload with its own number, so that a payload that runs or appears can be traced to its place. The i-th place of the
v-th variant has the payload i + v: all variants together have every payload in every place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from browser_payloads import PAYLOADS, entries_with
from builders import AT_MS, Json, entry
from poisoned_rows import MARK, NEEDLE, claude_rows, codex_rows, header, myagents_rows, told_entries
from sessile import Store
from sessile.agents.openclaw.entries import FIELDS
from sessile.storage.layout import Source

# The payloads of the export tests, and more that target pages with scripts.
CORPUS = [
    *PAYLOADS,
    "<img src=x onerror=window.pwned=1>\n\n---\n# <svg/onload=window.pwned=1>",
    "<svg><style><img src=x onerror=window.pwned=1></style></svg>",
    "<form><math><mtext></form><form><mglyph><style></math><img src onerror=window.pwned=1>",
    "<select><template shadowrootmode=open><script>window.pwned=1</script></template></select>",
    "<xmp><p title='</xmp><img src=x onerror=window.pwned=1>'>",
    "<svg><foreignObject><iframe srcdoc='<script>parent.window.pwned=1</script>'></iframe></foreignObject></svg>",
    "<a href='https://x.example/' target=_blank onclick=window.pwned=1>x</a>",
    "<a href=//x.example/>x</a> //x.example/ \\\\x.example\\",
    "[x](//x.example/ 'window.pwned=1')",
    "<https://x.example/?window.pwned=1>",
    "[x](blob:https://x.example/window.pwned=1)",
    "<button popovertarget=x onbeforetoggle=window.pwned=1>x</button><div popover id=x>x</div>",
    "<dialog open onclose=window.pwned=1>x</dialog>",
    "<p tabindex=1 autofocus onfocusin=window.pwned=1 style='animation:x 1s' onanimationstart=window.pwned=1>x</p>",
    "<meta http-equiv=Content-Security-Policy content=\"script-src 'unsafe-inline'\"><script>window.pwned=1</script>",
    "<link rel=modulepreload href=https://x.example/m.js><link rel=dns-prefetch href=//x.example>",
    "<embed src=data:text/html,window.pwned=1><object data='https://x.example/o'></object>",
    "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' onload='window.pwned=1'/>",
    "</pre></code></details></summary></li></ul></dialog><script>window.pwned=1</script>",
    'e-x" onclick="window.pwned=1',
    "x' ] , * { background: url(https://x.example/window.pwned=1) } [y='",
    "#token=window.pwned=1&gatewayUrl=https://x.example/",
    "/%2e%2e/%2f%2fx.example/window.pwned=1?#\\..\\",
    "𝒘indow.pwned=1<script\u2028>window.pwned=1</script\u2029>",
]


class Place(NamedTuple):
    """The position of a payload: the part of the home, the place in its template, and the variant."""

    part: str
    number: int
    variant: int


class PoisonedHome:
    """Folders of four agents and the conversations of a gateway; `pairs` maps numbers to places and payloads."""

    def __init__(self, root: Path, variants: Iterable[int], together: int = 4, corpus: Sequence[str] = CORPUS) -> None:
        self.root = root
        self._corpus = corpus
        self.pairs: dict[int, tuple[Place, str]] = {}
        self.sessions: list[str] = []  # ids of sessions that can be opened
        self.branches: dict[str, list[tuple[str, str]]] = {}  # pairs of branch tips in them that can be compared
        self._own = Store(root / "own", durability="process")
        chosen = list(variants)
        for start in range(0, len(chosen), together):
            self._write_group(start, chosen[start : start + together])
        self._write_conversations(chosen)

    @property
    def sources(self) -> list[Source]:
        """Return the folders of other agents."""
        claude, codex, myagents = (self.root / name for name in ("claude", "codex", "myagents"))
        return [
            Source("claude", str(claude), str(claude / "projects")),
            Source("codex", str(codex), str(codex / "sessions")),
            Source("myagents", str(myagents), str(myagents / "sessions")),
        ]

    @property
    def numbered(self) -> set[int]:
        """Return the numbers of payloads that contain their number, so that they can be recognised."""
        return {number for number, (_, plain) in self.pairs.items() if "pwned=1" in plain or "x.example" in plain}

    # -- filling

    def _filled(self, part: str, variant: int, template: Any) -> Any:
        """Return the template with a payload in every place."""
        counter = iter(range(1_000_000))

        def text(value: str) -> str:
            pieces = value.split(MARK)
            payloads = [self._payload(Place(part, next(counter), variant)) for _ in pieces[1:]]
            return pieces[0] + "".join(payload + piece for payload, piece in zip(payloads, pieces[1:], strict=True))

        def fill(value: Any) -> Any:
            if isinstance(value, str):
                return text(value)
            if isinstance(value, dict):
                return {text(name): fill(member) for name, member in value.items()}
            return [fill(item) for item in value] if isinstance(value, list) else value

        return fill(template)

    def _payload(self, place: Place) -> str:
        number = len(self.pairs) + 1
        plain = self._corpus[(place.number + place.variant) % len(self._corpus)]
        self.pairs[number] = (place, plain)
        return plain.replace("pwned=1", f"pwned={number}").replace("x.example", f"x{number}.example")

    # -- sessions

    def _write_group(self, group: int, variants: list[int]) -> None:
        """Write a session of each agent with these variants in sequence, and files with odd names."""
        self._write_own(f"0e551011-0000-4000-8000-{group:012d}", variants)
        self._write_claude(f"c1a0de00-0000-4000-8000-{group:012d}", variants)
        self._write_codex(f"c0de0000-0000-4000-8000-{group:012d}", variants)
        self._write_myagents(f"a9e00000-0000-4000-8000-{group:012d}", variants)
        for variant in variants:
            self._write_odd(variant)

    def _write_own(self, session_id: str, variants: list[int]) -> None:
        rows: list[Json] = [entry("message", "begin", None, message={"role": "user", "content": NEEDLE})]
        for variant in variants:
            made = self._filled("entry", variant, entries_with(MARK, f"v{variant}", rows[-1]["id"]))
            told = self._filled(
                "told", variant, told_entries(f"t{variant}", made[-3]["id"])
            )  # the last two are siblings
            labels = [
                entry("label", f"l{variant}-{index}", told[-1]["id"], targetId=labelled["id"], label=MARK)
                for index, labelled in enumerate(made[:12])
            ]
            for before, label in pairwise(labels):
                label["parentId"] = before["id"]
            rows += [*made, *told, *self._filled("label", variant, labels)]
            self.branches.setdefault(session_id, []).append((made[-1]["id"], told[-1]["id"]))
        head = self._filled("head", variants[0], header(session_id))
        self._write(
            Path(self._own.layout.folder("/work/app")) / f"2026-01-01T00-00-00-000Z_{session_id}.jsonl", [head, *rows]
        )
        self.sessions.append(session_id)

    def _write_odd(self, variant: int) -> None:
        """Write a session with the payload as id and file name, a hidden one, and a file that is not a session."""
        template = {"id": MARK, "file": MARK, "folder": MARK}
        odd = self._filled("name", variant, template)
        head = self._filled("odd", variant, header("") | {"cwd": f"/work/{MARK}"})
        row = entry("message", "a", None, message={"role": "user", "content": NEEDLE})
        folder = Path(self._own.layout.folder("/work/app"))
        self._write(
            folder / f"2026-01-01T00-00-00-000Z_{_file_name(odd['file'])}.jsonl", [head | {"id": odd["id"]}, row]
        )
        self._write(
            folder.parent / _file_name(odd["folder"]) / f"{variant}.jsonl",
            [self._filled("no", variant, {"type": MARK, MARK: MARK})],
        )

    def _write_claude(self, session_id: str, variants: list[int]) -> None:
        rows: list[Json] = []
        for variant in variants:
            spoken = [row["uuid"] for row in rows if "uuid" in row]
            rows += self._filled("claude", variant, claude_rows(session_id, variant, spoken[-1] if spoken else None))
        self._write(self.root / "claude" / "projects" / "-work-app" / f"{session_id}.jsonl", rows)
        self.sessions.append(session_id)

    def _write_codex(self, session_id: str, variants: list[int]) -> None:
        rows = [row for variant in variants for row in self._filled("codex", variant, codex_rows(session_id))]
        self._write(self.root / "codex" / "sessions" / f"rollout-2026-05-01T10-00-00-{session_id}.jsonl", rows)
        self.sessions.append(session_id)

    def _write_myagents(self, session_id: str, variants: list[int]) -> None:
        rows = [row for variant in variants for row in self._filled("myagents", variant, myagents_rows())]
        self._write(self.root / "myagents" / "sessions" / f"{session_id}.jsonl", rows)
        self.sessions.append(session_id)

    # -- conversations

    def _write_conversations(self, variants: list[int]) -> None:
        """Write a key and every member of `sessions.json` for each variant; all refer to sessions of this home."""
        own = [name for name in self.sessions if name.startswith("0e55")]
        texts = {
            name: MARK
            for name, field in FIELDS.items()
            if field.type is str and name not in ("sessionId", "sessionFile")
        }
        nested = {name: {MARK: MARK} for name, field in FIELDS.items() if field.type is dict}
        bindings: Json = {}
        for at, variant in enumerate(variants):
            bound = {"sessionId": own[at % len(own)], "updatedAt": AT_MS + at}
            named = {"displayName": MARK, "label": MARK, "subject": MARK}
            template: Json = {
                f"agent:main:hook:{MARK}": bound | texts | nested | {MARK: MARK},
                f"agent:main:main:{variant}": bound | named,
                MARK: {**bound, **named, "previousSessions": [{"sessionId": MARK, "reason": MARK, "endedAt": AT_MS}]},
            }
            bindings |= self._filled("binding", variant, template)
        path = self.root / "own" / "agents" / "main" / "sessions" / "sessions.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(bindings))

    def _write(self, path: Path, rows: Iterable[Json]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _file_name(text: str) -> str:
    """Return as much of a text as a file name can hold."""
    plain = text.replace("/", "∕").replace("\0", "").encode("utf-8", "replace")
    return plain[:120].decode("utf-8", "ignore") or "x"
