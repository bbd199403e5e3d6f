"""Guards: conditions for using an artifact, on the host and on the inputs.

Both are flat records with a `kind`: a kind that a reader does not know is a rejection by value, so an older client
meets a newer artifact without an error and without using it.
"""

from aot.schema.codec import Document

# Kinds of input guards that relate sizes to each other or to a step: a corner of a coverage that breaks one of them
# lies outside of it. All others (dtype, rank, size, range, stride) must hold at every corner.
RELATIONS = frozenset({"equal", "divisible", "expression"})


class HostGuard(Document, kw_only=True):
    """A condition on the host. `value` is read by the rule of that kind in `aot.rules`."""

    kind: str
    value: str


class ProgramGuard(Document, kw_only=True):
    """A condition on the state that a program reads, as the compiler found it; checked at each call by its own code.

    Only the route `function` has them. `source` is where the value comes from ("L['self'].scale": L holds forward's
    arguments, G its globals); `condition` is what it must be, "" where `kind` says it all.
    """

    kind: str  # Dynamo's: "TENSOR_MATCH", "CONSTANT_MATCH", "TYPE_MATCH"; ours, at loading alone: "CODE_CONTENT"
    source: str = ""
    condition: str = ""


class InputGuard(Document, kw_only=True):
    """A condition on the flat tensor inputs of one call.

    | kind       | holds when                                                                       |
    |------------|----------------------------------------------------------------------------------|
    | dtype      | input `input` has dtype `value` ("float32")                                      |
    | device     | its device type is `value` ("cpu"), and its index that of the weights            |
    | rank       | it has `low` dimensions                                                          |
    | size       | dimension `dim` is exactly `low`                                                 |
    | range      | dimension `dim` lies in [`low`, `high`]; `high` None: no upper bound             |
    | equal      | dimension `dim` equals dimension `other[1]` of input `other[0]`                  |
    | divisible  | dimension `dim` is a multiple of `low`                                           |
    | expression | `value` is true: arithmetic and comparisons over `s[input][dim]` sizes           |
    | stride     | its strides are `strides`: an integer, or an expression over sizes `s[i][d]`;    |
    |            | a dimension of one element has no stride to compare                              |
    | no-grad    | a call does not record gradients                                                 |
    | no-autocast| autocast is off: the program was compiled without it                             |
    | apart      | input `input`, which the program writes into, shares no memory with another      |
    """

    kind: str
    input: int | None = None
    dim: int | None = None
    value: str | None = None
    low: int | None = None
    high: int | None = None
    other: tuple[int, int] | None = None
    strides: tuple[int | str, ...] | None = None
