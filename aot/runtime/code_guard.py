"""Guards on what code does, where no fingerprint reaches it by name: functions in dictionaries, and of packages.

Dynamo tells functions apart by identity, which no other process has. A fingerprint holds what a module's code names;
a function that stands in a dictionary, or is reached through a package, is looked up while the program runs. Its
content is compared when the artifact is loaded: bytecode, constants, names, defaults and closure. What it calls or
reads in turn has guards of its own. As with every other code, a function that is replaced after loading is not seen.
"""

from collections.abc import Mapping
from types import CodeType, FunctionType
from typing import Any

from aot.runtime.code import describe_function, digest_code
from aot.schema.guard import ProgramGuard

CODE_CONTENT = "CODE_CONTENT"


class _NotPlain(Exception):
    """A default or a closure holds an object, whose state no digest has."""


def content_guard(source: str, value: Any) -> ProgramGuard | None:
    """Return the guard that `source`, a global of the program, holds code that does what `value` does.

    None for what is no plain function, and for one that holds more than plain values.
    """
    digest = _digest(value) if source.startswith("G[") else None
    if digest is None:
        return None
    # A version that does not know the kind evaluates the condition, finds no such attribute, and refuses.
    return ProgramGuard(kind=CODE_CONTENT, source=source, condition=f"{source}.content == {digest!r}")


def content_holds(guard: ProgramGuard, names: Mapping[str, Any]) -> bool:
    """Whether the guard's source holds code with that content; `names` has what `G` stands for. Never raises."""
    try:
        value = eval(guard.source, dict(names))  # as trusted as the pickle beside it
        return content_guard(guard.source, value) == guard
    except Exception:
        return False


def _digest(value: Any) -> str | None:
    if isinstance(value, CodeType):
        return digest_code(value)
    if type(value) is not FunctionType:
        return None
    try:
        described = describe_function(value, _encode)
    except _NotPlain:
        return None
    return described if isinstance(described, str) else repr(described)


def _encode(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return f"{type(value).__name__}:{value!r}"
        case tuple():
            return [_encode(one) for one in value]
    raise _NotPlain
