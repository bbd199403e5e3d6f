"""What the parent of a proof writes down for its children, and what they leave behind.

Files in directories that the parent chose; no torch here. What a child that ran the source's code says is a claim: the
parent reads it strictly, and takes from it only what it cannot see from outside.
"""

from collections.abc import Callable
from enum import StrEnum

from aot.emulator import EmulatedCpu
from aot.schema.artifact import Coverage, Speed
from aot.schema.codec import Document
from aot.schema.environment import Clocks
from aot.schema.manifest import Canary
from aot.schema.wire.errors import ErrorBody

JOB_FILE = "job.json"
CLAIM_FILE = "claim.json"
CASES_DIRECTORY = "cases"
CANARY_DIRECTORY = "canary"

# Steps that a start child tells of, and variants of a case.
BUILT, OUTPUT = "built", "output"
CONSECUTIVE = ("", "second call")
# Where calls are replayed as CUDA graphs the second is captured, and only the third shows a replay with other inputs.
REPLAYED = (*CONSECUTIVE, "replay")
NON_CONTIGUOUS, CANARY = "non-contiguous", "canary"

# Sends one step to the parent, which stamps the time of its arrival.
Tell = Callable[[str], None]


class Task(StrEnum):
    EAGER = "eager"  # build the module and call it once
    START = "start"  # the same with the bundle loaded: a pod's way
    NUMERICS = "numerics"  # every coverage at its boundaries, and speed
    COMPARE = "compare"  # the outputs of numerics; runs none of the source's code


class Base(StrEnum):
    """Where the weights of a proof come from, before they are perturbed."""

    GIVEN = "given"
    FACTORY = "factory"
    SEEDED = "seeded"


class ProofJob(Document, kw_only=True):
    """One child's work. Paths are as the child sees them.

    `bundle` is a directory as `aot.bundle` lays it out. `seconds` bounds what numerics may take before they leave out
    the largest points; `memory_bytes` is the child's limit. With `checked` False outputs are not kept: the program
    draws random numbers. `cases` is for COMPARE: the files to read. `coverages` are those of the first example, which a
    start calls with. `cpu` is what the child runs on where that is
    emulated: it then observes this in place of the host's, and measures no speed.
    """

    task: Task
    tree: str = ""
    entry: str = ""
    program: str = ""
    weights: tuple[str, ...] = ()
    bundle: str = ""
    out: str
    seed: int = 0
    device: str = "cpu"  # where the program is to be, in torch's words
    seconds: float = 120.0
    memory_bytes: int = 8 << 30
    checked: bool = True
    frozen: bool = False
    cases: tuple[str, ...] = ()
    coverages: tuple[Coverage, ...] = ()
    cpu: EmulatedCpu | None = None

    @property
    def base(self) -> Base:
        if self.weights:
            return Base.GIVEN
        return Base.FACTORY if self.entry else Base.SEEDED


class Case(Document, kw_only=True):
    """One call at one point: who answered, and where the outputs lie (`cases/<file>`, safetensors).

    Keys of the file: `<role>.<leaf>`, the role being `eager`, `compiled` or `reference`. A form spells the structure
    of the result on either side.
    """

    artifacts: tuple[int, ...]
    point: dict[str, int]
    weights: str
    variant: str = ""
    reference: str = "float64"
    file: str = ""
    eager_form: str = ""
    compiled_form: str = ""
    compiled: int = 0  # regions (or whole programs) that compiled code answered for
    misses: int = 0
    last_miss: str = ""


class SpeedClaim(Document, kw_only=True):
    """A measured point; what the card held for graphs by then, and its clocks when the calls had been measured."""

    artifacts: tuple[int, ...]
    speed: Speed
    graph_memory_bytes: int = 0
    clocks: Clocks | None = None


class Omission(Document, kw_only=True):
    """A point that was not tried, or not in full, and why."""

    artifacts: tuple[int, ...]
    point: dict[str, int]
    reason: str


class Claim(Document, kw_only=True):
    """What a child says of itself."""

    error: ErrorBody | None = None
    modules: tuple[str, ...] = ()
    counters: dict[str, int] = {}
    torch: str = ""
    cases: tuple[Case, ...] = ()
    speeds: tuple[SpeedClaim, ...] = ()
    omissions: tuple[Omission, ...] = ()
    canaries: tuple[Canary, ...] = ()  # without their files, which lie in `canary/<artifact>/`


class Compared(Document, kw_only=True):
    """The verdict on one file of outputs: of its worst leaf where they do not agree."""

    file: str
    agrees: bool
    max_error: float = 0.0
    eager_error: float = 0.0
    reason: str = ""


class Comparisons(Document, kw_only=True):
    compared: tuple[Compared, ...] = ()
    error: ErrorBody | None = None
