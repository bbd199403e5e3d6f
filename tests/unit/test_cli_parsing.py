from pathlib import Path
from typing import Any

import pytest

from aot.cli.builds import check_source
from aot.cli.exits import Exit, exit_code_of
from aot.cli.output import size, table
from aot.cli.recipe import make_recipe, parse_dimension, parse_limits, parse_option, parse_variable
from aot.errors import (
    AotError,
    BindingFailed,
    BuildFailed,
    BuildUnfinished,
    BundleNotFound,
    CompileTimedOut,
    DigestMismatch,
    Forbidden,
    InvalidInput,
    MalformedDocument,
    NoCompatibleArtifact,
    QualificationFailed,
    RateLimited,
    RegistryUnreachable,
    SignatureRejected,
    error_classes,
)
from aot.schema.recipe import Dimension, Mode, Randomness, Recipe, Regions
from aot.schema.spec import Limits


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("batch=1..32", Dimension(name="batch", low=1, high=32)),
        ("batch=4..", Dimension(name="batch", low=4)),
        ("width=8..64/8", Dimension(name="width", low=8, high=64, multiple_of=8)),
        ("length=128,512", Dimension(name="length", buckets=(128, 512))),
        ("batch=8", Dimension(name="batch", low=8, high=8)),
    ],
)
def test_a_dimension_is_read(text: str, dimension: Dimension) -> None:
    assert parse_dimension(text) == dimension


@pytest.mark.parametrize("text", ["batch", "batch=", "batch=a..b", "=1..2", "batch=1,2/8", "batch=1..2/x"])
def test_a_dimension_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="wanted a dimension"):
        parse_dimension(text)


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("epilogue_fusion=true", ("epilogue_fusion", True)),
        ("cpp.threads=4", ("cpp.threads", 4)),
        ("max_autotune_gemm_backends=ATEN,CPP", ("max_autotune_gemm_backends", "ATEN,CPP")),
        ("x=null", ("x", None)),
    ],
)
def test_an_inductor_option_is_read(text: str, option: tuple[str, object]) -> None:
    assert parse_option(text) == option


@pytest.mark.parametrize("text", ["epilogue_fusion", "=1", "x=[1]", 'x={"a":1}'])
def test_an_option_that_is_no_single_value_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_option(text)


def test_a_recipe_is_made_of_its_options() -> None:
    assert a_recipe(
        mode="default",
        dimensions=["batch=1..4"],
        dynamic=True,
        fullgraph=False,
        random="unchecked",
        options=["x=1"],
        variables=["A=b=c"],
        regions="auto",
        freeze=True,
        require_faster=True,
    ) == Recipe(
        mode=Mode.DEFAULT,
        dimensions=(Dimension(name="batch", low=1, high=4),),
        dynamic=True,
        fullgraph=False,
        random=Randomness.UNCHECKED,
        options={"x": 1},
        environment={"A": "b=c"},
        regions=Regions.AUTO,
        freeze=True,
        require_faster=True,
    )


def test_options_that_are_left_out_are_the_recipes_own_defaults() -> None:
    assert a_recipe() == Recipe()
    assert parse_limits([]) == Limits()


@pytest.mark.parametrize(("field", "wrong"), [("mode", "fastest"), ("random", "maybe"), ("regions", "some")])
def test_a_word_that_is_not_known_is_refused_with_those_that_are(field: str, wrong: str) -> None:
    with pytest.raises(InvalidInput, match=wrong) as caught:
        a_recipe(**{field: wrong})
    known = {"mode": Mode, "random": Randomness, "regions": Regions}[field]
    assert all(word in caught.value.message for word in known)
    assert caught.value.hint


def test_a_word_that_is_nearly_known_is_asked_about() -> None:
    with pytest.raises(InvalidInput) as caught:
        a_recipe(mode="max-autotunes")
    assert caught.value.hint == "did you mean 'max-autotune'?"


@pytest.mark.parametrize("text", ["A", "=1", "1A=2", "A B=1"])
def test_a_variable_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="wanted a variable"):
        parse_variable(text)


def test_limits_are_read_with_units_of_bytes() -> None:
    texts = ["memory_bytes=32G", "wall_seconds=7200", "processes=64", "disk_bytes=100m"]
    assert parse_limits(texts) == Limits(memory_bytes=32 << 30, wall_seconds=7200.0, processes=64, disk_bytes=100 << 20)
    assert parse_limits(["processes=64"]) == Limits(processes=64)


@pytest.mark.parametrize(
    "text", ["memory=32G", "memory_bytes", "memory_bytes=0", "memory_bytes=-1", "wall_seconds=2h", "processes=2K"]
)
def test_a_limit_of_another_form_is_refused_with_the_names(text: str) -> None:
    with pytest.raises(InvalidInput, match="wanted a limit") as caught:
        parse_limits([text])
    assert "wall_seconds, memory_bytes, processes, disk_bytes" in caught.value.hint


def a_recipe(**deviations: Any) -> Recipe:
    """What `aot submit` makes of its options."""
    fields: dict[str, Any] = {
        "mode": "max-autotune",
        "dimensions": [],
        "dynamic": None,
        "fullgraph": True,
        "random": "refuse",
        "options": [],
        "variables": [],
        "regions": "whole",
        "freeze": False,
        "require_faster": False,
    }
    return make_recipe(**(fields | deviations))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MalformedDocument, 2),
        (BuildFailed, 3),
        (CompileTimedOut, 3),
        (QualificationFailed, 3),
        (NoCompatibleArtifact, 4),
        (BindingFailed, 4),
        (RegistryUnreachable, 5),
        (RateLimited, 5),
        (BuildUnfinished, 5),
        (DigestMismatch, 6),
        (SignatureRejected, 6),
        (Forbidden, 7),
        (BundleNotFound, 7),
    ],
)
def test_exit_codes_are_those_of_the_contract(error: type[AotError], code: int) -> None:
    assert exit_code_of(error("no")) == code


def test_every_error_has_an_exit_code_of_its_family() -> None:
    faults = {kind for kind in error_classes() if exit_code_of(kind("no")) is Exit.FAULT}
    assert faults <= {AotError} | {kind for kind in faults if kind.code == "guard-failed"}


def test_sizes_and_tables_read_well() -> None:
    assert [size(count) for count in (0, 999, 1500, 2_300_000, 5_000_000_000_000)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.3 MB",
        "5000.0 GB",
    ]
    assert table(("a", "bb"), [("xxx", "y")]) == ["a    bb", "xxx  y"]
    assert table(("a",), []) == []


def test_a_python_file_as_a_source_is_answered_with_its_directory(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    with pytest.raises(InvalidInput, match="found the Python file") as caught:
        check_source(tmp_path / "model.py", "model:build")
    assert caught.value.hint == f"--source {tmp_path} --entry model:FUNCTION"
