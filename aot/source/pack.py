"""A source tree as one archive: `pack_tree`. Reads the tree once for names and sizes, and once for bytes."""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from aot.bundle.hashing import CHUNK_BYTES
from aot.bundle.paths import why_unsafe
from aot.errors import InvalidSource
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.source.archive import END, header_of, padding
from aot.source.ignore import Ignore

FILE_BYTES = 16 << 20
TOTAL_BYTES = 256 << 20
FILES = 20_000

# Never packed. A source is what is compiled; weights are bound when the artifact is loaded.
_WEIGHT_SUFFIXES = (
    *(".safetensors", ".pt", ".pth", ".pt2", ".ckpt", ".gguf", ".ggml", ".onnx", ".tflite"),
    *(".mar", ".engine", ".msgpack"),
)
# Weights when they are large, tables and vocabularies when they are small.
_BULK_SUFFIXES = (".bin", ".h5", ".hdf5", ".npy", ".npz", ".pkl", ".pickle", ".joblib", ".pb", ".parquet")
BULK_BYTES = 1 << 20


@dataclass(frozen=True)
class LeftOut:
    """A file that looks like weights and was not packed."""

    path: str
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.path} (weights, {self.size_bytes} bytes)"


@dataclass(frozen=True)
class PackedTree:
    """The archive and what is in it: relative paths in the archive's order."""

    path: Path
    blob: Blob
    files: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True)
class _Entry:
    path: str
    source: Path
    size_bytes: int
    executable: bool


def pack_tree(
    root: Path,
    into: Path,
    *,
    limit_file_bytes: int = FILE_BYTES,
    limit_total_bytes: int = TOTAL_BYTES,
    limit_files: int = FILES,
    ignore_file: str = ".aotignore",
) -> PackedTree:
    """Write `into/<digest>.tar` with every file below `root` that `ignore_file` does not leave out, and describe it.

    Links inside the tree are packed as what they point to. Empty directories are not kept. The only mode that counts
    is whether the owner may execute. Raises InvalidSource naming the path: for links that leave the tree or end
    nowhere, sockets and devices, names that are not portable, files over a limit, and an empty tree.
    """
    if not root.is_dir():
        raise InvalidSource(f"{root} is no directory", hint="name the directory that holds the source")
    walk = _Walk(root, ignore_file=ignore_file, limit_files=limit_files)
    entries, left_out = [], []
    total = 0
    for entry in walk.entries():
        if _holds_weights(entry):
            left_out.append(LeftOut(entry.path, entry.size_bytes))
            continue
        total += entry.size_bytes
        _check_size(entry, total, limit_file_bytes=limit_file_bytes, limit_total_bytes=limit_total_bytes)
        entries.append(entry)
    if not entries:
        raise InvalidSource(f"{root} holds no file to pack", hint=f"check the path and {ignore_file}")
    entries.sort(key=lambda entry: entry.path.encode())
    into.mkdir(parents=True, exist_ok=True)
    path, blob = _write(entries, into)
    files = tuple(entry.path for entry in entries)
    return PackedTree(path, blob, files, tuple(sorted(left_out, key=lambda entry: entry.path.encode())))


class _Walk:
    """One pass over the tree. A link to a directory is followed, so the same directory may be met several times."""

    def __init__(self, root: Path, *, ignore_file: str, limit_files: int) -> None:
        self._root = root
        self._real_root = Path(os.path.realpath(root))
        self._ignore = _read_ignore(root / ignore_file)
        self._ignore_file = ignore_file
        self._limit = limit_files
        self._seen = 0

    def entries(self) -> Iterator[_Entry]:
        return self._below(self._root, "", (self._real_root,))

    def _below(self, directory: Path, prefix: str, above: tuple[Path, ...]) -> Iterator[_Entry]:
        try:
            with os.scandir(directory) as found:
                names = sorted(entry.name for entry in found)
        except OSError as error:
            raise _refused(prefix or ".", f"it cannot be listed: {error.strerror}") from error
        for name in names:
            path = f"{prefix}{name}"
            source = directory / name
            is_directory = source.is_dir() and not source.is_symlink()
            if path == self._ignore_file or self._ignore.leaves_out(path, directory=is_directory):
                continue
            if (reason := why_unsafe(path)) is not None:
                raise _refused(path.encode(errors="backslashreplace").decode(), reason)
            # Directories count as well: links could make endlessly many of them without one file.
            self._seen += 1
            if self._seen > self._limit:
                raise _refused(path, f"the tree has more than {self._limit} files and directories")
            yield from self._visit(path, source, above)

    def _visit(self, path: str, source: Path, above: tuple[Path, ...]) -> Iterator[_Entry]:
        real = self._resolve(path, source)
        try:
            status = os.stat(real)
        except OSError as error:
            raise _refused(path, f"it cannot be read: {error.strerror}") from error
        if stat.S_ISDIR(status.st_mode):
            if real in above:
                raise _refused(path, "it links to a directory that holds it")
            if source.is_symlink() and self._ignore.leaves_out(path, directory=True):
                return
            yield from self._below(source, f"{path}/", (*above, real))
        elif stat.S_ISREG(status.st_mode):
            yield _Entry(path, real, status.st_size, bool(status.st_mode & stat.S_IXUSR))
        else:
            raise _refused(path, "it is neither a file nor a directory")

    def _resolve(self, path: str, source: Path) -> Path:
        real = Path(os.path.realpath(source))
        if not source.is_symlink():
            return real
        if not real.is_relative_to(self._real_root):
            raise _refused(path, f"it links to {real}, outside the tree")
        if not real.exists():
            raise _refused(path, f"it links to {os.readlink(source)}, which is not there")
        return real


def _holds_weights(entry: _Entry) -> bool:
    names = (entry.path.lower(), entry.source.name.lower())
    if any(name.endswith(_WEIGHT_SUFFIXES) for name in names):
        return True
    return entry.size_bytes > BULK_BYTES and any(name.endswith(_BULK_SUFFIXES) for name in names)


def _check_size(entry: _Entry, total: int, *, limit_file_bytes: int, limit_total_bytes: int) -> None:
    if entry.size_bytes > limit_file_bytes:
        raise _refused(entry.path, f"it has {entry.size_bytes} bytes, the limit is {limit_file_bytes}")
    if total > limit_total_bytes:
        raise _refused(entry.path, f"with it the tree has {total} bytes, the limit is {limit_total_bytes}")


def _write(entries: list[_Entry], into: Path) -> tuple[Path, Blob]:
    temporary = into / f".packing-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with temporary.open("xb") as archive:
            writer = _HashingWriter(archive)
            for entry in entries:
                writer.write(header_of(entry.path, size_bytes=entry.size_bytes, executable=entry.executable))
                _copy(entry, writer)
                writer.write(padding(entry.size_bytes))
            writer.write(END)
        digest = Digest.from_hex(writer.running.hexdigest())
        path = into / f"{digest.hex}.tar"
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path, Blob(digest=digest, size_bytes=writer.size_bytes)


class _HashingWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.running = hashlib.sha256()
        self.size_bytes = 0

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self.running.update(content)
        self.size_bytes += len(content)


def _copy(entry: _Entry, writer: _HashingWriter) -> None:
    left = entry.size_bytes
    try:
        with entry.source.open("rb") as file:
            while left and (chunk := file.read(min(left, CHUNK_BYTES))):
                writer.write(chunk)
                left -= len(chunk)
            longer = not left and bool(file.read(1))
    except OSError as error:
        raise _refused(entry.path, f"it cannot be read: {error.strerror}") from error
    if left or longer:
        raise _refused(entry.path, "it changed while it was packed")


def _read_ignore(path: Path) -> Ignore:
    try:
        return Ignore.parse(path.read_text())
    except FileNotFoundError:
        return Ignore()
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(path.name, f"it cannot be read: {error}") from error


def _refused(path: str, reason: str) -> InvalidSource:
    return InvalidSource(
        f"{path} cannot be packed: {reason}",
        hint="remove it from the tree, or name it in .aotignore",
        details={"path": path},
    )
