"""`load`: from files on disk to a CompiledModel, in the process that runs.

The last arrow of the pod's flow (design.md, section 5). Bytes arrive here verified; what is decided here is whether
the live module is the program that was compiled. Neither Dynamo nor Inductor is imported and no process is started.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aot.environment import observe_environment
from aot.errors import AotError, BindingFailed, LoadFailed, NoCompatibleArtifact
from aot.runtime.bind import Binder, Likeness, Opener
from aot.runtime.compiled import CompiledModel, Fallback
from aot.runtime.constants import read_tensors
from aot.runtime.container import Container
from aot.runtime.counters import Counters
from aot.runtime.graphs import GraphOutputs, GraphSpace
from aot.runtime.guards import find_faults
from aot.runtime.liveness import is_of_program
from aot.runtime.process import observe_here
from aot.runtime.tiles import require_tiles
from aot.runtime.unit import Unit
from aot.schema.artifact import Artifact, CoverageKind
from aot.schema.decision import Selection
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.manifest import Manifest
from aot.schema.names import Reference
from aot.schema.recipe import Randomness, Route
from aot.schema.spec import File
from aot.schema.text import parse_word
from aot.select import describe_coverage, select

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from aot.bundle import StoredBundle

log = logging.getLogger("aot")

Locate = Callable[[File], Path]
"""Give the place of a file's verified bytes."""

NARROWEST = (CoverageKind.EXACT, CoverageKind.BUCKET, CoverageKind.RANGE)
LIBRARY, CUBINS, CONSTANTS = "lib/", "cubin/", "constants/"


def load_artifacts(
    manifest: Manifest,
    digest: Digest,
    module: "Module",
    *,
    selection: Selection,
    locate: Locate,
    view: Callable[[Artifact], Path],
    fallback: Fallback,
    reference: Reference | None = None,
    canary: bool = False,
    graphs: GraphOutputs | None = GraphOutputs.COPIED,
) -> CompiledModel:
    """Load the selected artifacts of one bundle for `module`.

    `graphs`: whose the results of CUDA graphs are; None where no call is to be replayed as one, whatever the artifacts
    ask for. Regions' results are always copied: others than the caller read them. `canary` runs each artifact
    on the inputs of its proof first, and leaves out one that gives something else.
    `view` gives a directory that shows an artifact's files under their own names; it is asked only where files must
    lie side by side. With fallback "eager" a misfit yields a CompiledModel that runs eagerly and says why; with
    "raise" it raises BindingFailed or LoadFailed. What is no module raises BindingFailed in any case.
    """
    _require_module(module)
    counters = Counters()
    likeness = Likeness(manifest.fingerprint, module)
    chosen = _narrowest_first(manifest, selection)
    opener = _Opener(manifest, locate, view, canary=canary, graphs=_safe_outputs(graphs, chosen))
    units, reasons = _open_units(chosen, module, opener, likeness, counters)
    if is_of_program(manifest.fingerprint):
        _try_first(units, manifest, module)
    model = CompiledModel(
        module,
        units,
        fallback=fallback,
        reference=reference,
        bundle=digest,
        selection=selection,
        reasons=reasons,
        counters=counters,
    )
    if fallback is Fallback.RAISE and model.reasons:
        raise _misfit(model.reasons)
    return model


def _require_module(module: object) -> None:
    from torch.nn import Module

    if not isinstance(module, Module):
        kind = f"the class {module.__name__}" if isinstance(module, type) else f"a {type(module).__name__}"
        raise BindingFailed(
            f"wanted a torch.nn.Module, found {kind}",
            hint="load it for an instance: the one whose calls it is to answer",
        )


def _narrowest_first(manifest: Manifest, selection: Selection) -> list[Artifact]:
    """The selected artifacts; one that was compiled for very few sizes comes before a wider one, which takes all."""
    chosen = [manifest.artifacts[index] for index in selection.artifacts]
    return sorted(chosen, key=lambda artifact: NARROWEST.index(artifact.coverage.kind))


def _safe_outputs(wanted: GraphOutputs | None, artifacts: Sequence[Artifact]) -> GraphOutputs | None:
    """As wanted of a whole program. One region's replay may overwrite what another's gave, while a third needs it."""
    if wanted is GraphOutputs.STATIC and any(instance for one in artifacts for instance in one.instances):
        log.warning("aot copies the results of CUDA graphs: the program runs in regions, which read each other's")
        return GraphOutputs.COPIED
    return wanted


def _misfit(reasons: Sequence[str]) -> BindingFailed:
    return BindingFailed(
        f"the bundle does not fit the live module: {reasons[0]}",
        hint='load it for the module it was built from, or load with fallback="eager"',
        details={"reasons": list(reasons)},
    )


def load_bundle(
    bundle_dir: Path,
    module: "Module",
    *,
    fallback: Fallback | str = Fallback.EAGER,
    verify: bool = True,
    canary: bool = False,
    graphs: GraphOutputs | None = GraphOutputs.COPIED,
    environment: Environment | None = None,
) -> CompiledModel:
    """Load a bundle from its directory by the pod's own path: observe, select, load.

    For a bundle that is not in a registry yet: a proof, or a look at a build made here. `verify` checks every byte
    against the manifest; no signature is asked for, so the directory must be trusted. `environment` is what this
    process runs on, where it cannot observe that itself.
    Raises InvalidInput for another fallback, IntegrityFailed, and with fallback "raise" what `load_artifacts` raises.
    """
    from aot.bundle import raise_first, read_bundle, verify_bundle

    policy = parse_word(fallback, Fallback, of="the fallback")
    if verify:
        raise_first(verify_bundle(bundle_dir, None))
    stored = read_bundle(bundle_dir)
    here = observe_here(environment or observe_environment(), module)
    selection = select([(stored.digest, stored.manifest)], here)
    reference = Reference(f"{stored.manifest.namespace}/{stored.manifest.name}@{stored.digest}")
    if selection.bundle is None:
        error = refuse(selection, reference)
        return load_nothing(module, error=error, fallback=policy, reference=reference, selection=selection)
    return load_artifacts(
        stored.manifest,
        stored.digest,
        module,
        selection=selection,
        locate=lambda file: stored.blob_path(file.digest),
        view=_views_of(stored, bundle_dir.with_name(f"{bundle_dir.name}.views")),
        fallback=policy,
        reference=reference,
        canary=canary,
        graphs=graphs,
    )


def _views_of(stored: "StoredBundle", place: Path) -> Callable[[Artifact], Path]:
    """What shows the files of one artifact of `stored` under their own names, below `place`."""
    from aot.bundle import materialise_view

    def view(artifact: Artifact) -> Path:
        return materialise_view(stored.blob_path, artifact, place / str(stored.manifest.artifacts.index(artifact)))

    return view


def load_nothing(
    module: "Module", *, error: AotError, fallback: Fallback, reference: Reference, selection: Selection | None = None
) -> CompiledModel:
    """Return a model that runs eagerly because of `error`, or raise it when the caller wants that."""
    if fallback is Fallback.RAISE:
        raise error
    # Where something was chosen and then could not be had, the verdicts on the others are not the reason.
    unfit = selection.reasons if selection is not None and selection.bundle is None else ()
    reasons = unfit or (error.message,)
    return CompiledModel(module, (), fallback=fallback, reference=reference, selection=selection, reasons=reasons)


def refuse(selection: Selection, reference: Reference) -> NoCompatibleArtifact:
    """The error for a selection that chose nothing."""
    count = len(selection.decisions)
    first = selection.reasons[0] if selection.reasons else "the bundle holds no artifact"
    return NoCompatibleArtifact(
        f"none of {count} artifact(s) of {reference} fits this host: {first}",
        hint=f"`aot explain {reference}` shows every artifact and why not",
        details={"reasons": list(selection.reasons)},
    )


def unexpected(reference: Reference, error: Exception) -> LoadFailed:
    """The error for a fault that nobody has foreseen."""
    return LoadFailed(
        f"loading {reference} failed unexpectedly: {type(error).__name__}: {error}",
        hint="report it with the traceback in the log; the model runs eagerly meanwhile",
    )


class _Opener:
    """Opens artifacts, and reads the lifted constants of each once for all its instances."""

    def __init__(
        self,
        manifest: Manifest,
        locate: Locate,
        view: Callable[[Artifact], Path],
        *,
        canary: bool,
        graphs: GraphOutputs | None,
    ) -> None:
        self._manifest = manifest
        self._locate = locate
        self._view = view
        self._canary = canary
        self._graphs = graphs
        self._spaces: dict[str, GraphSpace] = {}
        self._tried: dict[tuple[int, str], str | None] = {}
        self._lifted: dict[int, Mapping[str, Tensor]] = {}

    def trial(self, artifact: Artifact, device: str) -> str | None:
        if not self._canary:
            return None
        key = (id(artifact), device)
        if key not in self._tried:
            self._tried[key] = self._try(artifact, device)
        return self._tried[key]

    def _try(self, artifact: Artifact, device: str) -> str | None:
        number = self._manifest.artifacts.index(artifact)
        canary = next((one for one in self._manifest.canaries if one.artifact == number), None)
        if canary is None:
            return None  # too large to travel, or not finite: its proof has made none
        from aot.runtime.canary import check_canary

        return check_canary(
            canary,
            artifact,
            open_container=lambda: self.open(artifact, device),
            lifted=self.lifted(artifact),
            locate=self._locate,
        )

    def space(self, device: str) -> GraphSpace | None:
        if self._graphs is None or not device.startswith("cuda"):
            return None
        if device not in self._spaces:
            self._spaces[device] = GraphSpace(device, outputs=self._graphs)
        return self._spaces[device]

    def open(self, artifact: Artifact, device: str, *, num_models: int | None = None) -> Container:
        require_tiles(artifact)
        libraries = [file for file in artifact.files if file.path.startswith(LIBRARY)]
        if len(libraries) != 1:
            raise LoadFailed(f"wanted one library in the artifact, found {len(libraries)}", hint="build it again")
        path = self._locate(libraries[0])
        if not any(file.path.startswith(CUBINS) for file in artifact.files):
            return Container.open(path, device=device, num_models=num_models)
        for file in artifact.files:
            self._locate(file)  # verified before they are linked to
        directory = self._view(artifact)
        library, cubins = directory / libraries[0].path, directory / CUBINS
        return Container.open(library, device=device, cubins=cubins, num_models=num_models)

    def for_module(self, module: "Module", artifacts: Sequence[Artifact]) -> Opener:
        """Return what opens the artifacts of one live module: a function is loaded for it, a library for any."""
        if all(artifact.route is not Route.FUNCTION for artifact in artifacts):
            return self
        from aot.runtime.function import FunctionOpener

        return FunctionOpener(self, module, self._file_of)

    def _file_of(self, artifact: Artifact, path: str) -> Path:
        for file in artifact.files:
            self._locate(file)  # verified before they are linked to
        return self._view(artifact) / path

    def lifted(self, artifact: Artifact) -> Mapping[str, "Tensor"]:
        known = self._lifted.get(id(artifact))
        if known is None:
            known = {}
            for file in artifact.files:
                if file.path.startswith(CONSTANTS):
                    known |= read_tensors(self._locate(file))
            self._lifted[id(artifact)] = known
        return known


def _try_first(units: Sequence[Unit], manifest: Manifest, module: "Module") -> None:
    """Of an exported program code and attributes are not known: what cannot be compared is tried at the first call."""
    from aot.runtime.program import is_the_graph
    from aot.runtime.trial import try_first_call

    if manifest.spec.recipe.random is Randomness.REFUSE and not is_the_graph(manifest.fingerprint, module):
        for unit in units:
            try_first_call(unit)


def _open_units(
    artifacts: Sequence[Artifact], module: "Module", opener: _Opener, likeness: Likeness, counters: Counters
) -> tuple[list[Unit], tuple[str, ...]]:
    units: list[Unit] = []
    reasons: list[str] = []
    by_instance: dict[str, list[Artifact]] = {}
    for artifact in artifacts:
        if artifact.capability.family == "rocm":
            reasons.append(f"no loader for rocm: an artifact for {artifact.capability} is stored, not run")
        elif artifact.route is Route.KERNEL:
            reasons.append("route kernel holds code objects for a driver, no module: fetch them as a bundle")
        elif artifact.route not in (Route.PACKAGE, Route.FUNCTION):
            reasons.append(f"route {artifact.route} is not loaded by this call")
        elif faults := find_faults(artifact.input_guards, artifact.inputs):
            reasons.append(f"[{describe_coverage(artifact)}] input guards cannot be checked: {faults[0]}")
        else:
            for instance in artifact.instances:
                by_instance.setdefault(instance, []).append(artifact)
    for name, found in by_instance.items():
        try:
            part = module.get_submodule(name)
        except AttributeError:
            reasons += [*likeness.differences(), f"{name}: the live module has no such submodule"]
            continue
        units.append(Unit(name, part, Binder(found, part, opener.for_module(part, found), likeness), counters))
    return units, tuple(dict.fromkeys(reasons))
