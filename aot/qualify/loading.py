"""A group of artifacts loaded on the subject, as a pod loads them. Runs in the numerics child."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aot.bundle import StoredBundle, materialise_view
from aot.errors import QualificationFailed
from aot.qualify.subject import Group
from aot.runtime.compiled import CompiledModel, Fallback
from aot.runtime.load import load_artifacts
from aot.schema.artifact import Artifact
from aot.schema.decision import Selection
from aot.schema.spec import File

if TYPE_CHECKING:
    from torch.nn import Module


@contextlib.contextmanager
def loaded(bundle: StoredBundle, group: Group, module: "Module", *, views: Path) -> Iterator[CompiledModel]:
    """Give `module` with the group's artifacts and no others, whatever this host would select.

    A call outside the coverage runs eagerly and is counted. Raises QualificationFailed when anything speaks against
    the artifacts: they were built from this very module.
    """

    def locate(file: File) -> Path:
        return bundle.blob_path(file.digest)

    def view(artifact: Artifact) -> Path:
        place = views / str(bundle.manifest.artifacts.index(artifact))
        return materialise_view(bundle.blob_path, artifact, place)

    model = load_artifacts(
        bundle.manifest,
        bundle.digest,
        module,
        selection=Selection(bundle=bundle.digest, artifacts=group.indices, decisions=()),
        locate=locate,
        view=view,
        fallback=Fallback.EAGER,
    )
    try:
        if model.reasons:
            raise QualificationFailed(
                f"the artifact does not load on the module that it was built from: {model.reasons[0]}",
                hint="build it again; if it stays so, the program differs from one process to the next",
                details={"reasons": list(model.reasons), "artifacts": list(group.indices)},
            )
        yield model
    finally:
        model.unload()
