"""Pickles as symbols (`aot.capture.symbols`), and back: read and written, with nothing imported, called or run.

Written again, a pickle has no frames, and remembers only what it refers to twice: equal symbols are equal bytes.

What Python's own pickler writes in protocols 2 to 5 is read, but for what asks the unpickler for more than its stack:
persistent ids, extension codes, buffers out of band, tuples that hold themselves. Reading takes time and memory in
proportion to what is read, however deep it is. Source: pickletools of the standard library.
"""

import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from aot.capture.pickled import MOST_BYTES
from aot.capture.symbols import Global, Made, Node, Value

# Opcodes of one pickle. Each may become a node of some hundred bytes, and takes a microsecond or two.
MOST_STEPS = 1 << 21
_MEMOIZED_FROM = 4  # characters or bytes: a reference to what is shorter is no shorter itself
_INT_BYTES = 255
_PROTOCOLS = range(2, 6)

_EMPTY = {"EMPTY_LIST": Made.LIST, "EMPTY_DICT": Made.DICT, "EMPTY_SET": Made.SET, "EMPTY_TUPLE": Made.TUPLE}
_FROM_STACK = {
    "TUPLE1": (Made.TUPLE, 1),
    "TUPLE2": (Made.TUPLE, 2),
    "TUPLE3": (Made.TUPLE, 3),
    "REDUCE": (Made.CALLED, 2),
    "NEWOBJ": (Made.NEW, 2),
    "NEWOBJ_EX": (Made.NEW_WITH, 3),
}
_FROM_MARK = {"TUPLE": Made.TUPLE, "FROZENSET": Made.FROZENSET}
_CHANGES_ONE = {"APPEND": (pickle.APPENDS, 1), "SETITEM": (pickle.SETITEMS, 2), "BUILD": (pickle.BUILD, 1)}
_CHANGES_MANY = {"APPENDS": pickle.APPENDS, "SETITEMS": pickle.SETITEMS, "ADDITEMS": pickle.ADDITEMS}
_WRITTEN = {
    Made.LIST: pickle.EMPTY_LIST,
    Made.DICT: pickle.EMPTY_DICT,
    Made.SET: pickle.EMPTY_SET,
    Made.FROZENSET: pickle.FROZENSET,
    Made.CALLED: pickle.REDUCE,
    Made.NEW: pickle.NEWOBJ,
    Made.NEW_WITH: pickle.NEWOBJ_EX,
}
_TUPLES = (pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)
_SINGLE = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"})
_TEXTS = frozenset(
    {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"},
)


def read(content: bytes) -> tuple[Value, int]:
    """Return what the pickle makes, and its protocol, by which an unpickler finds names.

    Raises ValueError for bytes that are none, or one of a kind that is not read.
    """
    import pickletools  # what only restores has no use for it

    if len(content) > MOST_BYTES:
        raise ValueError(f"{len(content)} bytes")
    reader = _Reader()
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if number >= MOST_STEPS:
                raise ValueError(f"more than {MOST_STEPS} opcodes")
            reader.step(opcode.name, argument)
        return reader.result()
    except (LookupError, OverflowError) as error:
        raise ValueError(str(error)) from error


def write(root: Value, protocol: int) -> bytes:
    """Return the pickle that makes what `root` stands for. It has opcodes of protocols 4 and 5, whatever it says.

    Raises ValueError where an object would have to be there before it is made: of symbols that were altered, one that
    is made of its own parts, whose first place is now within itself.
    """
    return b"".join((pickle.PROTO, bytes([protocol]), *_Writer().chunks(root), pickle.STOP))


@dataclass(slots=True)
class _Again:
    """On the stack: an object that was there before. Python's pickler changes none of these."""

    value: Node


class _Reader:
    def __init__(self) -> None:
        self._stack: list[Value | _Again] = []
        self._marks: list[int] = []
        self._memo: dict[int, Value] = {}
        self._protocol = 0

    def step(self, name: str, argument: object) -> None:
        stack = self._stack
        if name in _TEXTS or name in _NUMBERS:
            if isinstance(argument, int) and argument.bit_length() > 8 * _INT_BYTES:
                raise ValueError("a number too long")
            stack.append(argument)  # type: ignore[arg-type]
        elif name in _SINGLE:
            stack.append(_SINGLE[name])
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._remembered()
        elif name in ("BINGET", "LONG_BINGET"):
            value = self._memo[argument]  # type: ignore[index]
            stack.append(_Again(value) if isinstance(value, Node) else value)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self._remembered()  # type: ignore[index]
        elif name in _EMPTY:
            stack.append(Node(_EMPTY[name]))
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in _CHANGES_ONE:
            opcode, count = _CHANGES_ONE[name]
            self._change(opcode, self._take(count))
        elif name in _CHANGES_MANY:
            self._change(_CHANGES_MANY[name], self._take_from_mark())
        else:
            self._make(name, argument)

    def result(self) -> tuple[Value, int]:
        (value,) = self._take(1)
        if self._stack or self._marks or self._protocol not in _PROTOCOLS:
            raise ValueError("something is left on its stack, or it is of another protocol")
        return value, self._protocol

    def _make(self, name: str, argument: object) -> None:
        match name:
            case "STACK_GLOBAL":
                module, attribute = self._take(2)
                self._stack.append(_global(module, attribute))
            case "GLOBAL":
                module, _, attribute = str(argument).partition(" ")
                self._stack.append(_global(module, attribute))
            case "BYTEARRAY8":
                self._stack.append(Node(Made.BYTEARRAY, (bytes(argument),)))  # type: ignore[call-overload]
            case "PROTO":
                self._protocol = int(argument)  # type: ignore[call-overload]
            case "FRAME" | "STOP":
                pass
            case _ if name in _FROM_STACK:
                made, count = _FROM_STACK[name]
                self._stack.append(Node(made, self._take(count)))
            case _ if name in _FROM_MARK:
                self._stack.append(Node(_FROM_MARK[name], self._take_from_mark()))
            case _:
                raise ValueError(f"the opcode {name} is not read")

    def _change(self, opcode: bytes, values: tuple[Value, ...]) -> None:
        changed = self._stack[-1]
        if not isinstance(changed, Node) or len(self._stack) == self._floor:
            raise ValueError("something is changed that was made before, or cannot be")
        if opcode == pickle.SETITEMS and len(values) % 2:
            raise ValueError("a key without a value")
        if values:
            changed.changes.append((opcode, values))

    def _remembered(self) -> Value:
        value = self._stack[-1]
        # Of everything else a few bytes could ask for a copy as long as it likes.
        if not isinstance(value, str | bytes | Global | Node):
            raise ValueError("a reference to what has no identity")
        return value

    @property
    def _floor(self) -> int:
        return self._marks[-1] if self._marks else 0

    def _take(self, count: int) -> tuple[Value, ...]:
        if len(self._stack) - count < self._floor:
            raise ValueError("its stack is empty")
        return self._cut(len(self._stack) - count)

    def _take_from_mark(self) -> tuple[Value, ...]:
        return self._cut(self._marks.pop())

    def _cut(self, start: int) -> tuple[Value, ...]:
        taken = tuple(value.value if isinstance(value, _Again) else value for value in self._stack[start:])
        del self._stack[start:]
        return taken


def _global(module: object, name: object) -> Global:
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("a global without a name")
    return Global(module, name)


@dataclass(eq=False, slots=True)
class _Slot:
    """A place right behind where a value is made: it is remembered there if something refers to it later.

    Before it `is_made` no reference finds it.
    """

    is_made: bool = False
    is_used: bool = False
    number: int = 0


class _Writer:
    def __init__(self) -> None:
        self._chunks: list[bytes | _Slot | tuple[_Slot]] = []
        self._slots: dict[object, _Slot] = {}

    def chunks(self, root: Value) -> Iterator[bytes]:
        waiting: list[tuple[bool, Value | _Slot]] = [(False, root)]
        while waiting:
            is_written, value = waiting.pop()
            if is_written:
                if isinstance(value, _Slot):
                    value.is_made = True
                self._chunks.append(value)  # type: ignore[arg-type]
                continue
            assert not isinstance(value, _Slot)
            identity = _identity(value)
            if (slot := self._slots.get(identity)) is not None and identity is not None:
                if not slot.is_made:
                    raise ValueError("an object within what it is made of")
                slot.is_used = True
                self._chunks.append((slot,))
                continue
            if identity is not None:
                slot = self._slots[identity] = _Slot()
            waiting.extend(reversed(self._steps_for(value, slot)))
        return self._numbered()

    def _steps_for(self, value: Value, slot: _Slot | None) -> list[tuple[bool, Value | _Slot]]:
        """What is written (True) and what is written in its turn (False) for a value that comes for the first time."""
        behind: list[tuple[bool, Value | _Slot]] = [(True, slot)] if slot is not None else []
        match value:
            case Global(module, name):
                return [(False, module), (False, name), (True, pickle.STACK_GLOBAL), *behind]
            case Node(made=Made.BYTEARRAY, parts=(bytes() as content,)):
                made = [(True, pickle.BYTEARRAY8 + struct.pack("<Q", len(content)) + content)]
            case Node(made=Made.TUPLE, parts=parts) if len(parts) < len(_TUPLES):
                made = [*((False, part) for part in parts), (True, _TUPLES[len(parts)])]
            case Node(made=Made.TUPLE, parts=parts):
                made = [(True, pickle.MARK), *((False, part) for part in parts), (True, pickle.TUPLE)]
            case Node():
                mark = [(True, pickle.MARK)] if value.made is Made.FROZENSET else []
                made = [*mark, *((False, part) for part in value.parts), (True, _WRITTEN[value.made])]
            case _:
                return [(True, _constant(value)), *behind]
        for opcode, values in value.changes:
            mark = [(True, pickle.MARK)] if opcode != pickle.BUILD else []
            behind.extend((*mark, *((False, part) for part in values), (True, opcode)))
        return [*made, *behind]

    def _numbered(self) -> Iterator[bytes]:
        count = 0
        for chunk in self._chunks:
            match chunk:
                case _Slot(is_used=True):
                    chunk.number, count = count, count + 1
                    yield pickle.MEMOIZE
                case _Slot():
                    pass
                case (slot,):
                    number = slot.number
                    yield (
                        pickle.BINGET + bytes([number])
                        if number < 256
                        else pickle.LONG_BINGET + struct.pack("<I", number)
                    )
                case _:
                    yield chunk


def _identity(value: Value) -> object:
    """Return what tells the value from others, where a reference to it may take its place."""
    match value:
        case Node(made=Made.TUPLE, parts=(), changes=[]):
            return None
        case Node():
            return id(value)
        case str() | bytes():
            return (type(value), value) if len(value) >= _MEMOIZED_FROM else None
        case Global():
            return value
    return None


def _constant(value: Value) -> bytes:
    match value:
        case None:
            return pickle.NONE
        case bool():
            return pickle.NEWTRUE if value else pickle.NEWFALSE
        case int():
            return _number(value)
        case float():
            return pickle.BINFLOAT + struct.pack(">d", value)
        case str():
            encoded = value.encode("utf-8", "surrogatepass")
            return _sized(encoded, pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8)
        case bytes():
            return _sized(value, pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8)
        case _:
            raise TypeError(type(value).__name__)


def _number(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return pickle.BININT1 + bytes([value])
    if 0 <= value < 1 << 16:
        return pickle.BININT2 + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return pickle.BININT + struct.pack("<i", value)
    encoded = pickle.encode_long(value)
    if len(encoded) < 256:
        return pickle.LONG1 + bytes([len(encoded)]) + encoded
    return pickle.LONG4 + struct.pack("<i", len(encoded)) + encoded


def _sized(content: bytes, short: bytes, usual: bytes, long: bytes) -> bytes:
    if len(content) < 1 << 8:
        return short + bytes([len(content)]) + content
    if len(content) < 1 << 32:
        return usual + struct.pack("<I", len(content)) + content
    return long + struct.pack("<Q", len(content)) + content
