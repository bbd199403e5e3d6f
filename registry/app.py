"""The application: routes over one object graph, built once."""

from typing import Any

from litestar import Litestar, Request
from litestar.datastructures import State
from litestar.di import NamedDependency, Provide
from litestar.params import SkipValidation

from aot.schema.text import Text
from registry.api import auth, blobs, builds, bundles, claims, errors, fleet, health, kernels
from registry.api.index import index
from registry.api.metrics import metrics
from registry.api.openapi import WireSchemas, describe_wire_types, openapi_config
from registry.deps import Deps, build_deps
from registry.services.tokens import Principal
from registry.settings import Settings
from registry.storage import link_routes

ROUTES = (
    *builds.ROUTES,
    *claims.ROUTES,
    *blobs.ROUTES,
    *bundles.ROUTES,
    *kernels.ROUTES,
    *fleet.ROUTES,
    *health.ROUTES,
)


def create_app(settings: Settings) -> Litestar:
    """The application as the settings describe it. Raises InvalidConfig and StorageUnavailable."""
    return create_app_from(build_deps(settings))


def create_app_from(deps: Deps) -> Litestar:
    """The application over a given object graph, whose database must be migrated."""
    app = Litestar(
        [index, metrics, *ROUTES, *link_routes(deps.store)],
        dependencies={
            "deps": Provide(lambda: deps, sync_to_thread=False),
            "caller": Provide(caller_of, sync_to_thread=False),
        },
        guards=[auth.authenticate],
        exception_handlers=errors.HANDLERS,
        type_encoders={Text: str},
        request_max_body_size=deps.settings.max_body_bytes,
        openapi_config=openapi_config(),
        plugins=[WireSchemas()],
        state=State({"deps": deps}),
        on_startup=[lambda: deps.uses.start(deps.sessions)],
        on_shutdown=[lambda: deps.uses.stop(deps.sessions), deps.sessions.close],
        logging_config=None,
    )
    describe_wire_types(app)
    return app


def caller_of(request: Request[Any, Any, Any], deps: NamedDependency[SkipValidation[Deps]]) -> Principal:
    # After `deps`, not beside it: for what is independent the framework starts a group of tasks at every request.
    return request.auth
