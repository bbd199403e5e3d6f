"""Build keys: a spec and its profile as a list of named factors, and the queue that serves a profile.

Pure and without torch: the registry computes the same key as the CI step. What is a factor changes the generated
code; places, user names, host names, ordinals, limits and tags do not, and are none.
"""

import hashlib
from collections.abc import Iterable

from aot.schema.codec import encode
from aot.schema.digest import BuildKey, Digest
from aot.schema.factor import Factor, FactorChange, Fingerprint
from aot.schema.profile import Profile
from aot.schema.recipe import Route
from aot.schema.spec import BytecodeSource, CommandSource, FactorySource, KernelSource, ProgramSource, Spec

# Part of every key: a change in how we compile (settings, guards) must not answer with what an older version built.
BUILD_GENERATION = 1
_MEASURED_GENERATION = 1


def factors_of(spec: Spec, profile: Profile) -> tuple[Factor, ...]:
    """Return every factor of the build that `spec` asks of `profile`, in their fixed order."""
    match spec.source:
        case KernelSource() as source:
            return _factors_of_kernels(source, profile)
        case BytecodeSource() as source:
            return _factors_of_bytecode(source)
        case CommandSource() as source:
            return _factors_of_command(source, spec, profile)
        case FactorySource() | ProgramSource() as source:
            return _factors_of_model(source, spec, profile)


def _factors_of_model(source: FactorySource | ProgramSource, spec: Spec, profile: Profile) -> tuple[Factor, ...]:
    recipe, toolchain = spec.recipe, profile.toolchain
    packed = source.tree.digest if isinstance(source, FactorySource) else source.program.digest
    values: list[tuple[str, object]] = [
        ("generation", BUILD_GENERATION),
        ("source", packed),
        ("entry", source.entry if isinstance(source, FactorySource) else ""),
        ("requirements", sorted(source.requirements)),
        ("capability", profile.capability),
        ("torch", toolchain.torch),
        ("triton", toolchain.triton),
        ("cuda", toolchain.cuda),
        ("compiler", toolchain.compiler),
        ("libc", toolchain.libc),
        ("device", profile.device),
        ("threads", profile.threads),
        ("mode", recipe.mode),
        ("fullgraph", recipe.fullgraph),
        ("dynamic", recipe.dynamic),
        ("regions", recipe.regions),
        ("purpose", recipe.purpose),
        ("routes", recipe.routes),
        ("freeze", recipe.freeze),
        ("random", recipe.random),
        ("require_faster", recipe.require_faster),
        ("dimensions", sorted(recipe.dimensions, key=lambda dimension: dimension.name)),
    ]
    values += [(f"option:{name}", recipe.options[name]) for name in sorted(recipe.options)]
    values += [(f"environment:{name}", recipe.environment[name]) for name in sorted(recipe.environment)]
    if isinstance(source, FactorySource) or Route.FUNCTION in recipe.routes or Route.CACHE in recipe.routes:
        # Both routes hold bytecode or pickles that one minor version of Python can read, and so does the fingerprint
        # of a module, which is made of its classes' bytecode.
        values.append(("python", ".".join(toolchain.python.split(".")[:2])))
    if recipe.freeze:
        values.append(("weights", sorted((file.path, file.digest) for file in spec.weights)))
    return tuple(Factor.of(name, value) for name, value in values)


def _factors_of_kernels(source: KernelSource, profile: Profile) -> tuple[Factor, ...]:
    """Triton brings its own LLVM and ptxas, so neither torch nor a C++ compiler nor the host is a factor."""
    values: tuple[tuple[str, object], ...] = (
        ("generation", BUILD_GENERATION),
        ("source", source.tree.digest),
        ("entry", source.entry),
        ("requirements", sorted(source.requirements)),
        ("capability", profile.capability),
        ("triton", profile.toolchain.triton),
        ("signatures", sorted(source.signatures, key=lambda signature: signature.name)),
    )
    return tuple(Factor.of(name, value) for name, value in values)


def _factors_of_bytecode(source: BytecodeSource) -> tuple[Factor, ...]:
    """Source and interpreter decide bytecode; the CPU, torch as a library and the compiler do not."""
    values: list[tuple[str, object]] = [("generation", BUILD_GENERATION), ("interpreter", source.interpreter)]
    values += [
        (f"distribution:{one.name}", (one.version, one.record, one.files))
        for one in sorted(source.distributions, key=lambda one: one.name)
    ]
    return tuple(Factor.of(name, value) for name, value in values)


def _factors_of_command(source: CommandSource, spec: Spec, profile: Profile) -> tuple[Factor, ...]:
    """What a command leaves in its caches hangs on everything that compiles, and on what it is started with."""
    toolchain, environment = profile.toolchain, spec.recipe.environment
    values: list[tuple[str, object]] = [
        ("generation", BUILD_GENERATION),
        ("command", source.command),
        ("source", source.tree.digest if source.tree else ""),
        ("entries", source.entries),
        ("requirements", sorted(source.requirements)),
        ("capability", profile.capability),
        ("torch", toolchain.torch),
        ("triton", toolchain.triton),
        ("cuda", toolchain.cuda),
        ("compiler", toolchain.compiler),
        ("libc", toolchain.libc),
        ("python", ".".join(toolchain.python.split(".")[:2])),
        ("device", profile.device),
        ("threads", profile.threads),
    ]
    values += [(f"environment:{name}", environment[name]) for name in sorted(environment)]
    return tuple(Factor.of(name, value) for name, value in values)


def key_of(factors: Iterable[Factor]) -> BuildKey:
    """Return the digest over all factors in order."""
    return BuildKey(_digest_over(factors))


def fingerprint_of(factors: Iterable[Factor]) -> Fingerprint:
    """Return the fingerprint made of these parts."""
    parts = tuple(factors)
    return Fingerprint(digest=_digest_over(parts), factors=parts)


def changes_between(before: Iterable[Factor], after: Iterable[Factor]) -> tuple[FactorChange, ...]:
    """Name every factor that differs, for the answer to "why did it miss"."""
    old = {factor.name: factor for factor in before}
    new = {factor.name: factor for factor in after}
    return tuple(
        FactorChange(
            name=name,
            before=old[name].text if name in old else None,
            after=new[name].text if name in new else None,
        )
        for name in dict.fromkeys((*old, *new))
        if name not in old or name not in new or old[name].digest != new[name].digest
    )


def measurements_key(profile: Profile) -> Digest:
    """Return what tells one profile's measurements of tuning from another's: all that they depend on, and no name."""
    tools, parts = profile.toolchain, (profile.capability, profile.device)
    return Digest.of(encode((_MEASURED_GENERATION, tools.torch, tools.triton, tools.cuda, tools.compiler, *parts)))


def queue_for(profile: Profile) -> str:
    """Return the queue whose workers can build for `profile`: its capability, SKU, torch, Triton and compiler.

    A readable head and a digest, since brokers limit names and dislike most characters.
    """
    parts = (
        profile.capability,
        profile.device.sku if profile.device else None,
        profile.device.mig if profile.device else None,
        profile.toolchain.torch,
        profile.toolchain.triton,
        profile.toolchain.compiler,
    )
    head = profile.capability.replace(":", "-").replace("+", "-")
    return f"build.{head}.{Digest.of(encode(parts)).short}"


def _digest_over(factors: Iterable[Factor]) -> Digest:
    running = hashlib.sha256()
    for factor in factors:
        running.update(f"{factor.name}\0{factor.digest}\n".encode())
    return Digest("sha256:" + running.hexdigest())
