"""AMX's registers: Linux gives them to a process that has asked, and kills one that uses them without.

Inductor asks while it looks for instruction sets (torch/_inductor/cpu_vec_isa.py), oneDNN at its first product of its
own; compiled code loaded by itself asks nobody. Source: Linux documentation, arch/x86/xstate (ARCH_REQ_XCOMP_PERM).
"""

from aot.errors import LoadFailed
from aot.schema.artifact import Artifact

TILES = "amx_tile"


def require_tiles(artifact: Artifact) -> None:
    """Make true that this process may run the artifact's code; nothing where that is for CPUs without AMX.

    Raises LoadFailed where CPU or kernel give no tiles and the code uses them: without, libraries use what there is.
    """
    if TILES in artifact.capability.features and not ask_for_tiles() and _uses_tiles(artifact):
        raise LoadFailed(
            f"the code is for {artifact.capability}, and this process gets no AMX tiles",
            hint="use a CPU with AMX and Linux 5.16 or newer, in a container that lets arch_prctl through",
        )


def _uses_tiles(artifact: Artifact) -> bool:
    """Whether its own code does, as its bytes were read; of one that does not say, whether it is for CPUs that can."""
    if artifact.code is not None:
        return TILES in artifact.code.features
    return TILES in artifact.facts.get("isa_used", artifact.capability)


def ask_for_tiles() -> bool:
    """Ask for the whole process, later threads included; False where there are none. To be asked as often as wanted."""
    import torch

    ask = getattr(torch.cpu, "_init_amx", None)
    return bool(ask is not None and ask())
