"""Which instructions a shared object is made of: what its bytes ask of a processor, whatever it was built for.

Every function is decoded from its first byte to its last (aot.facts.functions says where functions are), and so is
every gap between them, its padding left out: code in no known function is executed like any other. Instructions
behind a test of the processor (ifunc, `cpuid`) count like all others: Inductor writes no such code, and a library with
it linked in statically is reported for its highest level.

Decoders are in the extras of workers and the registry, and are imported when a file is read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aot.facts import elf
from aot.facts.decoded import Decoded, Offence, Undecoded
from aot.facts.functions import Code, read_code
from aot.facts.image import open_image
from aot.facts.levels import features_of, level_of


@dataclass(frozen=True, kw_only=True)
class IsaFacts:
    """`features` are those that the code uses, as /proc/cpuinfo spells them, sorted.

    `level` is the least level that has them, and `+feature` for each that no level has: "x86-64-v4+avx512_vnni".
    `vector_bits` is the widest vector register of fixed width: 0, 64, 128, 256 or 512. `functions` and `code_bytes`
    are of known functions. The facts say nothing about what begins at each of `undecoded`: `unread_bytes` in all.
    """

    machine: str
    features: tuple[str, ...]
    level: str
    vector_bits: int
    functions: int
    code_bytes: int
    unread_bytes: int
    uses: tuple[Offence, ...]
    undecoded: tuple[Undecoded, ...]

    def offenders(self, level: str) -> tuple[Offence, ...]:
        """Return every use of a feature that `level` ("x86-64-v3", "x86-64-v4+amx_tile") does not have.

        A level of another machine, or one that is not known, has no features: then every use is an offence.
        """
        allowed = features_of(self.machine, level)
        return tuple(use for use in self.uses if use.feature not in allowed)


def read_isa(path: Path) -> IsaFacts:
    """Return the facts of the x86-64 or AArch64 shared object at `path`.

    Raises MalformedDocument for anything else, ImportError where the decoder is not installed, and OSError.
    """
    with open_image(path) as image:
        file = elf.Elf(image)
        found = _decoder(file.machine)
        if found is None:
            raise image.malformed(f"machine {file.machine} is neither x86_64 nor aarch64")
        machine, decode = found
        code = read_code(file)
        decoded = decode(code)
    features = tuple(sorted({use.feature for use in decoded.uses}))
    return IsaFacts(
        machine=machine,
        features=features,
        level=level_of(machine, features),
        vector_bits=decoded.vector_bits,
        functions=len(code.functions),
        code_bytes=sum(len(function.content) for function in code.functions),
        unread_bytes=decoded.unread_bytes,
        uses=decoded.uses,
        undecoded=decoded.undecoded,
    )


def _decoder(machine: int) -> tuple[str, Callable[[Code], Decoded]] | None:
    match machine:
        case elf.EM_X86_64:
            from aot.facts.isa_x86 import decode_x86

            return "x86_64", decode_x86
        case elf.EM_AARCH64:
            from aot.facts.isa_arm import decode_arm

            return "aarch64", decode_arm
    return None
