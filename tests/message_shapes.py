"""Conversations in the shapes of four APIs, and what a conversation says whatever its shape.

A plan is a list of turns; `rendered` writes it in one shape, as a program of that API would. `said` reads texts, calls, results
and images out of a request, independently of our code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from builders import Json
from sessile.core.messages.family import ATTACHED, SEE_BELOW

MEMBERS = {"anthropic": "messages", "openai": "messages", "responses": "input", "google": "contents"}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
names = st.sampled_from(["read", "ls", "write_file"])
unknown = st.dictionaries(
    st.sampled_from(["cache_hint", "x_trace", "vendorMember"]), st.none() | st.integers() | words, max_size=1
)
arguments = st.dictionaries(
    words,
    st.recursive(st.none() | st.booleans() | st.integers() | words, lambda one: st.lists(one, max_size=2)),
    max_size=2,
)
images = st.builds(lambda url: {"url": url}, words.map(lambda word: f"https://example.com/{len(word)}.png")) | st.just(
    {"data": PNG, "mime": "image/png"}
)
pieces = st.builds(lambda text: {"text": text}, words) | images.map(lambda image: {"image": image})
results = st.fixed_dictionaries({"pieces": st.lists(pieces, max_size=2), "failed": st.booleans()})
calls = st.fixed_dictionaries({"name": names, "arguments": arguments, "result": results})
turns = st.one_of(
    st.builds(lambda parts: {"role": "user", "pieces": parts}, st.lists(pieces, min_size=1, max_size=3)),
    st.builds(
        lambda texts, thought, made, members: {
            "role": "assistant",
            "texts": texts,
            "thought": thought,
            "calls": made,
            "members": members,
        },
        st.lists(words, max_size=2),
        st.none() | words,
        st.lists(calls, max_size=3),
        unknown,
    ).filter(lambda turn: turn["texts"] or turn["calls"]),
)
plans = st.lists(turns, min_size=1, max_size=6)


class Choices:
    """Draws the forms that an API leaves free: a string or parts, a member or none, the style of JSON."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def any_of(self, *values: Any) -> Any:
        return self._draw(st.sampled_from(values))

    def maybe(self, **members: Any) -> Json:
        return members if self._draw(st.booleans()) else {}


@st.composite
def conversations(draw: st.DrawFn, api: str) -> list[Json]:
    """Return a conversation in the shape of an API."""
    return _RENDERED[api](draw(plans), Choices(draw))


def _numbered(plan: list[Json]) -> Iterator[tuple[Json, list[tuple[str, Json]]]]:
    """Yield each turn with its calls and their ids."""
    count = 0
    for turn in plan:
        made = []
        for call in turn.get("calls", ()):
            count += 1
            made.append((f"call_{count}", call))
        yield turn, made


def _text_of(made: list[Json]) -> str | None:
    return made[0]["text"] if len(made) == 1 and "text" in made[0] else None


def _anthropic(plan: list[Json], free: Choices) -> list[Json]:
    def block(piece: Json) -> Json:
        mark = free.maybe(cache_control={"type": "ephemeral"})
        if "text" in piece:
            return {"type": "text", "text": piece["text"], **mark}
        image = piece["image"]
        source = (
            {"type": "url", "url": image["url"]}
            if "url" in image
            else {"type": "base64", "media_type": image["mime"], "data": image["data"]}
        )
        return {"type": "image", "source": source, **mark}

    messages: list[Json] = []
    owed: list[Json] = []
    for turn, made in _numbered(plan):
        if turn["role"] == "user":
            content: Any = [block(piece) for piece in turn["pieces"]]
            if not owed and _text_of(turn["pieces"]) and free.any_of(True, False):
                content = _text_of(turn["pieces"])
            if owed and free.any_of(True, False):
                messages.append({"role": "user", "content": [*owed, *content]})
            else:
                messages += [{"role": "user", "content": owed}] if owed else []
                messages.append({"role": "user", "content": content})
            owed = []
            continue
        messages += [{"role": "user", "content": owed}] if owed else []
        owed = []
        blocks = [{"type": "thinking", "thinking": turn["thought"], "signature": "c2ln"}] if turn["thought"] else []
        blocks += [block({"text": text}) for text in turn["texts"]]
        blocks += [
            {"type": "tool_use", "id": call_id, "name": call["name"], "input": call["arguments"], **turn["members"]}
            for call_id, call in made
        ]
        messages.append({"role": "assistant", "content": blocks})
        for call_id, call in made:
            inside: Any = [block(piece) for piece in call["result"]["pieces"]]
            if _text_of(call["result"]["pieces"]) and free.any_of(True, False):
                inside = _text_of(call["result"]["pieces"])
            failed = {"is_error": True} if call["result"]["failed"] else free.maybe(is_error=False)
            body = {"content": inside} if inside or free.any_of(True, False) else {}
            owed.append({"type": "tool_result", "tool_use_id": call_id, **body, **failed})
    return messages + ([{"role": "user", "content": owed}] if owed else [])


def _written(value: Json, free: Choices) -> str:
    return json.dumps(value, **free.any_of({}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"indent": 1}))


def _data_url(image: Json) -> str:
    return image.get("url") or f"data:{image['mime']};base64,{image['data']}"


def _openai(plan: list[Json], free: Choices) -> list[Json]:
    def part(piece: Json) -> Json:
        if "text" in piece:
            return {"type": "text", "text": piece["text"]}
        return {"type": "image_url", "image_url": {"url": _data_url(piece["image"]), **free.maybe(detail="high")}}

    messages: list[Json] = (
        [{"role": free.any_of("system", "developer"), "content": "be kind"}] if free.any_of(0, 1) else []
    )
    for turn, made in _numbered(plan):
        if turn["role"] == "user":
            text = _text_of(turn["pieces"])
            plain = text is not None and free.any_of(True, False)
            content = text if plain else [part(piece) for piece in turn["pieces"]]
            messages.append({"role": "user", "content": content, **free.maybe(name="bob")})
            continue
        joined = "\n".join(turn["texts"])
        answer: Json = {"role": "assistant", "content": joined or free.any_of(None, "")}
        if not joined and made and free.any_of(True, False):
            del answer["content"]
        answer |= {"reasoning_content": turn["thought"]} if turn["thought"] else {}
        answer |= free.maybe(refusal=None)
        if "refusal" in answer or made or turn["thought"]:  # otherwise it looks the same in every API
            answer |= turn["members"]
        if made:
            answer["tool_calls"] = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": call["name"], "arguments": _written(call["arguments"], free)},
                }
                for call_id, call in made
            ]
        messages.append(answer)
        for call_id, call in made:
            texts = [piece for piece in call["result"]["pieces"] if "text" in piece]
            body: Any = "\n".join(piece["text"] for piece in texts)
            body = [part(piece) for piece in texts] if free.any_of(True, False) else body
            messages.append({"role": "tool", "tool_call_id": call_id, "content": body})
    return messages


def _responses(plan: list[Json], free: Choices) -> list[Json]:
    def part(piece: Json) -> Json:
        if "text" in piece:
            return {"type": "input_text", "text": piece["text"]}
        return {"type": "input_image", "image_url": _data_url(piece["image"]), **free.maybe(detail="auto")}

    items: list[Json] = []
    for turn, made in _numbered(plan):
        if turn["role"] == "user":
            text = _text_of(turn["pieces"])
            plain = text is not None and free.any_of(True, False)
            content = text if plain else [part(piece) for piece in turn["pieces"]]
            items.append({"role": "user", "content": content, **free.maybe(type="message")})
            continue
        if turn["thought"]:
            summary = [{"type": "summary_text", "text": turn["thought"]}]
            items.append({"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAA"})
        texts = [{"type": "output_text", "text": text, "annotations": []} for text in turn["texts"]]
        if texts:
            named = {"id": "msg_1", "status": "completed"} | turn["members"]
            items.append({"type": "message", "role": "assistant", "content": texts, **named})
        for call_id, call in made:
            if free.any_of(True, False):
                written = _written(call["arguments"], free)
                call_item = {"type": "function_call", "name": call["name"], "arguments": written}
            else:
                call_item = {"type": "custom_tool_call", "name": call["name"], "input": str(call["arguments"])}
            items.append({**call_item, "call_id": call_id, **free.maybe(id=f"fc_{call_id}", status="completed")})
        for number, (call_id, call) in enumerate(made):
            kind = items[len(items) - len(made)]["type"] if number < len(made) else "function_call"
            body: Any = _text_of(call["result"]["pieces"])
            if body is None or free.any_of(True, False):
                body = [part(piece) for piece in call["result"]["pieces"]]
            items.append({"type": f"{kind}_output", "call_id": call_id, "output": body})
    return items


def _google(plan: list[Json], free: Choices) -> list[Json]:
    def part(piece: Json) -> Json:
        if "text" in piece:
            return {"text": piece["text"]}
        image = piece["image"]
        if "url" in image:
            return {"fileData": {"fileUri": image["url"], "mimeType": "image/png"}}
        return {"inlineData": {"mimeType": image["mime"], "data": image["data"]}}

    named = free.any_of(True, False)
    contents: list[Json] = []
    for turn, made in _numbered(plan):
        if turn["role"] == "user":
            contents.append({"role": "user", "parts": [part(piece) for piece in turn["pieces"]]})
            continue
        parts: list[Json] = [{"text": turn["thought"], "thought": True}] if turn["thought"] else []
        parts += [{"text": text, **free.maybe(thoughtSignature="c2ln")} for text in turn["texts"]]
        for call_id, call in made:
            function = {"name": call["name"], "args": call["arguments"], **({"id": call_id} if named else {})}
            parts.append({"functionCall": function, **free.maybe(thoughtSignature="c2ln")})
        contents.append({"role": "model", "parts": parts})
        answers = []
        for call_id, call in made:
            text = "\n".join(piece["text"] for piece in call["result"]["pieces"] if "text" in piece)
            member = "error" if call["result"]["failed"] else free.any_of("output", "result", "rows")
            answer = {"name": call["name"], "response": {member: text}, **({"id": call_id} if named else {})}
            answers.append({"functionResponse": answer})
        if answers:
            contents.append({"role": "user", "parts": answers})
    return contents


_RENDERED = {"anthropic": _anthropic, "openai": _openai, "responses": _responses, "google": _google}


# -- what is said

Said = tuple[str, ...]


def said(request: Json, api: str) -> list[Said]:
    """Return texts, calls, results and images of a request in order.

    Adjacent texts are joined, without empty lines, because APIs divide them differently; ids are numbered.
    """
    found: list[Said] = []
    ids: dict[str, str] = {}
    for item in _SAID[api](request):
        if item[0] == "text":
            item = ("text", "\n".join(line for line in item[1].split("\n") if line and line != ATTACHED))
            if not item[1]:
                continue
            if found and found[-1][0] == "text":
                item = ("text", f"{found.pop()[1]}\n{item[1]}")
        elif item[0] in ("call", "result"):
            item = (
                item[0],
                ids.setdefault(item[1], str(len(ids) + 1)),
                *(word for word in item[2:] if word != SEE_BELOW),
            )
            item = (*item, "") if len(item) == 2 else item
        found.append(item)
    return found


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def _object(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _loaded(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return _input(value) if isinstance(value, dict) else _object(value)


def _said_by_anthropic(request: Json) -> Iterator[Said]:
    for block in _parts(request.get("system")):
        yield "text", block["text"]
    for message in request["messages"]:
        for block in _parts(message["content"]):
            yield from _anthropic_block(block)


def _anthropic_block(block: Json) -> Iterator[Said]:
    kind = block["type"]
    if kind == "text":
        yield "text", block["text"]
    elif kind == "image":
        source = block["source"]
        yield "image", source.get("url") or source["data"]
    elif kind == "tool_use":
        yield "call", block["id"], block["name"], _input(block["input"])
    elif kind == "tool_result":
        parts = _parts(block.get("content"))
        yield "result", block["tool_use_id"], "\n".join(part["text"] for part in parts if part["type"] == "text")
        for part in parts:
            if part["type"] != "text":
                yield from _anthropic_block(part)


def _input(value: Json) -> str:
    """Return arguments; a text as input may be wrapped in an object."""
    for name in ("input", "arguments"):
        if value.keys() == {name} and isinstance(value[name], str):
            return _loaded(value[name])
    return _object(value)


def _said_by_openai(request: Json) -> Iterator[Said]:
    for message in request["messages"]:
        parts = _parts(message.get("content"))
        texts = [part["text"] for part in parts if part["type"] == "text"]
        if message["role"] == "tool":
            yield "result", message["tool_call_id"], "\n".join(texts)
            parts = [part for part in parts if part["type"] != "text"]
        for part in parts:
            if part["type"] == "text":
                yield "text", part["text"]
            elif part["type"] == "image_url":
                yield "image", part["image_url"]["url"].rpartition(";base64,")[2]
        for call in message.get("tool_calls") or ():
            if call["type"] == "custom":
                yield "call", call["id"], call["custom"]["name"], _loaded(call["custom"]["input"])
            else:
                yield "call", call["id"], call["function"]["name"], _loaded(call["function"]["arguments"])


def _said_by_responses(request: Json) -> Iterator[Said]:
    if request.get("instructions"):
        yield "text", request["instructions"]
    for item in request["input"]:
        kind = item.get("type", "message")
        if kind in ("function_call", "custom_tool_call"):
            yield "call", item["call_id"], item["name"], _loaded(item.get("arguments", item.get("input")))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            parts = _parts(item["output"])
            yield "result", item["call_id"], "\n".join(part["text"] for part in parts if "text" in part)
            yield from (("image", _image(part)) for part in parts if part["type"] == "input_image")
        elif kind == "message":
            for part in _parts(item["content"]):
                if "text" in part:
                    yield "text", part["text"]
                elif part["type"] == "input_image":
                    yield "image", _image(part)


def _image(part: Json) -> str:
    return str(part["image_url"]).rpartition(";base64,")[2]


def _said_by_google(request: Json) -> Iterator[Said]:
    for part in request.get("systemInstruction", {}).get("parts", ()):
        yield "text", part["text"]
    owed: list[str] = []
    count = 0
    for content in request["contents"]:
        for part in content["parts"]:
            if "functionCall" in part:
                call = part["functionCall"]
                count += 1
                owed.append(call.get("id") or f"made {count}")
                yield "call", owed[-1], call["name"], _input(call.get("args", {}))
            elif "functionResponse" in part:
                result = part["functionResponse"]
                call_id = result.get("id") or owed[0]
                owed = [one for one in owed if one != call_id]
                response = result.get("response", {})
                plain = [response[name] for name in ("output", "result", "content", "error") if name in response]
                text = plain[0] if len(response) == len(plain) == 1 else json.dumps(response, ensure_ascii=False)
                yield "result", call_id, text
            elif "inlineData" in part:
                yield "image", part["inlineData"]["data"]
            elif "fileData" in part:
                yield "image", part["fileData"]["fileUri"]
            elif "text" in part and not part.get("thought"):
                yield "text", part["text"]


_SAID = {
    "anthropic": _said_by_anthropic,
    "openai": _said_by_openai,
    "responses": _said_by_responses,
    "google": _said_by_google,
}
