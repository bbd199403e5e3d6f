"""The adaptor around Triton: finds the kernel, compiles one signature, and says in our errors what went wrong."""

import dataclasses
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.compile.kernels.signature import Parameter, check_options, check_threads, match_signature
from aot.compile.kernels.targets import TritonTarget
from aot.compile.program import source_frame
from aot.errors import AotError, BackendFailed, InvalidProfile, SourceNotLoadable
from aot.schema.spec import KernelSignature

LOG_CHARACTERS = 4000
_DIVISIBLE = ["tt.divisibility", 16]


@dataclass(frozen=True)
class CompiledKernel:
    """What Triton made of one signature: the code object's bytes, and what its launch needs."""

    content: bytes
    entry: str
    arguments: tuple[tuple[str, str], ...]
    num_warps: int
    shared_bytes: int
    scratch_bytes: int
    blocks_a_cluster: int
    options: dict[str, Any]


def load_kernel(tree: Path, entry: str) -> Any:
    """Import `module:function` with `tree` first on the path, and return its JITFunction.

    Raises SourceNotLoadable for a module that does not import, and for anything else than a `@triton.jit` function.
    """
    from triton.runtime.jit import JITFunction

    module_name, _, function_name = entry.partition(":")
    sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = True
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise SourceNotLoadable(
            f"{entry}: importing it raised {type(error).__name__}: {_first_line(error)}",
            hint="import the module by itself in a fresh Python with the same packages",
            details={"exception": type(error).__name__, "frame": source_frame(error, tree)},
        ) from error
    if not hasattr(module, function_name):
        raise SourceNotLoadable(f"{module_name} has no {function_name}", hint="--entry module:kernel")
    kernel = getattr(module, function_name)
    if type(kernel) is not JITFunction:
        raise SourceNotLoadable(
            f"{entry} is a {type(kernel).__name__}, wanted a function with @triton.jit",
            hint="of an @autotune or @heuristics kernel, name the bare one and give each configuration as a signature",
        )
    return kernel


def parameters_of(kernel: Any) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(one.name, constexpr=bool(one.is_constexpr), has_default=bool(one.has_default))
        for one in kernel.params
    )


def compile_signature(kernel: Any, signature: KernelSignature, target: TritonTarget) -> CompiledKernel:
    """Compile for a card that need not be here. Raises InvalidSpec for a misfit, else BackendFailed."""
    import triton
    from triton import knobs
    from triton.compiler import ASTSource

    match_signature(signature, parameters_of(kernel))
    check_threads(signature, warp_size=target.warp_size)
    # Line tables hold the paths of the tree: with them equal sources in two places give other bytes.
    knobs.compilation.disable_line_info = True
    names = list(kernel.arg_names)
    constants = _constants(kernel, signature)
    typed = {name: signature.types.get(name, "constexpr") for name in names}
    attributes = {(names.index(name),): [_DIVISIBLE] for name in signature.divisible}
    options = {
        "num_warps": signature.num_warps,
        "num_stages": signature.num_stages,
        "enable_fp_fusion": True,  # Triton 3.9's default, said so that another release's does not change the code
        **signature.options,
    }
    check_options(signature, _option_names(target))
    try:
        source = ASTSource(kernel, typed, constants, attributes)
        made = triton.compile(source, target=gpu_target(target), options=options)
    except (Exception, SystemExit) as error:
        raise _refused(signature, target, error) from error
    check_shared(signature, target, made.metadata.shared)
    return CompiledKernel(
        content=bytes(made.asm[target.suffix]),
        entry=made.metadata.name,
        arguments=tuple((name, kind) for name, kind in typed.items() if name not in constants),
        num_warps=made.metadata.num_warps,
        shared_bytes=made.metadata.shared,
        scratch_bytes=made.metadata.global_scratch_size,
        blocks_a_cluster=made.metadata.num_ctas,
        options=options,
    )


def check_shared(signature: KernelSignature, target: TritonTarget, shared_bytes: int) -> None:
    """Raises BackendFailed for a block that no card of the target could start."""
    if shared_bytes > target.shared_bytes:
        raise BackendFailed(
            f"signature {signature.name} asks for {shared_bytes} bytes of shared memory a block, {target.capability} "
            f"has {target.shared_bytes}",
            hint="use smaller blocks, or fewer num_stages",
            details={"backend": "triton", "region": signature.name, "log": ""},
        )


def _constants(kernel: Any, signature: KernelSignature) -> dict[str, Any]:
    """The given ones, and the defaults of what neither has a type nor a value."""
    defaults = {one.name: one.default for one in kernel.params if one.has_default and one.name not in signature.types}
    return {**defaults, **signature.constants}


def gpu_target(target: TritonTarget) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget(target.backend, target.arch, target.warp_size)


def require_triton(wanted: str | None) -> None:
    """Raises InvalidProfile where another release of Triton is installed, or none."""
    try:
        import triton
    except ImportError as error:
        raise InvalidProfile(
            f"triton {wanted} is wanted, none is installed here", hint=f"install triton=={wanted}"
        ) from error
    if triton.__version__ != wanted:
        raise InvalidProfile(
            f"triton {wanted} is wanted, this is {triton.__version__}, which reads its kernels otherwise",
            hint=f"install triton=={wanted}, in an environment of its own if need be: no card and no CUDA is needed",
        )


def _option_names(target: TritonTarget) -> tuple[str, ...]:
    from triton.compiler.compiler import make_backend

    parsed = make_backend(gpu_target(target)).parse_options({"enable_fp_fusion": True})
    return tuple(field.name for field in dataclasses.fields(parsed))


def _refused(signature: KernelSignature, target: TritonTarget, error: BaseException) -> AotError:
    text = str(error).strip()
    what = f"signature {signature.name} does not compile for {target.capability}"
    details = {"backend": "triton", "region": signature.name, "log": text[:LOG_CHARACTERS]}
    node = getattr(error, "node", None)
    if (line := getattr(node, "lineno", None)) is None:
        return BackendFailed(
            f"{what}: {type(error).__name__}: {_first_line(error)}", hint="see the log", details=details
        )
    # Triton's text is the source up to the line, a caret, and the reason; its line numbers begin at the function.
    source = (getattr(error, "src", None) or "").splitlines()
    details |= {"line": line, "text": source[line - 1].strip() if line <= len(source) else ""}
    cause = error
    while getattr(cause, "error_message", None) is None and isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    reason = getattr(cause, "error_message", None) or _first_line(cause)
    where = f"line {line} of the kernel, {details['text']!r}"
    return BackendFailed(f"{what}: {reason} (in {where})", hint="the log shows the line", details=details)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:300]
