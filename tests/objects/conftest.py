"""An S3 server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from s3_rig import S3, new_s3


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """A running S3 server."""
    with new_s3() as server:
        yield server
