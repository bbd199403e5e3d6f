"""The clocks of the card that this process works on: what a time that was measured on it is worth beside another.

A card lowers its clocks when it is idle, hot, or short of power, and an operator may have locked them. They are read
beside the work, while the card is busy with it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aot.environment.host import Host
from aot.environment.nvidia import Nvml, NvmlRefused, first_card
from aot.schema.environment import Clocks

ReadClocks = Callable[[], Clocks | None]


@contextmanager
def clock_reader(host: Host | None = None) -> Iterator[ReadClocks]:
    """Yield what reads the clocks of CUDA's first card, in microseconds; None from it where nobody tells."""
    host = host or Host()
    try:
        nvml = Nvml(host.nvml)
    except (OSError, NvmlRefused):
        yield lambda: None
        return
    try:
        uuid = _first_card(nvml, host)

        def read() -> Clocks | None:
            try:
                found = None if uuid is None else nvml.clocks(uuid)
            except NvmlRefused:
                return None
            return None if found == Clocks() else found

        yield read
    finally:
        nvml.close()


def observe_clocks(host: Host | None = None) -> Clocks | None:
    with clock_reader(host) as read:
        return read()


def _first_card(nvml: Nvml, host: Host) -> str | None:
    try:
        return first_card(tuple(nvml.cards()), host)
    except NvmlRefused:
        return None
