"""Sources: a tree of code packed into one deterministic archive, and back. Weights are never part of it.

The first step of submit (design.md, section 5): equal trees give equal bytes, whatever the directory, the times, the
owner or the umask, so that an unchanged source is an unchanged factor of the build key.
"""

from aot.bundle.hashing import blob_of
from aot.source.commit import find_commit
from aot.source.opened import OpenedSource
from aot.source.pack import LeftOut, PackedTree, pack_tree
from aot.source.unpack import TreeLimits, unpack_tree

__all__ = ["LeftOut", "OpenedSource", "PackedTree", "TreeLimits", "blob_of", "find_commit", "pack_tree", "unpack_tree"]
