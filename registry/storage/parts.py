"""The seam for stores whose large uploads go in parts."""

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Protocol, runtime_checkable


@runtime_checkable
class TriesParts(Protocol):
    def part_link(self, *, expires_in: timedelta) -> AbstractContextManager[str]:
        """A link to PUT the first part of an upload that is given up when the block ends."""
