"""Runs in an environment of its own: calls the session functions of the Claude Agent SDK that it is asked for."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any

import claude_agent_sdk  # type: ignore[import-not-found, unused-ignore]


def plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


for line in sys.stdin:
    request = json.loads(line)
    os.environ["CLAUDE_CONFIG_DIR"] = request["home"]
    answer = getattr(claude_agent_sdk, request["function"])(*request["arguments"])
    found = [plain(each) for each in answer] if isinstance(answer, list) else plain(answer)
    print(json.dumps(found), flush=True)
