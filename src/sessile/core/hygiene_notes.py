"""What the steps of hygiene hand to each other: messages that know where they came from, and notes on what was done.

A note names the message by its place in the list that was given, so that a person can find the entry behind it.
Whatever is dropped, moved, merged, made up or changed has one.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Message = dict[str, Any]
Did = Literal["dropped", "moved", "merged", "made", "changed"]


class Note(NamedTuple):
    """One thing that was done to the messages; `place` is where the message stands in the list that was given."""

    place: int
    did: Did
    text: str


class Piece(NamedTuple):
    """A message under way; `place` is where it stood in the list that was given, `None` if it was made up."""

    place: int | None
    message: Message
    merged: tuple[int, ...] = ()  # the places of messages that were merged into it

    @property
    def role(self) -> str:
        return str(self.message.get("role"))

    @property
    def blocks(self) -> list[Message]:
        """The blocks of its content; a text is one block."""
        content = self.message.get("content")
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        return content if isinstance(content, list) else []

    @property
    def calls(self) -> list[Message]:
        """The tool calls of an assistant, in order."""
        if self.role != "assistant":
            return []
        return [block for block in self.blocks if block.get("type") == "toolCall"]

    def having(self, **members: Any) -> Piece:
        """The piece with some members of its message replaced."""
        return self._replace(message={**self.message, **members})


class Notes(list[Note]):
    """The notes of one run, in the order in which the steps made them."""

    def add(self, piece: Piece, did: Did, text: str) -> None:
        """Note what was done to a piece; what we made up ourselves may go again without a word."""
        places = piece.merged if piece.place is None else (piece.place, *piece.merged)
        self.extend(Note(place, did, text) for place in places)
