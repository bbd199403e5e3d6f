"""The half of a generated wrapper that is the same for every program, apart from the half that is the program's own.

Inductor writes torch's C interface into each wrapper, and each wrapper brings the templates of the model's base class
along, with the regular expressions of `parse_device_str`: two thirds of what compiling the wrapper of one block takes.
Compiled once for a toolchain and a target, that half is an object to link. `aot.compile.torch_commands` does so.
"""

import re
import textwrap
from dataclasses import dataclass

_OPENS, _CLOSES = 'extern "C" {', '} // extern "C"'
_BASE = "AOTInductorModelBase"
# The one constructor that has a body: torch/csrc/inductor/aoti_runtime/model_base.h, the same in torch 2.11 to 2.14.
_CONSTRUCTOR = re.compile(rf"^ *{_BASE}\(\s*([^()&]*(?:&[^()&]*)*?)\)\s*:\s*\w+\(", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Halves:
    """Two C++ sources that together define what the wrapper did; `program` cannot do without `interface`.

    `interface` is the same for every program, so it leaves the device's header to what is included before it.
    """

    interface: str
    program: str


def split_wrapper(code: str, *, interface: str, model_base: str) -> Halves | None:
    """Cut the wrapper `code` in two, or return None where it is not of the form that this is known to be right for.

    `interface` and `model_base` are torch's own `interface.cpp` and `model_base.h`. The first is looked for as it is,
    so that a release that changes it on the way into the wrapper is left alone. The halves agree on the base class's
    constructor: the program's declares it a specialization, hence does not make one, and the interface's makes it.
    """
    text = _as_written(interface)
    constructor, begin = _constructor(model_base), code.find(text)
    if begin < 0 or constructor is None or text.count(_OPENS) != 1 or not text.endswith(_CLOSES):
        return None
    opens, end = begin + text.index(_OPENS), begin + len(text)
    return Halves(
        interface=f"{text}\n{_in_namespace(f'template {constructor}')}",
        program=f"{code[:opens]}\n{_in_namespace(f'template <> {constructor}')}{code[end:]}",
    )


def _as_written(text: str) -> str:
    """`text` as Inductor's IndentedBuffer writes it: no common indent, no blanks in empty lines or at the end."""
    lines = textwrap.dedent(text).rstrip().split("\n")
    return "\n".join(line if line.strip() else "" for line in lines)


def _constructor(model_base: str) -> str | None:
    found = _CONSTRUCTOR.findall(model_base)
    if len(found) != 1:
        return None
    parameters = ", ".join(one.partition("=")[0].strip() for one in " ".join(found[0].split()).split(","))
    return f"{_BASE}<AOTInductorModel>::{_BASE}({parameters});"


def _in_namespace(declaration: str) -> str:
    return f"namespace torch::aot_inductor {{\n{declaration}\n}} // namespace torch::aot_inductor\n"
