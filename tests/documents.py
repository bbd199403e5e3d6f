"""One fixed example of every document and wire message: the golden files are their encodings.

`python -m tests.documents` writes `tests/golden/` anew; a change there is a deliberate diff.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aot.keys import factors_of, key_of
from aot.schema.codec import encode_pretty
from aot.schema.decision import Selection
from aot.schema.digest import Digest
from aot.schema.environment import Environment
from aot.schema.lock import Lock, LockEntry, encode_lock
from aot.schema.manifest import Envelope, Manifest, Signature
from aot.schema.names import Name, Namespace, Reference, Tag
from aot.schema.recipe import Dimension, Mode, Recipe, Regions
from aot.schema.report import Phase
from aot.schema.state import BuildState, BundleState
from aot.schema.wire import blobs, builds, bundles, errors, kernels, workers
from aot.select import Policy, select
from tests.builders import (
    a_frozen_spec,
    a_gpu_profile,
    a_manifest,
    a_profile,
    a_program,
    a_report,
    a_spec,
    an_artifact,
    an_environment,
    manifest_text,
)
from tests.kernel_builders import a_kernel_manifest
from tests.route_builders import a_bytecode_manifest, a_capture_manifest, a_capture_source, a_function_manifest

GOLDEN = Path(__file__).parent / "golden"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BUNDLE = Digest.of(b"a bundle")
ENVELOPE = Envelope(payload="e30=", signatures=(Signature(keyid="0123456789abcdef", sig="c2ln"),))
LINK = blobs.Link(
    digest=BUNDLE, size_bytes=12, url="http://127.0.0.1:8900/blobs/x", method="PUT", headers={"content-length": "12"}
)
KEY = key_of(factors_of(a_spec(), a_profile()))


def a_view(**deviations: Any) -> builds.BuildView:
    fields: dict[str, Any] = {
        "id": "b-1",
        "namespace": Namespace("default"),
        "name": Name("mini"),
        "profile": Name("cpu-v3"),
        "build_key": KEY,
        "state": BuildState.RUNNING,
        "attempt": 1,
        "created_at": AT,
        "phase": Phase.COMPILING,
        "step": "region 1 of 2",
        "started_at": AT,
        "tags": (Tag("latest"),),
    }
    return builds.BuildView(**(fields | deviations))


def a_selection() -> Selection:
    """Accepted, undecided and rejected, each with its reasons."""
    fits, other = a_manifest(), a_manifest(a_spec(profile="h100"), profile=a_gpu_profile())
    blind = a_manifest(artifacts=(an_artifact(host_guards=(*an_artifact().host_guards[:4],)),))
    return select(
        [(Digest.of(b"1"), fits), (Digest.of(b"2"), other), (Digest.of(b"3"), blind)],
        an_environment(),
        policy=Policy(undecided=True),
    )


def a_signed() -> bundles.SignedManifest:
    text, digest = manifest_text(a_manifest())
    return bundles.SignedManifest(digest=digest, manifest=text, envelope=ENVELOPE, tags=(Tag("latest"),))


def documents() -> dict[str, Any]:
    """File name without `.json` -> document."""
    rich = Recipe(
        mode=Mode.MAX_AUTOTUNE_NO_CUDAGRAPHS,
        regions=Regions.AUTO,
        dimensions=(Dimension(name="batch", low=1, high=32), Dimension(name="length", buckets=(128, 512))),
        options={"max_autotune_gemm_backends": "ATEN,TRITON", "epilogue_fusion": True},
        environment={"OMP_NUM_THREADS": "2"},
    )
    return {
        "manifest": a_manifest(),
        "manifest-frozen": a_manifest(a_frozen_spec()),
        "manifest-gpu": a_manifest(a_spec(profile="h100", recipe=rich), profile=a_gpu_profile()),
        "manifest-kernel": a_kernel_manifest(),
        "manifest-bytecode": a_bytecode_manifest(),
        "manifest-function": a_function_manifest(),
        "manifest-capture": a_capture_manifest(),
        "manifest-capture-union": a_capture_manifest(a_capture_source(union_of=BUNDLE)),
        "envelope": ENVELOPE,
        "selection": a_selection(),
        "environment": an_environment(),
        "spec-program": a_spec(source=a_program(requirements=("transformers==5.24.0",))),
    }


def messages() -> dict[str, tuple[Any, Any]]:
    """Endpoint -> (request, reply)."""
    text, digest = manifest_text(a_manifest())
    spec, profile = a_spec(), a_profile()
    factors = factors_of(spec, profile)
    refusal = errors.ErrorBody(code="source-not-exportable", message="no", hint="do", details={"line": 3})
    claim = builds.Claim(
        build="b-1",
        attempt=1,
        spec=spec,
        profile=profile,
        build_key=KEY,
        factors=factors,
        token="attempt-token",
        lease_expires_at=AT,
        lease_seconds=60.0,
        links=(LINK,),
    )
    renewed = builds.RenewReply(lease_expires_at=AT, stop="cancelled: not needed")
    bundle_view = bundles.BundleView(
        digest=digest,
        namespace=Namespace("default"),
        name=Name("mini"),
        profile=Name("cpu-v3"),
        build_key=KEY,
        state=BundleState.LIVE,
        capability="cpu:x86-64-v3",
        torch="2.13.0+cpu",
        routes=("package",),
        regions=1,
        size_bytes=12,
        frozen=False,
        created_at=AT,
        published_at=AT,
        tags=(Tag("latest"),),
        speedup=2.0,
    )
    failed = a_view(state=BuildState.FAILED, error=refusal, report=a_report(), finished_at=AT)
    links = blobs.LinksReply(links=(LINK,))
    published = bundles.PublishReply(bundle=digest, state=BundleState.LIVE)
    return {
        "submit": (
            builds.SubmitRequest(spec=spec, tags=(Tag("latest"),), priority=10),
            builds.SubmitReply(build=a_view(state=BuildState.QUEUED, waiting="no live worker"), created=True),
        ),
        "list_builds": (None, builds.BuildListing(builds=(a_view(),), next="b-1")),
        "get_build": (None, failed),
        "get_build_log": (None, builds.BuildLog(lines=(builds.LogLine(sequence=1, at=AT, text="exporting"),))),
        "cancel": (builds.CancelRequest(reason="not needed"), a_view(state=BuildState.CANCELLED)),
        "claim": (
            builds.ClaimRequest(worker=Name("worker-1"), profiles=(Name("cpu-v3"),), build="b-1"),
            builds.ClaimReply(claim=claim),
        ),
        "renew": (None, renewed),
        "report_progress": (
            builds.ProgressRequest(phase=Phase.COMPILING, step="region 1 of 2", lines=("a line",)),
            renewed,
        ),
        "fail": (builds.FailRequest(error=refusal, report=a_report()), failed),
        "retry": (builds.RetryRequest(reason="the disk was full"), builds.SubmitReply(build=a_view(), created=True)),
        "release": (builds.ReleaseRequest(reason="shutting down"), a_view(state=BuildState.QUEUED)),
        "publish": (bundles.PublishRequest(manifest=text), published),
        "open_uploads": (blobs.OpenUploadsRequest(namespace=Namespace("default"), blobs=spec.blobs), links),
        "push": (
            bundles.PushRequest(manifest=text, tags=(Tag("latest"),)),
            bundles.PublishReply(bundle=digest, state=BundleState.PENDING, build="b-2"),
        ),
        "search": (None, bundles.BundleListing(bundles=(bundle_view,))),
        "get_bundle": (None, bundle_view),
        "find": (
            bundles.FindRequest(specs=(spec,)),
            bundles.FindReply(targets=(bundles.FindTarget(build_key=KEY, factors=factors, bundle=a_signed()),)),
        ),
        "resolve": (None, bundles.ResolveReply(bundles=(a_signed(),))),
        "tag": (
            bundles.TagRequest(bundle=BUNDLE, expected=digest),
            bundles.TagView(
                reference=Reference("default/mini:latest"), bundle=BUNDLE, profile=Name("cpu-v3"), moved_at=AT
            ),
        ),
        "untag": (
            None,
            bundles.UntagReply(
                removed=(
                    bundles.TagView(
                        reference=Reference("default/mini:latest"), bundle=BUNDLE, profile=Name("cpu-v3"), moved_at=AT
                    ),
                )
            ),
        ),
        "withdraw": (bundles.WithdrawRequest(reason="wrong weights", replacement=digest), bundle_view),
        "list_kernels": (
            None,
            kernels.KernelListing(
                kernels=(
                    kernels.KernelView(
                        name="triton_mm_0",
                        capability="cuda:sm_90a",
                        bundle=BUNDLE,
                        namespace=Namespace("default"),
                        model=Name("mini"),
                        profile=Name("h100"),
                        state=BundleState.LIVE,
                        artifact=0,
                        path="cubin/triton_mm_0.cubin",
                        blob=digest,
                        size_bytes=3840,
                        registers=56,
                        shared_bytes=1024,
                        spill_bytes=0,
                    ),
                ),
                next=f"2026-01-01T00:00:00+00:00~{BUNDLE}~0",
            ),
        ),
        "get_download_links": (blobs.DownloadLinksRequest(digests=(BUNDLE,)), links),
        "register_worker": (
            workers.RegisterRequest(worker=Name("worker-1"), profiles=(profile,)),
            workers.RegisterReply(queues=("build.cpu-x86-64-v3.0123456789ab",), seen_every_seconds=10.0),
        ),
        "list_workers": (
            None,
            workers.WorkerListing(
                workers=(workers.WorkerView(name=Name("worker-1"), profiles=(Name("cpu-v3"),), seen_at=AT, live=True),)
            ),
        ),
        "list_profiles": (
            None,
            workers.ProfileListing(profiles=(workers.ProfileView(profile=profile, live_workers=1, queued=2),)),
        ),
        "send_receipt": (
            workers.Receipt(
                reference=Reference("default/mini:latest"),
                bundle=digest,
                environment=Environment(),
                outcome=workers.Outcome.COMPILED,
                counters={"calls": 3, "compiled": 3},
            ),
            None,
        ),
        "create_token": (
            workers.TokenRequest(label="ci", scopes=(workers.Scope.SUBMIT,), namespaces=(Namespace("default"),)),
            workers.TokenReply(token="secret", expires_at=AT),
        ),
        "get_keys": (None, workers.KeysReply(keys=("ed25519:AAAA",))),
        "get_health": (None, workers.HealthReply(status="ok", version="0.1.0")),
        "get_ready": (None, workers.ReadyReply(ready=False, checks={"database": "ok", "store": "unreachable"})),
    }


def a_lock() -> Lock:
    manifest: Manifest = a_manifest()
    entry = LockEntry(
        reference=Reference("default/mini:latest"),
        profile=Name("cpu-v3"),
        bundle=BUNDLE,
        build_key=manifest.build_key,
        factors=manifest.factors[:3],
    )
    return Lock(entries=(entry,), trusted_keys=("ed25519:AAAA",))


def golden_files() -> dict[str, bytes]:
    """Every golden file by its path below `tests/golden`."""
    files = {f"{name}.json": encode_pretty(document) for name, document in documents().items()}
    files["aot.lock"] = encode_lock(a_lock())
    for name, (request, reply) in messages().items():
        if request is not None:
            files[f"wire/{name}.request.json"] = encode_pretty(request)
        if reply is not None:
            files[f"wire/{name}.reply.json"] = encode_pretty(reply)
    files["wire/error.json"] = encode_pretty(errors.ErrorBody(code="not-found", message="no", hint="do", details={}))
    files["wire/ticket.json"] = encode_pretty(builds.Ticket(build="b-1"))
    return files


if __name__ == "__main__":
    for path, content in golden_files().items():
        (GOLDEN / path).parent.mkdir(parents=True, exist_ok=True)
        (GOLDEN / path).write_bytes(content)
