"""The log of the package: `logging.getLogger("sessile")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def error(message: str, *values: object) -> None:
    """Log a failure for which an error is raised, too."""
    _logger().error(message, *values)


def warning(message: str, *values: object) -> None:
    """Log something that did not work, without loss of data."""
    _logger().warning(message, *values)


def info(message: str, *values: object) -> None:
    """Log something that only costs time."""
    _logger().info(message, *values)


def _logger() -> logging.Logger:
    import logging  # saves start-up time: most programs never log anything

    return logging.getLogger("sessile")
