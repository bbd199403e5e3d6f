"""What the parent of a compile child writes down for it, and what the child leaves behind.

Both are files in the child's own directories; no torch here, since the parent reads and writes them too.
"""

from enum import StrEnum

from aot.schema.artifact import Artifact, ConstantMeta
from aot.schema.codec import Document
from aot.schema.factor import Fingerprint
from aot.schema.profile import Profile
from aot.schema.recipe import Recipe
from aot.schema.report import CompileReport
from aot.schema.spec import KernelSignature
from aot.schema.wire.errors import ErrorBody

OUTCOME_FILE = "outcome.json"
ARTIFACTS_DIRECTORY = "artifacts"


class JobKind(StrEnum):
    SOURCE = "source"
    KERNEL = "kernel"  # a Triton kernel, for a card that need not be here
    KEPT = "kept"  # what packages keep of their kernels, for another card; `tree` has one file for each artifact
    WARM = "warm"  # build a model of our own, for the headers that later builds share


class CompileJob(Document, kw_only=True):
    """One child's work. Paths are as the child sees them; `seed` makes a factory's random weights repeatable."""

    kind: JobKind = JobKind.SOURCE
    tree: str = ""
    entry: str = ""
    requirements: tuple[str, ...] = ()  # exact pins, of a source tree
    program: str = ""
    signatures: tuple[KernelSignature, ...] = ()
    recipe: Recipe = Recipe()
    profile: Profile
    weights: tuple[str, ...] = ()  # safetensors files, loaded into the module before anything else
    seed: int = 0
    out: str  # where the outcome and the artifacts go
    build: str  # private: caches, temporary files, home
    headers: str = ""  # read-only, shared between builds
    tuning: str = ""  # what earlier builds have measured; what this one measures is to be left then


class CompileOutcome(Document, kw_only=True):
    """What came of a job. Artifact number n has its files below `artifacts/<n>/`, under their own paths.

    `parameters` are all parameters and buffers of the module, whether or not an artifact asks for them.
    """

    artifacts: tuple[Artifact, ...] = ()
    fingerprint: Fingerprint | None = None
    parameters: tuple[ConstantMeta, ...] = ()
    report: CompileReport = CompileReport()
    error: ErrorBody | None = None
