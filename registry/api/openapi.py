"""The OpenAPI description, at /schema. It is public: it says what the API is, and nothing of what is stored.

The schemas come from msgspec itself, which knows what its decoder accepts.
"""

from typing import Any

import msgspec
from litestar import Litestar, Router
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, Reference, Schema, SecurityScheme
from litestar.plugins import OpenAPISchemaPlugin

from aot import __version__
from aot.schema.capability import Capability
from aot.schema.digest import Digest
from aot.schema.endpoints import ENDPOINTS
from aot.schema.names import Name, Namespace, Tag
from aot.schema.names import Reference as ModelReference
from aot.schema.text import Text
from aot.schema.wire.errors import ErrorBody
from registry.web.reference import ReferencePage

PLACE = "#/components/schemas/{name}"
SPELLINGS: dict[type[Text], str] = {
    Digest: "sha256:" + "0" * 64,
    Namespace: "default",
    Name: "minilm",
    Tag: "latest",
    ModelReference: "default/minilm:latest",
    Capability: "cpu:x86-64-v3",
}


class WireSchemas(OpenAPISchemaPlugin):
    """Wire types are named in the description and described once, among its components."""

    @staticmethod
    def is_plugin_supported_type(value: Any) -> bool:
        return isinstance(value, type) and issubclass(value, msgspec.Struct)

    def to_openapi_schema(self, field_definition: Any, schema_creator: Any) -> Schema:
        # Not the bare reference: the framework looks those up among the schemas that it made itself.
        return Schema(all_of=[Reference(ref=PLACE.format(name=field_definition.annotation.__name__))])


def openapi_config() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="AOT Registry",
        version=__version__,
        description=(
            "Submit models, follow builds, publish and fetch proven, signed bundles. Every endpoint needs a bearer "
            "token. Refusals are `{code, message, hint, details}`; codes are stable."
        ),
        security=[{"bearer": []}],
        components=Components(security_schemes={"bearer": SecurityScheme(type="http", scheme="bearer")}),
        render_plugins=[ReferencePage()],
        openapi_router=Router(path="/schema", route_handlers=[], opt={"exclude_from_auth": True}),
        use_handler_docstrings=True,
    )


def describe_wire_types(app: Litestar) -> None:
    """Add the components that `WireSchemas` points to; the framework's own would replace them any earlier."""
    components = app.openapi_schema.components
    assert isinstance(components, Components)
    components.schemas = (components.schemas or {}) | _schemas()


def _schemas() -> dict[str, Any]:
    kinds = {kind for row in ENDPOINTS.values() for kind in (row.request, row.reply) if kind is not None}
    ordered = sorted(kinds | {ErrorBody}, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(ordered, schema_hook=_text_schema, ref_template=PLACE)
    return components


def _text_schema(kind: type) -> dict[str, Any]:
    spelling = next((SPELLINGS[base] for base in kind.__mro__ if base in SPELLINGS), None)
    return {"type": "string", "title": kind.__name__} | ({"examples": [spelling]} if spelling else {})
