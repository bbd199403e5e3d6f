"""What a pickle is a program for, as symbols: nodes for its objects, and what can be seen of them without making any.

A node stands for one object: what it is made of, and how it is changed afterwards, in order. Two places that refer to
one node refer to one object; texts and bytes have no identity, so equal ones are one (`aot.capture.symbolic`).
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

MOST_PAIRS = 256


class Made(StrEnum):
    """How an object comes to be; the parts of its node are the arguments."""

    LIST = "list"
    DICT = "dict"
    SET = "set"
    TUPLE = "tuple"
    FROZENSET = "frozenset"
    BYTEARRAY = "bytearray"
    CALLED = "called"  # function, tuple of arguments
    NEW = "new"  # class, tuple of arguments
    NEW_WITH = "new with"  # class, tuple of arguments, dictionary of those with names


@dataclass(frozen=True, slots=True)
class Global:
    """What a module holds under a name."""

    module: str
    name: str


@dataclass(eq=False, slots=True)
class Node:
    """One object. `changes` are opcodes with what each takes: `b"u"` keys and values, `b"e"` items, `b"b"` a state."""

    made: Made
    parts: "tuple[Value, ...]" = ()
    changes: "list[tuple[bytes, tuple[Value, ...]]]" = field(default_factory=list)


Value: TypeAlias = bool | int | float | str | bytes | Global | Node | None


@dataclass
class Allowance:
    """How much more of one pickle may be looked at: a long list costs its length each time that something refers to it.

    Attributes of one object and items of a list count. Hostile bytes have a long list in many places.
    """

    left: int = 1 << 19

    def spend(self, count: int) -> None:
        """Raises ValueError where nothing is left."""
        self.left -= count
        if self.left < 0:
            raise ValueError("one list in many places")


def each_node(root: Value) -> Iterator[Node]:
    """Yield every node below `root` once, itself among them."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if not isinstance(value, Node) or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        for _, values in reversed(value.changes):
            waiting.extend(reversed(values))
        waiting.extend(reversed(value.parts))


def is_instance(value: Value, of: Global) -> bool:
    """Whether it is an object that was made by the class `of` itself."""
    return isinstance(value, Node) and value.made is Made.NEW and value.parts[0] == of


def instance(of: Global, fields: Mapping[str, Value]) -> Node:
    """Return a new object of a class as pickle has it: without arguments, its attributes set."""
    pairs = tuple(part for pair in fields.items() for part in pair)
    state = Node(Made.DICT, changes=[(pickle.SETITEMS, pairs)])
    return Node(Made.NEW, (of, Node(Made.TUPLE)), [(pickle.BUILD, (state,))])


def fields_of(value: Value) -> dict[str, Value] | None:
    """Return the attributes of an object that has a dictionary of them and nothing else; None for all others."""
    state = _state_of(value)
    pairs = pairs_of(state)
    fields = {name: part for name, part in pairs or () if isinstance(name, str)}
    return fields if pairs is not None and len(fields) == len(pairs) else None


def pairs_of(value: Value) -> list[tuple[Value, Value]] | None:
    """Return the keys and values of a dictionary; None for everything else, and for more than MOST_PAIRS of them."""
    if not isinstance(value, Node) or value.made is not Made.DICT or value.parts:
        return None
    # Who asks for the same one often must not pay for its length each time.
    if len(value.changes) > MOST_PAIRS or sum(len(values) for _, values in value.changes) > 2 * MOST_PAIRS:
        return None
    if any(opcode != pickle.SETITEMS for opcode, _ in value.changes):
        return None
    return [pair for _, values in value.changes for pair in zip(values[::2], values[1::2], strict=True)]


def items_of(value: Value) -> list[Value] | None:
    """Return the items of a list; None for everything else."""
    if not isinstance(value, Node) or value.made is not Made.LIST:
        return None
    if any(opcode != pickle.APPENDS for opcode, _ in value.changes):
        return None
    return [item for _, values in value.changes for item in values]


def set_items(value: Node, items: Sequence[Value]) -> None:
    """Let the list that `items_of` reads hold these."""
    value.changes = [(pickle.APPENDS, tuple(items))] if items else []


def set_fields(value: Value, fields: Mapping[str, Value]) -> None:
    """Let the object that `fields_of` reads have these attributes, others as before."""
    state = _state_of(value)
    assert state is not None
    set_named(state, fields)


def named(value: Value) -> dict[str, Value]:
    """Return what a dictionary that `pairs_of` reads has under texts."""
    return {name: part for name, part in pairs_of(value) or () if isinstance(name, str)}


def set_named(value: Node, parts: Mapping[str, Value]) -> None:
    """Let the dictionary that `pairs_of` reads have these under texts, and all else as before."""
    left = dict(parts)
    pairs = [(key, left.pop(key, part) if isinstance(key, str) else part) for key, part in pairs_of(value) or ()]
    value.changes = [(pickle.SETITEMS, tuple(part for pair in (*pairs, *left.items()) for part in pair))]


def _state_of(value: Value) -> Node | None:
    if not isinstance(value, Node) or len(value.changes) != 1:
        return None
    opcode, (state, *_) = value.changes[0]
    return state if opcode == pickle.BUILD and isinstance(state, Node) else None
