"""The API as a page, at /schema: the OpenAPI description, spelled out for people.

It runs no script and asks no host for anything, so it reads the same in a closed network; its policy allows nothing
but its own style sheet.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import msgspec
from litestar.openapi.plugins import OpenAPIRenderPlugin

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1c2128 }
h2 { margin-top: 2.5rem } h3 { margin: 1.5rem 0 .3rem } code { font-size: .92em }
details { border: 1px solid #d0d7de; border-radius: 6px; margin: .4rem 0; padding: .4rem .8rem }
summary { cursor: pointer } summary b { display: inline-block; min-width: 4rem } summary span { color: #59636e }
table { border-collapse: collapse; width: 100%; margin: .4rem 0 } th { color: #59636e; font-weight: 600 }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #eaeef2 }
"""
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'"
)
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
<h1>{title} {version}</h1>
<p>{description}
<p>The same as a <a href="/schema/openapi.json">document</a> for tools.
<h2>Endpoints</h2>
{operations}
<h2>Types</h2>
{types}
"""
PLACE = "#/components/schemas/"
# Keys of a schema that say more than its type, in the order they are told.
LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern", "format")
MOST_EXAMPLE = 40


class ReferencePage(OpenAPIRenderPlugin):
    """Renders the description as one page; every operation and every type has an anchor of its own name."""

    def __init__(self) -> None:
        super().__init__(path="/reference")

    def render(self, request: Any, openapi_schema: dict[str, Any]) -> bytes:
        # Read back from the document that tools get, so that both say the same.
        return page_of(msgspec.json.decode(self.render_json(request, openapi_schema))).encode()


def page_of(description: Mapping[str, Any]) -> str:
    """The page of one OpenAPI 3.1 description."""
    about = description["info"]
    schemas = description["components"]["schemas"]
    return PAGE.format(
        policy=escape(POLICY),
        style=STYLE,
        title=escape(about["title"]),
        version=escape(about["version"]),
        description=_code(about.get("description") or ""),
        operations="\n".join(_operations(description["paths"])),
        types="\n".join(_type(name, schemas[name]) for name in sorted(schemas)),
    )


def _operations(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in paths.items():
        if path.startswith("/schema"):
            continue
        for method, operation in methods.items():
            yield _operation(method.upper(), path, operation)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = [
        (f"<code>{escape(one['name'])}</code>", f"in the {one['in']}{_optional(one)}", _spell(one.get("schema", {})))
        for one in operation.get("parameters", ())
    ]
    if body := operation.get("requestBody"):
        rows.append(("body", "", _spell(_content(body))))
    # Every refusal has one form, so those are one row.
    refusals = [status for status in operation["responses"] if status >= "400"]
    for status, answer in operation["responses"].items():
        if status not in refusals:
            rows.append((f"<b>{status}</b>", "reply", _spell(_content(answer)) or "no body"))
    if refusals:
        rows.append((", ".join(refusals), "refusal", _spell(_content(operation["responses"][refusals[0]]))))
    name = escape(operation["operationId"])
    summary = f"<b>{method}</b> <code>{escape(path)}</code> <span>{_code(operation.get('summary', ''))}</span>"
    text = operation.get("description", "")
    more = f"<p>{_code(text)}" if text != operation.get("summary") else ""
    return f'<details id="{name}"><summary>{summary}</summary>{more}{_table(rows)}</details>'


def _type(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        (f"<code>{escape(field)}</code>", "" if field in required else _default(one), _spell(one))
        for field, one in schema.get("properties", {}).items()
    ]
    body = _table(rows) if rows else f"<p>{_spell({**schema, 'title': None})}"
    return f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{_code(schema.get("description", ""))}{body}'


def _spell(schema: Mapping[str, Any]) -> str:
    """One schema in words, as HTML: types of the page are links."""
    if reference := schema.get("$ref"):
        name = escape(reference.removeprefix(PLACE))
        return f'<a href="#{name}">{name}</a>'
    for union in ("allOf", "anyOf", "oneOf"):
        if options := schema.get(union):
            return " or ".join(_spell(option) for option in options)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"<code>{escape(str(value))}</code>" for value in values)
    match schema.get("type"):
        case "array":
            return f"list of {_spell(schema.get('items') or {}) or 'anything'}"
        case "object" if isinstance(schema.get("additionalProperties"), Mapping):
            return f"object of {_spell(schema['additionalProperties']) or 'anything'} by name"
        case kind:
            words = [kind if isinstance(kind, str) else " or ".join(kind or ()), schema.get("title") or ""]
            words += [f"{key} {schema[key]}" for key in LIMITS if key in schema]
            example = next(iter(schema.get("examples") or ()), None)
            words += [] if example is None else [f"such as {_cut(str(example))}"]
            return escape(" ".join(filter(None, words)))


def _cut(example: str) -> str:
    return example if len(example) <= MOST_EXAMPLE else f"{example[: MOST_EXAMPLE // 2]}..."


def _content(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((one.get("schema", {}) for one in body.get("content", {}).values()), {})


def _optional(parameter: Mapping[str, Any]) -> str:
    return "" if parameter.get("required") else ", optional"


def _default(schema: Mapping[str, Any]) -> str:
    default = schema.get("default")
    return "optional" if default in (None, [], {}, "") else f"default {escape(str(default))}"


def _table(rows: list[tuple[str, str, str]]) -> str:
    cells = ("".join(f"<td>{cell}" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}' for row in cells)}</table>"


def _code(text: str) -> str:
    """Text with what stands between backquotes as code."""
    parts = escape(text, quote=False).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
