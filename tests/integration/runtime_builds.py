"""One small artifact for the tests of `aot.runtime`, built once a process by a child.

As a script (`python runtime_builds.py DIRECTORY DEVICE`) it exports and compiles `Program` as `aot.compile` does
(weights outside, nothing baked in), unpacks the shared object and writes what the manifest would record. In a child,
because the tests then see a process without Dynamo and Inductor, as a pod is.
"""

import atexit
import inspect
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import nn

from aot.schema.artifact import CallSpec, ConstantKind, ConstantMeta, Leaf, LeafKind
from aot.schema.codec import Document, decode, encode


class Program(nn.Module):
    """Two layers, a bias of 4 elements, two buffers written in place, a lifted constant; odd outputs of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("running", torch.zeros(32))

    def forward(self, x, y, *, scale=2.0, mask=None):
        hidden = torch.relu(self.first(x) + y)
        self.running.add_(hidden.mean(0))
        self.calls += 1
        out = self.second(hidden) * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device) * scale + self.running.sum()
        return out, {"again": out, "nothing": None, "rows": x.shape[0], "hidden": hidden, "given": x}


class Recorded(Document, kw_only=True):
    """What the manifest would say of the build."""

    call: CallSpec
    constants: tuple[ConstantMeta, ...]


@dataclass(frozen=True)
class Build:
    shared_object: Path
    call: CallSpec
    constants: tuple[ConstantMeta, ...]
    lifted: dict[str, torch.Tensor]

    @property
    def signature(self) -> inspect.Signature:
        return inspect.signature(Program().forward)


def seeded_program(seed: int) -> Program:
    torch.manual_seed(seed)
    return Program().eval().requires_grad_(False)


def inputs(rows: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 16, generator=generator), torch.randn(rows, 32, generator=generator)


@cache
def built_program(device: str = "cpu") -> Build:
    """Return the one artifact of this test process for "cpu" or "cuda"; its kernels lie beside it."""
    directory = Path(mkdtemp(prefix="aot-runtime-build-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    places = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    child = subprocess.run(
        [sys.executable, __file__, str(directory), device],
        # No trying of the compiler's instruction sets, which takes longer than the build.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "TORCHINDUCTOR_VEC_ISA_OK": "1"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    recorded = decode((directory / "recorded.json").read_bytes(), Recorded)
    lifted = torch.load(directory / "lifted.pt", weights_only=True)
    return Build(directory / "program.so", recorded.call, recorded.constants, lifted)


def _build(directory: Path, device: str) -> None:
    import torch._inductor
    from torch.utils._pytree import treespec_dumps

    exported = _export(device)
    package = torch._inductor.aoti_compile_and_package(
        exported,
        package_path=str(directory / "program.pt2"),
        inductor_configs={
            "always_keep_tensor_constants": True,
            "joint_graph_constant_folding": False,
            "aot_inductor.package_constants_in_so": False,
            "cpp.weight_prepack": False,
            "inplace_buffers": device == "cpu",
        },
    )
    with zipfile.ZipFile(package) as archive:
        (entry,) = (name for name in archive.namelist() if name.endswith(".so"))
        (directory / "program.so").write_bytes(archive.read(entry))
        for entry in (name for name in archive.namelist() if name.endswith(".cubin")):
            (directory / Path(entry).name).write_bytes(archive.read(entry))
    tensor = LeafKind.TENSOR
    call = CallSpec(
        in_spec=treespec_dumps(exported.call_spec.in_spec),
        out_spec=treespec_dumps(exported.call_spec.out_spec),
        inputs=(
            Leaf(kind=tensor, path="args[0]"),
            Leaf(kind=tensor, path="args[1]"),
            Leaf(kind=LeafKind.CONSTANT, path="kwargs['scale']", constant=2.0, constant_type="float"),
            Leaf(kind=LeafKind.NONE, path="kwargs['mask']"),
        ),
        outputs=tuple(Leaf(kind=kind) for kind in (tensor, tensor, LeafKind.NONE, LeafKind.INTEGER, tensor, tensor)),
        parameters=("x", "y", "scale", "mask"),
    )
    (directory / "recorded.json").write_bytes(encode(Recorded(call=call, constants=_describe(exported))))
    torch.save({"lifted_tensor_0": exported.constants["lifted_tensor_0"]}, directory / "lifted.pt")


def _export(device: str) -> torch.export.ExportedProgram:
    from torch.export.graph_signature import InputKind

    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = {"x": {0: batch}, "y": {0: batch}, "scale": None, "mask": None}
    with torch.no_grad():
        exported = torch.export.export(
            seeded_program(0).to(device),
            tuple(tensor.to(device) for tensor in inputs(3)),
            {"scale": 2.0, "mask": None},
            dynamic_shapes=shapes,
            strict=False,
        )
    for spec in exported.graph_signature.input_specs:
        if spec.kind is InputKind.CONSTANT_TENSOR:  # keeps its name in the artifact
            spec.kind, spec.persistent = InputKind.BUFFER, False
    return exported


def _describe(exported: torch.export.ExportedProgram) -> tuple[ConstantMeta, ...]:
    state = {**exported.state_dict, **exported.constants}
    signature = exported.graph_signature
    kinds = {name: ConstantKind.PARAMETER for name in signature.parameters}
    kinds |= {name: ConstantKind.BUFFER for name in signature.buffers if name in exported.state_dict}
    return tuple(
        ConstantMeta(
            name=name,
            kind=kinds.get(name, ConstantKind.CONSTANT),
            dtype=str(state[name].dtype).removeprefix("torch."),
            shape=tuple(state[name].shape),
            stride=state[name].stride(),
            device=state[name].device.type,
            mutated=name in ("calls", "running"),
        )
        for name in (*signature.parameters, *signature.buffers)
    )


if __name__ == "__main__":
    _build(Path(sys.argv[1]), sys.argv[2])
