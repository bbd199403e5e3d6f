"""What the decoders of `aot.facts.isa` report."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Offence:
    """The first instruction of a function that needs `feature`. `address` and `text` are as a disassembler prints them.

    `function` is the mangled symbol, "" where the file is stripped of it; `offset` counts from the function's start.
    Of code in no known function they are "section .text" and the offset in that section.
    """

    function: str
    offset: int
    address: int
    text: str
    feature: str

    def __str__(self) -> str:
        return f"{_place(self.function, self.address, self.offset)}: {self.text} ({self.feature})"


@dataclass(frozen=True, kw_only=True)
class Undecoded:
    """A place in a function, or in a gap, whose bytes are no instruction; what follows it there was not read."""

    function: str
    offset: int
    address: int
    content: bytes  # the first bytes there

    def __str__(self) -> str:
        return f"{_place(self.function, self.address, self.offset)}: {self.content.hex()} is no instruction"


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """What one decoder found. `vector_bits` is 0 where no vector register is used; the width of SVE is not in bytes."""

    uses: tuple[Offence, ...]
    undecoded: tuple[Undecoded, ...]
    vector_bits: int
    unread_bytes: int


def _place(function: str, address: int, offset: int) -> str:
    return f"{function or f'the function at {address - offset:#x}'}+{offset:#x}"
