"""Every error that Sessile raises on purpose.

    SessileError(message, *, path=None, hint=None)
    ├ NotFound          SessionNotFound · EntryNotFound · BlobNotFound
    ├ Ambiguous
    ├ Unsupported
    ├ Invalid           InvalidId · InvalidEntry · InvalidConfig · InvalidQuery · TooLarge
    ├ Conflict          SessionExists · LeafMoved · SessionBusy · TurnInProgress
    ├ Unreadable        NotASession · UnsupportedVersion · Damaged
    ├ StorageFailure    StorageFull · SyncFailed · PermissionRefused · UnsafePath · ReadOnly     (also an OSError)
    ├ ExtensionFailed   ModelFailed (SummarizerFailed · RunnerFailed) · HookFailed
    └ Refused           Unauthorized · ForbiddenHost · ForbiddenOrigin · TooMany

The default message of an error is the first line of its docstring; the rest says what can be done about it. `path` names the
file that it is about, `hint` says what a person can do here and now. `status` is the HTTP status and `exit_code` the code of
the command line for that class.
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
    """There is no such thing."""

    status = 404
    exit_code = 3


class SessionNotFound(NotFound):
    """There is no such session.

    `sessile ls -A` lists all there are. An id may be shortened as long as it is the only one that begins so.
    """


class EntryNotFound(NotFound):
    """There is no such entry in the session.

    `sessile tree` shows the entries of a session with their ids.
    """


class BlobNotFound(NotFound):
    """The blob is missing or does not match its hash.

    Bring the store's `blobs` folder back from a backup; until then the entry shows a placeholder.
    """


class Ambiguous(SessileError):
    """The name means more than one thing.

    Say more of it: the candidates are in the error.
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
    """This format cannot do that.

    The hint says what can be done instead, mostly a fork.
    """

    status = 422
    exit_code = 2


class Invalid(SessileError):
    """The input is not valid."""

    status = 400
    exit_code = 2


class InvalidId(Invalid):
    """The id is not valid.

    Ids are letters and digits, inside also `.`, `_` and `-`; nothing that could be a path.
    """


class InvalidEntry(Invalid):
    """The entry cannot be stored.

    Entries are JSON: no NaN, no infinity, no other objects.
    """


class InvalidConfig(Invalid):
    """The configuration is not valid.

    Correct the key that is named, or take it out to have the default.
    """


class InvalidQuery(Invalid):
    """The query is not valid.

    Look at the part that is named; `sessile help search` has examples.
    """


class TooLarge(Invalid):
    """The input is larger than the limit.

    Send less at once; the limit is in the message.
    """

    status = 413


class Conflict(SessileError):
    """Somebody else was faster."""

    status = 409
    exit_code = 6


class SessionExists(Conflict):
    """There is already a session of that name.

    Open it instead, or choose another id.
    """


class LeafMoved(Conflict):
    """Another writer has appended below the expected leaf.

    Read what has come, then append again; without `on_leaf_moved="fail"` it would have become a branch.
    """


class SessionBusy(Conflict):
    """Another process holds the session's lock.

    Try again in a moment. A lock ends with the process that holds it.
    """


class TurnInProgress(Conflict):
    """The session is in the middle of a turn.

    Wait for the answer, or stop it with `/abort`.
    """


class Unreadable(SessileError):
    """The file cannot be read as a session."""

    status = 422
    exit_code = 5


class NotASession(Unreadable):
    """The file does not begin with a session header.

    Nothing was changed. `sessile check` says what the file holds.
    """


class UnsupportedVersion(Unreadable):
    """The file has a version that this release does not know.

    A newer release wrote it: install that.
    """


class Damaged(Unreadable):
    """The session is damaged.

    `sessile check` says where, `sessile repair` shows what could be done. The rest can be read.
    """


class StorageFailure(SessileError, OSError):
    """The storage failed.

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
    """There is no room left on the storage.

    Nothing was lost. Free some space, then try again; a session that is open is reopened first.
    """


class SyncFailed(StorageFailure):
    """The storage did not confirm that data is durable.

    The entry was not acknowledged. Check the disk, reopen the session, and look before you append again.
    """


class PermissionRefused(StorageFailure):
    """The operating system refused access.

    Check the owner and the permissions of the file and its folder.
    """


class UnsafePath(StorageFailure):
    """The path is not a plain file of ours.

    It is a symbolic link, a pipe or a device, and is not written through. Name the file itself.
    """


class ReadOnly(StorageFailure):
    """The session is open for reading only.

    Open the session without `readonly`.
    """


class ExtensionFailed(SessileError):
    """An extension failed."""

    status = 502
    exit_code = 8


class ModelFailed(ExtensionFailed):
    """A model failed; `overflow` if what it was to read was too long for it."""

    def __init__(
        self,
        message: str | None = None,
        *,
        path: str | None = None,
        hint: str | None = None,
        overflow: bool = False,
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.overflow = overflow


class SummarizerFailed(ModelFailed):
    """The summarizer failed.

    The session is as it was. Try again, or with another model.
    """


class RunnerFailed(ModelFailed):
    """The runner failed.

    What was said is in the session; the message says what the model or the program answered.
    """


class HookFailed(ExtensionFailed):
    """A hook failed.

    The message names the hook and says what went wrong in it.
    """


class Refused(SessileError):
    """The request was refused."""

    status = 403
    exit_code = 7


class Unauthorized(Refused):
    """The token is missing or wrong.

    Send `Authorization: Bearer` with the token; `sessile serve` says where it lies.
    """

    status = 401


class ForbiddenHost(Refused):
    """The request names a host that is not ours.

    Call the gateway by its own name, or add the name to `gateway.allowedHosts`.
    """


class ForbiddenOrigin(Refused):
    """The request comes from a page that is not ours.

    Only the gateway's own page may ask from a browser.
    """


class TooMany(Refused):
    """There are too many requests.

    Wait as long as `Retry-After` says.
    """

    status = 429


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def storage_failure(error: OSError, path: str, doing: str) -> SessileError:
    """The typed form of an operating system error that happened while `doing` something to `path`."""
    reason = error.strerror or str(error)
    message = f"could not {doing}: {reason}"
    if error.errno == errno.ENOENT:
        return SessionNotFound(message, path=path, hint="the file was moved or deleted; list the sessions again")
    if error.errno in _FULL:
        hint = "nothing was lost; free some space, then try again; a session that is open is reopened first"
        return StorageFull(message, path=path, hint=hint, code=error.errno)
    if error.errno in _REFUSED:
        hint = "check the owner and the permissions of the file and its folder"
        return PermissionRefused(message, path=path, hint=hint, code=error.errno)
    if error.errno == errno.ELOOP:
        hint = "symbolic links are not followed when writing"
        return UnsafePath(message, path=path, hint=hint, code=error.errno)
    return StorageFailure(message, path=path, hint="check the disk, then reopen the session", code=error.errno)


@contextmanager
def storage_failures(path: str, doing: str) -> Iterator[None]:
    """Give errors of the operating system their typed form; those of ours pass."""
    try:
        yield
    except SessileError:
        raise
    except OSError as error:
        raise storage_failure(error, path, doing) from error
