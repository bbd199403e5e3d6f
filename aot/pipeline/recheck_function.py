"""What a pushed artifact of the route `function` says of its files, compared with what its shared objects say.

Its pickle is not read here: it is run by the proof, in a sandbox, and by nobody before that.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from aot.compile.function.host import function_guards
from aot.compile.isa import offences_in
from aot.errors import AotError
from aot.facts import read_elf
from aot.runtime.function import FUNCTION_FILE, LIBRARIES
from aot.schema.artifact import Artifact
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest

MOST_LISTED = 20


def faults_of_function(artifact: Artifact, manifest: Manifest, paths: Mapping[Digest, Path]) -> Iterator[str]:
    """Yield every way in which the artifact's word and its files differ."""
    profile, names = manifest.profile, [file.path for file in artifact.files]
    if FUNCTION_FILE not in names:
        yield f"it has no {FUNCTION_FILE}"
    for other in sorted(name for name in names if name != FUNCTION_FILE and not name.startswith(LIBRARIES)):
        yield f"{other} is no file of a function"
    libraries = [paths[file.digest] for file in artifact.files if file.path.startswith(LIBRARIES)]
    try:
        guards = function_guards([read_elf(path) for path in libraries], profile)
        offences = [offence for path in libraries for offence in offences_in(path, profile)]
    except AotError as error:
        yield f"its files cannot be used: {error.message}"
        return
    if artifact.capability != profile.capability:
        yield f"it says it is for {artifact.capability}, the profile is for {profile.capability}"
    yield from (f"its code is not for {profile.capability}: {offence}" for offence in offences[:MOST_LISTED])
    for guard in guards:
        found = [own.value for own in artifact.host_guards if own.kind == guard.kind]
        if found != [guard.value]:
            yield f"its guard {guard.kind} is {', '.join(found) or 'not there'}, wanted {guard.value}"
