"""Files of an artifact as they are recorded."""

import tracemalloc
from pathlib import Path

from aot.compile.artifacts import file_of
from aot.schema.digest import Digest


def test_a_large_file_is_hashed_without_being_held_in_memory(tmp_path: Path) -> None:
    size_bytes = 32 << 20
    path = tmp_path / "lib" / "model.so"
    path.parent.mkdir()
    path.write_bytes(bytes(size_bytes))
    tracemalloc.start()
    try:
        file = file_of(tmp_path, "lib/model.so")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (file.path, file.digest, file.size_bytes) == ("lib/model.so", Digest.of(bytes(size_bytes)), size_bytes)
    assert peak < 8 << 20
