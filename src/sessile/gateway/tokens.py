"""The token of the gateway: who has it may do everything, who has not gets nothing.

It lies in the root of the store, is made at the first start, and is never a part of an address, a log or a message. A file that
somebody has named is read only: to give a token to other machines is a decision, not a default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessile import keep_secret

if TYPE_CHECKING:
    from sessile.core.secret import Secret

NAME = "gateway.token"


def gateway_token(root: str, token_file: str | None = None) -> Secret:
    """The token of the gateway of a store, or that in the file that the configuration names."""
    return keep_secret(f"{root}/{NAME}") if token_file is None else keep_secret(token_file, make=False)
