"""Pickles as symbols and back: whatever Python's pickler writes comes out as it was, and nothing is run to see that."""

import collections
import io
import pickle
import pickletools
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aot.capture import symbolic
from aot.capture.pickled import MOST_BYTES
from aot.capture.symbolic import read, write
from aot.capture.symbols import Global, each_node, fields_of, instance, is_instance, items_of, set_fields, set_items


class Thing:
    """An object with attributes, as most of torch's are."""


class Made:
    def __init__(self, *, size: int) -> None:
        self.size = size

    def __getnewargs_ex__(self) -> tuple[tuple, dict]:
        return (), {"size": self.size}

    def __new__(cls, *, size: int) -> "Made":
        return super().__new__(cls)


constants = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False),
    st.text(max_size=300),
    st.binary(max_size=300),
)
KINDS = ("list", "dict", "set", "tuple", "frozenset", "thing", "deque", "ordered", "bytearray", "class", "with")
recipes = st.lists(
    st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 40), max_size=6), st.lists(constants, max_size=3)),
    min_size=1,
    max_size=20,
)
changes = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=20)


def build(recipe: list, edges: list) -> object:
    """An object graph with as much sharing, and as many cycles, as its numbers say."""
    made: list[object] = []
    for kind, earlier, own in recipe:
        parts = [made[number % len(made)] for number in earlier if made] + own
        match kind:
            case "list":
                made.append(list(parts))
            case "dict":
                made.append(dict(enumerate(parts)))
            case "set" | "frozenset":
                made.append((set if kind == "set" else frozenset)(own))
            case "tuple":
                made.append(tuple(parts))
            case "thing":
                made.append(Thing())
                vars(made[-1]).update({f"name{number}": part for number, part in enumerate(parts)})
            case "deque":
                made.append(collections.deque(parts))
            case "ordered":
                made.append(collections.OrderedDict(enumerate(parts)))
            case "bytearray":
                made.append(bytearray(b"content"))
            case "class":
                made.append(Thing)
            case "with":
                made.append(Made(size=len(parts)))
    for source, target in edges:
        changed, part = made[source % len(made)], made[target % len(made)]
        if isinstance(changed, list | collections.deque):
            changed.append(part)
        elif isinstance(changed, dict):
            changed[f"to{target}"] = part
        elif isinstance(changed, Thing):
            setattr(changed, f"to{target}", part)
    return made


def shape(root: object) -> list:
    """What can be told of an object graph: types, contents, and which objects are one."""
    numbers: dict[int, int] = {}
    told: list[object] = []
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, int | float | str | bytes | type | None):
            told.append((type(value).__name__, value))
            continue
        if value != () and id(value) in numbers:
            told.append(numbers[id(value)])
            continue
        numbers[id(value)] = len(numbers)
        told.append(type(value).__name__)
        if isinstance(value, set | frozenset | bytearray):
            told.append(sorted(map(repr, value)))
        elif isinstance(value, dict):
            told.append(list(value))
            waiting.extend(value.values())
        elif isinstance(value, Thing | Made):
            told.append(list(vars(value)))
            waiting.extend(vars(value).values())
        else:
            told.append(len(value))
            waiting.extend(value)
    return told


POPS = frozenset({"POP", "POP_MARK"})  # of a tuple that holds itself


def names_in(content: bytes) -> set[str]:
    return {opcode.name for opcode, _, _ in pickletools.genops(content)}


@settings(deadline=None)
@given(recipe=recipes, edges=changes, protocol=st.integers(2, 5))
def test_any_object_graph_comes_out_as_it_was(recipe: list, edges: list, protocol: int) -> None:
    wanted = build(recipe, edges)
    content = pickle.dumps(wanted, protocol)
    try:
        symbols = read(content)
    except ValueError:
        assume(not names_in(content) & POPS)
        raise
    written = write(*symbols)
    assert shape(pickle.loads(written)) == shape(pickle.loads(content)) == shape(wanted)
    assert write(*read(written)) == written
    assert len(written) <= len(content) + 64


# Few objects that refer to each other a lot: tuples are made of what may refer to them.
tangles = st.lists(
    st.tuples(st.sampled_from(("tuple", "thing", "list")), st.lists(st.integers(0, 7), max_size=4), st.just([])),
    min_size=3,
    max_size=8,
)
drops = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=6)


@settings(deadline=None)
@given(recipe=tangles, edges=changes, protocol=st.integers(2, 5), taken=drops, first=st.integers(0, 7))
def test_a_graph_without_some_items_is_what_python_would_write_of_it_or_none(
    recipe: list, edges: list, protocol: int, taken: list, first: int
) -> None:
    """What was there first may be gone, so that other places come first. None: then a tuple would hold itself."""
    wanted = build(recipe, edges)
    assert isinstance(wanted, list)
    content = pickle.dumps(wanted, protocol)
    assume(not names_in(content) & POPS)
    root, _ = read(content)
    symbols = items_of(root)
    assert symbols is not None
    for number, at in taken:
        changed, symbol = wanted[number % len(wanted)], symbols[number % len(wanted)]
        if type(changed) is list and changed:
            del changed[at % len(changed)]
            items = items_of(symbol)
            set_items(symbol, [*items[: at % len(items)], *items[at % len(items) + 1 :]])
    first %= len(wanted)
    del wanted[:first]
    set_items(root, symbols[first:])
    pops = names_in(pickle.dumps(wanted, protocol)) & POPS
    try:
        written = write(root, protocol)
    except ValueError:
        assert pops
        return
    assert not pops and shape(pickle.loads(written)) == shape(wanted)
    assert write(*read(written)) == written


def test_an_object_before_it_is_made_is_not_written() -> None:
    """`held` came first in a place that is gone; now it comes first in a tuple that it has itself."""
    held = Thing()
    held.by = (held,)
    root, protocol = read(pickle.dumps([held, held.by]))
    kept = items_of(root)
    set_items(root, kept[:1])
    (found,) = pickle.loads(write(root, protocol))
    assert found.by == (found,)
    set_items(root, kept[1:])
    with pytest.raises(ValueError, match="within what it is made of"):
        write(root, protocol)


def test_equal_symbols_are_equal_bytes_whichever_text_is_one_object() -> None:
    word = "".join(["a long", " word"])
    assert pickle.dumps([word, word]) != pickle.dumps([word, "".join(["a long ", "word"])])
    one, other = (write(*read(pickle.dumps([word, last]))) for last in (word, "".join(["a long ", "word"])))
    assert one == other and len(one) < len(pickle.dumps([word, word]))


def test_reading_imports_and_runs_nothing() -> None:
    content = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0bexit 1; no!\x85R."
    (root, protocol) = read(content)
    assert root.parts[0] == Global("os", "system") and write(root, protocol) == content
    absent = b"\x80\x04\x8c\x0bno.such.one\x8c\x05Thing\x93)\x81}\x8c\x05fieldK\x01sb."
    assert write(*read(absent)) == absent.replace(b"}\x8c\x05fieldK\x01s", b"}(\x8c\x05fieldK\x01u")


def test_attributes_and_items_are_read_and_altered_in_place() -> None:
    thing = Thing()
    thing.items, thing.name, thing.me = [1, 2], "one", thing
    root, protocol = read(pickle.dumps([thing, thing.items]))
    symbol, items = items_of(root)
    assert is_instance(symbol, Global(Thing.__module__, "Thing")) and not is_instance(
        symbol, Global("builtins", "list")
    )
    assert fields_of(symbol) == {"items": items, "name": "one", "me": symbol} and items_of(items) == [1, 2]
    set_fields(symbol, {"name": "other", "more": None})
    set_items(items, [instance(Global(Thing.__module__, "Thing"), {"name": "new"})])
    found, shared = pickle.loads(write(root, protocol))
    assert (found.name, found.more, found.me) == ("other", None, found) and found.items is shared
    assert [vars(item) for item in shared] == [{"name": "new"}] and len(list(each_node(root))) == 8


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        pickle.dumps([1])[:-3],
        pickle.dumps([1], 0),
        b"\x80\x04\x8c\x01aQ.",  # a persistent id
        b"\x80\x04\x82\x01.",  # an extension code
        b"\x80\x05\x97.",  # a buffer out of band
        b"\x80\x04h\x05.",  # a reference to nothing
        b"\x80\x04K\x01\x94.",  # one to a number
        b"\x80\x04]]\x94h\x00K\x01a0.",
        b"\x80\x04]\x94h\x00K\x01a.",  # what was made before is changed
        b"\x80\x04]]0a.",
        b"\x80\x04(K\x01K\x02.",
        b"\x80\x04K\x01K\x02.",
        b"\x80\x04.",
        b"\x80\x04a.",
        b"\x80\x04}(K\x01u.",
        b"\x80\x04K\x01K\x02\x93.",
        b"\x80\x04K\x01K\x01b.",
        b"\x80\x09N.",
        b"\x80\x04\x8b\x00\x02\x00\x00" + b"\x01" * 512 + b".",
    ],
)
def test_what_is_not_read_raises_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(content)


def test_a_tuple_that_holds_itself_is_not_read() -> None:
    items: list = []
    items.append((items,))
    assert shape(pickle.loads(write(*read(pickle.dumps(items))))) == shape(items)
    with pytest.raises(ValueError, match="POP"):
        read(pickle.dumps(items[0]))


def test_depth_and_length_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b"."
    written = write(*read(deep))
    assert written.count(b"]") == 100_000
    monkeypatch.setattr(symbolic, "MOST_STEPS", 1000)
    with pytest.raises(ValueError, match="1000"):
        read(deep)
    with pytest.raises(ValueError, match=r"\d bytes"):
        read(bytes(MOST_BYTES + 1))


def test_time_is_in_proportion_to_what_is_read() -> None:
    """A dictionary that many refer to is written once, and a text that is remembered is not written again."""
    wide = {number: str(number) * 3 for number in range(2000)}
    content = io.BytesIO()
    pickle.dump([[wide] for _ in range(50_000)], content)
    started = time.perf_counter()
    written = write(*read(content.getvalue()))
    assert len(written) <= len(content.getvalue()) and time.perf_counter() - started < 20
