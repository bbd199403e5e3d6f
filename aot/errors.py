"""The error tree: the only exceptions that the public API raises on purpose.

Stands beside every flow of design.md, section 5: the registry sends `{code, message, hint, details}`, the client
looks the code up here and raises the same class. Expected outcomes (a miss, a rejected artifact, a dirty
provenance) are values and do not appear here.

    AotError
    ├─ InvalidInput                   the caller's value is wrong; fix and call again
    │  ├─ InvalidDigest · InvalidName · InvalidCapability · InvalidProfile · InvalidSpec · InvalidSource · InvalidConfig
    │  └─ MalformedDocument           a manifest, lock or wire message that does not decode
    ├─ CompileFailed                  the toolchain said no; not retried
    │  ├─ SourceNotLoadable           the factory does not import, raises or returns the wrong thing
    │  ├─ SourceNotExportable
    │  ├─ BackendFailed
    │  ├─ CompileTimedOut · CompileOutOfMemory · CompileStopped
    │  └─ QualificationFailed
    ├─ IntegrityFailed                bytes are not what the manifest says; never retried silently
    │  ├─ DigestMismatch · SizeMismatch · UnknownFile
    │  └─ SignatureRejected
    ├─ NoCompatibleArtifact           holds the Selection: every artifact and why not
    ├─ ArtifactUnusable               an artifact that was selected cannot be used in this process
    │  ├─ LoadFailed · BindingFailed · RunFailed
    ├─ GuardFailed                    at call time, when the policy is "raise"
    ├─ RegistryError                  the service answered
    │  ├─ NotARegistry                something else answers at its address
    │  ├─ NotFound                    BuildNotFound · BundleNotFound · BlobNotFound · TagNotFound · ProfileNotFound
    │  ├─ Conflict                    BuildNotClaimable · LeaseLost · TagMoved · BlobMissing · BuildFinished
    │  ├─ BuildFailed                 a followed build ended without a bundle
    │  ├─ Unauthenticated · Forbidden
    │  └─ BundleWithdrawn
    └─ Unavailable                    try later; the only family that is retried
       ├─ RegistryUnreachable · StorageUnavailable · QueueUnavailable · BlobPending · LocalStorageFull · DirectoryInUse
       └─ RateLimited · BuildUnfinished
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar


class AotError(Exception):
    """Base of the tree. `message` says what was wanted and found, `hint` what to do next."""

    code: ClassVar[str] = "aot-error"

    def __init__(self, message: str, *, hint: str = "", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = dict(details or {})
        if hint:
            self.add_note(f"try: {hint}")  # a traceback ends with what to do

    def __str__(self) -> str:
        return self.message

    @property
    def as_line(self) -> str:
        """Message and hint in one line: of a log, or among reasons."""
        return f"{self.message}; try: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process pools; keyword-only arguments need help to survive pickling.
        return _rebuild, (type(self), self.message, self.hint, self.details)


def _rebuild(kind: type[AotError], message: str, hint: str, details: dict[str, Any]) -> AotError:
    return kind(message, hint=hint, details=details)


class InvalidInput(AotError):
    """The caller's value is wrong; fix it and call again."""

    code = "invalid-input"


class InvalidDigest(InvalidInput):
    code = "invalid-digest"


class InvalidName(InvalidInput):
    code = "invalid-name"


class InvalidCapability(InvalidInput):
    code = "invalid-capability"


class InvalidProfile(InvalidInput):
    code = "invalid-profile"


class InvalidSpec(InvalidInput):
    code = "invalid-spec"


class InvalidSource(InvalidInput):
    """A source tree that cannot be packed: links out of it, files over the limit, no such entry."""

    code = "invalid-source"


class InvalidConfig(InvalidInput):
    """An environment variable or setting has a value that cannot be used."""

    code = "invalid-config"


class MalformedDocument(InvalidInput):
    """A manifest, lock or wire message does not decode; `details["path"]` says where."""

    code = "malformed-document"


class CompileFailed(AotError):
    """The toolchain said no. Not retried: the same spec would fail again."""

    code = "compile-failed"


class SourceNotLoadable(CompileFailed):
    """The factory does not import, raises, or does not return a module with example inputs."""

    code = "source-not-loadable"


class SourceNotExportable(CompileFailed):
    """`details` names the region, and the first offending operation with its source line."""

    code = "source-not-exportable"


class BackendFailed(CompileFailed):
    """`details` holds backend, region and an excerpt of the log."""

    code = "backend-failed"


class CompileTimedOut(CompileFailed):
    code = "compile-timed-out"


class CompileOutOfMemory(CompileFailed):
    code = "compile-out-of-memory"


class CompileStopped(CompileFailed):
    """The build was cancelled, or its lease was lost, while the child was running."""

    code = "compile-stopped"


class QualificationFailed(CompileFailed):
    """`details` holds the differences, the processes seen and the signal, whichever applies."""

    code = "qualification-failed"


class IntegrityFailed(AotError):
    """Bytes are not what the manifest says. Never retried silently."""

    code = "integrity-failed"


class DigestMismatch(IntegrityFailed):
    code = "digest-mismatch"


class SizeMismatch(IntegrityFailed):
    code = "size-mismatch"


class UnknownFile(IntegrityFailed):
    """A bundle holds a file that its manifest does not list."""

    code = "unknown-file"


class SignatureRejected(IntegrityFailed):
    """No trusted key signed this digest, or the statement is about another bundle."""

    code = "signature-rejected"


class NoCompatibleArtifact(AotError):
    """Nothing fits this host; `details["selection"]` holds every artifact and why not."""

    code = "no-compatible-artifact"


class ArtifactUnusable(AotError):
    """An artifact that was selected cannot be used in this process."""

    code = "artifact-unusable"


class LoadFailed(ArtifactUnusable):
    code = "load-failed"


class BindingFailed(ArtifactUnusable):
    """The live module is not the program that was compiled; `details["reasons"]` names each misfit."""

    code = "binding-failed"


class RunFailed(ArtifactUnusable):
    code = "run-failed"


class GuardFailed(AotError):
    """A call is outside every coverage and the policy is "raise"; `details` holds guard and observed value."""

    code = "guard-failed"


class RegistryError(AotError):
    """The registry answered with a refusal."""

    code = "registry-error"


class NotARegistry(RegistryError):
    """What answered at the registry's address is none: a proxy, an ingress without its service, a login page."""

    code = "not-a-registry"


class NotFound(RegistryError):
    code = "not-found"


class BuildNotFound(NotFound):
    code = "build-not-found"


class BundleNotFound(NotFound):
    code = "bundle-not-found"


class BlobNotFound(NotFound):
    code = "blob-not-found"


class TagNotFound(NotFound):
    code = "tag-not-found"


class ProfileNotFound(NotFound):
    code = "profile-not-found"


class Conflict(RegistryError):
    code = "conflict"


class BuildNotClaimable(Conflict):
    code = "build-not-claimable"


class LeaseLost(Conflict):
    """Another attempt holds the build; the caller must stop, because its upload would be refused."""

    code = "lease-lost"


class TagMoved(Conflict):
    code = "tag-moved"


class BlobMissing(Conflict):
    """A manifest names blobs that were not uploaded; `details["digests"]` lists them."""

    code = "blob-missing"


class BuildFinished(Conflict):
    """The build has ended, so the request has no meaning any more."""

    code = "build-finished"


class BuildFailed(RegistryError):
    """A followed build ended without a bundle; `details["error"]` holds what its worker said."""

    code = "build-failed"


class Unauthenticated(RegistryError):
    code = "unauthenticated"


class Forbidden(RegistryError):
    code = "forbidden"


class BundleWithdrawn(RegistryError):
    """`details` holds the reason and, where there is one, the replacement."""

    code = "bundle-withdrawn"


class Unavailable(AotError):
    """Try later. The only family that is retried."""

    code = "unavailable"


class RegistryUnreachable(Unavailable):
    code = "registry-unreachable"


class StorageUnavailable(Unavailable):
    code = "storage-unavailable"


class QueueUnavailable(Unavailable):
    code = "queue-unavailable"


class BlobPending(Unavailable):
    """The registry has not finished hashing an upload; publish again shortly."""

    code = "blob-pending"


class BuildUnfinished(Unavailable):
    """A followed build goes on beyond the time that was given to it: wait again, or cancel it."""

    code = "build-unfinished"


class LocalStorageFull(Unavailable):
    """A disk or quota of this host is exhausted; nothing half-written was left behind."""

    code = "local-storage-full"


class DirectoryInUse(Unavailable):
    """Another process serves this data directory."""

    code = "directory-in-use"


class RateLimited(Unavailable):
    """`details["retry_after_seconds"]` says when."""

    code = "rate-limited"


def error_classes() -> Iterator[type[AotError]]:
    """Yield every class of the tree, the root first."""
    pending = [AotError]
    while pending:
        kind = pending.pop(0)
        yield kind
        pending.extend(kind.__subclasses__())


def error_from_wire(code: str, message: str, *, hint: str = "", details: Mapping[str, Any] | None = None) -> AotError:
    """Return the error that the registry meant; an unknown code becomes a plain RegistryError that keeps it."""
    for kind in error_classes():
        if kind.code == code:
            return kind(message, hint=hint, details=details)
    return RegistryError(message, hint=hint, details={**(details or {}), "code": code})
