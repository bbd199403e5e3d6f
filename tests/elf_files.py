"""Small ELF files, made byte by byte: what no compiler on a test machine writes, and what no compiler writes at all."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BASE_ADDRESS = 0x10000  # addresses differ from offsets, as in a real library

SHT_SYMTAB, SHT_STRTAB, SHT_NOTE, SHT_DYNSYM = 2, 3, 7, 11
_PT_LOAD, _PT_DYNAMIC = 1, 2


@dataclass(frozen=True)
class SymbolRow:
    name: str
    defined: bool = True
    kind: int = 2  # a function
    other: int = 0


class _Texts:
    def __init__(self) -> None:
        self.content = bytearray(1)

    def add(self, text: str) -> int:
        offset = len(self.content)
        self.content += text.encode() + b"\0"
        return offset


def an_elf_file(
    *,
    machine: int = 62,
    elf_class: int = 2,
    byte_order: int = 1,
    abi_version: int = 0,
    flags: int = 0,
    needed: Sequence[str] = (),
    soname: str | None = None,
    rpath: str | None = None,
    runpath: str | None = None,
    asked: Mapping[str, Sequence[str]] | None = None,
    defined: Sequence[str] = (),
    symbols: Sequence[SymbolRow] = (),
    symbol_table: int = SHT_DYNSYM,
    sections: Mapping[str, tuple[int, bytes]] | None = None,
    section_flags: int = 0,
    text: bytes = b"",
    with_sections: bool = True,
) -> bytes:
    """Return a file with a dynamic section (when it has something to say), versions, symbols and sections."""
    texts = _Texts()
    tags: list[tuple[int, int]] = [(1, texts.add(library)) for library in needed]
    tags += [(14, texts.add(soname))] if soname else []
    tags += [(15, texts.add(rpath))] if rpath else []
    tags += [(29, texts.add(runpath))] if runpath else []
    needs = _version_needs(asked or {}, texts)
    definitions = _version_definitions(defined, texts)

    start = 64 + 2 * 56
    body = b""

    def place(content: bytes) -> int:
        nonlocal body
        body += bytes(-len(body) % 8)
        offset = start + len(body)
        body += content
        return offset

    needs_at, definitions_at = place(needs), place(definitions)
    texts_at = place(texts.content)
    place(text)
    if asked:
        tags += [(0x6FFFFFFE, BASE_ADDRESS + needs_at), (0x6FFFFFFF, len(asked))]
    if defined:
        tags += [(0x6FFFFFFC, BASE_ADDRESS + definitions_at), (0x6FFFFFFD, len(defined))]
    tags += [(5, BASE_ADDRESS + texts_at), (10, len(texts.content))] if tags else []
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in (*tags, (0, 0))) if tags else b""
    dynamic_at = place(dynamic)

    names = _Texts()
    rows = [_section_row(0, 0, 0, 0, 0)]
    if symbols:
        table, symbol_texts = _symbols(symbols)
        texts_offset, table_offset = place(symbol_texts), place(table)
        rows.append(_section_row(names.add(".strtab"), SHT_STRTAB, texts_offset, len(symbol_texts), 0))
        rows.append(_section_row(names.add(".symbols"), symbol_table, table_offset, len(table), 1))
    for name, (kind, content) in (sections or {}).items():
        rows.append(_section_row(names.add(name), kind, place(content), len(content), 0, flags=section_flags))
    names_name = names.add(".shstrtab")
    rows.append(_section_row(names_name, SHT_STRTAB, place(names.content), len(names.content), 0))
    sections_at = place(b"".join(rows)) if with_sections else 0

    size = start + len(body)
    segments = struct.pack("<IIQQQQQQ", _PT_LOAD, 5, 0, BASE_ADDRESS, BASE_ADDRESS, size, size, 4096)
    segments += struct.pack(
        "<IIQQQQQQ",
        _PT_DYNAMIC,
        6,
        dynamic_at,
        BASE_ADDRESS + dynamic_at,
        BASE_ADDRESS + dynamic_at,
        len(dynamic),
        len(dynamic),
        8,
    )
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF" + bytes((elf_class, byte_order, 1, 0, abi_version)) + bytes(7),
        3,
        machine,
        1,
        0,
        64,
        sections_at,
        flags,
        64,
        56,
        2 if dynamic else 1,
        64 if with_sections else 0,
        len(rows) if with_sections else 0,
        len(rows) - 1 if with_sections else 0,
    )
    return header + segments + body


def code_file(
    functions: Sequence[tuple[str, bytes]],
    *,
    machine: int = 62,
    symbol_table: int = SHT_SYMTAB,
    marks: Sequence[tuple[str, int]] = (),
    inner: Sequence[tuple[str, int, int]] = (),
    gap: bytes = b"",
) -> bytes:
    """Return a file whose .text holds `functions`, one after another with `gap` between them, each with a symbol.

    `marks` are symbols of no kind at offsets into .text, `inner` more functions: name, offset, size.
    """
    texts, content, table = _Texts(), b"", bytes(24)
    start = 64
    rows = []
    for name, code in functions:
        rows.append((texts.add(name), 0x12, len(content), len(code)))
        content += code + gap
    rows += [(texts.add(name), 0, offset, 0) for name, offset in marks]
    rows += [(texts.add(name), 0x12, offset, size) for name, offset, size in inner]
    table += b"".join(
        struct.pack("<IBBHQQ", name_offset, kind, 0, 1, BASE_ADDRESS + offset, size)
        for name_offset, kind, offset, size in rows
    )
    names = _Texts()
    body, placed = content + bytes(-len(content) % 8), []
    for part in (table, texts.content):
        placed.append(start + len(body))
        body += part + bytes(-len(part) % 8)
    headers = [
        _section_row(0, 0, 0, 0, 0),
        struct.pack("<IIQQQQIIQQ", names.add(".text"), 1, 6, BASE_ADDRESS, start, len(content), 0, 0, 16, 0),
        _section_row(names.add(".symtab"), symbol_table, placed[0], len(table), 3),
        _section_row(names.add(".strtab"), SHT_STRTAB, placed[1], len(texts.content), 0),
    ]
    names_name = names.add(".shstrtab")
    headers.append(_section_row(names_name, SHT_STRTAB, start + len(body), len(names.content), 0))
    body += names.content + bytes(-len(names.content) % 8)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(b"\x7fELF\x02\x01\x01" + bytes(9), 3, machine, 1, 0, 0, start + len(body), 0, 64, 56, 0, 64),
        *(len(headers), len(headers) - 1),
    )
    return header + body + b"".join(headers)


def _version_needs(asked: Mapping[str, Sequence[str]], texts: _Texts) -> bytes:
    content = b""
    for index, (library, versions) in enumerate(asked.items()):
        size = 16 + 16 * len(versions)
        following = size if index < len(asked) - 1 else 0
        content += struct.pack("<HHIII", 1, len(versions), texts.add(library), 16, following)
        for position, version in enumerate(versions):
            next_entry = 16 if position < len(versions) - 1 else 0
            content += struct.pack("<IHHII", 0, 0, position + 2, texts.add(version), next_entry)
    return content


def _version_definitions(defined: Sequence[str], texts: _Texts) -> bytes:
    content = b""
    for index, version in enumerate(defined):
        following = 28 if index < len(defined) - 1 else 0
        content += struct.pack("<HHHHIII", 1, 0, index + 1, 1, 0, 20, following)
        content += struct.pack("<II", texts.add(version), 0)
    return content


def _symbols(symbols: Sequence[SymbolRow]) -> tuple[bytes, bytes]:
    texts = _Texts()
    table = bytes(24)
    for symbol in symbols:
        section = 1 if symbol.defined else 0
        table += struct.pack("<IBBHQQ", texts.add(symbol.name), 0x10 | symbol.kind, symbol.other, section, 0, 0)
    return table, texts.content


def _section_row(name: int, kind: int, offset: int, size: int, link: int, *, flags: int = 0) -> bytes:
    return struct.pack("<IIQQQQIIQQ", name, kind, flags, 0, offset, size, link, 0, 1, 0)
