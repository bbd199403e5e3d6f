"""`aot build NAME --here --from REF --profile CARD`: code for a card that is not here, out of a proven bundle."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from aot.bundle import StoredBundle, write_bundle
from aot.cache import LocalCache
from aot.cli.builds import Submission
from aot.cli.context import read_config, trusted_keys
from aot.cli.here import teller
from aot.cli.output import say
from aot.client import RegistryClient
from aot.errors import BuildFailed, InvalidInput
from aot.pipeline import push_bundle
from aot.pipeline.build import Staged
from aot.pipeline.here import user_name
from aot.pipeline.known import Known, choose_known, fetch_known, find_card
from aot.pipeline.other_card import build_for_card
from aot.runtime.fetch import Resolved, resolve
from aot.sandbox import Bubblewrap, find_sandbox
from aot.schema.names import Reference
from aot.schema.profile import Profile


def check_request(submission: Submission, plain: Submission, *, here: bool) -> None:
    """Raises InvalidInput for what does not go with --from; `plain` is the submission without any option."""
    if not here:
        raise InvalidInput("--from belongs to --here", hint="add --here: no worker builds for a card that it has not")
    if submission.profile is None or "," in submission.profile:
        found = submission.profile or "none"
        raise InvalidInput(f"--from wants one profile, found {found}", hint="name the card with --profile")
    kept = {field: getattr(submission, field) for field in ("reference", "tags", "profile", "limits")}
    if replace(plain, **kept) != submission:
        raise InvalidInput(
            "--from takes the code and the recipe of the bundle: it goes with no source, weights or option of a build",
            hint="leave them out, or leave out --from and build on a worker that has the card",
        )


def build_from_to_directory(
    client: RegistryClient, submission: Submission, reference: str, directory: Path
) -> StoredBundle:
    """Write the bundle to the new `directory`; `aot push` publishes it."""
    if directory.exists():
        raise InvalidInput(f"{directory} exists already", hint="name a new directory with --as-bundle")
    with _built(client, submission, reference) as staged:
        return write_bundle(directory, manifest=staged.manifest, files=staged.paths)


def build_from_to_push(client: RegistryClient, submission: Submission, reference: str) -> str:
    """Push the bundle, and return the build that is to prove it on a card."""
    with _built(client, submission, reference) as staged:
        reply = push_bundle(client, staged, tags=submission.tags)
    if reply.build is None:
        raise BuildFailed(f"bundle {reply.bundle} is {reply.state}, and no build proves it", hint="push it again")
    return reply.build


@contextmanager
def _built(client: RegistryClient, submission: Submission, reference: str) -> Iterator[Staged]:
    """The staged bundle, which lies in a temporary directory for as long as the block runs."""
    config = read_config()
    cache = LocalCache(config.cache_dir, limit_bytes=config.cache_bytes)
    parsed = Reference.parse(reference)
    _require_same_model(submission.reference, parsed)
    resolved = resolve(parsed, client=client, cache=cache, trusted=trusted_keys(config))
    profile = _profile(client, submission, resolved)
    candidate = choose_known(resolved.candidates, profile)
    say(f"from {candidate.digest} for {candidate.manifest.profile.name}, proven, to {profile.name}: untuned")
    sandbox = find_sandbox()
    with (
        cache.hold([candidate.digest, *(blob.digest for blob in candidate.manifest.blobs)]),
        tempfile.TemporaryDirectory(prefix="aot-card-") as scratch,
    ):
        yield build_for_card(
            Known(candidate.digest, candidate.manifest, fetch_known(candidate, client=client, cache=cache)),
            profile,
            scratch=Path(scratch),
            # Without bubblewrap Triton reads the kernels as this user, as it does for what he compiles himself.
            sandbox=sandbox if isinstance(sandbox, Bubblewrap) else None,
            builder=user_name(),
            limits=submission.limits,
            on_event=teller(f"{submission.reference.name} for {profile.name}"),
        )


def _profile(client: RegistryClient, submission: Submission, resolved: Resolved) -> Profile:
    """The named card, with the toolchain of a bundle for a card where nothing else says it."""
    manifests = [one.manifest for one in resolved.candidates]
    like = next((one for one in manifests if one.profile.capability.family == "cuda"), manifests[0])
    assert submission.profile is not None
    return find_card(submission.profile, client.list_profiles().profiles, like.profile.toolchain)


def _require_same_model(wanted: Reference, origin: Reference) -> None:
    """Raises InvalidInput: the program is the same, so the name of it is too, and its proof finds the source there."""
    if (wanted.namespace, wanted.name) != (origin.namespace, origin.name):
        raise InvalidInput(
            f"the code is of {origin.namespace}/{origin.name}, and the bundle would be named {wanted}",
            hint=f"aot build {origin.namespace}/{origin.name}:{wanted.tag} --here --from {origin} --profile ...",
        )
