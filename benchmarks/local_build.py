"""Builds an example on this machine, for its card where it has one, and loads it as a pod would; without a registry."""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.bundle import assemble, write_bundle
from aot.compile.run import compile_source
from aot.environment import observe_environment
from aot.keys import factors_of, key_of
from aot.pipeline import Question, build_bundle, observe_profiles, open_source, pack_factory
from aot.runtime.load import load_bundle
from aot.sandbox import Bubblewrap, find_sandbox
from aot.schema.names import Name, Namespace
from aot.schema.profile import Profile
from aot.schema.recipe import Recipe
from aot.schema.report import CompileReport, Provenance, Qualification
from aot.schema.spec import Spec
from aot.source import OpenedSource
from benchmarks.models import EXAMPLES

SHARED_CACHES = Path.home() / ".cache" / "aot" / "toolchain"


@dataclass(frozen=True)
class Built:
    """A loaded model, its example inputs, how many tensors it has, and what the compile reported."""

    compiled: Any
    module: Any
    example: tuple[Any, ...]
    weights: int
    report: CompileReport


def build_locally(example: str, function: str, scratch: Path, *, recipe: Recipe | None = None) -> Built:
    """Compile, prove and load `function` of one example."""
    spec, profile, source = _open(example, function, scratch, recipe or Recipe())
    factors = factors_of(spec, profile)
    staged = build_bundle(
        Question(spec=spec, profile=profile, build_key=key_of(factors), factors=factors),
        source,
        scratch=scratch / "work",
        shared_caches=SHARED_CACHES,
        sandbox=_sandbox(),
        builder="benchmark",
        on_event=_teller(example),
        should_stop=lambda: None,
    )
    return _load(example, function, staged.directory, staged.manifest.compile_report, _device_of(profile))


def compile_locally(example: str, function: str, scratch: Path, *, recipe: Recipe) -> Built:
    """Compile and load `function` without a proof, for figures of the compile alone."""
    spec, profile, source = _open(example, function, scratch, recipe)
    compiled = compile_source(
        source,
        spec,
        profile,
        scratch=scratch / "work",
        shared_caches=SHARED_CACHES,
        sandbox=_sandbox(),
        on_event=_teller(example),
    )
    manifest = assemble(
        spec,
        profile,
        fingerprint=compiled.fingerprint,
        artifacts=compiled.artifacts,
        qualification=Qualification(),
        compile_report=compiled.report,
        provenance=Provenance(),
    )
    stored = write_bundle(scratch / "bundle", manifest=manifest, files=compiled.paths)
    return _load(example, function, stored.directory, compiled.report, _device_of(profile))


def _open(example: str, function: str, scratch: Path, recipe: Recipe) -> tuple[Spec, Profile, OpenedSource]:
    packed = pack_factory(EXAMPLES / example, f"{example}:{function}", into=scratch / "packed")
    profile = observe_profiles(observe_environment())[0]
    spec = Spec(
        namespace=Namespace("default"),
        name=Name(example),
        source=packed.source,
        profile=profile.name,
        recipe=recipe,
    )
    return spec, profile, open_source(spec, packed.paths, into=scratch / "source")


def _device_of(profile: Profile) -> str:
    return "cpu" if profile.capability.family == "cpu" else "cuda"


def _load(example: str, function: str, bundle: Path, report: CompileReport, device: str) -> Built:
    if str(EXAMPLES / example) not in sys.path:
        sys.path.insert(0, str(EXAMPLES / example))
    made = getattr(importlib.import_module(example), function)()
    module, example_inputs = made["module"].to(device), tuple(tensor.to(device) for tensor in made["args"])
    compiled = load_bundle(bundle, module, fallback="raise")
    return Built(compiled, module, example_inputs, len(module.state_dict()), report)


def _sandbox() -> Bubblewrap | None:
    sandbox = find_sandbox()
    return sandbox if isinstance(sandbox, Bubblewrap) else None


def _teller(name: str) -> Any:
    def tell(event: Mapping[str, Any]) -> None:
        print(f"{name}: {event.get('phase', '')} {event.get('step', '')}", file=sys.stderr)

    return tell
