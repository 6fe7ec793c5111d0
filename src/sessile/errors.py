"""Every error that Sessile raises on purpose.

    SessileError(message, *, path=None, hint=None)
    ├ NotFound          SessionNotFound · EntryNotFound · BlobNotFound
    ├ Ambiguous
    ├ Unsupported
    ├ Invalid           InvalidId · InvalidEntry · InvalidConfig · InvalidQuery · TooLarge
    ├ Conflict          SessionExists · LeafMoved · SessionBusy · TurnInProgress
    ├ Unreadable        NotASession · UnsupportedVersion · Damaged
    ├ StorageFailure    StorageFull · SyncFailed · PermissionRefused · UnsafePath · ReadOnly     (also OSError)
    ├ ExtensionFailed   ModelFailed (SummarizerFailed · RunnerFailed) · HookFailed
    └ Refused           Unauthorized · ForbiddenHost · ForbiddenOrigin · TooMany

`message` says what went wrong; it defaults to the first line of the class docstring, whose other lines say what to do about
it. `path` is the file concerned, if any. `hint` tells the user what to do next. `status` is the HTTP status of the class and
`exit_code` the exit code of the command line.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar


class SessileError(Exception):
    """Something went wrong in Sessile."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str | None = None, *, path: str | None = None, hint: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n")[0].rstrip(".")
        self.path = path
        self.hint = hint
        super().__init__(self.message)

    def __str__(self) -> str:
        text = f"{self.message} ({self.path})" if self.path else self.message
        return f"{text}\nhint: {self.hint}" if self.hint else text


class NotFound(SessileError):
    """Not found."""

    status = 404
    exit_code = 3


class SessionNotFound(NotFound):
    """Session not found.

    Run `sessile ls -A` to list all sessions. An id may be shortened to any unique prefix.
    """


class EntryNotFound(NotFound):
    """Entry not found in the session.

    Run `sessile tree` to see the entries of a session and their ids.
    """


class BlobNotFound(NotFound):
    """The blob is missing or does not match its hash.

    Restore the store's `blobs` folder from a backup. Until then the entry shows a placeholder.
    """


class Ambiguous(SessileError):
    """The name is ambiguous.

    Use a longer or more specific name. The error lists the candidates.
    """

    status = 409
    exit_code = 4

    def __init__(
        self,
        message: str | None = None,
        *,
        path: str | None = None,
        hint: str | None = None,
        candidates: Sequence[Mapping[str, str | None]] = (),
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.candidates = candidates


class Unsupported(SessileError):
    """The format does not support this operation.

    The hint names an alternative, usually a fork.
    """

    status = 422
    exit_code = 2


class Invalid(SessileError):
    """Invalid input."""

    status = 400
    exit_code = 2


class InvalidId(Invalid):
    """Invalid id.

    An id consists of letters and digits, with `.`, `_` and `-` allowed between them. It cannot be a path.
    """


class InvalidEntry(Invalid):
    """The entry cannot be stored.

    Entries must be JSON values, so that they come back equal. Bytes, sets, dates, NaN, infinity and names that are not strings
    are refused. The message names the member.
    """


class InvalidConfig(Invalid):
    """Invalid configuration.

    Correct the key named in the message, or remove it to use the default.
    """


class InvalidQuery(Invalid):
    """Invalid query.

    Check the part named in the message. Run `sessile help search` for examples.
    """


class TooLarge(Invalid):
    """The input is larger than the limit.

    Send less at once. The message names the limit.
    """

    status = 413


class Conflict(SessileError):
    """The operation conflicts with another one."""

    status = 409
    exit_code = 6


class SessionExists(Conflict):
    """The session already exists.

    Open it, or choose another id.
    """


class LeafMoved(Conflict):
    """Another writer has appended after the expected leaf.

    Read the new entries, then append again. Without `on_leaf_moved="fail"` the append creates a branch instead.
    """


class SessionBusy(Conflict):
    """Another process holds the session's lock.

    Try again in a moment. The lock is released when that process ends.
    """


class TurnInProgress(Conflict):
    """The session has a turn in progress.

    Wait for the answer, or stop the turn with `/abort`.
    """


class Unreadable(SessileError):
    """The file cannot be read as a session."""

    status = 422
    exit_code = 5


class NotASession(Unreadable):
    """The file does not start with a session header.

    Nothing was changed. Run `sessile check` to see what the file contains.
    """


class UnsupportedVersion(Unreadable):
    """The file's version is not supported by this release.

    The file was written by a newer release. Upgrade Sessile.
    """


class Damaged(Unreadable):
    """The session is damaged.

    Run `sessile check` to see where, and `sessile repair` to see what can be repaired. The rest can still be read.
    """


class StorageFailure(SessileError, OSError):
    """The storage operation failed.

    Check the disk, then reopen the session.
    """

    status = 507
    exit_code = 8

    def __init__(
        self,
        message: str | None = None,
        *,
        path: str | None = None,
        hint: str | None = None,
        code: int | None = None,
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.errno = code
        self.filename = path


class StorageFull(StorageFailure):
    """No space left on the storage.

    No data was lost. Free some space, reopen the session if it is open, and try again.
    """


class SyncFailed(StorageFailure):
    """The storage did not confirm that the data is durable.

    The entry was not acknowledged. Check the disk, reopen the session, and check whether the entry is there before you append
    it again.
    """


class PermissionRefused(StorageFailure):
    """The operating system refused access.

    Check the owner and the permissions of the file and its folder.
    """


class UnsafePath(StorageFailure):
    """The path is not a regular file.

    Sessile does not write through symbolic links, pipes or devices, nor to a file of its own that has a second name. Use the
    path of the file itself.
    """


class ReadOnly(StorageFailure):
    """The session is read-only.

    Open the session without `readonly`.
    """


class ExtensionFailed(SessileError):
    """An extension failed."""

    status = 502
    exit_code = 8


class ModelFailed(ExtensionFailed):
    """A model failed."""

    def __init__(
        self,
        message: str | None = None,
        *,
        path: str | None = None,
        hint: str | None = None,
        overflow: bool = False,
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.overflow = overflow  # whether the request was too long for the model


class SummarizerFailed(ModelFailed):
    """The summarizer failed.

    The session is unchanged. Try again, or use another model.
    """


class RunnerFailed(ModelFailed):
    """The runner failed.

    The session contains the messages up to the failure. The error message contains the answer of the model or program.
    """


class HookFailed(ExtensionFailed):
    """A hook failed.

    The message names the hook and the reason.
    """


class Refused(SessileError):
    """The request was refused."""

    status = 403
    exit_code = 7


class Unauthorized(Refused):
    """The token is missing or wrong.

    Send the token in an `Authorization: Bearer` header. `sessile serve` prints the path of the token file.
    """

    status = 401


class ForbiddenHost(Refused):
    """The request's host is not allowed.

    Use the gateway's own host name, or add the host to `gateway.allowedHosts`.
    """


class ForbiddenOrigin(Refused):
    """The request's origin is not allowed.

    Browsers may send requests only from the gateway's own page.
    """


class TooMany(Refused):
    """Too many requests.

    Wait for the number of seconds in the `Retry-After` header.
    """

    status = 429


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def storage_failure(error: OSError, path: str, doing: str) -> SessileError:
    """Return the typed error for an operating system error raised while `doing` something to `path`."""
    reason = error.strerror or str(error)
    message = f"could not {doing}: {reason}"
    if error.errno == errno.ENOENT:
        return SessionNotFound(message, path=path, hint="the file was moved or deleted: list the sessions again")
    if error.errno in _FULL:
        hint = "no data was lost: free some space, reopen the session if it is open, and try again"
        return StorageFull(message, path=path, hint=hint, code=error.errno)
    if error.errno in _REFUSED:
        hint = "check the owner and the permissions of the file and its folder"
        return PermissionRefused(message, path=path, hint=hint, code=error.errno)
    if error.errno == errno.ELOOP:
        hint = "symbolic links are not followed when writing: use the path of the file itself"
        return UnsafePath(message, path=path, hint=hint, code=error.errno)
    if error.errno == errno.EMLINK:
        return second_name(path)
    return StorageFailure(message, path=path, hint="check the disk, then reopen the session", code=error.errno)


def second_name(path: str) -> UnsafePath:
    """Return the error for writing to a file that has a second name, which would change as well."""
    return UnsafePath(
        "the file has a second name (a hard link), which would change as well; nothing was written",
        path=path,
        hint=f"remove the other name, or make a file of its own: cp -p '{path}' '{path}.tmp' && mv '{path}.tmp' '{path}'",
        code=errno.EMLINK,
    )


@contextmanager
def storage_failures(path: str, doing: str) -> Iterator[None]:
    """Convert operating system errors to typed errors; let Sessile's own errors pass."""
    try:
        yield
    except SessileError:
        raise
    except OSError as error:
        raise storage_failure(error, path, doing) from error
