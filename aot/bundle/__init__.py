"""Bundles on disk: a directory that holds a manifest, its signature and its blobs.

    manifest.json            canonical bytes; their digest is the bundle's identity
    envelope.json            the registry's signature, where there is one
    blobs/sha256/<hex>       every blob that the manifest lists, once

Written at the end of a compile and carried between machines; `verify_bundle` finds everything wrong with one at once.
Loaders do not read this form: `materialise_view` gives them an artifact's files under their own names.
"""

from aot.bundle.assemble import assemble, check_files
from aot.bundle.check import Violation, ViolationKind, raise_first, verify_bundle
from aot.bundle.form import StoredBundle, read_bundle, write_bundle, write_envelope
from aot.bundle.hashing import blob_of
from aot.bundle.paths import why_unsafe, why_unsafe_together
from aot.bundle.view import materialise_view

__all__ = [
    "StoredBundle",
    "Violation",
    "ViolationKind",
    "assemble",
    "blob_of",
    "check_files",
    "materialise_view",
    "raise_first",
    "read_bundle",
    "verify_bundle",
    "why_unsafe",
    "why_unsafe_together",
    "write_bundle",
    "write_envelope",
]
