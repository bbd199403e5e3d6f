"""The interpreter, as far as it decides what bytecode is: its cache tag, its magic number and its optimization."""

import sys
from importlib.util import MAGIC_NUMBER
from pathlib import PurePosixPath

CHECKED_HASH = 0b11  # PEP 552: hash-based, and compared with the source at every import
HEADER_BYTES = 16


def spell_interpreter() -> str:
    """Return what this interpreter reads: "cpython-311 a70d0d0a", with " opt-1" behind it under `-O`."""
    optimized = f" opt-{sys.flags.optimize}" if sys.flags.optimize else ""
    return f"{sys.implementation.cache_tag} {MAGIC_NUMBER.hex()}{optimized}"


def cached_name(path: str, interpreter: str) -> str:
    """Return the path that the interpreter looks for below its prefix for the source at `path`.

    Source: importlib.util.cache_from_source with sys.pycache_prefix.
    """
    tag, _, *optimized = interpreter.split(" ")
    source = PurePosixPath(path)
    return str(source.with_name(".".join((source.stem, tag, *optimized, "pyc")))).lstrip("/")


def is_checked(content: bytes, interpreter: str) -> bool:
    """Whether `content` begins as a `.pyc` of `interpreter` that is compared with its source at every import."""
    magic = bytes.fromhex(interpreter.split(" ")[1])
    return len(content) > HEADER_BYTES and content[:8] == magic + CHECKED_HASH.to_bytes(4, "little")
