"""The address of a database: what is in the URL, and what of it may be shown.

Rules: `?schema=NAME` is ours, everything else belongs to libpq. A password is never part of what is shown, not even of
an address that cannot be understood.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from sessile.errors import InvalidConfig

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_HINT = "an address looks like postgresql://user@host:5432/database?schema=sessile"


class Address(NamedTuple):
    """Where a database is."""

    conninfo: str
    options: dict[str, str]
    schema: str
    shown: str
    """The address as a person may see it: without passwords."""


def parse(url: str, schema: str) -> Address:
    """Take an address apart; a schema in it counts more than the one given."""
    try:
        parts = urlsplit(url)
        members = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise InvalidConfig("this is no address of a database", hint=_HINT) from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise InvalidConfig("this is no address of a PostgreSQL database", hint=_HINT)
    schema = dict(members).get("schema", schema)
    if not _SCHEMA.fullmatch(schema):
        hint = "a schema is named with a-z, 0-9 and _, and begins with a letter"
        raise InvalidConfig(f"{schema!r} is no name of a schema", hint=hint)
    ours = [(name, value) for name, value in members if name != "schema"]
    conninfo = urlunsplit(parts._replace(query=urlencode(ours, quote_via=quote)))
    try:
        options = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    except ProgrammingError:  # its text may show the password
        raise InvalidConfig("this address of a database cannot be understood", hint=_HINT) from None
    return Address(conninfo, options, schema, _shown(options, schema))


def _shown(options: dict[str, str], schema: str) -> str:
    user = f"{quote(options['user'])}@" if "user" in options else ""
    host = options.get("host", "")
    port = f":{options['port']}" if "port" in options else ""
    members = {"host": host, "schema": schema} if host.startswith("/") else {"schema": schema}
    place = "" if host.startswith("/") else host
    return f"postgresql://{user}{place}{port}/{options.get('dbname', '')}?{urlencode(members, safe='/')}"
