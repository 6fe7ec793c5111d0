"""Which copies of a queued prompt the agent took up in the middle of a turn, as rows of the queue tell.

A prompt that was queued may stand in a transcript several times. Newer releases note in the queue when one was taken up: by
the id of the delivery, or by the uuid with which the prompt was sent. Of the copies then as many are shown as were taken up,
the last ones. If nothing is noted of a prompt, or if its copies differ, this knows nothing of it.

Rows are noted in file order, a copy by the number of its uuid; only the TypeScript SDK asks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from sessile.formats.claude.rows import QUEUE_OPERATION, Row, text_of, type_of

_TAKEN_UP = "absorbed_mid_turn"


class Deliveries:
    """What a transcript says of the prompts that were taken up."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()  # by the key of a delivery or of a prompt
        self._delivered: dict[str, dict[int, None]] = {}  # the copies of each delivery
        self._key_of: dict[int, str] = {}  # by the number of the copy's uuid
        self._copies: dict[str, str] = {}
        self._differing: set[str] = set()

    def note_operation(self, row: Any) -> None:
        """Take note of a row that is not of the chain; of most there is nothing to note."""
        if type_of(row) != QUEUE_OPERATION or text_of(row, "operation") != "remove":
            return
        delivery, prompt = text_of(row, "deliveryId"), text_of(row, "commandUuid")
        if text_of(row, "reason") == _TAKEN_UP and (delivery or prompt is not None):
            self._taken[f"delivery:{delivery}" if delivery else f"prompt:{prompt}"] += 1

    def note_copy(self, uuid: int, attachment: Row) -> None:
        """Take note of an attachment."""
        if text_of(attachment, "type") != "queued_command":
            return
        delivery, prompt = text_of(attachment, "delivery_id"), text_of(attachment, "source_uuid")
        if delivery:
            self._key_of[uuid] = f"delivery:{delivery}"
            self._delivered.setdefault(self._key_of[uuid], {})[uuid] = None
        elif prompt:
            self._key_of[uuid] = key = f"prompt:{prompt}"
            if self._copies.setdefault(key, json.dumps(attachment)) != json.dumps(attachment):
                self._differing.add(key)

    def verdicts(self, uuids: Iterable[int]) -> dict[int, bool]:
        """Of the copies among these, in the order in which they are read, whether each is shown; not of all it is known."""
        found: dict[str, list[int]] = {}
        for uuid in uuids:
            key = self._key_of.get(uuid, "")
            if self._taken[key] and key not in self._differing:
                found.setdefault(key, []).append(uuid)
        shown: dict[int, bool] = {}
        for key, copies in found.items():
            all_copies = list(self._delivered[key]) if key in self._delivered else copies
            taken = set(all_copies[-self._taken[key] :])
            shown |= {uuid: uuid in taken for uuid in copies}
        return shown
