"""What this process has set for itself, and which card its module is on: the facts that only `load` can observe.

Between `observe_environment`, which needs no torch, and `select`: with these facts nothing stays undecided that this
process knows. And what this thread has set for all that torch does (`without_modes`).
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from msgspec.structs import replace

from aot.rules import FRESH_PROCESS
from aot.schema.capability import Capability
from aot.schema.environment import Environment, Gpu, ProcessFacts
from aot.select import with_card

if TYPE_CHECKING:
    from torch.nn import Module


def observe_here(environment: Environment, module: "Module | None" = None) -> Environment:
    """Return `environment` with this process's facts, and with no card but that of `module`, where it is on one."""
    seen = replace(environment, process=observe_process())
    return seen if module is None else _on_its_card(seen, module)


def with_settings(environment: Environment) -> Environment:
    """Return `environment` with settings to explain verdicts for: its own, this process's, or torch's defaults."""
    if environment.process != ProcessFacts():
        return environment
    return replace(environment, process=observe_process() if "torch" in sys.modules else FRESH_PROCESS)


def observe_process() -> ProcessFacts:
    """Return the settings of torch at this moment: microseconds, where torch is imported already."""
    import torch

    world_size, rank = _place()
    return ProcessFacts(
        deterministic=torch.are_deterministic_algorithms_enabled(),
        matmul_precision=_matmul_precision(),
        conv_precision=_conv_precision(),
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        autocast=_autocast(),
        grad=torch.is_grad_enabled(),
        world_size=world_size,
        rank=rank,
    )


def _matmul_precision() -> str:
    """Return the precision of float32 products in torch's words, whichever of its two interfaces has set it.

    `torch.get_float32_matmul_precision` raises once the newer one, `torch.backends.*.matmul.fp32_precision`, was used.
    """
    import torch

    found = {
        getattr(getattr(getattr(torch.backends, name, None), "matmul", None), "fp32_precision", "none")
        for name in ("cuda", "mkldnn")
    }
    if "bf16" in found:
        return "medium"
    return "high" if "tf32" in found else "highest"


def _conv_precision() -> str:
    """Return "tf32" or "ieee" for float32 convolutions by cuDNN, whichever interface has set it."""
    import torch

    cudnn = torch.backends.cudnn
    found = getattr(getattr(cudnn, "conv", None), "fp32_precision", None)
    if found is None:  # a torch without the newer interface
        return "tf32" if cudnn.allow_tf32 else "ieee"
    return "tf32" if found == "tf32" else "ieee"


def _autocast() -> str:
    """Return "off", or the devices under autocast with their dtypes: "cuda:bfloat16"."""
    import torch

    if not torch._C._is_any_autocast_enabled():
        return "off"
    on = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    spelled = [f"{device}:{str(torch.get_autocast_dtype(device)).removeprefix('torch.')}" for device in on]
    return " ".join(spelled) or "another device"


def _place() -> tuple[int, int]:
    """Return the number of processes and this one's rank; a process of its own where no group was made."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1, 0
    return distributed.get_world_size(), distributed.get_rank()


def _on_its_card(environment: Environment, module: "Module") -> Environment:
    """NVML and CUDA number a host's cards differently, so on a host with several the card is asked for itself."""
    gpus = environment.node.gpus
    if gpus is None or len(set(gpus)) < 2:
        return environment
    device = next((tensor.device for tensor in (*module.parameters(), *module.buffers())), None)
    if device is None or device.type != "cuda":
        return environment
    import torch

    if torch.version.hip:
        return environment
    found = torch.cuda.get_device_properties(device)
    capability = Capability(f"cuda:sm_{found.major}{found.minor}")
    sku, _, slice_name = found.name.partition(" MIG ")
    alike = [gpu for gpu in gpus if (gpu.capability, gpu.sku, gpu.mig or "") == (capability, sku, slice_name)]
    if alike:
        return with_card(environment, min(alike, key=lambda gpu: abs(gpu.memory_bytes - found.total_memory)))
    card = Gpu(
        capability=capability,
        sku=sku,
        memory_bytes=found.total_memory,
        sm_count=found.multi_processor_count,
        mig=slice_name or None,
    )
    return with_card(environment, card)


def without_modes() -> "AbstractContextManager[object]":
    """Within it tensors are made, viewed and emptied for real, also while an export is under way in this thread.

    An export makes fake tensors of all that is made meanwhile. Transforms (torch.func) stay in force.
    """
    import torch

    if not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    from torch.utils._python_dispatch import _disable_current_modes  # what it imports, who set a mode has imported

    return _disable_current_modes()  # type: ignore[no-any-return, no-untyped-call]
