"""The bundle of a capture: entries under the conditions that they may be restored on, as one artifact of route `cache`.

Its facts say what it was made with; a run whose entries were not found is told which of these differ from its own.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from aot.capture.collect import Collected, names_places
from aot.capture.entries import Entry, graphs_of
from aot.capture.pins import FACTOR, kernels_with, key_tag
from aot.capture.shapes import graphs_in
from aot.errors import InvalidProfile
from aot.facts import read_elf
from aot.facts.versions import highest
from aot.rules.profile import profile_guards
from aot.schema.artifact import Artifact, Coverage, CoverageKind
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.guard import HostGuard
from aot.schema.profile import Profile
from aot.schema.recipe import Recipe, Route, command_recipe
from aot.schema.spec import Blob, CommandSource

REGION = "caches"
COLD, WARM, GRAPHS, TAG = "first_seconds", "second_seconds", "graphs", "key_tag"
MOST_GRAPHS, RANKS = 256, "world_size"
# What torch's key or its guards contain and an environment decides; places are left out, for a key has none of them.
_FACTORS = re.compile(
    r"(TORCHINDUCTOR_|TORCH_COMPILE|TORCHDYNAMO_|TRITON_|ATEN_CPU)\w+|CXX|OMP_NUM_THREADS|WORLD_SIZE"
    r"|PET_NPROC_PER_NODE|PET_NNODES"
)
_LEFT_OUT = re.compile(r"\d+ more")
_PLACES = re.compile(r"\w+_(DIR|PATH|HOME|LOG|LOGS|OUTPUT|TRACE)")


def capture_recipe(environ: Mapping[str, str]) -> Recipe:
    """Return the recipe of a capture: torch's own options, and what the command's environment sets of them."""
    kept = {name: value for name, value in environ.items() if _FACTORS.fullmatch(name) and not _PLACES.fullmatch(name)}
    return command_recipe(kept)


def command_source(command: Sequence[str], entries: Sequence[Entry], tree: Blob | None = None) -> CommandSource:
    over = encode(tuple((entry.path, entry.digest) for entry in sorted(entries, key=lambda one: one.path)))
    return CommandSource(command=tuple(command), tree=tree, entries=Digest.of(over))


def artifact_of(
    collected: Collected,
    profile: Profile,
    effective: Environment,
    *,
    environ: Mapping[str, str],
    seconds: tuple[float, float | None],
    recorded: Mapping[str, str] | None = None,
) -> Artifact:
    """Return the artifact of these entries; `seconds` are of the first run, and of the second where there was one.

    `effective` is the host as the command used it (`aot.capture.pins.effective_environment`), `recorded` what it was
    pinned by (`aot.capture.pins.pins`).
    """
    cold, warm = seconds
    graphs = graphs_of(entry.path for entry in collected.entries)
    guards = _guards(collected, profile, effective)
    facts = {
        TAG: key_tag(effective),
        GRAPHS: str(len(graphs)),
        COLD: f"{cold:.2f}",
        **({} if warm is None else {WARM: f"{warm:.2f}"}),
        **{f"{FACTOR}{name}": value for name, value in factors_of_run(effective, environ, recorded=recorded).items()},
    }
    return Artifact(
        region=REGION,
        instances=(),
        route=Route.CACHE,
        capability=profile.capability,
        coverage=captured(len(graphs), graphs_in(collected), guards),
        files=tuple(entry.as_file() for entry in collected.entries),
        host_guards=guards,
        facts=facts,
    )


def factors_of_run(
    effective: Environment, environ: Mapping[str, str], *, recorded: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return what a run has of everything that decides whether torch finds an entry; `recorded` as `pins` has it."""
    container = effective.container
    known = {
        "torch": container.torch,
        "triton": container.triton,
        "python": container.python,
        "cards": " ".join(gpu.sku for gpu in effective.node.gpus or ()) or None,
        "threads": None if container.threads is None else str(container.threads),
        "isa": effective.node.cpu.target if effective.node.cpu else None,
        **capture_recipe(environ).environment,
        **kernels_with(effective, environ, recorded=recorded),
    }
    return {name: value for name, value in known.items() if value is not None}


def differences(artifact: Artifact, effective: Environment, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return each factor of the capture that this run has otherwise, in words."""
    now = factors_of_run(effective, environ, recorded=artifact.facts)
    then = {name.removeprefix(FACTOR): value for name, value in artifact.facts.items() if name.startswith(FACTOR)}
    return tuple(
        f"{name} was {then.get(name, 'not set')}, is {now.get(name, 'not set')}"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    )


def saved_seconds(artifact: Artifact) -> float | None:
    """Return what the second run of the capture was quicker by than the first; None where there was no second."""
    try:
        return max(0.0, float(artifact.facts[COLD]) - float(artifact.facts[WARM]))
    except (KeyError, ValueError):
        return None


def with_new(artifact: Artifact, new: Collected) -> Artifact:
    """Return the artifact with entries that a later run wrote. Never smaller: what was there stays as it was.

    But for tables of what is where: the run has read them, and added to them.
    """
    known = {file.path for file in artifact.files}
    added = tuple(entry.as_file() for entry in new.entries if entry.path not in known)
    tables = {entry.path: entry.as_file() for entry in new.entries if names_places(entry.path)}
    files = (*(tables.get(file.path, file) for file in artifact.files), *added)
    graphs = len(graphs_of(file.path for file in files))
    told = graphs_of(known)
    fresh = tuple(entry for entry in new.entries if entry.graph not in told)
    lines = (*artifact.coverage.constraints[1:], *graphs_in(Collected(fresh, new.paths)))
    coverage = captured(graphs, lines, artifact.host_guards)
    return msgspec.structs.replace(
        artifact, files=files, coverage=coverage, facts={**artifact.facts, GRAPHS: str(graphs)}
    )


def captured(graphs: int, lines: Iterable[str], guards: Iterable[HostGuard]) -> Coverage:
    """Return what a bundle of so many graphs answers for: by how many processes, which graphs, and how many more.

    `lines` are of single graphs. Those of a bundle may end with the number that it left out, which is counted anew.
    """
    told = [line for line in lines if not _LEFT_OUT.fullmatch(line)][:MOST_GRAPHS]
    by = "".join(f" by {guard.value} processes" for guard in guards if guard.kind == RANKS)
    more = (f"{graphs - len(told)} more",) if graphs > len(told) else ()
    return Coverage(kind=CoverageKind.EXACT, constraints=(f"{graphs} graphs, as they were captured{by}", *told, *more))


def require_level(profile: Profile, effective: Environment) -> None:
    """Raise InvalidProfile where the entries of this host are not of the profile's CPU level."""
    cpu, wanted = effective.node.cpu, profile.capability
    if wanted.family == "cpu" and (cpu is None or cpu.level != wanted.level):
        raise InvalidProfile(
            f"the profile {profile.name} is for {wanted}, the entries of this host are for {cpu or 'an unknown CPU'}",
            hint="name the profile of this host, or set ATEN_CPU_CAPABILITY (avx2: x86-64-v3) for the command",
        )


def _guards(collected: Collected, profile: Profile, effective: Environment) -> tuple[HostGuard, ...]:
    container, node = effective.container, effective.node
    values = {
        **profile_guards(profile),
        "machine": node.machine,
        "torch": container.torch,
        "python": ".".join((container.python or "").split(".")[:2]) or None,
        "triton": container.triton,
        "isa": node.cpu.target if node.cpu else None,
        RANKS: _ranks(effective),
        **_floors(collected),
    }
    return tuple(HostGuard(kind=kind, value=value) for kind, value in sorted(values.items()) if value is not None)


def _ranks(effective: Environment) -> str | None:
    """None for one process: code without collectives serves every number of them (`aot.rules.process`)."""
    number = effective.process.world_size
    return str(number) if number is not None and number > 1 else None


def _floors(collected: Collected) -> dict[str, str | None]:
    """What the shared objects among the entries ask of the C and C++ libraries."""
    found = [read_elf(collected.paths[entry.digest]) for entry in collected.entries if entry.path.endswith(".so")]
    return {
        "libc": highest(elf.libc_floor for elf in found if elf.libc_floor),
        "libstdcxx": highest(elf.libstdcxx_floor for elf in found if elf.libstdcxx_floor),
    }
