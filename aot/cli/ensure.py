"""`aot ensure`: the CI step."""

from collections.abc import Callable
from pathlib import Path

from aot.cli.builds import describe
from aot.cli.context import connect, trusted_keys
from aot.cli.exits import Exit, exit_code_of, worst
from aot.cli.here import build_and_push
from aot.cli.output import emit, say, say_error, weights_word
from aot.client import RegistryClient
from aot.config import Config
from aot.errors import AotError, InvalidInput, MalformedDocument
from aot.pipeline import Target, ensure_project, follow_build, submit_spec
from aot.pipeline.ensure import Missed, Start, Wait
from aot.pipeline.lockfile import read_lock
from aot.pipeline.source import PackedSource
from aot.schema.names import Reference
from aot.schema.project import ModelEntry, Project, decode_project
from aot.schema.spec import Spec
from aot.schema.wire.builds import BuildView
from aot.schema.wire.errors import ErrorBody
from aot.trust import TrustedKeys

MISSED = "missed"


def ensure(config: Config, *, project_path: Path, lock_path: Path, here: bool, as_json: bool) -> Exit:
    """Make true that every target has a bundle, and write the lock where it changed. One line a target on stdout.

    With `as_json` each line is a document (NDJSON), as for a build for several profiles: targets end hours apart, and
    a step that is stopped has told of those that have.
    Returns the worst code of those that have none; each error is told once, when it is known.
    """
    project = read_project(project_path)
    trusted = _trusted(config, lock_path)
    client = connect(config)
    missed: list[AotError] = []

    def tell(miss: Missed) -> None:
        missed.append(miss.error)
        say(f"{miss.model.name} on {miss.spec.profile}:")
        say_error(miss.error)
        for reference in references_of(miss):
            emit(_missed_summary(miss, reference), [missed_line(miss, reference)], as_json=as_json)

    try:
        ensure_project(
            client,
            project,
            root=project_path.parent,
            lock_path=lock_path,
            trusted=trusted,
            start=_starter_here(client) if here else _starter(client),
            ci_commit=config.ci_commit,
            on_target=lambda target: emit(_summary(target), [ensured_line(target)], as_json=as_json),
            on_missed=tell,
        )
    except AotError as error:
        if error not in missed:
            raise
    return worst(map(exit_code_of, missed))


def read_project(path: Path) -> Project:
    """Raises InvalidInput, MalformedDocument."""
    try:
        content = path.read_text()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", hint="name the project file with -f") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: {error}", hint="name the project file with -f") from error
    return decode_project(content, file=path.name)


def _trusted(config: Config, lock_path: Path) -> TrustedKeys:
    """The keys of AOT_TRUSTED_KEYS, else those that the lock has pinned: both come from outside the registry."""
    if not config.trusted_keys:
        try:
            lock = read_lock(lock_path)
        except MalformedDocument:
            lock = None  # it is about to be written anew
        if lock is not None and lock.trusted_keys:
            return TrustedKeys.of(lock.trusted_keys)
    return trusted_keys(config)


def _starter(client: RegistryClient) -> Start:
    def start(model: ModelEntry, spec: Spec, source: PackedSource) -> Wait:
        build = submit_spec(client, spec, source, tags=model.tags).build
        say(f"{model.name}: {describe(build)}")
        return lambda: follow_build(client, build.id, on_change=_teller(model.name))

    return start


def _starter_here(client: RegistryClient) -> Start:
    def start(model: ModelEntry, spec: Spec, source: PackedSource) -> Wait:
        # One after the other: two builds at once would spoil each other's timings.
        build = build_and_push(client, spec, source, tags=model.tags)
        return lambda: follow_build(client, build, on_change=_teller(model.name))

    return start


def _teller(name: str) -> Callable[[BuildView], None]:
    return lambda view: say(f"{name}: {describe(view)}")


def _summary(target: Target) -> dict[str, str | bool]:
    return {
        "outcome": target.outcome,
        "reference": target.reference,
        "profile": target.profile,
        "bundle": target.bundle,
        "build_key": target.entry.build_key,
        "frozen": target.entry.frozen,
    }


def ensured_line(target: Target) -> str:
    """One target as a line of stdout: outcome, reference, profile, bundle, weights, between tabs."""
    weights = weights_word(frozen=target.entry.frozen)
    return f"{target.outcome}\t{target.reference}\t{target.profile}\t{target.bundle}\t{weights}"


def references_of(miss: Missed) -> tuple[Reference, ...]:
    """What stands for nothing new: every tag that the project says."""
    return tuple(Reference.parse(f"{miss.spec.namespace}/{miss.spec.name}:{tag}") for tag in miss.model.tags)


def missed_line(miss: Missed, reference: Reference) -> str:
    """The line of a target without a bundle, in the columns of `ensured_line`."""
    return f"{MISSED}\t{reference}\t{miss.spec.profile}\t-\t{weights_word(frozen=miss.spec.recipe.freeze)}"


def _missed_summary(miss: Missed, reference: Reference) -> dict[str, object]:
    return {
        "outcome": MISSED,
        "reference": reference,
        "profile": miss.spec.profile,
        "bundle": None,
        "error": ErrorBody.of(miss.error),
    }
