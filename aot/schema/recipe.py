"""Recipes: how a program is to be compiled, and the shapes it must answer for."""

from enum import StrEnum

from aot.schema.codec import Document


class Route(StrEnum):
    PACKAGE = "package"
    CACHE = "cache"
    FUNCTION = "function"
    KERNEL = "kernel"  # one Triton kernel a region, as a code object for the driver
    BYTECODE = "bytecode"  # the modules of one installed distribution a region, compiled to bytecode


class Mode(StrEnum):
    """torch.compile's modes. A route that cannot honour one refuses it."""

    DEFAULT = "default"
    REDUCE_OVERHEAD = "reduce-overhead"
    MAX_AUTOTUNE = "max-autotune"
    MAX_AUTOTUNE_NO_CUDAGRAPHS = "max-autotune-no-cudagraphs"

    @property
    def tunes(self) -> bool:
        """True where candidates are compared by measuring them."""
        return self in (Mode.MAX_AUTOTUNE, Mode.MAX_AUTOTUNE_NO_CUDAGRAPHS)


class Purpose(StrEnum):
    INFERENCE = "inference"
    TRAINING = "training"


class Regions(StrEnum):
    WHOLE = "whole"
    AUTO = "auto"


class Randomness(StrEnum):
    """What to do with a program that draws random numbers: its outputs cannot be compared with eager's."""

    REFUSE = "refuse"
    UNCHECKED = "unchecked"  # built; qualified without the numerics, and marked so


OPEN_END = 1 << 20


class Dimension(Document, kw_only=True):
    """One named size: a range [low, high] in steps of `multiple_of`, or a few buckets compiled one by one."""

    name: str
    low: int = 1
    high: int | None = None
    multiple_of: int = 1
    buckets: tuple[int, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether there is no upper end, or one beyond any real call (an export writes 2**63 - 1 for "no limit")."""
        return self.high is None or self.high >= OPEN_END

    @property
    def ends(self) -> tuple[int, ...]:
        """The lowest size, and the highest where there is one, each once. Nobody calls with a size of zero."""
        step = max(1, self.multiple_of)
        low = -(-max(self.low, 1) // step) * step
        if self.high is None or self.is_open:
            return (low,)
        return tuple(dict.fromkeys((low, max(low, self.high // step * step))))


class Recipe(Document, kw_only=True):
    """Coverage and options. Every field is a factor of the build key, so nothing here may name a place or a time."""

    mode: Mode = Mode.MAX_AUTOTUNE
    fullgraph: bool = True
    dynamic: bool | None = None  # None: as the source's own dimensions say; True: every size; False: exact
    regions: Regions = Regions.WHOLE
    purpose: Purpose = Purpose.INFERENCE
    routes: tuple[Route, ...] = (Route.PACKAGE, Route.CACHE)
    freeze: bool = False
    random: Randomness = Randomness.REFUSE
    require_faster: bool = False
    dimensions: tuple[Dimension, ...] = ()  # narrows or replaces the source's dimensions, by name
    options: dict[str, bool | int | float | str | None] = {}  # torch._inductor.config overrides
    environment: dict[str, str] = {}  # what a child process sees besides an empty environment


def command_recipe(environment: dict[str, str]) -> Recipe:
    """Return the recipe of captured caches: torch's own options, and what the command's environment sets of them."""
    return Recipe(mode=Mode.DEFAULT, fullgraph=False, routes=(Route.CACHE,), environment=environment)
