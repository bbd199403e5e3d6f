"""Signatures: every mistake is named before Triton sees it."""

from typing import Any

import pytest

from aot.compile.kernels.signature import Parameter, check_options, check_signatures, match_signature
from aot.errors import InvalidSpec, MalformedDocument
from aot.pipeline.kernels import read_signatures
from tests.kernel_builders import a_signature

ADD = (
    Parameter("x"),
    Parameter("y"),
    Parameter("out"),
    Parameter("n"),
    Parameter("BLOCK", constexpr=True),
)


def faults(call: Any, *arguments: Any) -> list[str]:
    with pytest.raises(InvalidSpec) as caught:
        call(*arguments)
    assert caught.value.hint
    return caught.value.details.get("faults", [caught.value.message])


def test_a_signature_that_fits_is_accepted() -> None:
    check_signatures([a_signature(), a_signature("f16")])
    match_signature(a_signature(), ADD)


@pytest.mark.parametrize(
    ("deviation", "fault"),
    [
        ({"types": {"x": "*fp33"}, "divisible": ()}, "argument x has the type '*fp33', which Triton does not know"),
        ({"types": {"x": "float32"}, "divisible": ()}, "argument x has the type 'float32', which Triton does not know"),
        ({"types": {"x": "**fp32"}, "divisible": ()}, "argument x has the type '**fp32', which Triton does not know"),
        ({"types": {"BLOCK": "i32"}, "divisible": ()}, "BLOCK is in types and in constants"),
        ({"divisible": ("z",)}, "divisible names z, which has no type"),
        ({"divisible": ("BLOCK",)}, "divisible names BLOCK, which has no type"),
        ({"types": {"x": "fp32"}, "divisible": ("x",)}, "divisible names x, which is neither a pointer nor an integer"),
        ({"num_warps": 3}, "num_warps must be a power of 2 up to 32, found 3"),
        ({"num_warps": 64}, "num_warps must be a power of 2 up to 32, found 64"),
        ({"num_warps": 0}, "num_warps must be a power of 2 up to 32, found 0"),
        ({"num_stages": 0}, "num_stages must be at least 1, found 0"),
        ({"options": {"arch": "sm80"}}, "option arch cannot be set: the target decides it"),
        (
            {"options": {"ir_override": "/etc/x.ptx"}},
            "option ir_override cannot be set: it names a file of the builder",
        ),
    ],
)
def test_what_is_wrong_whatever_the_kernel_is_named(deviation: dict[str, Any], fault: str) -> None:
    assert faults(check_signatures, [a_signature(**deviation)]) == [fault]


def test_every_fault_is_told_at_once() -> None:
    wrong = a_signature(types={"x": "*f32", "n": "int"}, divisible=(), num_warps=5)
    assert len(faults(check_signatures, [wrong])) == 3


@pytest.mark.parametrize("kind", ["*fp32", "*kfp16", "i1", "u64", "bf16", "*fp8e5", "i64"])
def test_types_of_triton_are_known(kind: str) -> None:
    check_signatures([a_signature(types={"x": kind}, divisible=())])


def test_signatures_need_names_of_their_own_and_one_at_least() -> None:
    assert faults(check_signatures, []) == ["a kernel needs at least one signature"]
    assert faults(check_signatures, [a_signature(), a_signature()]) == ["two signatures are named f32"]


def test_arguments_that_the_kernel_lacks_or_needs_are_named() -> None:
    wrong = a_signature(types={"x": "*fp32", "z": "i32"}, constants={"WIDTH": 4}, divisible=())
    assert faults(match_signature, wrong, ADD) == [
        "the kernel has no argument WIDTH, z; it has x, y, out, n, BLOCK",
        "it says nothing of y, out, n, BLOCK",
    ]


def test_a_constexpr_needs_a_value() -> None:
    wrong = a_signature(types={**a_signature().types, "BLOCK": "i32"}, constants={})
    assert faults(match_signature, wrong, ADD) == ["BLOCK is a tl.constexpr and needs a value in constants, not a type"]


def test_an_argument_with_a_default_may_be_left_out_and_a_plain_one_made_constant() -> None:
    more = (*ADD, Parameter("ALPHA", constexpr=True, has_default=True))
    match_signature(a_signature(), more)
    types = {name: kind for name, kind in a_signature().types.items() if name != "n"}
    match_signature(a_signature(types=types, constants={"BLOCK": 8, "n": 64}), ADD)


def test_an_option_that_the_target_lacks_is_refused_since_triton_ignores_it() -> None:
    [fault] = faults(check_options, a_signature(options={"maxnregs": 64}), ["maxnreg", "arch"])
    assert "no option maxnregs" in fault


SIGNATURES = """
[[signature]]
name = "f32"
types = { x = "*fp32", y = "*fp32", out = "*fp32", n = "i32" }
constants = { BLOCK = 1024 }
divisible = ["x", "y", "out"]

[[signature]]
name = "scaled"
types = { x = "*fp32" }
constants = { ALPHA = 0.5, MASKED = true, KIND = "relu" }
num_warps = 8
num_stages = 2
options = { maxnreg = 128 }
"""


def test_a_file_of_signatures_is_read() -> None:
    first, second = read_signatures(SIGNATURES)
    assert first == a_signature()
    assert second.constants == {"ALPHA": 0.5, "MASKED": True, "KIND": "relu"}
    assert (second.num_warps, second.num_stages, second.options) == (8, 2, {"maxnreg": 128})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[[signature", "no TOML"),
        ('[[signature]]\nname = "a"', "types"),
        ('[[signature]]\nname = "a"\ntypes = {}\nwarps = 4', "warps"),
        ('[[signature]]\nname = "A b"\ntypes = {}', "wanted a name"),
    ],
)
def test_a_file_that_is_none_says_where(content: str, text: str) -> None:
    with pytest.raises(MalformedDocument, match=text):
        read_signatures(content)


def test_a_file_without_signatures_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="at least one"):
        read_signatures("")
