"""The rules behind `aot.select`: one small pure function for each kind of host guard, why it is right, and its source.

| Module     | Facts about                                                                                        |
|------------|----------------------------------------------------------------------------------------------------|
| `hardware` | the CPU, and the one card that is judged                                                           |
| `software` | torch, Python, Triton, C and C++ libraries, CUDA, HIP; the driver and the kernel                     |
| `process`  | what the program has set: determinism, precision, default dtype, autocast, grad mode, ranks          |
"""

from aot.rules import hardware, process, software
from aot.rules.process import FRESH_PROCESS
from aot.rules.rule import A_RECORDED_VALUE, NOT_KNOWN, Change, Check, Order, Rule, unknown
from aot.rules.software import OLDEST_DRIVERS

__all__ = [
    "A_RECORDED_VALUE",
    "FRESH_PROCESS",
    "NOT_KNOWN",
    "OLDEST_DRIVERS",
    "RULES",
    "Change",
    "Check",
    "Order",
    "Rule",
    "unknown",
]

_MONOTONE, _EXACT, _ADVISORY = Order.MONOTONE, Order.EXACT, Order.ADVISORY
_SETTING, _IMAGE, _SYSTEM, _HARDWARE = Change.SETTING, Change.IMAGE, Change.SYSTEM, Change.HARDWARE

RULES: dict[str, Rule] = {
    rule.kind: rule
    for rule in (
        Rule("machine", _EXACT, _HARDWARE, ("node.machine",), hardware.check_machine),
        Rule(
            "capability",
            _MONOTONE,
            _HARDWARE,
            ("node.cpu", "node.cpu_features", "node.gpus"),
            hardware.check_capability,
            of_card=True,
        ),
        Rule("cpu", _MONOTONE, _HARDWARE, ("node.cpu", "node.cpu_features"), hardware.check_cpu),
        Rule("isa", _EXACT, _HARDWARE, ("node.cpu",), hardware.check_isa),
        Rule("memory", _MONOTONE, _HARDWARE, ("node.gpus",), hardware.check_memory, of_card=True),
        Rule("sm_floor", _MONOTONE, _HARDWARE, ("node.gpus",), hardware.check_sm_floor, of_card=True),
        Rule("sku", _ADVISORY, _HARDWARE, ("node.gpus",), hardware.check_sku, of_card=True),
        Rule("sm_count", _ADVISORY, _HARDWARE, ("node.gpus",), hardware.check_sm_count, of_card=True),
        Rule("mig", _ADVISORY, _HARDWARE, ("node.gpus",), hardware.check_mig, of_card=True),
        Rule("driver", _MONOTONE, _SYSTEM, ("node.driver",), software.check_driver),
        Rule("ptx", _MONOTONE, _SYSTEM, ("node.driver",), software.check_ptx),
        Rule("fallback", _MONOTONE, _SYSTEM, ("node.gpus", "node.driver"), software.check_fallback, of_card=True),
        Rule("machine_code", _ADVISORY, _HARDWARE, ("node.gpus",), hardware.check_machine_code, of_card=True),
        Rule("kernel", _MONOTONE, _SYSTEM, ("node.kernel",), software.check_kernel),
        Rule("torch", _EXACT, _IMAGE, ("container.torch",), software.check_torch),
        Rule("python", _EXACT, _IMAGE, ("container.python",), software.check_python),
        Rule("interpreter", _EXACT, _IMAGE, ("container.python",), software.check_interpreter),
        Rule("triton", _EXACT, _IMAGE, ("container.triton",), software.check_triton),
        Rule("libc", _MONOTONE, _IMAGE, ("container.libc",), software.check_libc),
        Rule("libstdcxx", _MONOTONE, _IMAGE, ("container.libstdcxx",), software.check_libstdcxx),
        Rule("cxx11_abi", _EXACT, _IMAGE, ("container.cxx11_abi",), software.check_cxx11_abi),
        Rule("cuda", _MONOTONE, _IMAGE, ("container.cuda",), software.check_cuda),
        Rule("hip", _EXACT, _IMAGE, ("container.hip",), software.check_hip),
        Rule("bytecode", _EXACT, _IMAGE, ("container.bytecode",), software.check_bytecode),
        Rule("distribution", _EXACT, _IMAGE, ("container.distributions",), software.check_distribution),
        Rule("threads", _EXACT, _SETTING, ("container.threads",), process.check_threads),
        Rule("deterministic", _MONOTONE, _SETTING, ("process.deterministic",), process.check_deterministic),
        Rule("conv_precision", _EXACT, _SETTING, ("process.conv_precision",), process.check_conv_precision),
        Rule("matmul_precision", _EXACT, _SETTING, ("process.matmul_precision",), process.check_matmul_precision),
        Rule("default_dtype", _EXACT, _SETTING, ("process.default_dtype",), process.check_default_dtype),
        Rule("autocast", _EXACT, _SETTING, ("process.autocast",), process.check_autocast),
        Rule("grad", _EXACT, _SETTING, ("process.grad",), process.check_grad),
        Rule("world_size", _EXACT, _SETTING, ("process.world_size",), process.check_world_size),
        Rule("rank", _EXACT, _SETTING, ("process.rank",), process.check_rank),
    )
}
