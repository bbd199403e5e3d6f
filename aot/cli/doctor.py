"""`aot doctor`: what this host is, what is wrong with it, and whether that keeps it from what it is for.

A script asks by the exit code: `aot doctor --for building && python -m worker`. What makes a host slower, or may be
meant so, is a warning and changes no code.
"""

from collections.abc import Mapping

from aot.cli.exits import Exit, exit_code_of, worst
from aot.cli.options import Ability
from aot.cli.output import table
from aot.client.connect import open_client
from aot.compile.toolchain import observe_toolchain
from aot.config import Config, whole_environ
from aot.environment import observe_environment
from aot.environment.problem import Problem
from aot.environment.problems import Place, describe_problems
from aot.errors import AotError
from aot.schema.codec import Response
from aot.schema.environment import Environment, Gpu
from aot.schema.wire.errors import ErrorBody

# What is not named here slows a host, or may be meant so: cards that are hidden, a container that drops privileges.
_KEEPS_FROM: Mapping[str, Ability] = {
    **dict.fromkeys(("noexec-cache", "ro-cache", "unusable-cache"), Ability.SERVING),
    **dict.fromkeys(("no-driver-libraries", "no-compute-libraries", "driver-too-old"), Ability.SERVING),
    **dict.fromkeys(("no-compiler", "broken-compiler", "static-libstdcxx"), Ability.BUILDING),
    **dict.fromkeys(("noexec-scratch", "ro-scratch", "unusable-scratch"), Ability.BUILDING),
}
_OF_COMPILERS = ("broken-compiler", "static-libstdcxx")
_OF_CARDS = ("no-driver-libraries", "no-compute-libraries", "driver-too-old")


class Finding(ErrorBody, kw_only=True):
    """One thing that is wrong. `keeps_from` is empty for a warning; a host that cannot serve cannot build either."""

    keeps_from: str = ""


class Report(Response, kw_only=True):
    """What `aot doctor` says of this host. `exit_code` is that of the command."""

    environment: Environment
    problems: tuple[Finding, ...]
    registry: str = ""  # its address and version; empty where none is configured or it cannot be used
    exit_code: int


def look_around(config: Config, *, wanted: Ability | None = None) -> Report:
    """Observe this host and what is wrong with it, and with the way to its registry where one is configured.

    `wanted` is what it is for. Left out: serving, and building where it has a compiler.
    """
    environment = observe_environment()
    found = [_weighed(problem, environment) for problem in describe_problems(Place(cache=config.cache_dir))]
    has_none = any(one.code == "no-compiler" and one.keeps_from for one in found)
    # A host without any compiler is a pod, unless it is said to be a builder: where builds would work says nothing.
    builds = wanted is Ability.BUILDING or (wanted is None and not has_none)
    if wanted is Ability.BUILDING and not has_none:
        found += _toolchain()
    matters = (Ability.SERVING, Ability.BUILDING) if builds else (Ability.SERVING,)
    codes = [Exit.NOTHING_FITS for one in found if one.keeps_from in matters]
    registry, refused = "", list[AotError]()
    if config.url and not config.offline:
        try:
            client = open_client(config.url, config.token, timeout_seconds=config.timeout_seconds, attempts=1)
            registry = f"{config.url}, version {client.get_health().version}"
        except AotError as error:
            refused.append(error)
        if not config.trusted_keys:
            found.append(_no_trust())
    found += [_finding(error) for error in refused]
    codes += map(exit_code_of, refused)
    return Report(environment=environment, problems=tuple(found), registry=registry, exit_code=worst(codes))


def _weighed(problem: Problem, environment: Environment) -> Finding:
    ability = _KEEPS_FROM.get(problem.kind)
    variables = whole_environ()
    if problem.kind == "no-driver-libraries" and environment.container.cuda is None:
        ability = None  # nothing here would use a card: a pod that serves on the CPU of a node with cards
    if problem.kind in _OF_CARDS and variables.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        ability = None  # the same, said for a torch that could
    if problem.kind in (*_OF_COMPILERS, "no-compiler") and variables.get("CXX"):
        ability = None  # builds take the system's own
    return Finding(code=problem.kind, message=problem.text, hint=problem.hint, keeps_from=ability or "")


def _toolchain() -> list[Finding]:
    """What keeps every build from beginning."""
    try:
        observe_toolchain()
    except AotError as error:
        return [_finding(error, keeps_from=Ability.BUILDING)]
    return []


def _finding(error: AotError, *, keeps_from: Ability = Ability.SERVING) -> Finding:
    body = ErrorBody.of(error)
    return Finding(
        code=body.code, message=body.message, hint=body.hint, details=body.details, keeps_from=keeps_from.value
    )


def _no_trust() -> Finding:
    # A warning: a lock may pin keys, and a worker needs none.
    return Finding(
        code="no-trusted-keys",
        message="AOT_TRUSTED_KEYS is not set: no bundle of the registry will be used",
        hint="set it to the line that `aot up` prints, or pull by a lock that pins keys",
    )


def report_lines(report: Report) -> list[str]:
    lines = environment_lines(report.environment)
    lines += [f"registry   {report.registry}"] if report.registry else []
    for one in report.problems:
        kind = f"problem (keeps it from {one.keeps_from})" if one.keeps_from else "warning"
        lines += ["", f"{kind}: {one.message}", *([f"  try: {one.hint}"] if one.hint else [])]
    return lines if report.problems else [*lines, "", "no problem found"]


def environment_lines(environment: Environment) -> list[str]:
    node, container = environment.node, environment.container
    gpus = [card_words(gpu) for gpu in node.gpus or ()]
    facts = {
        "machine": node.machine,
        "cpu": node.cpu,
        "model": node.cpu_model,
        "memory": None if node.memory_bytes is None else f"{node.memory_bytes >> 20} MiB",
        "kernel": node.kernel,
        "driver": node.driver or "none",
        "gpus": None if node.gpus is None else ", ".join(gpus) or "none",
        "torch": container.torch or "not installed",
        "cuda": None if container.torch is None else container.cuda or "torch is built without",
        "triton": container.triton or "not installed",
        "python": container.python,
        "libc": container.libc,
        "libstdc++": container.libstdcxx and f"GLIBCXX_{container.libstdcxx}",
        "threads": container.threads,
        "cores": container.cores,
    }
    return table(
        ("fact", "value"), [(name, "not known" if fact is None else str(fact)) for name, fact in facts.items()]
    )


def card_words(gpu: Gpu) -> str:
    """One card, or one slice of one, with what code is generated and tuned for."""
    slice_of = f" MIG {gpu.mig}" if gpu.mig else ""
    units = f", {gpu.sm_count} {'SM' if gpu.capability.family == 'cuda' else 'CU'}" if gpu.sm_count else ""
    return f"{gpu.sku}{slice_of} ({gpu.capability}{units}, {gpu.memory_bytes >> 20} MiB)"
