"""`aot.toml`: the models of one project, read by the CI step."""

import tomllib

from aot.errors import MalformedDocument
from aot.schema.codec import Document, convert
from aot.schema.names import DEFAULT_NAMESPACE, Name, Namespace, Tag
from aot.schema.recipe import Recipe
from aot.schema.spec import Limits


class ModelEntry(Document, kw_only=True):
    """One model: where its source is, what to do with it, for which profiles, under which tags.

    Exactly one of `entry` (a factory `module:function` inside `source`) and `program` (a file written by
    torch.export.save) is given. Paths are relative to the file.
    """

    name: Name
    source: str = "."
    entry: str | None = None
    program: str | None = None
    requirements: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    profiles: tuple[Name, ...]
    tags: tuple[Tag, ...] = (Tag("latest"),)
    recipe: Recipe = Recipe()
    limits: Limits = Limits()


class Project(Document, kw_only=True):
    namespace: Namespace = Namespace(DEFAULT_NAMESPACE)
    models: tuple[ModelEntry, ...]


def decode_project(content: str) -> Project:
    """Raises MalformedDocument naming the key that is wrong."""
    try:
        table = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise MalformedDocument(
            f"aot.toml is not TOML: {error}", hint="see the README's example", details={"path": "$"}
        ) from error
    project = convert(table, Project, what="aot.toml")
    for index, model in enumerate(project.models):
        if (model.entry is None) == (model.program is None):
            raise MalformedDocument(
                f"model {model.name} must have either `entry` or `program`",
                hint='entry = "module:function" for a factory, program = "file.pt2" for an exported program',
                details={"path": f"$.models[{index}]"},
            )
    return project
