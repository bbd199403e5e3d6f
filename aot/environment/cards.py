"""Which of a host's cards a process was given, for the children that compile, capture and prove on it.

Children get an environment of their own. Without these, every worker of a host with several cards would compile, tune
and prove on the same one, and on a host with different cards on another than its profile names.
"""

from collections.abc import Mapping

from aot.schema.card_variables import CARD_VARIABLES, ORDER

BY_BUS = "PCI_BUS_ID"


def card_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a child must have so that its first card is the first of a process with `environ`.

    A profile is of the first card by bus, as NVML numbers them, while CUDA begins with the fastest one unless it is
    told otherwise (CUDA C++ Programming Guide, "CUDA Environment Variables"). A choice by numbers without an order is
    handed on as it is: what it means is CUDA's to say.
    """
    found = {name: environ[name] for name in CARD_VARIABLES if name in environ}
    chosen = found.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or chosen.strip().startswith(("GPU-", "MIG-")):
        found.setdefault(ORDER, BY_BUS)
    return found
