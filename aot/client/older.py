"""Requests to a registry of an older version: it refuses fields that it does not know, and says which.

Of an account (a receipt, what became of an attempt) the rest is still worth telling. A question is not asked by halves:
what a spec says and the registry does not know would be answered wrongly. An endpoint that it does not have is named.
"""

import re

import msgspec

from aot.errors import AotError, InvalidInput, MalformedDocument, NotFound, RegistryError
from aot.schema.endpoints import ENDPOINTS

ACCOUNTS = frozenset({"send_receipt", "report_progress", "fail", "release"})
# Of one request. A registry that names ever more of them is not an older one.
MOST_FIELDS = 64
_UNKNOWN = re.compile(r"the (\w+) does not decode at (\$\S*): Object contains unknown field `(\w+)`")


def without_unknown(name: str, content: bytes, error: MalformedDocument) -> bytes | None:
    """The request `content` to the endpoint `name` without the field that `error` says is not known.

    None where it may not be left out, and for every other error: an answer that does not decode was no refusal.
    """
    said = _UNKNOWN.fullmatch(error.message)
    if name not in ACCOUNTS or said is None or said[1] != ENDPOINTS[name].request.__name__.lower():
        return None
    document = msgspec.json.decode(content)
    found = _drop(document, said[2].removeprefix("$"), said[3])
    return msgspec.json.encode(document, order="sorted") if found else None


def not_served(error: AotError, *, status: int, wish: str, url: str) -> RegistryError | None:
    """What `error` means where a registry has no such endpoint, or no such method at it; None: it has answered."""
    # What the registry's framework says by itself; a page of something else is no registry's answer.
    if (status, type(error)) not in {(404, NotFound), (405, InvalidInput)}:
        return None
    kind = NotFound if status == 404 else RegistryError
    return kind(
        f"the registry at {url} does not know {wish}",
        hint="it is of an older version than this client: upgrade it first; or AOT_URL has a path too many",
    )


def _drop(value: object, path: str, field: str) -> bool:
    """Remove `field` of what `path` leads to. Paths are msgspec's: `.name`, and `[...]` for any element."""
    if not path:
        return isinstance(value, dict) and value.pop(field, value) is not value
    if path.startswith("[...]"):
        every = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return any([_drop(one, path.removeprefix("[...]"), field) for one in every])
    step = re.match(r"\.(\w+)", path)
    if step is None or not isinstance(value, dict):
        return False
    return _drop(value.get(step[1]), path[step.end() :], field)
