"""Digests of Python code: what a class's methods and the functions they reach do, apart from where they are written.

Part of a fingerprint. A digest covers bytecode, constants and names, defaults and closures; not file names, line
numbers, comments or docstrings. It is equal between processes, directories and patch versions of one minor version
of Python; another minor version compiles to other bytecode, which is why that version is a factor of its own.

Code of torch and of the standard library is named, not digested: their versions are guarded elsewhere.
"""

import functools
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

Encode = Callable[[Any], Any]

# Of a class's own dict: what the class statement, typing or abc put there, none of it written by an author.
_CLASS_FURNITURE = frozenset(
    [
        *("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__", "__firstlineno__"),
        *("__static_attributes__", "__orig_bases__", "__parameters__", "__abstractmethods__", "_abc_impl", "__hash__"),
        *("__annotate__", "__annotate_func__", "__annotations_cache__", "__slotnames__", "__match_args__"),
        *("__dataclass_fields__", "__dataclass_params__"),
    ]
)
_HAS_DOCSTRING = 0x4000000  # CO_HAS_DOCSTRING, Python 3.13


def is_named_only(module: str | None) -> bool:
    """True for code that is covered by a version instead: torch itself, the standard library, builtins."""
    root = (module or "").partition(".")[0]
    return root in ("torch", "aot") or (root in sys.stdlib_module_names and root != "__main__")


def full_name(thing: Any) -> str:
    """Return `module.qualname` of a class or function."""
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None) or type(thing).__qualname__
    return f"{getattr(thing, '__module__', None) or 'builtins'}.{name}"


def name_of(thing: Any) -> str:
    """Return the name of a class or function: with its module where that is all there is to it.

    Whatever is digested goes by its qualified name alone, so that a program is the same when its file is imported
    under another name, or run as a script.
    """
    full = full_name(thing)
    module = getattr(thing, "__module__", None) or "builtins"
    return full if is_named_only(module) else full.removeprefix(f"{module}.")


# By identity: a code object as a key would be hashed and compared by value. Holding it keeps the identity its own.
_DIGESTS: dict[int, tuple[CodeType, str]] = {}


def digest_code(code: CodeType) -> str:
    """Return the digest of a code object and of those nested in it; computed once a process."""
    known = _DIGESTS.get(id(code))
    if known is None:
        running = hashlib.sha256()
        _feed(code, running.update)
        known = _DIGESTS[id(code)] = (code, running.hexdigest()[:16])
    return known[1]


def _feed(code: CodeType, update: Callable[[bytes], object]) -> None:
    table = getattr(code, "co_exceptiontable", b"")
    head = (
        code.co_name,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags & ~_HAS_DOCSTRING,
        len(code.co_code),
        len(table),
        len(code.co_consts),
    )
    update(repr(head).encode("utf-8", "surrogatepass"))
    update(code.co_code)
    update(table)
    for constant in _constants(code):
        if isinstance(constant, CodeType):
            _feed(constant, update)
        else:
            update(_describe_constant(constant).encode("utf-8", "surrogatepass"))


def _constants(code: CodeType) -> tuple[object, ...]:
    """The constants without the docstring, which stands first where a function has one."""
    constants = code.co_consts
    if code.co_flags & _HAS_DOCSTRING:
        return (None, *constants[1:])
    reserved = sys.version_info < (3, 13) and not code.co_name.startswith("<")
    if reserved and constants and isinstance(constants[0], str):
        return (None, *constants[1:])
    return constants


def _describe_constant(constant: object) -> str:
    if isinstance(constant, tuple):
        return f"({','.join(map(_describe_constant, constant))})"
    if isinstance(constant, frozenset):  # its order follows the hash seed
        return f"{{{','.join(sorted(map(_describe_constant, constant)))}}}"
    return f"{type(constant).__name__}:{constant!r};"


def names_in(code: CodeType) -> Iterator[str]:
    """Yield every name that a code object looks up, and texts that `getattr` could look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def functions_of(value: Any) -> tuple[FunctionType, ...]:
    """Return the plain functions behind a method, descriptor, partial or decorated callable; () for anything else."""
    match value:
        case FunctionType():
            return (value,)
        case staticmethod() | classmethod() | MethodType():
            return functions_of(value.__func__)
        case property():
            return functions_of(value.fget) + functions_of(value.fset)
        case functools.cached_property() | functools.partial() | functools.partialmethod():
            return functions_of(value.func)
    # Not getattr: objects that answer to every name would never end.
    wrapped = None if isinstance(value, type) else getattr(value, "__dict__", {}).get("__wrapped__")
    return () if wrapped is None else functions_of(wrapped)


def describe_function(function: FunctionType, encode: Encode, seen: frozenset[int] = frozenset()) -> Any:
    """Return what identifies `function`: its code, defaults, and what its closure holds."""
    if is_named_only(function.__module__) or id(function) in seen:
        return name_of(function)
    parts: list[Any] = [digest_code(function.__code__)]
    for default in (*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())):
        parts.append(encode(default))
    within = seen | {id(function)}
    for cell in function.__closure__ or ():
        parts.append(_describe_cell(cell, encode, within))
    return parts[0] if len(parts) == 1 else parts


def _describe_cell(cell: Any, encode: Encode, seen: frozenset[int]) -> Any:
    try:
        content = cell.cell_contents
    except ValueError:  # not filled yet
        return "empty"
    if isinstance(content, type):
        return name_of(content)
    functions = functions_of(content)
    return [describe_function(one, encode, seen) for one in functions] if functions else encode(content)


def own_classes(kind: type, base: type) -> tuple[type, ...]:
    """Return the classes of `kind`'s MRO whose code is digested, up to `base` and apart from torch's."""
    return tuple(
        one for one in kind.__mro__ if one is not base and one is not object and not is_named_only(one.__module__)
    )


def describe_class(kind: type, encode: Encode) -> dict[str, Any]:
    """Return every member of a class's own body by name: methods as digests, values as values."""
    members: dict[str, Any] = {}
    for name, value in vars(kind).items():
        if name in _CLASS_FURNITURE:
            continue
        if functions := functions_of(value):
            described = [describe_function(one, encode) for one in functions]
            members[name] = described[0] if len(described) == 1 else described
        elif isinstance(value, type):
            members[name] = name_of(value)
        elif not name.startswith("__"):
            members[name] = encode(value)
    return members


class Reached:
    """Functions, classes and plain values that code refers to by global name.

    `functions` leaves out those that only stand in another's closure, since that one's description holds them;
    `followed` has these too.
    """

    def __init__(self) -> None:
        self.functions: dict[int, FunctionType] = {}
        self.followed: dict[int, FunctionType] = {}
        self.classes: dict[str, type] = {}
        self.values: dict[str, Any] = {}

    def note(self, function: FunctionType, name: str, value: Any) -> list[FunctionType]:
        """Record one global that `function` names, and return the functions to follow from it."""
        if isinstance(value, ModuleType):
            if is_named_only(value.__name__):
                return []
            # Not getattr: a module that imports lazily would import.
            found = (vars(value).get(inner) for inner in names_in(function.__code__))
            return [one for item in found for one in functions_of(item)]
        if isinstance(value, type):
            if not is_named_only(value.__module__):
                self.classes.setdefault(full_name(value), value)
            return []
        if functions := functions_of(value):
            return list(functions)
        if value is None or isinstance(value, bool | int | float | str | tuple):
            self.values.setdefault(f"{function.__module__}.{name}", value)
        return []


def reach(
    roots: Iterable[FunctionType],
    methods: Mapping[str, tuple[FunctionType, ...]],
    *,
    described: Iterable[FunctionType] = (),
) -> Reached:
    """Follow names from `roots`: to `methods` of the program's classes, and to globals of the functions themselves.

    `described` are further roots, left out of the result because they are described where they stand. By name alone,
    so it reaches too much rather than too little; what is only found by a computed name is missed.
    """
    reached = Reached()
    taken: set[str] = set()
    pending = [(function, True) for function in roots] + [(function, False) for function in described]
    while pending:
        function, listed = pending.pop()
        if is_named_only(function.__module__):
            continue
        if listed:
            reached.functions[id(function)] = function
        if id(function) in reached.followed:
            continue
        reached.followed[id(function)] = function
        pending += [(inner, False) for inner in _closure_functions(function)]
        for name in dict.fromkeys(names_in(function.__code__)):
            if name not in taken and name in methods:
                taken.add(name)
                pending += [(method, True) for method in methods[name]]
            if name in function.__globals__ and not name.startswith("__"):
                found = reached.note(function, name, function.__globals__[name])
                pending += [(one, True) for one in found]
    return reached


def _closure_functions(function: FunctionType) -> list[FunctionType]:
    found: list[FunctionType] = []
    for cell in function.__closure__ or ():
        try:
            found += functions_of(cell.cell_contents)
        except ValueError:
            continue
    return found
