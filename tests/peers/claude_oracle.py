"""Call session functions of the Claude Agent SDK on request, in the SDK's own environment."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any

import claude_agent_sdk  # type: ignore[import-not-found, unused-ignore]


def plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the function's result, or the error that it raises."""
    os.environ["CLAUDE_CONFIG_DIR"] = request["home"]
    try:
        found = getattr(claude_agent_sdk, request["function"])(*request["arguments"], **request["options"])
    except Exception as error:  # every error is reported to the caller
        return {"error": repr(error)}
    return {"result": [plain(each) for each in found] if isinstance(found, list) else plain(found)}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
