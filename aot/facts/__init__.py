"""Facts read from the bytes of compiled files, with nothing but the standard library: no loader runs, nothing is mapped
for execution. Stands between compile and manifest (what an artifact needs of a host), and in the registry's checks.

Every reader takes hostile input: truncated files, absurd offsets and endless tables raise MalformedDocument that names
the file.
"""

from aot.facts.cubin import CubinFacts, read_cubin
from aot.facts.paths import find_absolute_paths
from aot.facts.shared_object import SearchPath, read_elf, read_search_path
from aot.facts.versions import highest_defined_version

__all__ = [
    "CubinFacts",
    "SearchPath",
    "find_absolute_paths",
    "highest_defined_version",
    "read_cubin",
    "read_elf",
    "read_search_path",
]
