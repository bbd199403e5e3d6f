"""What everything that compiles for an NVIDIA card is told: to take torch's assembler, and to leave lines out."""

import os
from importlib.util import find_spec
from pathlib import Path

ASSEMBLER = "TRITON_PTXAS_PATH"
# triton/knobs.py. Line information names the file that a kernel's source lay in, which Triton's key leaves out: one
# text in two files is one entry of its cache, with the bytes of who wrote last.
LINE_INFO = "TRITON_DISABLE_LINE_INFO"


def find_assembler() -> Path | None:
    """Return the assembler of torch's own wheel, where it has one, for every process of a build or a command.

    Inductor's compile workers take it (`_set_triton_ptxas_path`, torch/_inductor/runtime/compile_tasks.py), while the
    process that measures or that finds a graph takes Triton's. Triton's cache is keyed by the assembler's version, so
    nothing that the workers compiled was found: a build compiled every candidate again, one after the other, which was
    most of a tuned one's time, and a start from captured caches assembled 26 kernels (torch 2.11, H200).
    """
    found = find_spec("torch")  # looks, and imports nothing
    for place in (found and found.submodule_search_locations) or ():
        assembler = Path(place) / "bin" / "ptxas"
        if os.access(assembler, os.X_OK):
            return assembler
    return None
