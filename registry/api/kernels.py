"""Kernels over HTTP."""

from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.names import Name, Namespace
from aot.schema.state import BundleState
from aot.schema.wire.kernels import KernelListing
from registry.api import query
from registry.api.routing import endpoint
from registry.deps import Deps
from registry.services import kernels
from registry.services.tokens import Principal


@endpoint("list_kernels")
def list_kernels(
    deps: Deps,
    caller: Principal,
    text: str | None = None,
    capability: str | None = None,
    bundle: str | None = None,
    blob: str | None = None,
    namespace: str | None = None,
    model: str | None = None,
    in_state: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> KernelListing:
    """Search the kernels of bundles, those of the newest bundle first.

    `text` is how a name begins, and sorts by name. `capability` is where they are to run; the reply lists what of the
    code there is runs there.
    """
    with deps.sessions.reading() as session:
        return kernels.search(
            text=text,
            capability=query.text(capability, Capability),
            bundle=query.text(bundle, Digest),
            blob=query.text(blob, Digest),
            namespace=query.text(namespace, Namespace),
            model=query.text(model, Name),
            state=query.choice(in_state, BundleState),
            after=after,
            limit=limit,
            by=caller,
            session=session,
        )


ROUTES = (list_kernels,)
