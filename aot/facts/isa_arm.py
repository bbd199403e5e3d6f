"""AArch64 instructions, decoded by capstone, and the features that they belong to.

Capstone names no features for this machine, so they are told from the mnemonic and the registers. Sources: Arm
Architecture Reference Manual (DDI 0487), chapter C3 "A64 instruction set overview" and the FEAT_* line of each
instruction's page; Linux Documentation/arch/arm64/elf_hwcaps.rst for the spelling of /proc/cpuinfo. Pointer
authentication and branch targets that are encoded as hints (paciasp, autiasp, bti) run on every processor.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import capstone

from aot.facts.decoded import Decoded, Offence, Undecoded
from aot.facts.functions import Code, Function

# By mnemonic alone: these have no other form.
_BY_MNEMONIC = (
    ("atomics", r"(ld|st)(add|clr|eor|set|smax|smin|umax|umin)(a|l|al)?[bh]?|(swp|cas|casp)(a|l|al)?[bh]?"),
    ("crc32", r"crc32c?[bhwx]"),
    ("lrcpc", r"ldapr[bh]?"),
    ("ilrcpc", r"ldapur(s?[bh]|sw)?|stlur[bh]?"),
    ("flagm", r"cfinv|rmif|setf8|setf16"),
    ("flagm2", r"axflag|xaflag"),
    ("sb", r"sb"),
    ("jscvt", r"fjcvtzs"),
    ("frint", r"frint(32|64)[zx]"),
    ("paca", r"(pac|aut)(i|d)z?[ab]|pacga|xpac[id]|b?l?r?(braa|brab|blraa|blrab)z?|(ret|eret)a[ab]|ldra[ab]"),
    ("mte", r"irg|gmi|stz?2?g|stgp|ldg|ldgm|stz?gm|addg|subg|subps?"),
    ("sme", r"smstart|smstop|[bfsu]+mop[as]|addha|addva"),
)
# By mnemonic, where the registers are those of Advanced SIMD (v, or a scalar of it) and not of SVE.
_OF_SIMD = (
    ("aes", r"aes(e|d|mc|imc)"),
    ("sha1", r"sha1\w+"),
    ("sha2", r"sha256\w+"),
    ("sha512", r"sha512\w+"),
    ("sha3", r"eor3|bcax|rax1|xar"),
    ("sm3", r"sm3\w+"),
    ("sm4", r"sm4\w+"),
    ("asimdrdm", r"sqrdml[as]h"),
    ("asimddp", r"[su]dot"),
    ("i8mm", r"(s|u|us)mmla|usdot|sudot"),
    ("bf16", r"bf(dot|mmla|mlal[bt]|cvtn?2?)"),
    ("asimdfhm", r"fml[as]l2?"),
    ("fcma", r"fcmla|fcadd"),
)
_OF_SVE = (
    ("svebf16", r"bf(dot|mmla|mlal[bt]|cvt|cvtnt)"),
    ("svei8mm", r"(s|u|us)mmla|usdot|sudot"),
    ("sveaes", r"aes(e|d|mc|imc)"),
    ("svesha3", r"rax1"),
    ("svesm4", r"sm4\w+"),
    ("svebitperm", r"bdep|bext|bgrp"),
    # FEAT_SVE2: mnemonics that FEAT_SVE does not have.
    (
        "sve2",
        r"[su]aba(l[bt])?|[su]abdl[bt]|[su](add|sub|mull|mlal|mlsl|shll)l?[bt]|[su]addlbt|ssublbt|ssubltb|[su](add|sub)w[bt]|[su]adalp"
        r"|sqdm(ull|lal|lsl)(b|t|bt)|sqr?dmulh|sqrdml[as]h|sqrdcmlah|cmla|cdot|cadd|sqcadd|(r?add|r?sub)hn[bt]"
        r"|(sq|uq)xtn[bt]|sqxtun[bt]|r?shrn[bt]|(sq|uq)r?shrn[bt]|sqr?shrun[bt]|[su]r?sra|s[rl]i|[su]rshlr?|[su]qr?shlr?"
        r"|sqshlu|[su]rshr|[su]hadd|[su]hsubr?|[su]rhadd|suqadd|usqadd|sqabs|sqneg|urecpe|ursqrte|addp|[su](max|min)p"
        r"|f(add|max|min|maxnm|minnm)p|fcvt(lt|nt|x|xnt)|flogb|fml[as]l[bt]|bcax|bsl[12]?n?|nbsl|eor3|eorbt|eortb|xar"
        r"|match|nmatch|histcnt|histseg|tbx|pmul|pmull[bt]|adcl[bt]|sbcl[bt]|while(ge|gt|hi|hs|rw|wr)",
    ),
)
# Mnemonics of FEAT_SVE with further forms in FEAT_SVE2: without a predicate, with one, with a list of two registers.
_SVE2_WITHOUT_PREDICATE = re.compile(r"mul|smulh|umulh")
_SVE2_WITH_PREDICATE = re.compile(r"[su]q(add|sub)r?")
_SVE2_WITH_LIST = re.compile(r"tbl|ext|splice")

_VECTOR = re.compile(r"\bv\d+")
_SCALAR = re.compile(r"\b[hsdqb]\d+\b")
_HALF_VECTOR = re.compile(r"\bv\d+\.[48]?h\b")
_HALF = re.compile(r"\bh\d+\b")
_SVE_VECTOR = re.compile(r"\bz\d+")
_SVE_PREDICATE = re.compile(r"\bpn?\d+\b")
_MATRIX = re.compile(r"\bza\d*\b")
_IMMEDIATE = re.compile(r"#-?[0-9a-fx.]+")
# Half-precision numbers are converted, loaded and stored by every processor; FEAT_FP16 computes with them.
_HALF_EVERYWHERE = re.compile(r"fcvt|fcvtl2?|fcvtn2?|fmlal2?|fmlsl2?")


@lru_cache(maxsize=65_536)
def _needs(mnemonic: str, operands: str) -> tuple[tuple[str, ...], int]:
    """Return the features of one instruction, and the width of its widest register of fixed width."""
    found = {feature for feature, names in _BY_MNEMONIC if re.fullmatch(names, mnemonic)}
    if mnemonic == "dc":
        found |= {"cvap": {"dcpop"}, "cvadp": {"dcpodp"}}.get(operands.partition(",")[0], set())
    if _MATRIX.search(operands):
        found.add("sme")
    if _SVE_VECTOR.search(operands) or _SVE_PREDICATE.search(operands):
        return tuple(sorted(found | _of_sve(mnemonic, operands))), 0
    vector, scalar = bool(_VECTOR.search(operands)), bool(_SCALAR.search(operands))
    if not vector and not scalar:
        return tuple(sorted(found)), 0
    found |= {feature for feature, names in _OF_SIMD if re.fullmatch(names, mnemonic)}
    found.add("asimd" if vector else "fp")
    if mnemonic in ("pmull", "pmull2") and ".1q" in operands:
        found.add("pmull")
    if mnemonic[0] in "fsu" and not _HALF_EVERYWHERE.fullmatch(mnemonic):
        computes = mnemonic[0] == "f" or mnemonic in ("scvtf", "ucvtf")
        if computes and _HALF_VECTOR.search(operands):
            found.add("asimdhp")
        elif computes and _HALF.search(operands):
            found.add("fphp")
    return tuple(sorted(found)), 128 if vector or re.search(r"\bq\d+", operands) else 64


def _of_sve(mnemonic: str, operands: str) -> set[str]:
    predicated = bool(_SVE_PREDICATE.search(operands))
    found = {"sve"} | {feature for feature, names in _OF_SVE if re.fullmatch(names, mnemonic)}
    if mnemonic in ("pmullb", "pmullt") and ".q" in operands:
        found.add("svepmull")
    if (
        (_SVE2_WITHOUT_PREDICATE.fullmatch(mnemonic) and not predicated and "#" not in operands)
        or (_SVE2_WITH_PREDICATE.fullmatch(mnemonic) and predicated)
        or (_SVE2_WITH_LIST.fullmatch(mnemonic) and re.search(r"\{[^}]*,", operands))
    ):
        found.add("sve2")
    return found


def decode_arm(code: Code) -> Decoded:
    """Return what the functions and gaps of `code` use, each feature once in each of them."""
    decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    uses: list[Offence] = []
    undecoded: list[Undecoded] = []
    bits = unread = 0
    for function in (*code.functions, *(piece for gap in code.gaps for piece in _without_zeros(gap))):
        end = function.address
        seen: set[str] = set()
        for address, mnemonic, operands in _instructions(decoder, function):
            end = address + 4
            features, width = _needs(mnemonic, _IMMEDIATE.sub("#0", operands))
            bits = max(bits, width)
            for feature in features:
                if feature not in seen:
                    seen.add(feature)
                    uses.append(_use(function, address, f"{mnemonic} {operands}", feature))
        rest = function.content[end - function.address :]
        if rest:
            unread += len(rest)
            place = end - function.origin
            undecoded.append(Undecoded(function=function.name, offset=place, address=end, content=rest[:4]))
    return Decoded(uses=tuple(uses), undecoded=tuple(undecoded), vector_bits=bits, unread_bytes=unread)


def _without_zeros(gap: Function) -> Iterator[Function]:
    """Yield the pieces of a gap between words of zeros, which no compiler writes as code.

    Instructions are words at multiples of four: what a gap has before the first of them is a piece of its own.
    """
    content, begin = gap.content, None
    first = -gap.address % 4
    if content[:first].strip(b"\0"):
        yield replace(gap, content=content[:first])
    for place in range(first, len(content), 4):
        if content[place : place + 4].strip(b"\0"):
            begin = place if begin is None else begin
        elif begin is not None:
            yield replace(gap, address=gap.address + begin, content=content[begin:place])
            begin = None
    if begin is not None:
        yield replace(gap, address=gap.address + begin, content=content[begin:])


def _instructions(decoder: "capstone.Cs", function: Function) -> Iterator[tuple[int, str, str]]:
    for address, _, mnemonic, operands in decoder.disasm_lite(function.content, function.address):
        yield address, mnemonic, operands


def _use(function: Function, address: int, text: str, feature: str) -> Offence:
    return Offence(
        function=function.name, offset=address - function.origin, address=address, text=text, feature=feature
    )
