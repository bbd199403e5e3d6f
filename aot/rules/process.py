"""Rules about what the program that runs has set for itself. Only `load` sees these facts; elsewhere they are open.

The state of a single call, its grad mode and autocast, is checked at every call by input guards; the rules of these two
kinds are for routes whose code was traced under one state and is looked up once.
"""

from aot.rules.rule import missing, one_of, same, spell, unknown
from aot.schema.decision import Reason
from aot.schema.environment import Environment, ProcessFacts

# A process that sets nothing: torch's own defaults, and no torch.distributed. Source: torch's documentation of each.
FRESH_PROCESS = ProcessFacts(
    deterministic=False,
    matmul_precision="highest",
    conv_precision="tf32",
    default_dtype="float32",
    autocast="off",
    grad=True,
    world_size=1,
    rank=0,
)


def check_deterministic(value: str, environment: Environment) -> Reason | None:
    """Monotone: code compiled under deterministic algorithms gives one answer always, which serves every process;
    other code may add in any order, which a process that asks for determinism must not get. (pytorch#99949)

    Source: torch.use_deterministic_algorithms; torch/_inductor/lowering.py falls back to other kernels under it.
    """
    if value not in ("true", "false"):
        return unknown("deterministic", value)
    found = environment.process.deterministic
    if found is None:
        return missing("deterministic", value)
    if not found or value == "true":
        return None
    text = "this process asks for deterministic algorithms, the artifact was compiled without them"
    return Reason(kind="deterministic", wanted=value, found="true", text=text)


def check_matmul_precision(value: str, environment: Environment) -> Reason | None:
    """Exact: whether float32 products run in TensorFloat-32 or bfloat16 is baked into the kernels, and library calls
    beside them follow the process. A guard lists the settings that give the same kernels.

    Source: torch.set_float32_matmul_precision; torch/_inductor/template_heuristics/triton.py, ALLOW_TF32.
    """
    text = "compiled for float32 products of precision {wanted}, this process has {found}"
    return one_of("matmul_precision", value, environment.process.matmul_precision, text)


def check_conv_precision(value: str, environment: Environment) -> Reason | None:
    """Exact: Triton's convolutions have it baked in, apart from that of products, and cuDNN follows the process.

    Source: torch/_inductor/kernel/conv.py, ALLOW_TF32=torch.backends.cudnn.allow_tf32; it is on by default.
    """
    text = "compiled for float32 convolutions of precision {wanted}, this process has {found}"
    return same("conv_precision", value, environment.process.conv_precision, text)


def check_default_dtype(value: str, environment: Environment) -> Reason | None:
    """Exact: what forward makes without naming a dtype has this one, as the trace has recorded.

    Source: torch.set_default_dtype; it is part of FxGraphCache's key.
    """
    text = "traced with default dtype {wanted}, this process has {found}"
    return same("default_dtype", value, environment.process.default_dtype, text)


def check_autocast(value: str, environment: Environment) -> Reason | None:
    """Exact: autocast rewrites the graph while it is traced. (pytorch#175025)

    Source: torch.amp, autocast op reference; Dynamo's GLOBAL_STATE guard.
    """
    return same("autocast", value, environment.process.autocast, "traced with autocast {wanted}, this has {found}")


def check_grad(value: str, environment: Environment) -> Reason | None:
    """Exact: a graph traced with gradients has a backward pass, one without has none.

    Source: Dynamo's GLOBAL_STATE guard; AOTAutogradCache's key.
    """
    return same("grad", value, spell(environment.process.grad), "traced with gradients {wanted}, this has {found}")


def check_world_size(value: str, environment: Environment) -> Reason | None:
    """Exact: present only where collectives or shards are in the code; their sizes are those of one number of
    processes. Code without collectives serves every number.

    Source: torch/distributed/_functional_collectives.py: the group size is an argument of the traced operator.
    """
    text = "compiled for {wanted} processes, this is one of {found}"
    return same("world_size", value, spell(environment.process.world_size), text)


def check_threads(value: str, environment: Environment) -> Reason | None:
    """Exact: present only where the profile pinned the number of threads into the generated loops.

    Source: torch/_inductor/config.py, cpp.dynamic_threads; Dynamo guards the number as well (GLOBAL_STATE).
    """
    text = "the generated code is fixed to {wanted} threads, this process uses {found}"
    return same("threads", value, spell(environment.container.threads), text)


def check_rank(value: str, environment: Environment) -> Reason | None:
    """Exact: present only where the code is that of some ranks; lists them. Code without a rank in it serves every one.
    (pytorch#188390: rank 1 ran what was compiled for rank 0.)

    Source: DTensor shards by the rank's place in the mesh (torch/distributed/tensor/_utils.py,
    compute_local_shape_and_global_offset).
    """
    return one_of("rank", value, spell(environment.process.rank), "compiled for rank {wanted}, this process is {found}")
