"""The first page: what the API offers. Public, and it says nothing of what is stored."""

from html import escape

from litestar import MediaType, get

from aot import __version__
from aot.schema.endpoints import ENDPOINTS

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>AOT Registry</title>
<h1>AOT Registry {version}</h1>
<p>Compiled PyTorch models: proven, signed, fetched at pod start.
<p>Every endpoint needs a bearer token; the service writes the first one into its data directory.
The API as a <a href="/schema/openapi.json">document</a> and as a <a href="/schema">page</a>.
Prometheus reads <code>/metrics</code>, with a token of the scope read for all namespaces.
<table>
<tr><th>Endpoint<th>Method<th>Path<th>Scope
{rows}
</table>
"""
ROW = "<tr><td>{name}<td>{method}<td><code>{path}</code><td>{scope}"


@get(
    "/",
    media_type=MediaType.HTML,
    include_in_schema=False,
    opt={"exclude_from_auth": True},
    sync_to_thread=False,
)
def index() -> str:
    rows = (
        ROW.format(name=name, method=row.method, path=escape(row.path), scope=row.scope or "any")
        for name, row in ENDPOINTS.items()
    )
    return PAGE.format(version=__version__, rows="\n".join(rows))
