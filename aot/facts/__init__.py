"""Facts read from the bytes of compiled files, without the tools of any toolchain: no loader runs, nothing is mapped
for execution. Stands between compile and manifest (what an artifact needs of a host), and in the registry's checks.

Every reader takes hostile input: truncated files, absurd offsets and endless tables raise MalformedDocument that names
the file. Names are looked up when first used: a pod that starts reads one ELF file and nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PLACES = {
    "CubinFacts": "aot.facts.cubin",
    "SearchPath": "aot.facts.shared_object",
    "find_absolute_paths": "aot.facts.paths",
    "highest_defined_version": "aot.facts.versions",
    "read_cubin": "aot.facts.cubin",
    "read_fatbin": "aot.facts.fatbin",
    "read_elf": "aot.facts.shared_object",
    "read_search_path": "aot.facts.shared_object",
}

__all__ = [
    "CubinFacts",
    "SearchPath",
    "find_absolute_paths",
    "highest_defined_version",
    "read_cubin",
    "read_elf",
    "read_fatbin",
    "read_search_path",
]

if TYPE_CHECKING:
    from aot.facts.cubin import CubinFacts, read_cubin
    from aot.facts.fatbin import read_fatbin
    from aot.facts.paths import find_absolute_paths
    from aot.facts.shared_object import SearchPath, read_elf, read_search_path
    from aot.facts.versions import highest_defined_version


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'aot.facts' has no attribute {name!r}")
    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value
