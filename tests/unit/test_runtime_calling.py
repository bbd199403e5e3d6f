"""Calls in any form that eager takes must reach the same flat tensors, or say why not."""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from aot.errors import BindingFailed, LoadFailed
from aot.runtime.argument_names import speaker
from aot.runtime.calling import BoundCall, bind_call
from aot.runtime.compiled import Fallback
from aot.runtime.load import load_nothing
from aot.schema.artifact import CallSpec, Leaf, LeafKind
from aot.schema.names import Reference

X, Y, Z = torch.zeros(1), torch.ones(2), torch.ones(3)


def a_leaf(value: Any, path: str) -> Leaf:
    if isinstance(value, torch.Tensor):
        return Leaf(kind=LeafKind.TENSOR, path=path)
    if value is None:
        return Leaf(kind=LeafKind.NONE, path=path)
    return Leaf(kind=LeafKind.CONSTANT, path=path, constant=value, constant_type=type(value).__name__)


def a_call(
    forward: Any,
    args: tuple = (),
    kwargs: dict | None = None,
    *,
    result: Any = X,
    outputs: tuple[Leaf, ...] | None = None,
) -> BoundCall:
    """Bind what exporting `forward(*args, **kwargs)` with this `result` would record."""
    with_paths, in_spec = pytree.tree_flatten_with_path((args, kwargs or {}))
    leaves = [
        a_leaf(value, f"{'args' if path[0].idx == 0 else 'kwargs'}{pytree.keystr(path[1:])}")
        for path, value in with_paths
    ]
    results, out_spec = pytree.tree_flatten(result)
    spec = CallSpec(
        in_spec=pytree.treespec_dumps(in_spec),
        out_spec=pytree.treespec_dumps(out_spec),
        inputs=tuple(leaves),
        outputs=outputs or tuple(a_leaf(value, "") for value in results),
        parameters=tuple(signature(forward).parameters),
    )
    return bind_call(spec, signature(forward))


def two(x, y): ...


def optional(x, y=None, scale=2.0, *, flag=True): ...


def variadic(x, *rest, **others): ...


class Half(float): ...


def same(found: Any, *tensors: torch.Tensor) -> bool:
    return (
        isinstance(found, tuple)
        and len(found) == len(tensors)
        and all(a is b for a, b in zip(found, tensors, strict=True))
    )


@pytest.mark.parametrize("exported", [((X, Y), {}), ((X,), {"y": Y}), ((), {"x": X, "y": Y}), ((), {"y": Y, "x": X})])
def test_positions_and_names_in_any_order_reach_the_exported_order(exported: tuple[tuple, dict]) -> None:
    call = a_call(two, *exported)
    wanted = (Y, X) if list(exported[1]) == ["y", "x"] else (X, Y)
    for args, kwargs in [((X, Y), {}), ((X,), {"y": Y}), ((), {"y": Y, "x": X}), ((), {"x": X, "y": Y})]:
        assert same(call.flatten(args, kwargs), *wanted)


def test_defaults_may_be_left_out_or_given() -> None:
    for exported in [((X,), {}), ((X, None), {}), ((X, None, 2.0), {"flag": True}), ((), {"x": X, "scale": 2.0})]:
        call = a_call(optional, *exported)
        for args, kwargs in [((X,), {}), ((X, None, 2.0), {}), ((), {"flag": True, "x": X}), ((X,), {"scale": 2.0})]:
            assert same(call.flatten(args, kwargs), X)


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((X, None, 3.0), {}, "scale: exported with its default 2.0, found 3.0"),
        ((X, None, 2), {}, "scale: exported with its default 2.0, found 2"),
        ((X, Y), {}, "y: exported with its default None, found a Tensor"),
        ((X,), {"flag": 1}, "flag: exported with its default True, found 1"),
        ((X,), {"scale": Half(2.0)}, "scale: exported with its default 2.0, found a Half"),
    ],
)
def test_a_parameter_exported_at_its_default_must_stay_there(args: tuple, kwargs: dict, reason: str) -> None:
    assert a_call(optional, (X,)).flatten(args, kwargs) == reason


def test_a_default_that_is_not_what_was_exported_may_not_be_left_out() -> None:
    call = a_call(optional, (X, None, 3.0))
    assert call.flatten((X,), {}) == "scale: wanted 3.0, found 2.0"
    assert same(call.flatten((X,), {"scale": 3.0}), X)
    assert a_call(optional, (X, Y)).flatten((X,), {}) == "y: wanted a tensor, found None"


@pytest.mark.parametrize(
    ("exported", "given", "reason"),
    [
        (2.0, 3.0, "scale: wanted 2.0, found 3.0"),
        (2.0, 2, "scale: wanted 2.0, found 2"),
        (1, True, "scale: wanted 1, found True"),
        (0.0, -0.0, "scale: wanted 0.0, found -0.0"),
        ("sum", "mean", "scale: wanted 'sum', found 'mean'"),
        (2.0, None, "scale: wanted 2.0, found None"),
        (2.0, X, "scale: wanted 2.0, found a Tensor"),
        (None, 2.0, "scale: wanted None, found 2.0"),
        (Z, None, "scale: wanted a tensor, found None"),
        (Z, [X], "scale: wanted a tensor, found a list"),
    ],
)
def test_a_leaf_of_another_kind_or_value_is_named(exported: Any, given: Any, reason: str) -> None:
    call = a_call(optional, (X, Y, exported))
    assert call.flatten((X, Y, given), {}) == reason
    assert not isinstance(call.flatten((X, Y, exported), {}), str)


def test_a_tensor_subclass_is_no_plain_tensor_and_a_parameter_is() -> None:
    class Tracked(torch.Tensor): ...

    call, parameter = a_call(two, (X, Y)), torch.nn.Parameter(X)
    assert call.flatten((X, Y.as_subclass(Tracked)), {}) == "y: wanted a tensor, found a Tracked"
    assert same(call.flatten((parameter, Y), {}), parameter, Y)


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((X,), {}, "y: missing"),
        ((X, Y, Z), {}, "args: wanted at most 2 positional argument(s), found 3"),
        ((X, Y), {"x": X}, "x: given by position and by name"),
        ((X, Y), {"z": X}, "kwargs['z']: not an argument of the exported call"),
    ],
)
def test_what_eager_would_refuse_is_a_reason(args: tuple, kwargs: dict, reason: str) -> None:
    assert a_call(two, (X, Y)).flatten(args, kwargs) == reason


def test_variadic_arguments_must_be_as_many_and_named_as_exported() -> None:
    call = a_call(variadic, (X, Y), {"z": Z})
    assert same(call.flatten((X, Y), {"z": Z}), X, Y, Z)
    assert call.flatten((X,), {"z": Z}) == "args[1]: missing"
    assert call.flatten((X, Y, Z), {"z": Z}) == "args: wanted at most 2 positional argument(s), found 3"
    assert call.flatten((X, Y), {"w": Z}) == "kwargs['z']: missing"
    assert call.flatten((X, Y), {"z": Z, "w": Z}) == "kwargs['w']: not an argument of the exported call"


def nested(batch, cache=None): ...


EXPORTED = {"ids": X, "more": [Y, (Z, None)], "size": 3}


def test_nested_arguments_are_flattened_with_dict_keys_in_any_order() -> None:
    call = a_call(nested, (EXPORTED,))
    for kind in (dict, OrderedDict, lambda pairs: defaultdict(list, pairs)):
        given = kind([("size", 3), ("more", [Y, (Z, None)]), ("ids", X)])
        assert same(call.flatten((given,), {}), X, Y, Z)
        assert same(call.flatten((), {"batch": given, "cache": None}), X, Y, Z)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"more": (Y, (Z, None))}, "batch['more']: wanted a list, found a tuple"),
        ({"more": [Y, (Z, None), X]}, "batch['more']: wanted 2 element(s), found 3"),
        ({"more": [Y, (Z, X)]}, "batch['more'][1][1]: wanted None, found a Tensor"),
        ({"more": None}, "batch['more']: wanted a list, found None"),
        ({"size": 4}, "batch['size']: wanted 3, found 4"),
        ({"extra": X}, "batch: wanted the keys ['ids', 'more', 'size'], found ['extra', 'ids', 'more', 'size']"),
    ],
)
def test_a_nested_mismatch_is_named_by_its_path(change: dict, reason: str) -> None:
    assert a_call(nested, (EXPORTED,)).flatten(({**EXPORTED, **change},), {}) == reason


def test_a_missing_key_is_named() -> None:
    call = a_call(nested, ({"a": X, "b": Y},))
    assert call.flatten(({"a": X, "c": Y},), {}) == "batch: wanted the keys ['a', 'b'], found ['a', 'c']"


@dataclass
class Pair:
    left: Any
    right: Any


pytree.register_pytree_node(
    Pair,
    lambda pair: ([pair.left, pair.right], None),
    lambda children, _: Pair(*children),
    serialized_type_name="tests.runtime.Pair",
    flatten_with_keys_fn=lambda pair: (
        [(pytree.GetAttrKey("left"), pair.left), (pytree.GetAttrKey("right"), pair.right)],
        None,
    ),
)


def test_registered_types_pass_in_and_out() -> None:
    call = a_call(nested, (Pair(X, [Y]),), result=Pair(X, {"y": Y}))
    assert same(call.flatten((Pair(X, [Y]),), {}), X, Y)
    assert call.flatten((Pair(X, Y),), {}) == "batch.1: wanted a list, found a Tensor"
    assert call.flatten(((X, [Y]),), {}) == "batch: wanted a Pair, found a tuple"
    assert call.unflatten((Z, X)) == Pair(Z, {"y": X})


@pytest.mark.parametrize(
    "result", [X, (X,), (X, Y), [X, Y], {"b": X, "a": Y}, OrderedDict(b=X, a=Y), (X, {"more": [Y, Z]}), ()]
)
def test_a_result_gets_its_structure_back(result: Any) -> None:
    leaves = pytree.tree_leaves(result)
    found = a_call(two, (X, Y), result=result).unflatten(tuple(leaves))
    assert type(found) is type(result)
    assert pytree.tree_structure(found) == pytree.tree_structure(result)
    assert all(a is b for a, b in zip(pytree.tree_leaves(found), leaves, strict=True))


def test_outputs_that_are_no_tensors_come_back_as_what_they_were() -> None:
    outputs = (
        Leaf(kind=LeafKind.TENSOR),
        Leaf(kind=LeafKind.NONE),
        Leaf(kind=LeafKind.INTEGER),
        Leaf(kind=LeafKind.CONSTANT, constant=4, constant_type="int"),
    )
    call = a_call(two, (X, Y), result=(X, None, 7, 4), outputs=outputs)
    found = call.unflatten((X, None, torch.tensor(9), torch.tensor(4)))
    assert found == (X, None, 9, 4) and type(found[2]) is int


def test_a_forward_with_other_parameters_is_refused() -> None:
    spec = CallSpec(in_spec="", out_spec="", inputs=(), outputs=(), parameters=("x", "y"))
    with pytest.raises(BindingFailed, match=r"parameters \['x', 'y'\], found \['x', 'y', 'scale', 'flag'\]"):
        bind_call(spec, signature(optional))


def test_a_type_that_this_process_does_not_know_is_refused() -> None:
    unknown = pytree.treespec_dumps(pytree.tree_structure(((Pair(X, Y),), {}))).replace("runtime.Pair", "runtime.Gone")
    spec = CallSpec(in_spec=unknown, out_spec=pytree.treespec_dumps(pytree.tree_structure(X)), inputs=(), outputs=())
    with pytest.raises(BindingFailed, match="does not know"):
        bind_call(spec, signature(nested))


def test_a_manifest_that_contradicts_itself_is_refused() -> None:
    tree = pytree.treespec_dumps(pytree.tree_structure(((X, Y), {})))
    leaf = Leaf(kind=LeafKind.TENSOR)
    for inputs, outputs in [((leaf,), (leaf, leaf)), ((leaf, leaf), (leaf,))]:
        with pytest.raises(BindingFailed, match="the manifest describes 1"):
            bind_call(CallSpec(in_spec=tree, out_spec=tree, inputs=inputs, outputs=outputs), signature(two))


def test_names_of_variadic_parameters_need_not_be_recorded() -> None:
    tree = pytree.treespec_dumps(pytree.tree_structure(((0, 0), {"z": 0})))
    leaves = tuple(Leaf(kind=LeafKind.TENSOR, path=path) for path in ("args[0]", "args[1]", "kwargs['z']"))
    one = pytree.treespec_dumps(pytree.tree_structure(0))
    for names, fits in ((("x",), True), (("x", "rest", "others"), True), (("y",), False)):
        spec = CallSpec(in_spec=tree, out_spec=one, inputs=leaves, outputs=leaves[:1], parameters=names)
        if fits:
            assert same(bind_call(spec, signature(variadic)).flatten((X, Y), {"z": Z}), X, Y, Z)
        else:
            with pytest.raises(BindingFailed, match=r"found \['x', 'rest', 'others'\]"):
                bind_call(spec, signature(variadic))


def test_a_reason_has_the_name_that_the_caller_knows() -> None:
    def forward(tokens, /, mask, *rest, cache=None, **others): ...

    speak = speaker(signature(forward))
    names = {
        "args[0]": "tokens",
        "args[1]['left'][0]": "mask['left'][0]",
        "args[2]": "args[2]",
        "kwargs['mask']": "mask",
        "kwargs['cache'].1": "cache.1",
        "kwargs['tokens']": "kwargs['tokens']",
        "kwargs['other']": "kwargs['other']",
        "result[0]": "result[0]",
    }
    assert {path: speak(path) for path in names} == names


def test_what_only_the_module_has_is_said_to_be_there() -> None:
    model = load_nothing(
        torch.nn.Linear(2, 2), error=LoadFailed("none"), fallback=Fallback.EAGER, reference=Reference.parse("mini")
    )
    with pytest.raises(AttributeError, match=r"no attribute 'state_dict'; the module has it: `.module.state_dict`"):
        model.state_dict()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        model.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_fault_in_what_the_model_itself_has_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_nothing(
        torch.nn.Linear(2, 2), error=LoadFailed("none"), fallback=Fallback.EAGER, reference=Reference.parse("mini")
    )
    monkeypatch.setattr(model, "_units", (object(),))
    with pytest.raises(AttributeError, match="'object' object has no attribute 'is_compiled'"):
        model.outcome  # noqa: B018
