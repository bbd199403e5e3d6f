"""From recorded input guards to the source of one function: the writing half of `aot.runtime.guards`.

Pure. Whatever cannot be written is a fault, said in words; a source with faults is not to be executed.
"""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from aot.errors import MalformedDocument
from aot.runtime.expression import Expression, read_expression
from aot.schema.guard import InputGuard

_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,30}")
_DEVICE = re.compile(r"[a-z]{1,12}")
_MOST_GUARDS = 5000
_MOST_RANK = 64
_NEVER_REQUIRE_GRAD = re.compile(r"u?int\d+|bool")

_FIELDS = ("input", "dim", "value", "low", "high", "other", "strides")
# For each kind the fields that it must have; a range may have `high` besides.
GUARD_KINDS: Mapping[str, tuple[str, ...]] = {
    "dtype": ("input", "value"),
    "device": ("input", "value"),
    "rank": ("input", "low"),
    "size": ("input", "dim", "low"),
    "range": ("input", "dim", "low"),
    "equal": ("input", "dim", "other"),
    "divisible": ("input", "dim", "low"),
    "expression": ("value",),
    "stride": ("input", "strides"),
    "no-grad": (),
    "no-autocast": (),
    "apart": ("input",),
}
_ONCE_AN_INPUT = ("dtype", "device", "rank", "stride")


class Source(Struct, frozen=True):
    """`text` defines `check(tensors)`; where it says `say(n, tensors)`, `guards[n]` is what failed."""

    text: str
    guards: tuple[InputGuard, ...]
    faults: tuple[str, ...]
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


def write_source(guards: Sequence[InputGuard], paths: Sequence[str], *, weights_require_grad: bool = False) -> Source:
    """Return the source of the check over `len(paths)` inputs, or the faults that forbid one."""
    if len(guards) > _MOST_GUARDS:
        return Source("", (), (f"{len(guards)} input guards, at most {_MOST_GUARDS} are read",))
    if faults := [fault for guard in guards if (fault := _fault_of(guard, len(paths)))]:
        return Source("", (), tuple(faults))
    writer = _Writer(paths, weights_require_grad)
    for guard in guards:
        writer.sort_in(guard)
    return writer.finish()


def _fault_of(guard: InputGuard, inputs: int) -> str | None:
    """Return what is wrong with one guard by itself."""
    kind = guard.kind
    if kind not in GUARD_KINDS:
        return f"input guard {kind[:40]!r} is not known to this version of aot"
    wanted = GUARD_KINDS[kind]
    found = [name for name in _FIELDS if getattr(guard, name) is not None]
    if missing := [name for name in wanted if name not in found]:
        return f"a {kind} guard lacks {missing[0]}"
    if surplus := [name for name in found if name not in wanted and (kind, name) != ("range", "high")]:
        return f"a {kind} guard has {surplus[0]}, which no such guard has"
    if guard.input is not None and not 0 <= guard.input < inputs:
        return f"a {kind} guard is about input {guard.input} of {inputs}"
    if kind == "dtype" and not _DTYPE.fullmatch(guard.value or ""):
        return "a dtype guard does not name a dtype"
    if kind == "device" and not _DEVICE.fullmatch(guard.value or ""):
        return "a device guard does not name a device type"
    if kind == "rank" and not 0 <= (guard.low or 0) <= _MOST_RANK:
        return f"a rank guard asks for {guard.low} dimensions"
    if kind == "divisible" and (guard.low or 0) < 1:
        return f"a divisible guard asks for a multiple of {guard.low}"
    return None


class _Input(Struct):
    """The guards of one input, by what they look at."""

    once: dict[str, InputGuard] = {}
    sizes: list[InputGuard] = []
    apart: list[InputGuard] = []
    bounded: set[int] = set()  # dimensions that some guard constrains

    @property
    def rank(self) -> int:
        return self.once["rank"].low or 0 if "rank" in self.once else -1


class _Writer:
    """Collects guards by input, then writes them in an order in which each is safe to evaluate."""

    def __init__(self, paths: Sequence[str], weights_require_grad: bool) -> None:
        self._paths = paths
        self._weights_require_grad = weights_require_grad
        self._inputs = [_Input() for _ in paths]
        self._expressions: list[InputGuard] = []
        self._ambient: dict[str, InputGuard] = {}
        self._said: list[InputGuard] = []
        self._faults: list[str] = []
        self._lines: list[str] = []

    def sort_in(self, guard: InputGuard) -> None:
        if guard.input is None:
            if guard.kind == "expression":
                self._expressions.append(guard)
            else:
                self._ambient[guard.kind] = guard
            return
        entry = self._inputs[guard.input]
        if guard.kind in _ONCE_AN_INPUT:
            if guard.kind in entry.once:
                self._faults.append(f"{self._paths[guard.input]} has two {guard.kind} guards")
            entry.once[guard.kind] = guard
        elif guard.kind == "apart":
            entry.apart.append(guard)
        else:
            entry.sizes.append(guard)

    def finish(self) -> Source:
        self._check_complete()
        if not self._faults:
            everywhere = range(len(self._inputs))
            for position in everywhere:
                self._write_form(position)
            for position in everywhere:
                self._write_sizes(position)
            for guard in self._expressions:
                self._write_expression(guard)
            self._check_bounded()
            for position in everywhere:
                self._write_strides(position)
            self._write_ambient()
        if self._faults:
            return Source("", (), tuple(self._faults))
        names = "".join(f"t{position}, " for position in range(len(self._inputs)))
        text = _TEMPLATE.format(unpack=names or "()", body="\n        ".join(self._lines))
        return Source(text, tuple(self._said), (), self._values("dtype"), self._values("device"))

    def _values(self, kind: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.once[kind].value or "" for entry in self._inputs))

    def _check_complete(self) -> None:
        for path, entry in zip(self._paths, self._inputs, strict=True):
            self._faults += [f"{path} has no {kind} guard" for kind in _ONCE_AN_INPUT if kind not in entry.once]
            strides = entry.once["stride"].strides if "stride" in entry.once else None
            if entry.rank >= 0 and strides is not None and len(strides) != entry.rank:
                self._faults.append(f"{path} has {entry.rank} dimension(s) and {len(strides)} stride(s)")

    def _check_bounded(self) -> None:
        for path, entry in zip(self._paths, self._inputs, strict=True):
            loose = [dim for dim in range(entry.rank) if dim not in entry.bounded]
            self._faults += [f"no guard is about dimension {dim} of {path}" for dim in loose]

    def _refuse(self, condition: str, guard: InputGuard) -> None:
        """Write: where `condition` is true, `guard` does not hold."""
        self._lines.append(f"if {condition}: return say({len(self._said)}, tensors)")
        self._said.append(guard)

    def _write_form(self, position: int) -> None:
        entry, name = self._inputs[position], f"t{position}"
        device, dtype = entry.once["device"], entry.once["dtype"]
        plain_type = InputGuard(kind="type", input=position)
        self._refuse(f"type({name}) is not Tensor and type({name}) is not Parameter", plain_type)
        self._refuse(f"keys({name}).raw_repr() not in plain_{device.value}", device)
        if device.value != "cpu":
            self._refuse(f"{name}.get_device() != home_index", device)
        self._refuse(f"{name}.dtype is not dtype_{dtype.value}", dtype)
        self._lines.append(f"h = {name}.shape")
        self._refuse(f"len(h) != {entry.rank}", entry.once["rank"])
        if entry.rank:
            self._lines.append("".join(f"s{position}_{dim}, " for dim in range(entry.rank)) + "= h")

    def _name_size(self, position: int, dim: int) -> str | None:
        if 0 <= position < len(self._inputs) and 0 <= dim < self._inputs[position].rank:
            return f"s{position}_{dim}"
        return None

    def _write_sizes(self, position: int) -> None:
        entry = self._inputs[position]
        for guard in entry.sizes:
            dim = guard.dim if guard.dim is not None else -1
            name = self._name_size(position, dim)
            if name is None:
                self._faults.append(f"a {guard.kind} guard is about dimension {dim} of {self._paths[position]}")
                continue
            match guard.kind:
                case "range" if guard.high is None:
                    self._refuse(f"{name} < {guard.low:d}", guard)
                case "range":
                    self._refuse(f"not {guard.low:d} <= {name} <= {guard.high:d}", guard)
                case "divisible":
                    self._refuse(f"{name} % {guard.low:d}", guard)
                case "equal":
                    self._write_equal(name, guard)
                case _:
                    self._refuse(f"{name} != {guard.low:d}", guard)
            if guard.kind != "divisible":
                entry.bounded.add(dim)

    def _write_equal(self, name: str, guard: InputGuard) -> None:
        assert guard.other is not None
        other = self._name_size(*guard.other)
        if other is None or other == name:
            self._faults.append(f"an equal guard compares with s[{guard.other[0]}][{guard.other[1]}]")
        else:
            self._refuse(f"{name} != {other}", guard)

    def _read(self, text: str) -> Expression | None:
        try:
            return read_expression(text, self._name_size)
        except MalformedDocument as error:
            self._faults.append(error.message)
            return None

    def _write_expression(self, guard: InputGuard) -> None:
        expression = self._read(guard.value or "")
        if expression is None:
            return
        if not expression.is_condition:
            self._faults.append(f"the expression {(guard.value or '')[:80]!r} is not a condition")
            return
        self._refuse(f"not {expression.source}", guard)
        for position, dim in expression.sizes:
            self._inputs[position].bounded.add(dim)

    def _write_strides(self, position: int) -> None:
        entry = self._inputs[position]
        guard = entry.once["stride"]
        wanted: list[str] = []
        for stride in guard.strides or ():
            expression = self._read(str(stride))
            if expression is None or expression.is_condition:
                self._faults.append(f"a stride of {self._paths[position]} is not a number")
                return
            wanted.append(expression.source)
        if not wanted:
            return
        # The whole tuple first, as it nearly always fits; then without the dimensions of at most one element.
        fixed = {one.dim: one.low or 0 for one in entry.sizes if one.kind == "size"}
        unequal = [
            f"k[{dim}] != {stride}" if dim in fixed else f"(s{position}_{dim} > 1 and k[{dim}] != {stride})"
            for dim, stride in enumerate(wanted)
            if fixed.get(dim, 2) > 1
        ]
        if unequal:
            self._lines.append(f"k = t{position}.stride()")
            self._refuse(f"k != ({', '.join(wanted)},) and ({' or '.join(unequal)})", guard)

    def _write_ambient(self) -> None:
        for position, entry in enumerate(self._inputs):
            for guard in entry.apart:
                self._refuse(f"overlaps(t{position}, {position}, tensors)", guard)
        if guard := self._ambient.get("no-autocast"):
            self._refuse("is_autocast()", guard)
        if guard := self._ambient.get("no-grad"):
            able = [
                f"t{position}.requires_grad"
                for position, entry in enumerate(self._inputs)
                if not _NEVER_REQUIRE_GRAD.fullmatch(entry.once["dtype"].value or "")
            ]
            if self._weights_require_grad:
                self._refuse("is_grad_enabled()", guard)
            elif able:
                self._refuse(f"is_grad_enabled() and ({' or '.join(able)})", guard)
            # Forward-mode derivatives are recorded whatever the grad mode.
            self._refuse("forward_ad._current_level >= 0", guard)


# While torch.jit traces, to read a size is an operation of torch that imports, which ends the process here.
_TEMPLATE = """
def check(tensors):
    try:
        {unpack} = tensors
    except Miscount:
        return miscounted(tensors)
    if is_tracing(): return "torch.jit is tracing, and would take the results for constants"
    try:
        {body}
        return None
    except Unreadable as error:
        return unreadable(error)
"""
