"""Real code objects under tests/golden/kernels, and how they were made: `python -m tests.kernels` writes them again.

Triton 3.9.0 compiled them without a card (ptxas and ld.lld of its wheel), without line information, so that no path is
inside. Beside each cubin stands what `cuobjdump --dump-resource-usage` of the same wheel says of it. `add.fatbin` holds
two of them and the PTX, packed by `fatbinary` of CUDA 13.0 where there is one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden" / "kernels"


def make(into: Path) -> None:
    """Compile every code object into `into`."""
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tests import triton_kernels as kernels

    add = ASTSource(
        kernels.add_kernel,
        {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"},
        {"BLOCK": 256},
    )
    dot_signature = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "size": "i32", "BLOCK": "constexpr"}

    def dot(block: int) -> ASTSource:
        return ASTSource(kernels.dot_kernel, dot_signature, {"BLOCK": block})

    made = {
        "add-sm_80": (add, GPUTarget("cuda", 80, 32), {}),
        "add-sm_90": (add, GPUTarget("cuda", 90, 32), {}),
        "dot-sm_90": (dot(32), GPUTarget("cuda", 90, 32), {}),
        "spill-sm_80": (dot(32), GPUTarget("cuda", 80, 32), {"num_warps": 1, "maxnreg": 32}),
        "add-gfx942": (add, GPUTarget("hip", "gfx942", 64), {}),
        "add-gfx950": (add, GPUTarget("hip", "gfx950", 64), {}),
        "dot-gfx90a": (dot(32), GPUTarget("hip", "gfx90a", 64), {}),
        "add-gfx1100": (add, GPUTarget("hip", "gfx1100", 32), {}),
    }
    into.mkdir(parents=True, exist_ok=True)
    for name, (source, target, options) in made.items():
        compiled = triton.compile(source, target=target, options=options)
        suffix = "cubin" if target.backend == "cuda" else "hsaco"
        path = into / f"{name}.{suffix}"
        path.write_bytes(compiled.asm[suffix])
        if suffix == "cubin":
            usage = resource_usage(Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump", path)
            path.with_suffix(".usage").write_text(usage)
        if name == "add-sm_80":
            path.with_suffix(".ptx").write_text(compiled.asm["ptx"])

    if (fatbinary := shutil.which("fatbinary")) is not None:
        images = (("elf", 80, "add-sm_80.cubin"), ("elf", 90, "add-sm_90.cubin"), ("ptx", 80, "add-sm_80.ptx"))
        pack(fatbinary, into / "add.fatbin", *(f"kind={kind},sm={sm},file={into / name}" for kind, sm, name in images))


def pack(fatbinary: str, path: Path, *images: str, options: Sequence[str] = ()) -> None:
    """Write a fat binary of `images`, each in the words of --image3, as Inductor does."""
    command = [fatbinary, "-64", f"--create={path}", *options, *(f"--image3={image}" for image in images)]
    subprocess.run(command, check=True, capture_output=True)


def resource_usage(cuobjdump: Path, cubin: Path) -> str:
    """The line of its one kernel: REG, STACK, SHARED and more."""
    run = subprocess.run([str(cuobjdump), "--dump-resource-usage", str(cubin)], capture_output=True, text=True)
    return next(line.strip() for line in run.stdout.splitlines() if "REG:" in line) + "\n"


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN)
