"""Signatures against the kernel that they are for: every mistake named, before Triton sees any of it. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from aot.errors import InvalidSpec
from aot.schema.spec import KernelSignature

# triton/_utils.py, BITWIDTH_DICT: the scalar types that an argument can have.
SCALARS = frozenset(
    {
        *(f"{sign}{bits}" for sign in "iu" for bits in (1, 8, 16, 32, 64)),
        *("fp16", "bf16", "fp32", "fp64", "fp8e4nv", "fp8e4b15", "fp8e4b8", "fp8e5", "fp8e5b16"),
    }
)
_POINTER = re.compile(r"\*k?")  # "*k": a pointer to what is only read
_INTEGER = re.compile(r"[iu](8|16|32|64)")
MOST_WARPS = 32
# CUDA programming guide, compute capabilities, "maximum number of threads per block"; ROCm, HIP hardware features,
# "maximum threads per block". Triton compiles a larger block, which no card can start.
MOST_THREADS = 1024

# Options that read files of the builder, or that the target, the sandbox or this product decides.
REFUSED_OPTIONS = {
    "arch": "the target decides it",
    "backend_name": "the target decides it",
    "warp_size": "the target decides it",
    "num_warps": "it is a field of the signature",
    "num_stages": "it is a field of the signature",
    "extern_libs": "it names files of the builder",
    "ir_override": "it names a file of the builder",
    "ptx_options": "they could name files of the builder",
    "debug": "its checks write source paths into the code",
    "instrumentation_mode": "instrumented code is not what a proof measures",
}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel. `constexpr`: annotated as a compile-time constant."""

    name: str
    constexpr: bool = False
    has_default: bool = False


def check_signatures(signatures: Sequence[KernelSignature]) -> None:
    """Raises InvalidSpec for what is wrong whatever the kernel is."""
    if not signatures:
        raise InvalidSpec("a kernel needs at least one signature", hint="name the types of its arguments")
    names = [signature.name for signature in signatures]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidSpec(f"two signatures are named {', '.join(twice)}", hint="give each a name of its own")
    for signature in signatures:
        _raise_for(signature, list(_faults_alone(signature)))


def match_signature(signature: KernelSignature, parameters: Sequence[Parameter]) -> None:
    """Raises InvalidSpec where the signature does not fit the kernel's parameters, naming every one that is wrong."""
    _raise_for(signature, list(_misfits(signature, parameters)))


def check_threads(signature: KernelSignature, *, warp_size: int) -> None:
    """Raises InvalidSpec for a block of more threads than any card starts."""
    threads = signature.num_warps * warp_size
    if threads > MOST_THREADS:
        raise InvalidSpec(
            f"signature {signature.name}: {signature.num_warps} warps of {warp_size} are {threads} threads, a block "
            f"has {MOST_THREADS} at most",
            hint=f"this target takes num_warps up to {MOST_THREADS // warp_size}",
        )


def check_options(signature: KernelSignature, known: Iterable[str]) -> None:
    """Raises InvalidSpec for an option that Triton's backend does not have: Triton itself ignores those."""
    unknown = sorted(set(signature.options) - set(known))
    if unknown:
        offered = ", ".join(sorted(set(known) - set(REFUSED_OPTIONS)))
        raise InvalidSpec(
            f"signature {signature.name}: this target has no option {', '.join(unknown)}", hint=f"it has {offered}"
        )


def _raise_for(signature: KernelSignature, faults: list[str]) -> None:
    if faults:
        raise InvalidSpec(
            f"signature {signature.name}: {'; '.join(faults)}",
            hint='types like "*fp32", "i32"; constants by value; every argument of the kernel in one of them',
            details={"signature": signature.name, "faults": faults},
        )


def _faults_alone(signature: KernelSignature) -> Iterator[str]:
    for name, kind in signature.types.items():
        if _POINTER.sub("", kind, count=1) not in SCALARS:
            yield f"argument {name} has the type {kind!r}, which Triton does not know"
    if both := sorted(signature.types.keys() & signature.constants.keys()):
        yield f"{', '.join(both)} is in types and in constants"
    for name in signature.divisible:
        kind = signature.types.get(name)
        if kind is None:
            yield f"divisible names {name}, which has no type"
        elif not kind.startswith("*") and not _INTEGER.fullmatch(kind):
            yield f"divisible names {name}, which is neither a pointer nor an integer"
    warps = signature.num_warps
    if not 0 < warps <= MOST_WARPS or warps & (warps - 1):
        yield f"num_warps must be a power of 2 up to {MOST_WARPS}, found {warps}"
    if signature.num_stages < 1:
        yield f"num_stages must be at least 1, found {signature.num_stages}"
    for name in sorted(signature.options.keys() & REFUSED_OPTIONS.keys()):
        yield f"option {name} cannot be set: {REFUSED_OPTIONS[name]}"


def _misfits(signature: KernelSignature, parameters: Sequence[Parameter]) -> Iterator[str]:
    named = {*signature.types, *signature.constants}
    known = [parameter.name for parameter in parameters]
    if unknown := sorted(named - set(known)):
        yield f"the kernel has no argument {', '.join(unknown)}; it has {', '.join(known)}"
    missing = [one.name for one in parameters if one.name not in named and not one.has_default]
    if missing:
        yield f"it says nothing of {', '.join(missing)}"
    if typed := [one.name for one in parameters if one.constexpr and one.name in signature.types]:
        yield f"{', '.join(typed)} is a tl.constexpr and needs a value in constants, not a type"
