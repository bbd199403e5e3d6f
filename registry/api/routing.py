"""From the table of endpoints to routes: method, path, body and reply are written once, in aot.schema.endpoints."""

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

from litestar.di import NamedDependency
from litestar.dto import AbstractDTO
from litestar.handlers import HTTPRouteHandler
from litestar.middleware import DefineMiddleware
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, JSONBody, QueryParameter, SkipValidation

from aot.schema.codec import decode
from aot.schema.endpoints import ENDPOINTS
from aot.schema.wire.errors import ErrorBody
from registry.api.direct import Direct
from registry.api.errors import STATUS
from registry.db.session import tried_again

# `state` is a name that the framework keeps for itself.
QUERY_NAMES = {"in_state": "state"}
REFUSALS = sorted(set(STATUS.values()))


class WireBody(AbstractDTO[Any]):
    """Bodies are decoded by the one codec: strict, and with the place of what is wrong in the error."""

    kind: Any = None

    def decode_bytes(self, value: bytes) -> Any:
        return decode(value, self.kind)

    @classmethod
    def create_for_field_definition(cls, *args: Any, **kwargs: Any) -> None:
        """Nothing to prepare: no transfer model stands between the wire type and the handler."""

    @classmethod
    def create_openapi_schema(cls, field_definition: Any, handler_id: str, schema_creator: Any) -> Any:
        return schema_creator.for_field_definition(field_definition)

    @classmethod
    def is_supported_model_type_field(cls, field_definition: Any) -> bool:
        return True

    @classmethod
    def generate_field_definitions(cls, model_type: type[Any]) -> Any:
        yield from ()

    @classmethod
    def detect_nested_field(cls, field_definition: Any) -> bool:
        return False


def endpoint(name: str, *, direct: bool = False) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Make a function the handler of the endpoint `name`.

    It runs in a thread, since database and store block. Its `data` and its return type must be those of the table.
    `direct`: it is called the short way (`registry.api.direct`), where query parameters are switches.
    """
    row = ENDPOINTS[name]

    def decorate(function: Callable[..., Any]) -> HTTPRouteHandler:
        signature = inspect.signature(function)
        switches = frozenset(word for word, one in signature.parameters.items() if one.annotation is bool)
        body = signature.parameters.get("data")
        found = (body.annotation if body else None, signature.return_annotation)
        if found != (row.request, row.reply):
            raise TypeError(f"{name} takes and returns {found}, the table says {(row.request, row.reply)}")
        function.__annotations__ = {key: _marked(key, kind, row.path) for key, kind in function.__annotations__.items()}
        return HTTPRouteHandler(
            re.sub(r"{(\w+)}", r"{\1:str}", row.path),
            http_method=row.method,
            name=name,
            operation_id=name,
            opt={"endpoint": name},
            middleware=[DefineMiddleware(Direct, function, row.request, switches=switches)] if direct else None,
            status_code=204 if row.reply is None else 200,
            dto=type(f"{name}Body", (WireBody,), {"kind": row.request}) if row.request else None,
            return_dto=None,
            sync_to_thread=True,
            responses={status: ResponseSpec(ErrorBody, generate_examples=False) for status in REFUSALS},
            summary=(inspect.getdoc(function) or "").split("\n")[0],
            # Said here: the framework would take the docstring of its own wrapper around the function.
            description=inspect.getdoc(function),
        )(function if direct else _tried_again(function))

    return decorate


def _tried_again(function: Callable[..., Any]) -> Callable[..., Any]:
    """Once more where the database has undone everything for the sake of others: as the client would, 2 s later."""

    @wraps(function)
    def once_or_twice(*given: Any, **named: Any) -> Any:
        return tried_again(lambda: function(*given, **named))

    return once_or_twice


def _marked(key: str, kind: Any, path: str) -> Any:
    """Say where a parameter comes from; handlers need not, since it follows from its name."""
    if key in ("deps", "caller"):
        return NamedDependency[SkipValidation[kind]]
    if key == "data":
        return JSONBody[kind]
    if f"{{{key}}}" in path:
        return FromPath[kind]
    return kind if key == "return" else Annotated[kind, QueryParameter(name=QUERY_NAMES.get(key, key))]
