"""An S3 server for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from s3_rig import S3, new_s3


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """A server that is there."""
    with new_s3() as server:
        yield server
