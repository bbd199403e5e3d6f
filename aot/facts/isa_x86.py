"""x86-64 instructions, decoded by iced-x86, which knows the CPUID feature of every encoding.

Sources: iced-x86's CpuidFeature (after Intel SDM volume 2 and AMD APM volume 3); Linux arch/x86 cpufeatures.h for the
spelling of /proc/cpuinfo.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import iced_x86 as iced

from aot.facts.decoded import Decoded, Offence, Undecoded
from aot.facts.functions import Code, Function

# Features whose name in /proc/cpuinfo is not just iced's in small letters.
_SPELLINGS = {
    "SSE3": "pni",
    "LZCNT": "abm",
    "CMPXCHG16B": "cx16",
    "SHA": "sha_ni",
    "CLFSH": "clflush",
    "PREFETCHW": "3dnowprefetch",
    "D3NOW": "3dnow",
    "D3NOWEXT": "3dnowext",
    "AVX512_IFMA": "avx512ifma",
    "AVX512_VBMI": "avx512vbmi",
    "HLE_OR_RTM": "rtm",
}
# What every processor in 64-bit mode has, and what older ones execute as something harmless: endbr64, rdssp and
# pause are encoded as no-operations. tzcnt is an older `rep bsf`, and compilers write it for any level where the
# operand is known not to be zero (gcc, -mtune=generic), so it says nothing about BMI1.
_EVERYWHERE = frozenset(
    (
        *("INTEL8086", "INTEL8086_ONLY", "INTEL186", "INTEL286", "INTEL386", "INTEL486", "X64", "CPUID", "MSR", "TSC"),
        *("FPU", "FPU287", "FPU387", "MULTIBYTENOP", "PAUSE", "CET_IBT", "CET_SS", "RDPMC", "SEP"),
    )
)
_KINDS = {value: name for name, value in vars(iced.OpCodeOperandKind).items() if name[:1].isupper()}
_NAMES = {value: name for name, value in vars(iced.CpuidFeature).items() if name[:1].isupper()}
_WIDTHS = {"MM": 64, "XMM": 128, "YMM": 256, "ZMM": 512}


@dataclass(frozen=True)
class _Needs:
    features: tuple[str, ...]
    vector_bits: int


@lru_cache(maxsize=8192)
def _needs(code: int) -> _Needs:
    """Return what the encoding `code` needs: its CPUID features, and the register state that it works on."""
    opcode = iced.OpCodeInfo(code)
    mnemonic = opcode.mnemonic
    names = [_NAMES[feature] for feature in iced.Instruction.create(code).cpuid_features()]
    registers = {_KINDS[kind].partition("_")[0].rstrip("P3") for kind in opcode.op_kinds()}
    bits = max((_WIDTHS.get(register, 0) for register in registers), default=0)
    features = {_SPELLINGS.get(name, name.lower()) for name in names if name not in _EVERYWHERE}
    if mnemonic == iced.Mnemonic.TZCNT:
        features = set()
    elif mnemonic in (iced.Mnemonic.LAHF, iced.Mnemonic.SAHF):
        features.add("lahf_lm")
    # Extensions name themselves alone, and need the registers that they extend.
    if opcode.encoding == iced.EncodingKind.EVEX:
        features.add("avx512f")
    elif opcode.encoding == iced.EncodingKind.VEX and bits:
        features.add("avx")
    if any(feature.startswith("amx_") for feature in features):
        features.add("amx_tile")
    return _Needs(tuple(sorted(features)), bits)


def decode_x86(code: Code) -> Decoded:
    """Return what the functions and gaps of `code` use, each feature once in each of them."""
    uses: list[Offence] = []
    undecoded: list[Undecoded] = []
    bits = unread = 0
    known = ((function, _instructions(function)) for function in code.functions)
    for function, instructions in (*known, *((gap, _without_zeros(gap)) for gap in code.gaps)):
        seen: set[str] = set()
        for instruction in _first_of_each(instructions):
            if instruction.is_invalid:
                rest = function.content[instruction.ip - function.address :]
                unread += len(rest)
                undecoded.append(_undecoded(function, instruction.ip, rest[:8]))
                break
            needs = _needs(instruction.code)
            bits = max(bits, needs.vector_bits)
            for feature in needs.features:
                if feature not in seen:
                    seen.add(feature)
                    uses.append(_use(function, instruction, feature))
    return Decoded(uses=tuple(uses), undecoded=tuple(undecoded), vector_bits=bits, unread_bytes=unread)


def _instructions(function: Function) -> Iterator[iced.Instruction]:
    return iter(iced.Decoder(64, function.content, ip=function.address))


def _without_zeros(gap: Function) -> Iterator[iced.Instruction]:
    """Yield the instructions of a gap, and go on behind zeros, which decode to `add [rax],al` and hide what follows.

    A single zero is padding where the gap begins or ends with it; elsewhere it is the opcode of an addition.
    """
    content = gap.content
    decoder = iced.Decoder(64, content, ip=gap.address)
    while decoder.can_decode:
        place = decoder.position
        rest = content[place : place + 2]
        if rest[:1] == b"\0" and (place == 0 or rest[1:] in (b"", b"\0")):
            place += len(content) - place - len(content[place:].lstrip(b"\0"))
            decoder.position, decoder.ip = place, gap.address + place
            continue
        yield decoder.decode()


def _first_of_each(instructions: Iterator[iced.Instruction]) -> Iterator[iced.Instruction]:
    """Yield the first instruction of each encoding, and the first that cannot be decoded, in order."""
    known: set[int] = set()
    for instruction in instructions:
        code = instruction.code
        if code not in known:
            known.add(code)
            yield instruction


def _use(function: Function, instruction: iced.Instruction, feature: str) -> Offence:
    return Offence(
        function=function.name,
        offset=instruction.ip - function.origin,
        address=instruction.ip,
        text=format(instruction, "i"),
        feature=feature,
    )


def _undecoded(function: Function, address: int, content: bytes) -> Undecoded:
    return Undecoded(function=function.name, offset=address - function.origin, address=address, content=content)
