"""The symbols of an exported program's sizes: where each is found among its inputs, and what is assumed of it.

Read by `aot.compile.guards`. Two worlds meet here. torch writes sizes as sympy expressions over symbols (`2*s26`), a
guard as an expression over the sizes of inputs (`2 * s[0][0]`). A symbol is *placed* by the first dimension that is
the symbol itself, or `a * symbol + b`.

What is assumed comes from three sources, none of them complete: `range_constraints` (what the user declared), the
ShapeEnv's own ranges (what the trace took for granted: at least 2 unless traced size-obliviously), and its guards. A
compile adds to the ShapeEnv: Inductor decides by size as well (`batch < 16` for a matrix product), so a program is
read *after* it was compiled. A program that was loaded from a file has no ShapeEnv of its own; `_guards_code` then
holds its guards as Python text.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot.compile.guard_terms import guards_as_text, read_terms, unreadable
from aot.errors import MalformedDocument, SourceNotExportable
from aot.runtime.expression import read_expression, size_term

if TYPE_CHECKING:
    import sympy
    from torch import Tensor
    from torch.export import ExportedProgram

Place = tuple[int, int]  # input, dimension
_SPECIALIZED = 2  # torch traces sizes as at least this: 0 and 1 are constants to it


@dataclass(frozen=True, slots=True)
class Bounds:
    """A closed range of sizes; `high` None: no upper bound."""

    low: int = 0
    high: int | None = None

    def within(self, low: int, high: int | None) -> "Bounds":
        tighter = high if self.high is None else self.high if high is None else min(self.high, high)
        return Bounds(max(self.low, low), tighter)

    def __str__(self) -> str:
        return f"{self.low}.." if self.high is None else f"{self.low}..{self.high}"


class Symbols:
    """Everything known about the sizes of one exported program's tensor inputs.

    `tensors` are the placeholders' values in the order of the flat tensor inputs, `paths` their places in the call and
    `spoken` what people call them; `names` maps symbols to names of dimensions ("seq/8" for a symbol that counts steps
    of 8). Raises SourceNotExportable when a size depends on what no input shows.
    """

    def __init__(
        self,
        program: "ExportedProgram",
        tensors: "Sequence[Tensor]",
        names: Mapping[str, str],
        *,
        paths: Sequence[str],
        spoken: Sequence[str],
        declared_lows: bool,
    ) -> None:
        self._program = program
        self._tensors = tensors
        self._paths = paths
        self._spoken = spoken
        self._environment = _shape_environment(program)
        # Only an environment that saw the inputs knows more than the file it was loaded from.
        self._is_traced = self._environment is not None and bool(self._environment.var_to_sources)
        self._declared_lows = declared_lows
        self._names = self._canonical_names(names)
        self.first: dict[Any, Place] = {}
        self._placed: dict[Any, str] = {}
        self._pinned: dict[Any, int] = {}
        self._place_all()
        self._declared: dict[Any, Bounds] = {}
        self._bounds = self._read_bounds()

    def canonical(self, value: Any) -> Any:
        """Return the sympy expression of a size (an int or SymInt) with all that is known to be equal replaced."""
        import sympy

        if isinstance(value, int):
            return sympy.Integer(value)
        expression = value if isinstance(value, sympy.Basic) else value.node.expr
        return expression if self._environment is None else self._environment.replace(expression)

    def place(self, expression: Any) -> str:
        """Return `expression` over sizes `s[i][d]`. Raises SourceNotExportable where it cannot be written."""
        from torch.utils._sympy.printers import PythonPrinter

        pinned = expression.subs(self._pinned) if self._pinned else expression
        terms = {str(symbol): text for symbol, text in self._placed.items()}
        return self.checked(read_terms(PythonPrinter().doprint(pinned), terms, {}))

    def checked(self, text: str) -> str:
        """Return `text` if a pod can evaluate it. Raises SourceNotExportable."""
        try:
            read_expression(text, lambda position, dim: f"s{position}_{dim}")
        except MalformedDocument as error:
            raise unreadable(text) from error
        return text

    def spell(self, value: Any) -> int | str:
        """Return a size as people read it: an integer, the name of a dimension, or an expression over names."""
        from torch.utils._sympy.printers import PythonPrinter

        if isinstance(value, int):
            return value
        expression = self.canonical(value)
        if expression.is_number:
            return int(expression)
        return str(PythonPrinter().doprint(expression.subs(self._names)))

    def declared(self, expression: Any) -> Bounds:
        """Return the range that the program declares for a dimension whose size is `expression`."""
        return self._declared.get(expression, Bounds())

    def defining(self, place: Place, expression: Any) -> tuple[int, int] | None:
        """Return (a, b) where this dimension, of size a * symbol + b, is the place of its symbol."""
        affine = _affine(expression)
        if affine is None or self._placed.get(affine[0]) != _place_text(place, affine[1], affine[2]):
            return None
        return affine[1:]

    def bounds_of(self, expression: Any) -> Bounds:
        """Return the range of a dimension whose size is `expression`, as far as compiled code is known to be right."""
        bounds = self._bounds.get(expression, Bounds())
        affine = _affine(expression)
        if affine is None or affine[1:] == (1, 0):
            return bounds
        symbol, factor, offset = affine
        inner = self._bounds.get(symbol, Bounds())
        high = None if inner.high is None else factor * inner.high + offset
        return bounds.within(factor * inner.low + offset, high)

    def conditions(self) -> tuple[str, ...]:
        """Return every assumption beyond ranges and equal sizes as a condition over `s[i][d]`, each once."""
        import sympy

        found: dict[str, None] = {}
        for guard in () if self._environment is None else self._environment.guards:
            expression = self.canonical(guard.expr)
            if self._pinned:
                expression = expression.subs(self._pinned)
            if expression is not sympy.true and not self._is_implied(expression):
                found[self.place(expression)] = None
        if not self._is_traced:
            texts = (self.checked(text) for text in guards_as_text(self._program, self._paths))
            found |= {text: None for text in texts if not self._is_equality(text)}
        for expression, bounds in self._bounds.items():
            # A symbol's range is that of the dimension which places it.
            if not expression.is_Symbol and expression not in self.first and self._can_place(expression):
                found.update(dict.fromkeys(_outer_bounds(self.place(expression), bounds)))
        return tuple(found)

    def _is_equality(self, text: str) -> bool:
        """True for `s[0][0] == s[1][0]` where both are one symbol, so that an equal guard says it already."""
        match ast.parse(text, mode="eval").body:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                places = size_term(left), size_term(right)
                sizes = [self._tensors[place[0]].shape[place[1]] for place in places if place is not None]
                return len(sizes) == 2 and self.canonical(sizes[0]) == self.canonical(sizes[1])
        return False

    def _canonical_names(self, names: Mapping[str, str]) -> dict[Any, Any]:
        import sympy

        known: dict[Any, Any] = {}
        for symbol in self._symbols():
            if (name := names.get(str(symbol))) is None:
                continue
            base, _, step = name.partition("/")
            target = self.canonical(symbol)
            if isinstance(target, sympy.Symbol):
                known.setdefault(target, sympy.Symbol(base, integer=True, positive=True) / int(step or 1))
        return known

    def _symbols(self) -> set[Any]:
        sizes = [size for tensor in self._tensors for size in tensor.shape if not isinstance(size, int)]
        known = set(self._environment.var_to_range) if self._environment is not None else set()
        loose = {symbol for size in sizes for symbol in size.node.expr.free_symbols}
        return loose | {key for key in known if not key.args} | {key for key in self._program.range_constraints}

    def _place_all(self) -> None:
        import sympy

        places = [
            ((position, dim), self.canonical(size))
            for position, tensor in enumerate(self._tensors)
            for dim, size in enumerate(tensor.shape)
        ]
        for place, expression in places:
            if not expression.is_number:
                self.first.setdefault(expression, place)
        for place, expression in places:
            if isinstance(expression, sympy.Symbol):
                self._placed.setdefault(expression, _place_text(place, 1, 0))
        for place, expression in places:
            affine = _affine(expression)
            if affine is not None:
                self._placed.setdefault(affine[0], _place_text(place, affine[1], affine[2]))
        self._pin_strides()
        for place, expression in places:
            if not self._can_place(expression):
                raise SourceNotExportable(
                    f"size {place[1]} of {self._spoken[place[0]]} is {expression}, which no input's size determines",
                    hint="give every dynamic size a dimension of its own",
                )

    def _pin_strides(self) -> None:
        """A stride that no size determines (a slice of a wider tensor) is held to the example's value."""
        for tensor, spoken in zip(self._tensors, self._spoken, strict=True):
            for stride in tensor.stride():
                expression = self.canonical(stride)
                if expression.is_number or self._can_place(expression):
                    continue
                if expression.is_Symbol:
                    hint = getattr(stride.node, "hint", None)
                    if hint is None:
                        raise SourceNotExportable(
                            f"{spoken} has a stride of its own, and the program does not tell its value",
                            hint="export with a contiguous example input",
                        )
                    self._pinned[expression] = int(hint)
        for tensor, spoken in zip(self._tensors, self._spoken, strict=True):
            for stride in tensor.stride():
                if not self._can_place(self.canonical(stride)):
                    raise SourceNotExportable(
                        f"the strides of {spoken} follow from no input's sizes", hint="export with contiguous inputs"
                    )

    def _can_place(self, expression: Any) -> bool:
        return all(symbol in self._placed or symbol in self._pinned for symbol in expression.free_symbols)

    def _read_bounds(self) -> dict[Any, Bounds]:
        """Ranges by canonical expression: what was declared, within what the trace took for granted."""
        for expression, values in self._program.range_constraints.items():
            key = self.canonical(expression)
            low, high = _integer(values.lower) or 0, _integer(values.upper)
            self._declared[key] = self._declared.get(key, Bounds()).within(low, high)
        bounds = dict(self._declared)
        for expression, traced in self._traced_ranges():
            key = self.canonical(expression)
            low = 0 if self._declared_lows and traced.low == _SPECIALIZED else traced.low
            bounds[key] = bounds.get(key, Bounds()).within(low, traced.high)
        for key, size in self._excluded():
            if bounds.get(key, Bounds()).low == size:
                bounds[key] = bounds.get(key, Bounds()).within(size + 1, None)
        return {key: found for key, found in bounds.items() if not key.is_number}

    def _excluded(self) -> list[tuple[Any, int]]:
        """Guards of the form `symbol != size`, smallest first: at the end of a range they are its bound."""
        import sympy

        guards = () if self._environment is None else self._environment.guards
        found = [self.canonical(guard.expr) for guard in guards]
        pairs = [expression.args for expression in found if isinstance(expression, sympy.Ne)]
        exact = [(a, b) for a, b in pairs if a.is_Symbol and isinstance(b, sympy.Integer)]
        return sorted(((symbol, int(size)) for symbol, size in exact), key=lambda pair: pair[1])

    def _traced_ranges(self) -> list[tuple[Any, Bounds]]:
        if self._is_traced:
            ranges = list(self._environment.var_to_range.items())
            return [(key, Bounds(_integer(values.lower) or 0, _integer(values.upper))) for key, values in ranges]
        # Of a saved program's trace nothing is known, so it is taken for torch's default.
        return [(key, Bounds(_SPECIALIZED)) for key in self._declared if key.is_Symbol]

    def _is_implied(self, condition: "sympy.Basic") -> bool:
        """True when the ranges that are guarded anyway make `condition` true."""
        import sympy
        from torch.utils._sympy.numbers import int_oo
        from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

        ranges = {}
        for symbol in condition.free_symbols:
            found = self.bounds_of(symbol)
            ranges[symbol] = ValueRanges(found.low, int_oo if found.high is None else found.high)
        try:
            result = bound_sympy(condition, ranges)
        except (AssertionError, AttributeError, KeyError, NotImplementedError, TypeError, ValueError):
            return False
        return bool(result.lower == sympy.true and result.upper == sympy.true)


def _shape_environment(program: "ExportedProgram") -> Any:
    """Return the ShapeEnv of the program's fake tensors, None when every size is fixed."""
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            return mode.shape_env
    return None


def _affine(expression: Any) -> tuple[Any, int, int] | None:
    """Return (symbol, a, b) where `expression` is a * symbol + b with integers a > 0 and b."""
    import sympy

    if len(expression.free_symbols) != 1:
        return None
    (symbol,) = expression.free_symbols
    offset = expression.subs(symbol, 0)
    factor = expression.subs(symbol, 1) - offset
    if not (isinstance(factor, sympy.Integer) and isinstance(offset, sympy.Integer) and factor > 0):
        return None
    if sympy.expand(expression - (factor * symbol + offset)) != 0:
        return None
    return symbol, int(factor), int(offset)


def _place_text(place: Place, factor: int, offset: int) -> str:
    """Return the value of the symbol for which the size at `place` is factor * symbol + offset."""
    size = f"s[{place[0]}][{place[1]}]"
    shifted = size if offset == 0 else f"({size} - {offset})" if offset > 0 else f"({size} + {-offset})"
    return shifted if factor == 1 else f"({shifted} // {factor})"


def _integer(value: Any) -> int | None:
    """Return a bound as an int; None for every spelling of infinity."""
    import sympy

    if isinstance(value, sympy.Integer) and value < 2**62:
        return int(value)
    return None


def _outer_bounds(text: str, bounds: Bounds) -> list[str]:
    low = [f"{text} >= {bounds.low}"] if bounds.low > 0 else []
    high = [f"{text} <= {bounds.high}"] if bounds.high is not None else []
    return [ast.unparse(ast.parse(condition, mode="eval")) for condition in low + high]
