"""Bytecode: modules compiled before the pod exists, for images that come without `.pyc` files.

A bundle of the route `bytecode` holds one archive a distribution: the `.pyc` of its modules, each of the kind that
names its source's hash and is checked at import (PEP 552). On the node they become a tree for `PYTHONPYCACHEPREFIX`.
The kind is what makes it safe whatever the images are: one of reproducible bytes gives every file one time, so a `.pyc`
that trusts times and sizes would run old code where a file of equal length changed; here it is compiled again instead.
"""

from aot.bytecode.build import compile_distribution
from aot.bytecode.installed import STANDARD_LIBRARY, Installed, find_installed, list_installed
from aot.bytecode.interpreter import spell_interpreter
from aot.bytecode.tree import Archive, Member, Tree, count_own, ensure_tree, read_archive

__all__ = [
    "STANDARD_LIBRARY",
    "Archive",
    "Installed",
    "Member",
    "Tree",
    "compile_distribution",
    "count_own",
    "ensure_tree",
    "find_installed",
    "list_installed",
    "read_archive",
    "spell_interpreter",
]
