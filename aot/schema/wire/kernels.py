"""Kernels on the wire: what the machine code of bundles holds, one view a kernel."""

from aot.schema.codec import Response
from aot.schema.digest import Digest
from aot.schema.names import Name, Namespace
from aot.schema.state import BundleState


class KernelView(Response, kw_only=True):
    """One kernel of one bundle. Numbers as in KernelFacts: None where the bytes do not say them."""

    name: str
    capability: str
    bundle: Digest
    namespace: Namespace
    model: Name
    profile: Name
    state: BundleState  # of the bundle
    artifact: int  # its position in the manifest
    path: str
    blob: Digest
    size_bytes: int
    registers: int | None = None
    scalar_registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None


class KernelListing(Response, kw_only=True):
    """`capabilities`: where one was asked for, those that code is for which runs there; None: none was, or an older
    registry compared for equality.
    """

    kernels: tuple[KernelView, ...]
    next: str | None = None
    capabilities: tuple[str, ...] | None = None
