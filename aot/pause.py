"""Holding back Python's garbage collector while a model is loaded, or a compiler imported.

Importing torch leaves some 170,000 objects, and a full collection walks all of them: 60 to 90 ms, as long as the rest
of `aot.load`. It falls due while we import and load, since that makes objects too, and frees nothing.
"""

import atexit
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NEVER = 1 << 30
# Loading makes about 15,000 objects. Threads that make more beside it still have their young objects collected.
YOUNG_OBJECTS = 50_000


@contextmanager
def no_full_collection() -> Iterator[None]:
    """Put off full collections until the block is left, and let young ones come more rarely.

    The thresholds are the process's: they are put back as they were found, unless somebody set others meanwhile.
    Blocks may be nested, and entered by several threads. A collector that is switched off stays so.
    """
    found = gc.get_threshold()
    ours = (max(found[0], YOUNG_OBJECTS) if found[0] else 0, found[1], NEVER)
    gc.set_threshold(*ours)
    try:
        yield
    finally:
        if gc.get_threshold() == ours:
            gc.set_threshold(*found)


def import_for_good(imports: Callable[[], None]) -> None:
    """Call `imports`, which imports what this process keeps to its end, without a collection; and none walks it later.

    For a process of ours that does one job: everything that lives then is out of the collector's sight. Importing
    Inductor makes half a million objects that stay: a quarter of its seconds goes into collections that find nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        imports()
        gc.freeze()
        atexit.register(gc.unfreeze)  # extensions complain of what the last collection does not free
    finally:
        if enabled:
            gc.enable()
