"""The one rule by which a recipe can be built; every hint names a way that this version has."""

import difflib

from aot.errors import InvalidSpec
from aot.recipes.options import ALLOWED, is_known, reason_against
from aot.schema.card_variables import CARD_VARIABLES
from aot.schema.recipe import Purpose, Recipe, Regions, Route

# `kernel` and `bytecode` are those of Triton kernels and of installed distributions, whose recipes hold nothing else.
BUILT_ROUTES = (Route.PACKAGE, Route.FUNCTION, Route.KERNEL, Route.BYTECODE)
NO_OTHER_ROUTE = "else run it by torch.compile and keep its compiled code with `aot capture`, or run it eagerly"

# The default of Recipe.routes allows `cache` after `package`: it is what old documents without the field mean.
PACKAGE_THEN_FUNCTION = (Route.PACKAGE, Route.FUNCTION)  # by function what is not taken as a package
_ACCEPTED = ((Route.PACKAGE,), (Route.PACKAGE, Route.CACHE), (Route.FUNCTION,), PACKAGE_THEN_FUNCTION)

# Variables that would change generated code, or reach around the sandbox, behind the recipe's back.
RESERVED_VARIABLES: dict[str, str] = {
    "PATH": "the compiler comes from the profile",
    "CXX": "the compiler comes from the profile",
    "CC": "the compiler comes from the profile",
    "HOME": "the child has a home of its own",
    "TMPDIR": "the child has a temporary directory of its own",
    "PWD": "the child has a working directory of its own",
    "PYTHONPATH": "put the code into the source tree",
    "PYTHONHOME": "the worker's Python is part of the profile",
    "PYTHONHASHSEED": "it is fixed, so that equal inputs give equal bytes",
    "LD_PRELOAD": "it would replace parts of the toolchain",
    "LD_LIBRARY_PATH": "it would replace parts of the toolchain",
    "OMP_NUM_THREADS": "the profile pins threads",
    "ATEN_CPU_CAPABILITY": "the profile decides it",
    "ONEDNN_MAX_CPU_ISA": "the profile decides it",
    "MKL_ENABLE_INSTRUCTIONS": "the profile decides it",
    "TRITON_CACHE_DIR": "caches are private to a build",
    **dict.fromkeys(CARD_VARIABLES, "a build takes the card that its worker was given"),
    **dict.fromkeys(("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"), "the profile decides what nvcc compiles for"),
    "TRITON_PTXAS_PATH": "one assembler serves all processes of a build, or each compiles what another has",
}
_RESERVED_PREFIXES = ("AOT_", "TORCHINDUCTOR_", "TORCH_COMPILE_", "LD_")


def check_recipe(recipe: Recipe) -> None:
    """Raises InvalidSpec for what the recipe's route cannot do, naming what can."""
    if recipe.purpose is Purpose.TRAINING:
        raise InvalidSpec(
            "route package compiles for inference only, the recipe asks for training",
            hint='set purpose = "inference" for the serving build; ' + NO_OTHER_ROUTE,
        )
    _check_routes(recipe.routes)
    if Route.FUNCTION in recipe.routes:
        _check_function(recipe)
    if recipe.freeze and recipe.regions is Regions.AUTO:
        raise InvalidSpec(
            "freeze = true with regions = auto would put one block's weights into the code of all of them",
            hint='set regions = "whole" for a frozen build',
        )
    for name in recipe.options:
        _check_option(name)
    for name in recipe.environment:
        _check_variable(name)


def route_notes(recipe: Recipe) -> tuple[str, ...]:
    """What the routes that a recipe allows mean here, for the report."""
    allowed = [route for route in recipe.routes if route not in BUILT_ROUTES]
    return tuple(f"route {route} is allowed and was not tried: this version does not build it" for route in allowed)


def _check_routes(routes: tuple[Route, ...]) -> None:
    if routes in _ACCEPTED:
        return
    wanted = 'routes = ["package"], or leave routes out'
    unbuilt = [route for route in routes if route not in BUILT_ROUTES]
    if unbuilt:
        raise InvalidSpec(
            f"the recipe asks for route {unbuilt[0]}, which this version does not build",
            hint=f"set {wanted}",
        )
    found = ", ".join(routes) or "none"
    raise InvalidSpec(
        f"wanted the route package, function, or package and then function, found {found}", hint=f"set {wanted}"
    )


def _check_function(recipe: Recipe) -> None:
    """Refuse what only a package can be: Dynamo takes a program whole, and its weights are the live module's."""
    wanted = 'leave it out, or set routes = ["package"]'
    if recipe.freeze:
        raise InvalidSpec("route function keeps weights outside, the recipe asks for freeze = true", hint=wanted)
    if recipe.regions is Regions.AUTO:
        raise InvalidSpec("route function compiles a program whole, the recipe asks for regions = auto", hint=wanted)
    if not recipe.fullgraph:
        raise InvalidSpec("route function takes one graph, the recipe asks for fullgraph = false", hint=wanted)
    if recipe.dynamic is True:
        raise InvalidSpec(
            "route function leaves open the sizes that are named, the recipe asks for dynamic = true",
            hint=f"name dimensions; {wanted}",
        )


def _check_option(name: str) -> None:
    if reason := reason_against(name):
        hint = "leave it out of options"
        if not is_known(name) and (close := difflib.get_close_matches(name, ALLOWED, n=3)):
            hint = f"did you mean {' or '.join(close)}?"
        raise InvalidSpec(f"option {name} cannot be set: {reason}", hint=hint)


def _check_variable(name: str) -> None:
    reason = RESERVED_VARIABLES.get(name)
    if reason is None and name.startswith(_RESERVED_PREFIXES):
        reason = "settings of the compiler go into the recipe's options, where they are part of the key"
    if reason:
        raise InvalidSpec(f"environment variable {name} cannot be set: {reason}", hint="leave it out")
