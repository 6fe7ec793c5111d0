"""A simple, slow reader of Claude Code transcripts, written from the rules independently of our code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Map = dict[str, Json]

SPOKEN = ("user", "assistant")


def messages(rows: list[Json]) -> list[str]:
    """Return the uuids that the TypeScript SDK shows for a session without queued prompts."""
    known: Map = {}
    for each in rows:
        if each["type"] in (*SPOKEN, "system", "attachment", "progress") and "uuid" in each:
            known.pop(each["uuid"], None)
            known[each["uuid"]] = dict(each)
    for each in list(known.values()):
        if each.get("subtype") == "compact_boundary":
            _relink(known, each["compactMetadata"])
    leaf = _leaf(known, lambda each: each["type"] != "progress" and not _is_off(each)) or _leaf(
        known, lambda each: True
    )
    if leaf is None:
        return []
    chain = _up(known, leaf)[::-1]
    shown = _recovered(known, chain)
    return [each["uuid"] for each in shown if each["type"] in SPOKEN and not _is_off(each) and not each.get("isMeta")]


def _is_off(each: Json) -> bool:
    return bool(each.get("isSidechain") or each.get("teamName"))


def _relink(known: Map, metadata: Json) -> None:
    kept, segment = metadata.get("preservedMessages"), metadata.get("preservedSegment")
    if kept:
        if any(uuid not in known for uuid in kept["uuids"]):
            return
        anchor, first, last = kept["anchorUuid"], kept["uuids"][0], kept["uuids"][-1]
        above = anchor
        for uuid in kept["uuids"]:
            known[uuid]["parentUuid"] = above
            above = uuid
    elif segment:
        anchor, first, last = segment["anchorUuid"], segment["headUuid"], segment["tailUuid"]
        if first in known:
            known[first]["parentUuid"] = anchor
    else:
        return
    for each in known.values():
        if each["parentUuid"] == anchor and each["uuid"] != first:
            each["parentUuid"] = last


def _up(known: Map, each: Json) -> list[Json]:
    way: list[Json] = []
    at: Json | None = each
    while at is not None and at not in way:
        way.append(at)
        at = known.get(at["parentUuid"] or "")
    return way


def _leaf(known: Map, accepts: Callable[[Json], bool]) -> Json | None:
    accepted = [each for each in known.values() if accepts(each)]
    named = {each["parentUuid"] for each in accepted}
    for terminal in reversed(accepted):
        if terminal["uuid"] not in named:
            for above in _up(known, terminal):
                if above["type"] in SPOKEN:
                    return above
    return None


def _response(each: Json) -> str | None:
    return each["message"].get("id") if each["type"] == "assistant" else None


def _ids(each: Json, kind: str, member: str) -> list[str]:
    content = each.get("message", {}).get("content")
    return [block[member] for block in content if block["type"] == kind] if isinstance(content, list) else []


def _recovered(known: Map, chain: list[Json]) -> list[Json]:
    anchors = {_response(each): each for each in chain if _response(each)}
    owners: dict[str, Json | None] = {}
    for each in known.values():
        if _response(each):
            for call in _ids(each, "tool_use", "id"):
                owner = owners.get(call, each)
                owners[call] = each if owner is not None and _response(owner) == _response(each) else None
    results = [each for each in known.values() if each["parentUuid"] and _ids(each, "tool_result", "tool_use_id")]
    shown = list(chain)
    for response, anchor in anchors.items():
        group = [each for each in known.values() if _response(each) == response]
        found = _results(known, group, results, owners, chain, shown)
        calls = [each for each in group if each not in shown]
        behind = sorted(calls, key=_time) + sorted(found, key=_time)
        place = shown.index(anchor) + 1
        shown[place:place] = behind
    return shown


def _time(each: Json) -> str:
    return str(each["timestamp"])


def _results(
    known: Map,
    group: list[Json],
    results: list[Json],
    owners: Map | dict[str, Json | None],
    chain: list[Json],
    shown: list[Json],
) -> list[Json]:
    direct: list[Json] = []
    strays: list[Json] = []
    for member in group:
        for result in results:
            owned = [owners.get(call) for call in _ids(result, "tool_result", "tool_use_id")]
            named = result.get("sourceToolAssistantUUID") == member["uuid"] or any(owner is member for owner in owned)
            if result in shown or result in direct or result in strays:
                continue
            if result["parentUuid"] in [each["uuid"] for each in group]:
                if result["parentUuid"] == member["uuid"] or (named and _same_writer(result, member)):
                    direct.append(result)
            elif named and _same_writer(result, member):
                strays.append(result)
    done = {call for each in [*chain, *direct] for call in _ids(each, "tool_result", "tool_use_id")}
    order = list(known)
    for result in sorted(strays, key=lambda each: order.index(each["uuid"])):
        calls = _ids(result, "tool_result", "tool_use_id")
        if any(call not in done and any(owners.get(call) is each for each in group) for call in calls):
            done.update(calls)
            direct.append(result)
    return direct


def _same_writer(one: Json, other: Json) -> bool:
    return bool(one.get("isSidechain")) == bool(other.get("isSidechain")) and one.get("agentId") == other.get("agentId")
