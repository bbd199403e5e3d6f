"""The seam for what the registry writes down beside the blobs, so that SQL can be made again from the object store.

Records are small documents under names of its own choosing, and unlike blobs they may be written again.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from aot.errors import InvalidConfig, StorageUnavailable


class RecordStore(Protocol):
    """Records by name: words between slashes. Every method raises StorageUnavailable and InvalidConfig as BlobStore."""

    def put(self, name: str, content: bytes) -> None:
        """Write the whole record, or leave what was there."""

    def find(self, name: str) -> bytes | None:
        """The record, or None."""

    def list(self, prefix: str) -> Iterator[str]:
        """The names that begin with `prefix`, a whole number of words."""

    def delete(self, name: str) -> None:
        """Make sure that the record is absent."""


@runtime_checkable
class KeepsRecords(Protocol):
    """What a blob store adds that can keep records too; all of the registry's own do."""

    def records(self) -> RecordStore: ...


class MemoryRecords:
    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def put(self, name: str, content: bytes) -> None:
        self._contents[name] = content

    def find(self, name: str) -> bytes | None:
        return self._contents.get(name)

    def list(self, prefix: str) -> Iterator[str]:
        return iter(sorted(name for name in self._contents if name.startswith(prefix)))

    def delete(self, name: str) -> None:
        self._contents.pop(name, None)


class DirectoryRecords:
    """One file a record, which appears by rename."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, content: bytes) -> None:
        path = self.root / name
        with _translated(f"write the record {name}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".incoming-")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise

    def find(self, name: str) -> bytes | None:
        with _translated(f"read the record {name}"):
            try:
                return (self.root / name).read_bytes()
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> Iterator[str]:
        for folder, folders, files in os.walk(self.root / prefix):
            folders.sort()
            for file in sorted(files):
                if not file.startswith("."):
                    yield (Path(folder) / file).relative_to(self.root).as_posix()

    def delete(self, name: str) -> None:
        with _translated(f"delete the record {name}"):
            (self.root / name).unlink(missing_ok=True)


@contextlib.contextmanager
def _translated(wish: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise InvalidConfig(
            f"could not {wish}: {error.strerror}", hint="the registry must be able to write its data directory"
        ) from error
    except OSError as error:
        raise StorageUnavailable(
            f"could not {wish}: {error.strerror or error}", hint="check the disk of the registry's data directory"
        ) from error
