"""`aot.toml`: the models of one project, read by the CI step."""

import tomllib
from typing import Any

import msgspec

from aot.errors import MalformedDocument
from aot.schema.codec import Document, convert
from aot.schema.names import DEFAULT_NAMESPACE, Name, Namespace, Tag
from aot.schema.recipe import Recipe, command_recipe
from aot.schema.spec import Limits


class ModelEntry(Document, kw_only=True):
    """One model: where its source is, what to do with it, for which profiles, under which tags.

    Exactly one of `entry` (a factory `module:function` inside `source`), `program` (a file written by
    torch.export.save) and `command` (words that are run inside `source`, for their compiler caches) is given. Paths are
    relative to the file.
    """

    name: Name
    source: str = "."
    entry: str | None = None
    program: str | None = None
    command: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    profiles: tuple[Name, ...]
    tags: tuple[Tag, ...] = (Tag("latest"),)
    recipe: Recipe = Recipe()
    limits: Limits = Limits()

    @property
    def asked_recipe(self) -> Recipe:
        """The recipe that a build is asked for: of a command only the environment is its user's to choose."""
        return command_recipe(self.recipe.environment) if self.command else self.recipe


class Project(Document, kw_only=True):
    namespace: Namespace = Namespace(DEFAULT_NAMESPACE)
    models: tuple[ModelEntry, ...]


def decode_project(content: str, *, file: str = "aot.toml") -> Project:
    """Raises MalformedDocument naming the key that is wrong."""
    try:
        table = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise MalformedDocument(
            f"{file} is not TOML: {error}", hint="see the README's example", details={"path": "$"}
        ) from error
    project = _convert(table, file)
    if not project.models:
        raise _wrong(f"{file} names no model", hint="add a [[models]] table", path="$.models")
    targets: set[tuple[Name, Name, Tag]] = set()
    for index, model in enumerate(project.models):
        path = f"$.models[{index}]"
        if sum((model.entry is not None, model.program is not None, bool(model.command))) != 1:
            raise _wrong(
                f"model {model.name} must have one of `entry`, `program` and `command`",
                hint='entry = "module:function" for a factory, program = "file.pt2" for an exported program, '
                'command = ["python", "train.py"] for the compiler caches of a command',
                path=path,
            )
        if model.command and (model.weights or model.recipe != Recipe(environment=model.recipe.environment)):
            raise _wrong(
                f"model {model.name} is a command: its recipe has an `environment` and nothing else, and no weights",
                hint="a command decides itself how it compiles",
                path=path,
            )
        for key, values in (("profiles", model.profiles), ("tags", model.tags)):
            if not values:
                raise _wrong(f"model {model.name} has no {key}", hint=f"name one in `{key}`", path=f"{path}.{key}")
        for target in ((model.name, profile, tag) for profile in model.profiles for tag in model.tags):
            if target in targets:
                raise _wrong(
                    f"model {target[0]} is listed twice for profile {target[1]} under tag {target[2]}",
                    hint="give the second one a tag of its own: a tag stands for one bundle a profile",
                    path=path,
                )
            targets.add(target)
    return project


def _convert(table: dict[str, Any], file: str) -> Project:
    try:
        return convert(table, Project, what=file)
    except MalformedDocument as error:
        keys = ", ".join(field.encode_name for field in msgspec.structs.fields(ModelEntry))
        raise MalformedDocument(
            error.message.removeprefix("the "),
            hint=f"a [[models]] table may have {keys}; it needs `name`, `profiles`, "
            "and one of `entry`, `program` and `command`",
            details=error.details,
        ) from error


def _wrong(message: str, *, hint: str, path: str) -> MalformedDocument:
    return MalformedDocument(message, hint=hint, details={"path": path})
