"""What went wrong in a database, as the typed errors of Sessile.

Rules: every message names the database without its password and says what a person can do. A statement whose
connection broke is `OutcomeUnknown`: it may have been carried out. Errors that a caller asks for by what it does, such
as a unique name that is taken, keep their own type.
"""

from __future__ import annotations

import errno

import psycopg
from psycopg import errors

from sessile.errors import PermissionRefused, SessileError, StorageFailure, StorageFull

TRANSLATED = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, errors.InsufficientPrivilege)
"""What never leaves this package as it is."""

CONTENDED = (errors.SerializationFailure, errors.DeadlockDetected)
"""Nothing was done, because others did something at the same time: can be tried again."""


class OutcomeUnknown(StorageFailure):
    """The connection to the database broke; whether the last change was made is not known."""


class Unreachable(StorageFailure):
    """The database cannot be reached; nothing was changed."""


def translated(error: psycopg.Error, place: str) -> SessileError:
    """The typed form of an error after which the connection can still be used."""
    reason = _reason(error)
    if isinstance(error, (errors.DiskFull, errors.OutOfMemory)):
        hint = "nothing was lost; free some space on the server, then try again"
        return StorageFull(f"the database has no room left: {reason}", path=place, hint=hint, code=errno.ENOSPC)
    if isinstance(error, errors.InsufficientPrivilege):
        hint = "grant the user the rights on the schema, or use another one with ?schema=NAME"
        return PermissionRefused(f"the database refused: {reason}", path=place, hint=hint, code=errno.EACCES)
    if isinstance(error, errors.ReadOnlySqlTransaction):
        hint = "this server only reads, as a standby does; use the address of the one that writes"
        return StorageFailure(f"the database cannot be changed: {reason}", path=place, hint=hint, code=errno.EROFS)
    if isinstance(error, CONTENDED):
        hint = "many writers change the same thing at once; try again"
        return StorageFailure(f"the database could not get on: {reason}", path=place, hint=hint, code=errno.EBUSY)
    return StorageFailure(
        f"the database failed: {reason}", path=place, hint="look at the log of the server", code=errno.EIO
    )


def lost(error: psycopg.Error, place: str) -> OutcomeUnknown:
    """A connection broke while a change was on its way."""
    hint = "check the server, then look whether the change is there before making it again"
    return OutcomeUnknown(
        f"the connection to the database broke: {_reason(error)}", path=place, hint=hint, code=errno.EIO
    )


def unreachable(error: psycopg.Error, place: str) -> SessileError:
    """A connection could not be made, or broke before anything was changed."""
    reason = _reason(error)
    if "authentication failed" in reason or "no password supplied" in reason or "pg_hba.conf" in reason:
        hint = "give the password in PGPASSWORD or in ~/.pgpass, and check the name of the user"
        return PermissionRefused(f"the database refused the user: {reason}", path=place, hint=hint, code=errno.EACCES)
    if "does not exist" in reason and "database" in reason:
        return Unreachable(
            f"there is no such database: {reason}", path=place, hint="make it with createdb", code=errno.ENOENT
        )
    hint = "check that the server runs, and the host and port in the address"
    return Unreachable(f"cannot reach the database: {reason}", path=place, hint=hint, code=errno.EHOSTUNREACH)


def exhausted(place: str, patience: float) -> Unreachable:
    """All connections of this process stay in use."""
    hint = "fewer threads, or calls that do not hold a transaction for long"
    message = f"no connection to the database became free in {patience:g} seconds"
    return Unreachable(message, path=place, hint=hint, code=errno.EBUSY)


def _reason(error: psycopg.Error) -> str:
    """The first sentence of what the server or libpq said."""
    text = error.diag.message_primary or str(error)
    return " ".join(text.split()) or type(error).__name__
