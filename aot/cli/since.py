"""`aot explain --since aot.lock`: which factors lie between the keys of a lock and those of today."""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from aot.cli.wrap import wrap
from aot.config import Config
from aot.errors import InvalidInput
from aot.keys import changes_between
from aot.pipeline.lockfile import read_lock
from aot.runtime.pod import look_up
from aot.schema.codec import Response
from aot.schema.digest import BuildKey, Digest
from aot.schema.factor import FactorChange
from aot.schema.lock import LockEntry
from aot.schema.manifest import Manifest
from aot.schema.names import Name, Reference

_LONGEST = 60  # characters of one value in a line; --json has all that is recorded


class Moved(StrEnum):
    SAME = "same"  # the same bundle
    REBUILT = "rebuilt"  # another bundle of the same key
    CHANGED = "changed"
    ADDED = "added"  # the lock has no bundle for this profile
    GONE = "gone"  # only the lock has
    UNKNOWN = "unknown"  # another key, and the lock does not hold the old factors


class ProfileChange(Response, kw_only=True):
    """One model on one profile: the bundle and key that the lock pins, those of now, and what differs."""

    reference: Reference
    profile: Name
    moved: Moved
    before: Digest | None = None
    after: Digest | None = None
    key_before: BuildKey | None = None
    key_after: BuildKey | None = None
    changes: tuple[FactorChange, ...] = ()


def changes_since(
    reference: str, since: Path, *, config: Config, lock: Path | None = None
) -> tuple[ProfileChange, ...]:
    """Compare what the lock `since` pins with what `reference` stands for now, or in the other `lock`.

    Raises InvalidInput where `since` is no file or does not pin the reference, and what `look_up` raises.
    """
    old = read_lock(since)
    if old is None:
        raise InvalidInput(f"the lock file {since} does not exist", hint="`aot ensure` writes one")
    parsed = Reference.parse(reference)
    pinned = old.entries_for(parsed)
    if not pinned:
        known = ", ".join(sorted({str(entry.reference) for entry in old.entries})) or "nothing"
        raise InvalidInput(f"{since} does not pin {parsed}; it pins {known}", hint="name one of these")
    # A lock brings the keys it trusts along; it comes from outside the registry, as AOT_TRUSTED_KEYS does.
    trusting = replace(config, trusted_keys=tuple(dict.fromkeys((*config.trusted_keys, *old.trusted_keys))))
    now = look_up(reference, lock=lock, config=trusting).bundles
    before = {entry.profile: entry for entry in pinned}
    after = {manifest.profile.name: (digest, manifest) for digest, manifest in now}
    return tuple(
        _change(parsed, profile, before.get(profile), after.get(profile)) for profile in sorted({*before, *after})
    )


def since_lines(changes: Sequence[ProfileChange], *, width: int | None = None) -> list[str]:
    """Each profile with every factor that changed, in words."""
    lines: list[str] = []
    for one in changes:
        lines.append(f"{one.reference} on {one.profile}: {_WORDS[one.moved]}")
        bundles = [digest.short for digest in (one.before, one.after) if digest is not None]
        if one.moved in (Moved.CHANGED, Moved.REBUILT, Moved.UNKNOWN):
            lines.append(f"  bundle {' -> '.join(bundles)}")
        lines += [part for change in one.changes for part in wrap(in_words(change), width, indent="  ")]
    return lines


def in_words(change: FactorChange) -> str:
    """One factor as a sentence: "torch was 2.12.0+cpu, is 2.13.0+cpu"."""
    name = change.name.replace("option:", "option ").replace("environment:", "variable ")
    match change.before, change.after:
        case None, None:
            return f"{name} changed"
        case None, after:
            return f"{name} is new: {_spell(after)}"
        case before, None:
            return f"{name} is gone; it was {_spell(before)}"
        case before, after if before == after:
            return f"{name} changed beyond the first {len(before)} characters, which are the same"
        case before, after:
            return f"{name} was {_spell(before)}, is {_spell(after)}"


_WORDS = {
    Moved.SAME: "the same bundle",
    Moved.REBUILT: "the same build key, built again",
    Moved.CHANGED: "another build key",
    Moved.ADDED: "new: the lock has no bundle for this profile",
    Moved.GONE: "gone: only the lock has a bundle for this profile",
    Moved.UNKNOWN: "another build key; this lock does not hold the factors of the old one",
}


def _change(
    reference: Reference, profile: Name, entry: LockEntry | None, now: tuple[Digest, Manifest] | None
) -> ProfileChange:
    sides: dict[str, Any] = {"reference": reference, "profile": profile}
    if entry is not None:
        sides |= {"before": entry.bundle, "key_before": entry.build_key}
    if now is not None:
        sides |= {"after": now[0], "key_after": now[1].build_key}
    if entry is None:
        return ProfileChange(**sides, moved=Moved.ADDED)
    if now is None:
        return ProfileChange(**sides, moved=Moved.GONE)
    if entry.build_key == now[1].build_key:
        return ProfileChange(**sides, moved=Moved.SAME if entry.bundle == now[0] else Moved.REBUILT)
    if not entry.factors:
        return ProfileChange(**sides, moved=Moved.UNKNOWN)
    return ProfileChange(**sides, moved=Moved.CHANGED, changes=changes_between(entry.factors, now[1].factors))


def _spell(text: str) -> str:
    """A factor's text is JSON: a string without its quotes, null as none, the rest as it is and not too long."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        value = text  # it was cut, or nobody's factor
    spelled = value if isinstance(value, str) else "none" if value is None else text
    return spelled if len(spelled) <= _LONGEST else f"{spelled[:_LONGEST]}..."
