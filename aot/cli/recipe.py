"""What `aot submit` and `aot build` are told of a recipe and its limits, read from the command line."""

import re
from collections.abc import Sequence

import msgspec

from aot.errors import InvalidInput
from aot.schema.recipe import Dimension, Mode, Randomness, Recipe, Regions, Route
from aot.schema.spec import Limits
from aot.schema.text import parse_word

_SIZE = re.compile(r"(\d{1,18})([KMGT]?)", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_]\w*")


def parse_dimension(text: str) -> Dimension:
    """Read `batch=1..32`, `length=128,512` (buckets), `batch=8` or `width=8..64/8` (in steps of 8)."""
    name, equals, value = text.partition("=")
    span, _, step = value.partition("/")
    low, dots, high = span.partition("..")
    try:
        if name and dots:
            return Dimension(name=name, low=int(low), high=int(high) if high else None, multiple_of=int(step or 1))
        buckets = tuple(int(part) for part in span.split(","))
        if name and equals and len(buckets) == 1 and not step:
            return Dimension(name=name, low=buckets[0], high=buckets[0])
        if name and equals and not step:
            return Dimension(name=name, buckets=buckets)
    except ValueError:
        pass
    raise InvalidInput(
        f"wanted a dimension, found {text!r}", hint="batch=1..32, width=8..64/8, length=128,512 or batch=8"
    )


def parse_option(text: str) -> tuple[str, bool | int | float | str | None]:
    """Read `name=value`, the value as JSON where it is JSON, else as text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput(f"wanted an inductor option name=value, found {text!r}", hint="epilogue_fusion=true")
    try:
        parsed = msgspec.json.decode(value)
    except msgspec.DecodeError:
        parsed = value
    if not isinstance(parsed, bool | int | float | str | None):
        raise InvalidInput(f"option {name} must be a single value, found {value!r}")
    return name, parsed


def parse_variable(text: str) -> tuple[str, str]:
    """Read `NAME=value`, a variable of the compile's environment."""
    name, equals, value = text.partition("=")
    if not equals or not _VARIABLE.fullmatch(name):
        raise InvalidInput(f"wanted a variable NAME=value, found {text!r}", hint="--env HF_HUB_OFFLINE=1")
    return name, value


def parse_limits(texts: Sequence[str]) -> Limits:
    """Read `memory_bytes=32G`, `wall_seconds=7200`, ...: what is not named keeps its default."""
    given: dict[str, float] = {}
    fields = {field.name: field for field in msgspec.structs.fields(Limits)}
    for text in texts:
        name, _, value = text.partition("=")
        field, match = fields.get(name), _SIZE.fullmatch(value)
        if field is None or match is None or not int(match[1]) or (match[2] and not name.endswith("_bytes")):
            raise InvalidInput(
                f"wanted a limit name=number, found {text!r}",
                hint=f"names are {', '.join(fields)}; bytes may end in K, M, G or T: memory_bytes=32G",
            )
        given[name] = int(match[1]) << (10 * " KMGT".index(match[2].upper() or " "))
    return msgspec.convert(given, Limits)


def make_recipe(
    *,
    mode: str,
    dimensions: Sequence[str],
    dynamic: bool | None,
    fullgraph: bool,
    random: str,
    options: Sequence[str],
    variables: Sequence[str],
    regions: str,
    route: str | None = None,
    freeze: bool,
    require_faster: bool,
) -> Recipe:
    # Left out, the recipe's own default: it is part of the build key.
    words = route.split(",") if route else ()
    routes = {"routes": tuple(parse_word(word, Route, of="the route") for word in words)} if words else {}
    return Recipe(
        mode=parse_word(mode, Mode, of="the mode"),
        fullgraph=fullgraph,
        dynamic=dynamic,
        regions=parse_word(regions, Regions, of="regions"),
        freeze=freeze,
        random=parse_word(random, Randomness, of="--random"),
        require_faster=require_faster,
        dimensions=tuple(map(parse_dimension, dimensions)),
        options=dict(map(parse_option, options)),
        environment=dict(map(parse_variable, variables)),
        **routes,
    )
