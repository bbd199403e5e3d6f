"""`aot.lock` on disk: written whole or not at all, and not touched where it would say the same."""

import contextlib
import errno
import os
from pathlib import Path

from aot.errors import AotError, InvalidInput, LocalStorageFull
from aot.schema.lock import Lock, decode_lock, encode_lock


def read_lock(path: Path) -> Lock | None:
    """Return the lock, or None where there is none. Raises MalformedDocument, InvalidInput."""
    try:
        return decode_lock(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused(path, error, "read") from error


def require_lock(path: Path) -> Lock:
    """Return the lock. Raises InvalidInput where there is none: what it pins must not be taken unpinned."""
    lock = read_lock(path)
    if lock is None:
        raise InvalidInput(f"there is no lock file {path}", hint="`aot ensure` writes one; or leave out --lock")
    return lock


def write_lock(path: Path, lock: Lock) -> bool:
    """Write the lock by rename, unless it says the same already. Returns whether it was written.

    Raises LocalStorageFull, InvalidInput; then the file is as it was, and nothing else is left behind.
    """
    content = encode_lock(lock)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        if path.exists() and path.read_bytes() == content:
            return False
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise _refused(path, error, "written") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return True


def check_place(path: Path) -> None:
    """Raises InvalidInput where no lock can be written: better now than after an hour of builds."""
    if path.is_dir():
        raise InvalidInput(f"the lock file {path} is a directory", hint="name a file with --lock")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InvalidInput(
            f"the lock file {path} cannot be written: {path.parent} is no directory that this user may write to",
            hint="name another place with --lock",
        )


def _refused(path: Path, error: OSError, wish: str) -> AotError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LocalStorageFull(
            f"the lock file {path} could not be {wish}: {error.strerror}", hint="free space there; it is as it was"
        )
    return InvalidInput(f"the lock file {path} could not be {wish}: {error.strerror}", hint="check --lock")
