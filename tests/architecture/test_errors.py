"""The error tree: codes are unique and the way back from the wire is total."""

import pickle

import aot.errors
from aot.errors import AotError, RegistryError, error_classes, error_from_wire


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in error_classes()]
    assert len(codes) == len(set(codes))


def test_every_class_of_the_module_is_in_the_tree() -> None:
    public = {value for value in vars(aot.errors).values() if isinstance(value, type)}
    assert {kind for kind in public if issubclass(kind, Exception)} == set(error_classes())


def test_every_code_comes_back_as_its_class() -> None:
    for kind in error_classes():
        error = error_from_wire(kind.code, "wanted this", hint="do that", details={"a": 1})
        assert type(error) is kind
        assert (error.message, error.hint, error.details) == ("wanted this", "do that", {"a": 1})


def test_a_code_of_a_newer_registry_is_kept() -> None:
    error = error_from_wire("from-the-future", "no")
    assert type(error) is RegistryError
    assert error.details["code"] == "from-the-future"


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(AotError("a", hint="b", details={"c": 2})))
    assert (error.message, error.hint, error.details) == ("a", "b", {"c": 2})


def test_the_docstring_draws_the_whole_tree() -> None:
    assert aot.errors.__doc__ is not None
    drawn = aot.errors.__doc__.replace("│", " ").split()
    assert {kind.__name__ for kind in error_classes()} <= set(drawn)
