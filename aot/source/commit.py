"""Which commit a source comes from, asked of git where there is one. For the provenance: no factor of a build key."""

import re
import subprocess
from pathlib import Path

from aot.schema.spec import Commit, CommitTeller

GIT_SECONDS = 10.0
_REVISION = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def find_commit(place: Path, *, ci: str | None = None) -> Commit | None:
    """Return the commit that `place` is checked out from, and whether anything below it was changed since.

    `ci` is what a CI system says the commit is: it is taken where git cannot tell, and then nobody has looked for
    changes. None where neither tells.
    """
    directory = place if place.is_dir() else place.parent
    revision = _git(directory, "rev-parse", "--verify", "HEAD")
    if revision is not None and _REVISION.fullmatch(revision.strip()):
        # Files that git does not know are changes as well: they are packed.
        changed = _git(directory, "status", "--porcelain", "--", str(place.absolute()))
        return Commit(revision=revision.strip(), dirty=changed is None or bool(changed.strip()))
    if ci is not None and _REVISION.fullmatch(ci.lower()):
        return Commit(revision=ci.lower(), told_by=CommitTeller.CI)
    return None


def _git(directory: Path, *arguments: str) -> str | None:
    """What git prints, None where there is no git, no repository, or no answer in time."""
    # No locks: a submit must not be in the way of a commit that is being made.
    command = ("git", "--no-optional-locks", "-C", str(directory), *arguments)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=GIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
