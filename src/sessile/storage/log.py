"""The log of the package. It is loaded when there is something to say: most programs never hear anything."""

from __future__ import annotations


def warning(message: str, *values: object) -> None:
    """Something did not work; nothing is lost."""
    import logging

    logging.getLogger("sessile").warning(message, *values)


def info(message: str, *values: object) -> None:
    """Something that only costs time."""
    import logging

    logging.getLogger("sessile").info(message, *values)


def error(message: str, *values: object) -> None:
    """Something failed, and an error is raised for it too."""
    import logging

    logging.getLogger("sessile").error(message, *values)
