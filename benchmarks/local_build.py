"""Builds an example on this machine, by the pipeline and without a registry, and loads it as a pod would."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.environment import observe_environment
from aot.keys import factors_of, key_of
from aot.pipeline import Question, build_bundle, observe_profiles, open_source, pack_factory
from aot.runtime.load import load_bundle
from aot.sandbox import Bubblewrap, find_sandbox
from aot.schema.names import Name, Namespace
from aot.schema.recipe import Recipe
from aot.schema.spec import Spec
from benchmarks.models import EXAMPLES

ENTRIES = {"small": ("small", "build"), "wide": ("small", "build_wide")}


@dataclass(frozen=True)
class Built:
    """A loaded model, its example inputs, and how many tensors it is bound to."""

    compiled: Any
    example: tuple[Any, ...]
    weights: int


def build_locally(name: str, scratch: Path, *, recipe: Recipe | None = None) -> Built:
    """Compile, prove and load one example of `ENTRIES`."""
    module_name, function = ENTRIES[name]
    tree = EXAMPLES / module_name
    packed = pack_factory(tree, f"{module_name}:{function}", into=scratch / "packed")
    profile = observe_profiles(observe_environment())[0]
    spec = Spec(
        namespace=Namespace("default"),
        name=Name(name),
        source=packed.source,
        profile=profile.name,
        recipe=recipe or Recipe(),
    )
    factors = factors_of(spec, profile)
    sandbox = find_sandbox()
    staged = build_bundle(
        Question(spec=spec, profile=profile, build_key=key_of(factors), factors=factors),
        open_source(spec, packed.paths, into=scratch / "source"),
        scratch=scratch / "work",
        shared_caches=Path.home() / ".cache" / "aot" / "toolchain",
        sandbox=sandbox if isinstance(sandbox, Bubblewrap) else None,
        builder="benchmark",
        on_event=lambda event: print(f"{name}: {event.get('phase', '')} {event.get('step', '')}", file=sys.stderr),
        should_stop=lambda: None,
    )
    sys.path.insert(0, str(tree))
    import importlib

    made = getattr(importlib.import_module(module_name), function)()
    compiled = load_bundle(staged.directory, made["module"], fallback="raise")
    return Built(compiled, made["args"], len(list(made["module"].state_dict())))
