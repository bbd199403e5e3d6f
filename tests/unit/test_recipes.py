"""Recipes that no worker can follow are refused without torch, with a hint that can be followed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from aot.environment.cards import card_variables
from aot.errors import InvalidSpec
from aot.recipes import ALLOWED, BUILT_ROUTES, check_recipe, reason_against
from aot.recipes.check import RESERVED_VARIABLES
from aot.recipes.options import REFUSED, is_known
from aot.schema.card_variables import CARD_VARIABLES
from aot.schema.recipe import Purpose, Recipe, Regions, Route

AOT = Path(__file__).parents[2] / "aot"
PLACES = re.compile(r"(^|[_.])(dir|\w*path|home|root|cxx|library|file|tar)($|[_.])", re.IGNORECASE)


def refused(recipe: Recipe) -> InvalidSpec:
    with pytest.raises(InvalidSpec) as caught:
        check_recipe(recipe)
    return caught.value


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(routes=(Route.PACKAGE,)),
        Recipe(routes=(Route.PACKAGE, Route.FUNCTION)),
        Recipe(options={"epilogue_fusion": True}),
    ],
)
def test_what_a_worker_can_follow_passes(recipe: Recipe) -> None:
    check_recipe(recipe)


@pytest.mark.parametrize(
    ("recipe", "asked", "followed"),
    [
        (Recipe(purpose=Purpose.TRAINING), 'purpose = "inference"', {"purpose": Purpose.INFERENCE}),
        (Recipe(routes=(Route.CACHE,)), 'routes = ["package"]', {"routes": (Route.PACKAGE,)}),
        (Recipe(routes=(Route.FUNCTION, Route.PACKAGE)), 'routes = ["package"]', {"routes": (Route.PACKAGE,)}),
        (Recipe(routes=(Route.CACHE, Route.PACKAGE)), 'routes = ["package"]', {"routes": (Route.PACKAGE,)}),
        (Recipe(routes=(Route.PACKAGE, Route.PACKAGE)), 'routes = ["package"]', {"routes": (Route.PACKAGE,)}),
        (Recipe(routes=(Route.KERNEL,)), 'routes = ["package"]', {"routes": (Route.PACKAGE,)}),
        (Recipe(routes=()), 'routes = ["package"]', {"routes": (Route.PACKAGE,)}),
        (Recipe(freeze=True, regions=Regions.AUTO), 'regions = "whole"', {"regions": Regions.WHOLE}),
        (Recipe(options={"cpp.march": "native"}), "leave it out", {"options": {}}),
        (Recipe(options={"epilogue_fusin": True}), "epilogue_fusion", {"options": {"epilogue_fusion": True}}),
        (Recipe(environment={"CXX": "clang++"}), "leave it out", {"environment": {}}),
    ],
    ids=["training", "cache", "function", "order", "twice", "kernel", "none", "frozen-regions", "march", "typo", "CXX"],
)
def test_a_hint_that_is_followed_ends_the_refusal(recipe: Recipe, asked: str, followed: dict[str, object]) -> None:
    assert asked in refused(recipe).hint
    check_recipe(replace(recipe, **followed))


def test_a_route_without_a_builder_is_refused_by_name() -> None:
    assert "asks for route cache" in refused(Recipe(routes=(Route.CACHE,))).message
    assert set(BUILT_ROUTES) == {Route.PACKAGE, Route.FUNCTION, Route.KERNEL, Route.BYTECODE}


@pytest.mark.parametrize(
    ("deviation", "text"),
    [
        ({"freeze": True}, "freeze = true"),
        ({"regions": Regions.AUTO}, "regions = auto"),
        ({"fullgraph": False}, "fullgraph = false"),
        ({"dynamic": True}, "dynamic = true"),
    ],
)
def test_the_route_function_refuses_what_only_a_package_can_be(deviation: dict[str, object], text: str) -> None:
    plain = Recipe(routes=(Route.FUNCTION,))
    check_recipe(plain)
    assert text in refused(replace(plain, **deviation)).message


def test_no_text_sends_anybody_to_a_route_without_a_builder() -> None:
    names = "|".join(route for route in Route if route not in BUILT_ROUTES)
    advice = re.compile(rf"""routes? *=? *\[?["']?({names})\b""")
    found = [(path.name, text) for path in AOT.rglob("*.py") for text in texts_of(path) if advice.search(text)]
    assert found == []
    assert advice.search('set routes = ["cache"], which keeps the backward pass')  # as one of them once read
    assert advice.search('or allow the route "cache"')


def texts_of(path: Path) -> Iterator[str]:
    """Yield every string of a file that is no docstring."""
    tree = ast.parse(path.read_text())
    parents = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    documented = [node for node in ast.walk(tree) if isinstance(node, parents) and ast.get_docstring(node)]
    docstrings = {id(node.body[0].value) for node in documented if isinstance(node.body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_what_names_a_workers_cards_is_reserved() -> None:
    assert {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"} <= set(
        RESERVED_VARIABLES
    )
    assert set(card_variables(dict.fromkeys(RESERVED_VARIABLES, "1"))) == set(CARD_VARIABLES)


@pytest.mark.parametrize("name", [*sorted(RESERVED_VARIABLES), "TORCHINDUCTOR_FREEZING", "AOT_TOKEN", "LD_AUDIT"])
def test_a_variable_that_reaches_around_the_recipe_is_refused(name: str) -> None:
    assert refused(Recipe(environment={name: "1"})).message.startswith(f"environment variable {name} cannot be set: ")


def test_a_variable_of_the_models_own_is_allowed() -> None:
    check_recipe(Recipe(environment={"MODEL_SIZE": "small", "HF_HUB_OFFLINE": "1"}))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("freezing", "freeze = true"),
        ("joint_graph_constant_folding", "silently wrong"),
        ("cpp.threads", "the profile decides it"),
        ("trace.debug_dir", "debug output"),
        ("trace.enabled", "debug output"),
        ("cpp.inject_relu_bug_TESTING_ONLY", "torch's own tests"),
        ("assume_32bit_indexing", "no guard of an artifact checks"),
        ("assume_aligned_inputs", "no guard of an artifact checks"),
        ("assert_indirect_indexing", "foreign memory"),
        ("cpp.enable_unsafe_math_opt_flag", "the whole process"),
        ("keep_output_stride", "other strides"),
        ("triton.cudagraphs", "set mode to"),
        ("an_option_of_a_later_torch", "no rule of this version"),
    ],
)
def test_an_option_is_refused_with_its_reason(name: str, reason: str) -> None:
    error = refused(Recipe(options={name: True}))
    assert error.message.startswith(f"option {name} cannot be set: ")
    assert reason in error.message


@pytest.mark.torch
def test_every_option_of_this_torch_is_refused_with_a_reason_or_allowed_by_name() -> None:
    from aot.compile.torch_inductor import known_options

    options = known_options()
    assert len(options) > 400
    assert [name for name in options if not is_known(name)] == []
    assert sorted(ALLOWED - set(options)) == []


@pytest.mark.torch
def test_nothing_that_names_a_place_or_holds_a_table_is_allowed() -> None:
    from aot.compile.torch_inductor import known_options

    values = {name: value for name, value in known_options().items() if name in ALLOWED}
    assert [name for name in values if PLACES.search(name)] == []
    scalars = (bool, int, float, str, type(None))
    assert [name for name, value in values.items() if not isinstance(value, scalars)] == []
    assert [name for name, value in values.items() if isinstance(value, str) and "/" in value] == []


def test_every_rule_against_an_option_gives_a_sentence() -> None:
    assert all(len(reason) > 20 for _, reason in REFUSED)
    assert reason_against("epilogue_fusion") == ""
