"""Every endpoint of the HTTP API, in one table that server, client, documentation and tests share."""

from typing import Any, NamedTuple

from aot.schema.wire import blobs, builds, bundles, kernels, workers
from aot.schema.wire.workers import Scope


class Endpoint(NamedTuple):
    """`path` has `{name}` placeholders. `request` None: no body. `scope` None: open to any valid token."""

    method: str
    path: str
    request: Any
    reply: Any
    scope: Scope | None


ENDPOINTS: dict[str, Endpoint] = {
    # builds
    "submit": Endpoint("POST", "/v1/builds", builds.SubmitRequest, builds.SubmitReply, Scope.SUBMIT),
    "list_builds": Endpoint("GET", "/v1/builds", None, builds.BuildListing, Scope.READ),
    "get_build": Endpoint("GET", "/v1/builds/{build}", None, builds.BuildView, Scope.READ),
    "get_build_log": Endpoint("GET", "/v1/builds/{build}/log", None, builds.BuildLog, Scope.READ),
    "cancel": Endpoint("POST", "/v1/builds/{build}/cancel", builds.CancelRequest, builds.BuildView, Scope.SUBMIT),
    "retry": Endpoint("POST", "/v1/builds/{build}/retry", builds.RetryRequest, builds.SubmitReply, Scope.SUBMIT),
    "claim": Endpoint("POST", "/v1/claims", builds.ClaimRequest, builds.ClaimReply, Scope.CLAIM),
    "renew": Endpoint("POST", "/v1/builds/{build}/renew", None, builds.RenewReply, Scope.BUILD),
    "report_progress": Endpoint(
        "POST", "/v1/builds/{build}/progress", builds.ProgressRequest, builds.RenewReply, Scope.BUILD
    ),
    "fail": Endpoint("POST", "/v1/builds/{build}/fail", builds.FailRequest, builds.BuildView, Scope.BUILD),
    "release": Endpoint("POST", "/v1/builds/{build}/release", builds.ReleaseRequest, builds.BuildView, Scope.BUILD),
    "publish": Endpoint(
        "POST", "/v1/builds/{build}/publish", bundles.PublishRequest, bundles.PublishReply, Scope.BUILD
    ),
    # blobs: SUBMIT, PUSH and BUILD may each open uploads; the service checks
    "open_uploads": Endpoint("POST", "/v1/uploads", blobs.OpenUploadsRequest, blobs.LinksReply, None),
    # bundles
    "push": Endpoint("POST", "/v1/bundles", bundles.PushRequest, bundles.PublishReply, Scope.PUSH),
    "search": Endpoint("GET", "/v1/bundles", None, bundles.BundleListing, Scope.READ),
    "get_bundle": Endpoint("GET", "/v1/bundles/{digest}", None, bundles.BundleView, Scope.READ),
    "find": Endpoint("POST", "/v1/find", bundles.FindRequest, bundles.FindReply, Scope.READ),
    # `target` is a tag, a digest, or several digests between commas, as a lock pins them
    "resolve": Endpoint("GET", "/v1/models/{namespace}/{name}/{target}", None, bundles.ResolveReply, Scope.READ),
    "tag": Endpoint("PUT", "/v1/models/{namespace}/{name}/tags/{tag}", bundles.TagRequest, bundles.TagView, Scope.TAG),
    # `?expected=DIGEST`: only where it stands for that bundle
    "untag": Endpoint("DELETE", "/v1/models/{namespace}/{name}/tags/{tag}", None, bundles.UntagReply, Scope.TAG),
    "withdraw": Endpoint(
        "POST", "/v1/bundles/{digest}/withdraw", bundles.WithdrawRequest, bundles.BundleView, Scope.TAG
    ),
    # POST, because a list of digests has no place in a URL; a build's token may read its own pushed bundle
    "get_download_links": Endpoint(
        "POST", "/v1/bundles/{digest}/links", blobs.DownloadLinksRequest, blobs.LinksReply, None
    ),
    "list_kernels": Endpoint("GET", "/v1/kernels", None, kernels.KernelListing, Scope.READ),
    # fleet
    "register_worker": Endpoint("POST", "/v1/workers", workers.RegisterRequest, workers.RegisterReply, Scope.CLAIM),
    "list_workers": Endpoint("GET", "/v1/workers", None, workers.WorkerListing, Scope.READ),
    "list_profiles": Endpoint("GET", "/v1/profiles", None, workers.ProfileListing, Scope.READ),
    "send_receipt": Endpoint("POST", "/v1/receipts", workers.Receipt, None, Scope.READ),
    "create_token": Endpoint("POST", "/v1/tokens", workers.TokenRequest, workers.TokenReply, Scope.ADMIN),
    "get_keys": Endpoint("GET", "/v1/keys", None, workers.KeysReply, None),
    "get_health": Endpoint("GET", "/v1/health", None, workers.HealthReply, None),
    "get_ready": Endpoint("GET", "/v1/ready", None, workers.ReadyReply, None),
}
