"""What every build for a profile asks of a host, before one byte of it exists.

The build itself adds what its bytes say (floors of the C and C++ libraries) and what the program set (precision,
determinism): see `aot.compile.host`.
"""

from aot.rules.hardware import WHOLE_CARD
from aot.rules.software import AMX_KERNEL, OLDEST_DRIVERS
from aot.schema.capability import Capability
from aot.schema.profile import Profile


def profile_guards(profile: Profile, *, capability: Capability | None = None) -> dict[str, str]:
    """Return the values of the guards by kind; `capability` is what the code really is for, where that is known."""
    device, toolchain = profile.device, profile.toolchain
    wanted = capability or profile.capability
    cuda = toolchain.cuda if profile.capability.family == "cuda" else None
    values = {
        "capability": wanted,
        "torch": toolchain.torch,
        "threads": None if profile.threads is None else str(profile.threads),
        "kernel": AMX_KERNEL if "amx_" in wanted else None,
        "cuda": cuda,
        "driver": OLDEST_DRIVERS.get(cuda.split(".")[0]) if cuda else None,
        "sku": device.sku if device else None,
        "sm_count": str(device.sm_count) if device and device.sm_count else None,
        "mig": device.mig or WHOLE_CARD if device else None,
    }
    return {kind: str(value) for kind, value in values.items() if value is not None}
