"""The node's store of blobs, manifests and remembered tags, shared safely by several processes.

Step "fetch" of the pod's flow (design.md, section 5) ends here, and `load` begins here. Node-local by default: the
cache relies on `flock`, on rename within one filesystem and on a disk that answers at once. On NFS it stays right
(bytes are verified whenever they are used, and a lock that cannot be had is done without), but sixteen pods of
sixteen nodes may each fetch a blob that they could have shared; prefer a local disk or an `emptyDir`.

Everything in it can be fetched again: nothing is synced to disk, and removing the directory loses no work. What is
about to be executed is hashed again first (`verified_path`), so damage is noticed; somebody who may write here could
still swap a file between that and its use, so the directory belongs to the user who runs the model.
"""

from typing import TYPE_CHECKING, Any

from aot.cache.documents import RememberedTag
from aot.cache.holds import Hold
from aot.cache.local import LocalCache

if TYPE_CHECKING:
    from aot.cache.evict import Evicted
    from aot.cache.incoming import Incoming

__all__ = ["Evicted", "Hold", "Incoming", "LocalCache", "RememberedTag"]


def __getattr__(name: str) -> Any:
    # A node that holds what it loads neither fills nor evicts: it does not import what does.
    match name:
        case "Evicted":
            from aot.cache.evict import Evicted

            return Evicted
        case "Incoming":
            from aot.cache.incoming import Incoming

            return Incoming
    raise AttributeError(f"module 'aot.cache' has no attribute {name!r}")
