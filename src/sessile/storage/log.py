"""The log of the package, `logging.getLogger("sessile")`.

`logging` is imported on the first message, because most programs never log anything.
"""

from __future__ import annotations


def warning(message: str, *values: object) -> None:
    """Log something that did not work, without loss of data."""
    import logging

    logging.getLogger("sessile").warning(message, *values)


def info(message: str, *values: object) -> None:
    """Log something that only costs time."""
    import logging

    logging.getLogger("sessile").info(message, *values)


def error(message: str, *values: object) -> None:
    """Log a failure for which an error is raised, too."""
    import logging

    logging.getLogger("sessile").error(message, *values)
