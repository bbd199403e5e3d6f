"""A bundle's manifest as it travels and lies in a node's cache: text, since its digest is over exactly these bytes.

Apart from the rest of the wire, because a pod that has everything reads this and nothing else of it.
"""

from aot.schema.codec import Response
from aot.schema.digest import Digest
from aot.schema.manifest import Envelope
from aot.schema.names import Tag


class SignedManifest(Response, kw_only=True):
    """A bundle as a client receives it: the manifest's text, and the envelope to verify it with."""

    digest: Digest
    manifest: str
    envelope: Envelope
    tags: tuple[Tag, ...] = ()
