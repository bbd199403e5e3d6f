"""`aot tag` and `aot untag`: which bundles a name stands for, and so what stays in the registry."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from aot.cli.builds import connected
from aot.cli.bundles import parse_tagged
from aot.cli.exits import Exit, exit_code_of, worst
from aot.cli.output import emit, say, say_error
from aot.client import RegistryClient
from aot.errors import AotError, InvalidInput
from aot.pipeline.lock_tags import Outcome, Pin, PinEnd, pins_of, tag_pins, untag_pins
from aot.pipeline.lockfile import require_lock
from aot.schema.digest import Digest
from aot.schema.names import Tag
from aot.schema.wire.bundles import TagView, UntagReply
from aot.schema.wire.errors import ErrorBody

Act = Callable[[RegistryClient, Iterable[Pin]], Iterator[PinEnd]]


def tag(what: str, bundle: str | None, *, lock: Path | None, as_json: bool) -> Exit:
    """Move a tag to one bundle, or, with a lock, to every bundle that the lock pins."""
    if lock is not None:
        return _each(what, bundle, lock, tag_pins, as_json=as_json)
    if bundle is None:
        raise InvalidInput(
            f"wanted the digest of the bundle that {what} is to stand for, found none",
            hint="`aot ls` lists bundles; `aot tag --lock aot.lock TAG` tags all that a lock pins",
        )
    view = connected().tag(parse_tagged(what), Digest.parse(bundle))
    emit(view, [moved_line(view)], as_json=as_json)
    return Exit.OK


def untag(what: str, bundle: str | None, *, lock: Path | None, as_json: bool) -> Exit:
    """Remove a tag, with a bundle only where it stands for that; with a lock, from what the lock pins."""
    if lock is not None:
        return _each(what, bundle, lock, untag_pins, as_json=as_json)
    expected = None if bundle is None else Digest.parse(bundle)
    removed = connected().untag(parse_tagged(what), expected=expected)
    emit(UntagReply(removed=removed), map(removed_line, removed), as_json=as_json)
    return Exit.OK


def moved_line(view: TagView) -> str:
    return f"{view.reference} -> {view.bundle} ({view.profile})"


def removed_line(view: TagView) -> str:
    return f"{view.reference} -/-> {view.bundle} ({view.profile})"


def pin_line(end: PinEnd) -> str:
    """One bundle of the lock as a line of stdout: outcome, reference, profile, bundle, between tabs."""
    return f"{end.outcome}\t{end.pin.reference}\t{end.pin.profile}\t{end.pin.bundle}"


def _each(what: str, bundle: str | None, lock: Path, act: Act, *, as_json: bool) -> Exit:
    """One line, or document, a bundle as soon as it has ended; each error once. Returns the worst code of them."""
    if bundle is not None or ":" in what or "/" in what:
        raise InvalidInput(
            f"with --lock wanted a tag alone, found {what}{f' {bundle}' if bundle else ''}",
            hint="the lock names models and bundles: aot tag --lock aot.lock release-42",
        )
    pins = pins_of(require_lock(lock), Tag.parse(what))
    if not pins:
        say(f"{lock} pins nothing")
    client, codes, told = connected(), list[Exit](), set[str]()
    for end in act(client, pins):
        emit(_document(end), [pin_line(end)], as_json=as_json)
        codes.append(_code_of(end))
        if end.error is not None and end.error.message not in told:
            told.add(end.error.message)
            _tell(end.error, end)
    return worst(codes)


def _document(end: PinEnd) -> dict[str, Any]:
    pin = end.pin
    told = {"outcome": end.outcome, "reference": pin.reference, "profile": pin.profile, "bundle": pin.bundle}
    return told if end.error is None else {**told, "error": ErrorBody.of(end.error)}


def _code_of(end: PinEnd) -> Exit:
    return exit_code_of(end.error) if end.outcome is Outcome.FAILED and end.error is not None else Exit.OK


def _tell(error: AotError, end: PinEnd) -> None:
    if end.outcome is Outcome.ABSENT:  # what was wanted is true already
        say(f"{error.message}; nothing was removed")
    else:
        say(f"{end.pin.reference} on {end.pin.profile}:")
        say_error(error)
