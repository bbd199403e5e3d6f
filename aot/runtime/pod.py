"""`load`, `pull` and `explain`: the pod's door (design.md, section 5).

observe → manifests (one request) → verify → select, all reasons → links (one request, unless they came along) → blobs
→ load. Whatever fails on the way is a reason to run eagerly, unless the caller asked for it to be raised.
"""

import contextlib
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from aot.cache import LocalCache
from aot.config import Config
from aot.environment import observe_environment
from aot.errors import AotError, InvalidConfig, InvalidInput, LoadFailed, LocalStorageFull
from aot.pause import no_full_collection
from aot.runtime.compiled import CompiledModel, Fallback
from aot.runtime.fetch import Candidate, Resolved, blobs_of, ensure_blobs, ensure_verified, remember, resolve
from aot.runtime.graphs import GraphOutputs
from aot.runtime.late_client import LateClient
from aot.runtime.later import Task, run_later
from aot.runtime.load import load_artifacts, load_nothing, refuse, unexpected
from aot.runtime.process import observe_here, with_settings
from aot.schema.artifact import Artifact
from aot.schema.decision import Selection
from aot.schema.digest import Digest
from aot.schema.environment import ContainerFacts, Environment
from aot.schema.names import Reference
from aot.schema.spec import Blob, File
from aot.schema.text import parse_word
from aot.select import Policy, select
from aot.trust import TrustedKeys

if TYPE_CHECKING:
    from torch.nn import Module

    from aot.schema.lock import Lock

log = logging.getLogger("aot")


class Pulled(Struct, frozen=True):
    """What `pull` made ready: the bundle, or None where nothing fits, with every decision.

    Where the selection is undecided, its alternatives are on this node as well.
    """

    reference: Reference
    bundle: Digest | None
    selection: Selection
    stale: bool = False


def load(
    reference: str,
    module: "Module",
    *,
    fallback: str | None = None,
    lock: Path | str | None = None,
    config: Config | None = None,
    graphs: bool = True,
    graph_outputs: str = "copied",
) -> CompiledModel:
    """Return a CompiledModel that is called like `module` and runs what `reference` has for this host.

    `fallback` "eager" (the default, or AOT_FALLBACK): whatever cannot be used is a reason to run `module` itself,
    in `.reasons`. "raise": a missing, unfit or unsigned bundle, and a call outside every coverage, raise.
    Without `graphs` no call is replayed as a CUDA graph, which costs memory of the card (`.graphs` says how much).
    `graph_outputs` "static" spares the copy of a replay's results: a later call overwrites them.
    Raises InvalidInput for a reference, lock file or setting that cannot be read.
    """
    config = config or Config.from_environ()
    policy = parse_word(fallback or config.fallback, Fallback, of="the fallback")
    outputs = parse_word(graph_outputs, GraphOutputs, of="graph outputs") if graphs else None
    parsed, pins = Reference.parse(reference), _read_lock(lock)
    started = time.perf_counter()
    attempt = _Attempt(parsed, module, policy, graphs=outputs)
    try:
        model = attempt.run(config, pins)
    except AotError as error:
        model = attempt.give_up(error)
    except Exception as error:
        # Ours or the disk's: a fault of the loader must not keep a pod from serving.
        log.exception("aot could not load %s", parsed)
        model = attempt.give_up(unexpected(parsed, error), cause=error)
    attempt.finish(model, receipts=config.receipts, seconds=time.perf_counter() - started)
    return model


def pull(
    reference: str | None = None,
    *,
    lock: Path | str | None = None,
    into: Path | str | None = None,
    environment: Environment | None = None,
    same_container: bool = False,
    config: Config | None = None,
) -> tuple[Pulled, ...]:
    """Make true that this node holds what fits it, for one reference or for every entry of a lock.

    Facts of the *container* that pulls are not those of the one that will run, unless `same_container`: without
    them the best candidates are fetched and `load` decides. `environment` replaces what is observed.
    Raises Unavailable, IntegrityFailed, LocalStorageFull, NotFound; a misfit is a value.
    """
    config = config or Config.from_environ()
    if into is not None:
        config = config.with_cache_dir(Path(into))
    pins = _read_lock(lock)
    if reference is None and pins is None:
        raise InvalidInput("nothing to pull was named", hint="give a reference, or a lock file with --lock")
    named = () if reference is None else (Reference.parse(reference),)
    pinned = () if pins is None else tuple(dict.fromkeys(entry.reference for entry in pins.entries))
    pod = _Pod.open(config, pins)
    seen = environment or _observe(same_container=same_container)
    return tuple(pod.pull(one, seen) for one in named or pinned)


def explain(
    reference: str,
    *,
    environment: Environment | None = None,
    lock: Path | str | None = None,
    config: Config | None = None,
) -> Selection:
    """Return every artifact of `reference` with its verdict on this host, or on the one described. Fetches no blob.

    What a program sets for itself is taken from `environment`, or from this process where it has imported torch; else
    it is as torch starts.
    """
    return judge(look_up(reference, lock=lock, config=config), environment or observe_environment())


def look_up(reference: str, *, lock: Path | str | None = None, config: Config | None = None) -> Resolved:
    """Return the verified bundles that `reference` stands for, from the node's cache where the registry is away."""
    pod = _Pod.open(config or Config.from_environ(), _read_lock(lock))
    return pod.resolve(Reference.parse(reference), to_fetch=False)


def judge(resolved: Resolved, environment: Environment) -> Selection:
    """Return what `explain` does, of bundles that were looked up before."""
    return _select(resolved, with_settings(environment), policy=Policy(undecided=True))


def rebind(model: CompiledModel) -> None:
    """Bind `model` again to its module's tensors; needed after a change in place of a weight's shape or strides."""
    model.rebind()


class _Attempt:
    """One call of `load`, and how far it came: what is known when it fails belongs into the reasons and the receipt."""

    def __init__(
        self, reference: Reference, module: "Module", fallback: Fallback, *, graphs: GraphOutputs | None
    ) -> None:
        self.graphs = graphs
        self.reference = reference
        self.module = module
        self.fallback = fallback
        self.pod: _Pod | None = None
        self.environment = Environment()
        self.selection: Selection | None = None
        self.stale = False
        self.fetches: tuple[Digest, ...] = ()

    def run(self, config: Config, lock: "Lock | None") -> CompiledModel:
        """Resolve, verify, select, fetch, load. Raises AotError."""
        with no_full_collection():
            pod, candidate, selection = self._choose(config, lock)
            wanted = pod.blobs(candidate, selection)
        held = (candidate.digest, *(blob.digest for blob in wanted))
        with pod.cache.hold(held):
            if missing := pod.cache.missing(wanted):
                self.fetches = held
                ensure_blobs(candidate, missing, client=pod.client, cache=pod.cache)
            # Not around the fetch, which may take minutes.
            with no_full_collection():
                return pod.load(
                    candidate,
                    selection,
                    self.module,
                    reference=self.reference,
                    fallback=self.fallback,
                    graphs=self.graphs,
                )

    def _choose(self, config: Config, lock: "Lock | None") -> "tuple[_Pod, Candidate, Selection]":
        self.pod = pod = _Pod.open(config, lock)
        self.environment = observe_environment()
        resolved = pod.resolve(self.reference)
        self.stale = resolved.stale
        with contextlib.suppress(LocalStorageFull, InvalidConfig):
            # A cache that cannot be written may still hold every blob.
            remember(resolved, pod.cache)
        self.selection = _select(resolved, observe_here(self.environment, self.module), policy=Policy())
        if self.selection.bundle is None:
            raise refuse(self.selection, self.reference)
        return pod, resolved.candidate(self.selection.bundle), self.selection

    def finish(self, model: CompiledModel, *, receipts: bool, seconds: float) -> None:
        """Let what is not needed for an output be done some seconds from now: make room again, tell of the load.

        The receipt's counters are those of that moment, or of the process's end where it comes first.
        """
        pod = self.pod
        if pod is None:
            return
        tasks: list[Task] = []
        if self.fetches:
            tasks.append(Task(lambda: pod.evict(keep=self.fetches)))
        if pod.client is not None and receipts:
            client, environment, stale = pod.client, self.environment, self.stale

            def tell() -> None:
                from aot.runtime.receipts import send_receipt

                send_receipt(client, model, environment, stale=stale, seconds=seconds)

            tasks.append(Task(tell, at_exit=True))
        if tasks:
            run_later(tasks)

    def give_up(self, error: AotError, *, cause: Exception | None = None) -> CompiledModel:
        """A model that runs eagerly because of `error`; raises it where the caller wants that."""
        if self.fallback is Fallback.RAISE:
            raise error from cause
        log.warning("aot runs %s eagerly: %s", self.reference, error.as_line)
        return load_nothing(
            self.module, error=error, fallback=self.fallback, reference=self.reference, selection=self.selection
        )


class _Pod(Struct, frozen=True):
    """One node's view: its registry, if any, its cache, whom it trusts and what a lock pins."""

    client: LateClient | None
    cache: LocalCache
    trusted: TrustedKeys
    lock: "Lock | None"
    canary: bool = False

    @classmethod
    def open(cls, config: Config, lock: "Lock | None") -> "_Pod":
        keys = (*config.trusted_keys, *(lock.trusted_keys if lock else ()))
        client = LateClient(config.url, config) if config.url and not config.offline else None
        cache = LocalCache(config.cache_dir, limit_bytes=config.cache_bytes)
        return cls(client, cache, TrustedKeys.parse(",".join(keys)), lock, config.canary)

    def resolve(self, reference: Reference, *, to_fetch: bool = True) -> Resolved:
        return resolve(
            reference, client=self.client, cache=self.cache, trusted=self.trusted, lock=self.lock, to_fetch=to_fetch
        )

    def pull(self, reference: Reference, environment: Environment) -> Pulled:
        from aot.runtime.warm_cache import ensure_pulled, remember_unless_known

        resolved = self.resolve(reference)
        written = remember_unless_known(resolved, cache=self.cache, trusted=self.trusted)
        selection = _select(resolved, environment, policy=Policy(undecided=True))
        if selection.bundle is not None:
            chosen = {one.bundle: one for one in selection.choices() if one.bundle is not None}
            wanted = {bundle: self.blobs(resolved.candidate(bundle), one) for bundle, one in chosen.items()}
            with self.cache.hold([*wanted, *(blob.digest for blobs in wanted.values() for blob in blobs)]):
                for bundle, blobs in wanted.items():
                    one = resolved.candidate(bundle)
                    ensure_pulled(one, blobs, client=self.client, cache=self.cache, hashed=not written)
                self.cache.evict()
        return Pulled(reference, selection.bundle, selection, resolved.stale)

    def evict(self, *, keep: Iterable[Digest]) -> None:
        """Make room in the cache, but not of these. Never raises."""
        with self.cache.hold(keep):
            self.cache.evict()

    def load(
        self,
        candidate: Candidate,
        selection: Selection,
        module: "Module",
        *,
        reference: Reference,
        fallback: Fallback,
        graphs: GraphOutputs | None,
    ) -> CompiledModel:
        paths = ensure_verified(candidate, selection, client=self.client, cache=self.cache)

        def locate(file: File) -> Path:
            path = paths.get(file.digest) or self.cache.verified_path(file.digest)
            if path is None:
                raise LoadFailed(f"{file.path} left the cache while it was needed", hint="raise AOT_CACHE_BYTES")
            return path

        def view(artifact: Artifact) -> Path:
            from aot.bundle.view import materialise_view

            directory = self.cache.view_path(candidate.digest, candidate.manifest.artifacts.index(artifact))
            return materialise_view(paths.get, artifact, directory)

        return load_artifacts(
            candidate.manifest,
            candidate.digest,
            module,
            selection=selection,
            locate=locate,
            view=view,
            fallback=fallback,
            reference=reference,
            canary=self.canary,
            graphs=graphs,
        )

    def blobs(self, candidate: Candidate, selection: Selection) -> tuple[Blob, ...]:
        """What the selected artifacts need, with the files of their canaries where those are run."""
        needed = blobs_of([candidate.manifest.artifacts[index] for index in selection.artifacts])
        if not self.canary:
            return needed
        canaries = [one for one in candidate.manifest.canaries if one.artifact in selection.artifacts]
        expected = (Blob(digest=file.digest, size_bytes=file.size_bytes) for one in canaries for file in one.expected)
        return tuple(dict.fromkeys((*needed, *expected)))


def _select(resolved: Resolved, environment: Environment, *, policy: Policy) -> Selection:
    """Select among the candidates; what was refused before is told beside what does not fit."""
    return replace(select(resolved.bundles, environment, policy=policy), refusals=resolved.refusals)


def _observe(*, same_container: bool) -> Environment:
    seen = observe_environment()
    return seen if same_container else Environment(node=seen.node, container=ContainerFacts())


def _read_lock(lock: Path | str | None) -> "Lock | None":
    if lock is None:
        return None
    from aot.schema.lock import decode_lock

    try:
        return decode_lock(Path(lock).read_bytes())
    except OSError as error:
        raise InvalidInput(
            f"the lock file {lock} cannot be read: {error}", hint="write it with `aot ensure`"
        ) from error
