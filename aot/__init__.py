"""AOT Registry: compile PyTorch models before the pod exists; fetch, verify and run them at pod start.

    import aot
    model = aot.load("search/minilm:v2", module)   # compiled where it fits this host, eager where not
    embeddings = model(input_ids, attention_mask)

Importing this package loads neither torch nor any server library; names below are looked up when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PLACES = {
    "AotError": "aot.errors",
    "Capability": "aot.schema.capability",
    "CompiledModel": "aot.runtime.compiled",
    "Config": "aot.config",
    "Digest": "aot.schema.digest",
    "Environment": "aot.schema.environment",
    "GuardFailed": "aot.errors",
    "IntegrityFailed": "aot.errors",
    "Manifest": "aot.schema.manifest",
    "NoCompatibleArtifact": "aot.errors",
    "Reference": "aot.schema.names",
    "RegistryClient": "aot.client",
    "Selection": "aot.schema.decision",
    "Unavailable": "aot.errors",
    "explain": "aot.runtime.pod",
    "load": "aot.runtime.pod",
    "observe_environment": "aot.environment",
    "pull": "aot.runtime.pod",
    "rebind": "aot.runtime.pod",
    "select": "aot.select",
    "warm": "aot.capture.warm",
}

__all__ = ["__version__", *_PLACES]

if TYPE_CHECKING:
    from aot.capture.warm import warm
    from aot.client import RegistryClient
    from aot.config import Config
    from aot.environment import observe_environment
    from aot.errors import AotError, GuardFailed, IntegrityFailed, NoCompatibleArtifact, Unavailable
    from aot.runtime.compiled import CompiledModel
    from aot.runtime.pod import explain, load, pull, rebind
    from aot.schema.capability import Capability
    from aot.schema.decision import Selection
    from aot.schema.digest import Digest
    from aot.schema.environment import Environment
    from aot.schema.manifest import Manifest
    from aot.schema.names import Reference
    from aot.select import select


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'aot' has no attribute {name!r}")
    from aot.pause import no_full_collection

    with no_full_collection():
        value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
