"""The import table of the design: any edge that is not listed fails here."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LAYERS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "aot.errors",
            "aot.schema",
            "aot.keys",
            "aot.nearest",
            "aot.pause",
            "aot.proof",
            "aot.recipes",
            "aot.rules",
            "aot.select",
        }
    ),
    frozenset(
        {
            "aot.environment",
            "aot.trust",
            "aot.facts",
            "aot.bundle",
            "aot.bytecode",
            "aot.cache",
            "aot.client",
            "aot.config",
            "aot.locks",
            "aot.source",
            "aot.sandbox",
            "aot.broker",
            "aot.hosts",
            "aot.emulator",
        }
    ),
    frozenset({"aot.compile", "aot.runtime"}),
    frozenset({"aot.qualify", "aot.capture", "aot.pipeline"}),
    frozenset({"aot.cli", "worker"}),
)
REGISTRY_MAY_IMPORT = LAYERS[0] | {"aot.trust", "aot.facts", "aot.bundle", "aot.broker", "aot.locks"}
LAYER_OF = {part: level for level, parts in enumerate(LAYERS) for part in parts}

STANDARD_OR_MSGSPEC = {"msgspec"}
SERVER_LIBRARIES = {
    "litestar",
    "sqlalchemy",
    "boto3",
    "botocore",
    "celery",
    "kombu",
    "alembic",
    "uvicorn",
    "jinja2",
    "prometheus_client",
}


def modules() -> list[tuple[str, Path]]:
    found = []
    for top in ("aot", "worker", "registry"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append((".".join(part for part in parts if part != "__init__"), path))
    return found


def imports_of(path: Path) -> set[str]:
    """Every absolute import anywhere in the file, also inside functions and under TYPE_CHECKING."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def top_level_imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return names


def part_of(name: str) -> str | None:
    """The unit of the import table that `name` belongs to."""
    words = name.split(".")
    if words[0] in ("worker", "registry"):
        return words[0]
    if words[0] == "aot" and words[1:] != ["__version__"]:
        return ".".join(words[:2]) if len(words) > 1 else "aot"
    return None


@pytest.mark.parametrize(("name", "path"), modules(), ids=lambda value: str(value) if isinstance(value, str) else "")
def test_module_imports_only_what_its_layer_allows(name: str, path: Path) -> None:
    part = part_of(name)
    if part == "aot":
        return  # the curated face reaches everywhere, lazily
    found = {part_of(imported) for imported in imports_of(path)} - {None, part, "aot"}
    if part == "registry":
        assert found <= REGISTRY_MAY_IMPORT, found - REGISTRY_MAY_IMPORT
        return
    assert part in LAYER_OF, f"{part} has no layer: add it to the table and to the design"
    above = {other for other in found if other not in LAYER_OF or LAYER_OF[other] > LAYER_OF[part]}
    assert not above, f"{name} (layer {LAYER_OF[part]}) imports {sorted(above)}"


@pytest.mark.parametrize(("name", "path"), modules(), ids=lambda value: str(value) if isinstance(value, str) else "")
def test_layer_0_needs_only_msgspec_and_the_standard_library(name: str, path: Path) -> None:
    import sys

    if part_of(name) not in LAYERS[0]:
        return
    tops = {imported.split(".")[0] for imported in imports_of(path)} - {"aot"}
    foreign = {top for top in tops if top not in sys.stdlib_module_names and top not in STANDARD_OR_MSGSPEC}
    assert not foreign
    assert not tops & {"os", "socket", "subprocess", "urllib", "http", "time", "pathlib", "io"}


@pytest.mark.parametrize(("name", "path"), modules(), ids=lambda value: str(value) if isinstance(value, str) else "")
def test_torch_is_imported_at_module_level_only_by_the_compiler_side(name: str, path: Path) -> None:
    tops = {imported.split(".")[0] for imported in top_level_imports_of(path)}
    if part_of(name) not in ("aot.compile", "aot.qualify"):
        assert not tops & {"torch", "triton"}, name
    if part_of(name) not in ("registry", "worker"):
        assert not tops & SERVER_LIBRARIES, name


def test_only_the_config_files_read_the_environment() -> None:
    # A child's entry learns the descriptor of its event pipe from the sandbox's variable.
    entries = {"aot/compile/__main__.py", "aot/qualify/__main__.py"}
    allowed = {"aot/config.py", "registry/settings.py", "worker/settings.py"} | entries
    reading = {
        path.relative_to(ROOT).as_posix()
        for _, path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv") and isinstance(node.value, ast.Name)
        if node.value.id == "os"
    }
    assert reading <= allowed, reading - allowed
