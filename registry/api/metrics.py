"""The page that Prometheus reads. It is no document of the API, and so in no table; a token it needs all the same."""

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from registry.deps import Deps
from registry.services.metrics import exposition
from registry.services.tokens import Principal

# The version that every Prometheus reads; the framework adds the charset.
TEXT = "text/plain; version=0.0.4"


@get("/metrics", include_in_schema=False, sync_to_thread=True)
def metrics(
    deps: NamedDependency[SkipValidation[Deps]], caller: NamedDependency[SkipValidation[Principal]]
) -> Response[bytes]:
    """Tell how queue, fleet and this process are."""
    return Response(exposition(deps, by=caller), media_type=TEXT)
