"""The command that would build what a host lacks, from the spec of a bundle that it cannot use.

Pure. What no bundle holds, the source above all, is a placeholder in capitals.
"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import asdict

from aot.nearest import Need
from aot.schema.devices import card_profile
from aot.schema.manifest import Manifest
from aot.schema.names import Reference
from aot.schema.profile import device_profile_name
from aot.schema.recipe import Dimension, Recipe, Route
from aot.schema.spec import BytecodeSource, CommandSource, FactorySource, KernelSource, Limits, ProgramSource, Spec

SOURCE, PROGRAM, WEIGHTS = "SOURCE", "PROGRAM.pt2", "WEIGHTS"
SIGNATURES, PROFILE, TARGET = "SIGNATURES.toml", "PROFILE", "TARGET"


@dataclass(frozen=True)
class Command:
    """`words` as a shell takes them, option and value together; `placeholders`: what to put in whose place."""

    words: tuple[str, ...]
    placeholders: dict[str, str]

    @property
    def line(self) -> str:
        return " ".join(self.words)

    def lines(self, width: int | None) -> list[str]:
        """The command on one line, or on as many as `width` needs, each ending as a shell goes on."""
        if width is None or len(self.line) <= width:
            return [self.line]
        lines, line = [], self.words[0]
        for word in self.words[1:]:
            if len(line) + len(word) + 3 > width:
                lines.append(f"{line} \\")
                line = f"    {word}"
            else:
                line = f"{line} {word}"
        return [*lines, line]


def build_command(reference: Reference, spec: Spec, need: Need) -> Command:
    """Return the `aot build` (of a kernel `aot kernel build`) that asks `spec` again, for what `need` says."""
    name = str(reference).partition("@")[0]
    holes: dict[str, str] = {}
    origin = f"; it was commit {spec.commit.revision}" if spec.commit else ""
    match spec.source:
        case KernelSource(entry=entry, requirements=pins):
            holes |= {SOURCE: f"the source tree{origin}", SIGNATURES: "the file of [[signature]] tables"}
            if need.capability is None:
                holes[TARGET] = "a target of `aot kernel targets`"
            words = ["aot kernel build", name, f"--source {SOURCE}", f"--entry {shlex.quote(entry)}"]
            words += [f"--signatures {SIGNATURES}", f"--target {need.capability or TARGET}", *_require(pins)]
            return Command(tuple(words), holes)
        case BytecodeSource(distributions=distributions):
            words = ["aot bytecode build", name, *(f"--distribution {one.name}" for one in distributions), "--push"]
            return Command(tuple(words), holes)
        case CommandSource(command=command):
            holes[SOURCE] = f"the tree that the command runs in{origin}"
            words = ["aot capture", name, f"--source {SOURCE} --push --", shlex.join(command)]
            return Command(tuple(words), holes)
        case FactorySource(entry=entry, requirements=pins):
            holes[SOURCE] = f"the source tree, which no bundle holds{origin}"
            words = [f"--source {SOURCE}", f"--entry {shlex.quote(entry)}"]
        case ProgramSource(requirements=pins):
            holes[PROGRAM] = f"the exported program, which no bundle holds{origin}"
            words = [f"--source {PROGRAM}"]
    if need.profile is None:
        holes[PROFILE] = f"no registered profile serves this host: start a worker for {describe_need(need)}"
    if spec.weights:
        holes[WEIGHTS] = "the directory of the weights"
    words += [f"--profile {need.profile.name if need.profile else PROFILE}", *_require(pins)]
    words += [f"--weights {shlex.quote(f'{WEIGHTS}/{file.path}')}" for file in spec.weights]
    words += [*_recipe(spec.recipe), *_limits(spec.limits)]
    return Command(("aot build", name, *words), holes | _left_out(spec.recipe))


def other_card_command(reference: Reference, manifests: Iterable[Manifest], need: Need) -> Command | None:
    """Return the `aot build --from` that makes untuned code for the card, of a bundle that keeps its kernels.

    None where code for the card can be made of none of them under the host's torch, where one was built on such a card,
    and where the card has no name to ask for.
    """
    if need.sku is None or need.capability is None or need.capability.family != "cuda":
        return None
    from aot.pipeline.known import is_built_on, why_not  # with what compiles: of all answers only this one needs it

    name, known = str(reference).partition("@")[0], tuple(manifests)
    for manifest in known:
        toolchain = manifest.profile.toolchain
        card = need.profile or card_profile(device_profile_name(need.sku), toolchain)
        if card is None or need.torch not in (None, toolchain.torch) or why_not(manifest, card) is not None:
            continue
        if not any(is_built_on(one, card) for one in known):
            return Command(("aot build", name, "--here", f"--from {name}", f"--profile {card.name}"), {})
    return None


def describe_need(need: Need) -> str:
    """What a build must be for, as far as it is known: "cuda:sm_90, NVIDIA H100 80GB HBM3, torch 2.12.0+cu130"."""
    known = {"torch": need.torch, "CUDA": need.cuda, "Python": need.python, "libc": need.libc}
    parts = [need.capability or "a capability that was not observed", *([need.sku] if need.sku else [])]
    return ", ".join([*parts, *(f"{name} {value}" for name, value in known.items() if value)])


def spell_dimension(dimension: Dimension) -> str:
    """As `--dim` reads it."""
    if dimension.buckets:
        return f"{dimension.name}={','.join(map(str, dimension.buckets))}"
    if dimension.low == dimension.high:
        return f"{dimension.name}={dimension.low}"
    step = f"/{dimension.multiple_of}" if dimension.multiple_of != 1 else ""
    return f"{dimension.name}={dimension.low}..{'' if dimension.high is None else dimension.high}{step}"


def spell_option(name: str, value: Any) -> str:
    """As `--option` reads it: JSON, and text as it is where it is no JSON."""
    if isinstance(value, str):
        try:
            msgspec.json.decode(value)
        except msgspec.DecodeError:
            return f"{name}={value}"
    return f"{name}={msgspec.json.encode(value).decode()}"


def _require(pins: tuple[str, ...]) -> list[str]:
    return [f"--require {shlex.quote(pin)}" for pin in pins]


def _recipe(recipe: Recipe) -> Iterator[str]:
    """Every option of the recipe that is not what the command takes by itself."""
    plain = Recipe()
    for name in ("mode", "regions", "random"):
        if (value := getattr(recipe, name)) != getattr(plain, name):
            yield f"--{name} {value}"
    if _by_function(recipe):
        yield f"--route {','.join(recipe.routes)}"
    if recipe.dynamic is not None:
        yield "--dynamic" if recipe.dynamic else "--no-dynamic"
    if not recipe.fullgraph:
        yield "--no-fullgraph"
    yield from (f"--dim {shlex.quote(spell_dimension(one))}" for one in recipe.dimensions)
    yield from (f"--option {shlex.quote(spell_option(*one))}" for one in sorted(recipe.options.items()))
    yield from (f"--env {shlex.quote(f'{name}={value}')}" for name, value in sorted(recipe.environment.items()))
    if recipe.freeze:
        yield "--freeze"
    if recipe.require_faster:
        yield "--require-faster"


def _by_function(recipe: Recipe) -> bool:
    return Route.FUNCTION in recipe.routes


def _limits(limits: Limits) -> Iterator[str]:
    plain = asdict(Limits())
    yield from (f"--limit {name}={int(value)}" for name, value in asdict(limits).items() if value != plain[name])


def _left_out(recipe: Recipe) -> dict[str, str]:
    """What the recipe has and the command has no option for."""
    plain = Recipe()
    different = [
        f"{name} {value}"
        for name, value, usual in (
            ("purpose", recipe.purpose, plain.purpose),
            ("routes", ", ".join(recipe.routes), ", ".join(plain.routes)),
        )
        if value != usual and not (name == "routes" and _by_function(recipe))
    ]
    return {"NOT IN THE COMMAND": f"{'; '.join(different)}: no option says it"} if different else {}
