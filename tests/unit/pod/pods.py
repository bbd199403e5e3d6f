"""A pod in a test: its module, its locks, and what stands for the loader."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aot.cache import LocalCache
from aot.config import Config
from aot.runtime import pod
from aot.runtime.compiled import CompiledModel
from aot.runtime.graphs import GraphOutputs
from aot.schema.digest import Digest
from aot.schema.lock import Lock, LockEntry, encode_lock
from aot.schema.spec import File
from tests.builders import manifest_text
from tests.simulator import a_reference


def module(value: int) -> str:
    """Stands for the live module: what is called when nothing compiled is."""
    return f"eager {value}"


@dataclass
class Loads:
    """What reached `load_artifacts`, which would open the files; `fails` with this error instead."""

    fails: BaseException | None = None
    bundles: list[Digest] = field(default_factory=list)
    content: list[bytes] = field(default_factory=list)
    views: list[Path] = field(default_factory=list)
    graphs: list[GraphOutputs | None] = field(default_factory=list)

    def __call__(
        self,
        manifest,
        digest,
        live,
        *,
        selection,
        locate: Callable[[File], Path],
        view,
        fallback,
        reference,
        canary,
        graphs,
    ) -> CompiledModel:
        self.graphs.append(graphs)
        if self.fails is not None:
            raise self.fails
        self.bundles.append(digest)
        files = [file for index in selection.artifacts for file in manifest.artifacts[index].files]
        if canary:
            files += [file for one in manifest.canaries for file in one.expected]
        self.content += [locate(file).read_bytes() for file in files]
        self.views += [view(manifest.artifacts[index]) for index in selection.artifacts]
        return CompiledModel(
            live, (), fallback=fallback, reference=reference, bundle=digest, selection=selection, reasons=("stub",)
        )


def load(config: Config, reference: str = "mini", **options: Any) -> CompiledModel:
    return pod.load(reference, module, config=config, **options)  # type: ignore[arg-type]


def unwritable(config: Config) -> LocalCache:
    """The cache, as on a file system mounted read-only; but for what root may remove."""
    cache = LocalCache(config.cache_dir)
    shutil.rmtree(cache.root / "incoming", ignore_errors=True)
    (cache.root / "incoming").write_text("in the way")
    return cache


def a_lock_file(tmp_path: Path, *manifests, keys: tuple[str, ...] = ()) -> Path:
    entries = tuple(
        LockEntry(
            reference=a_reference(name=manifest.name),
            profile=manifest.profile.name,
            bundle=manifest_text(manifest)[1],
            build_key=manifest.build_key,
        )
        for manifest in manifests
    )
    path = tmp_path / "aot.lock"
    path.write_bytes(encode_lock(Lock(entries=entries, trusted_keys=keys)))
    return path
