"""What a warm start costs, counted and not timed: which modules `aot.load` imports and which files it reads.

A node that holds what a digest pins imports nothing for requests, for filling or evicting a cache, or for reading a
bundle's directory. A module that appears here is paid for at every start of every pod.
"""

import json
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from aot.cache import LocalCache
from aot.schema.digest import Digest
from aot.schema.manifest import Statement
from aot.schema.wire.bundles import SignedManifest
from aot.trust import SigningKey, sign
from tests.integration.handmade import FACTORY, write_handmade

pytestmark = pytest.mark.torch

CHILD = """
import json, sys
import torch
import scaled

module = scaled.make()["module"].eval()
before = set(sys.modules)
opened, starts = [], []

def hear(event, args):
    if event == "open" and isinstance(args[0], str) and args[0].startswith(CACHE):
        opened.append(args[0].removeprefix(CACHE))
    elif event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec", "socket.connect"):
        starts.append(event)

CACHE = sys.argv[2]
sys.addaudithook(hear)
import aot

with torch.inference_mode():
    model = aot.load(sys.argv[1], module, fallback="raise")
    found = model(torch.ones(2, 4)).tolist()
loaded = sorted(set(sys.modules) - before)
print(json.dumps({"modules": loaded, "opened": opened, "starts": starts, "found": found, "counters": model.counters}))
"""


class Node(NamedTuple):
    """A node's cache with one signed bundle, and what its pod said of a load."""

    bundle: Digest
    library: Digest
    said: dict[str, Any]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    place = tmp_path_factory.mktemp("node")
    stored, key, cache = write_handmade(place / "built"), SigningKey.generate(), LocalCache(place / "cache")
    manifest = stored.manifest
    statement = Statement(
        manifest=stored.digest, namespace=manifest.namespace, name=manifest.name, build_key=manifest.build_key
    )
    cache.put_manifest(
        SignedManifest(digest=stored.digest, manifest=stored.manifest_bytes.decode(), envelope=sign(statement, key))
    )
    for blob in manifest.blobs:
        cache.ensure(blob, lambda writer, blob=blob: writer.write(stored.blob_path(blob.digest).read_bytes()))
    (place / "scaled.py").write_text(FACTORY)
    (place / "child.py").write_text(CHILD)
    ended = subprocess.run(
        [sys.executable, "child.py", f"{manifest.namespace}/{manifest.name}@{stored.digest}", str(cache.root)],
        cwd=place,
        # With the address of a registry, as every pod has one: nothing listens there.
        env={
            "AOT_CACHE_DIR": str(cache.root),
            "AOT_TRUSTED_KEYS": str(key.public),
            "AOT_URL": "http://127.0.0.1:9",
            "AOT_RECEIPTS": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return Node(stored.digest, manifest.artifacts[0].files[0].digest, json.loads(ended.stdout.splitlines()[-1]))


def test_it_runs_compiled(node: Node) -> None:
    assert node.said["found"] == [[2.5] * 4] * 2
    assert node.said["counters"]["compiled"] + node.said["counters"]["eager_won"] == 1
    assert node.said["starts"] == []


def test_nothing_is_imported_that_a_warm_node_does_not_use(node: Node) -> None:
    unwanted = (
        *("aot.client", "aot.bundle", "aot.cache.evict", "aot.cache.incoming", "aot.facts.cubin", "aot.facts.isa"),
        *("aot.schema.lock", "aot.schema.wire.workers", "aot.schema.wire.builds", "aot.schema.endpoints"),
        *("aot.runtime.canary", "aot.environment.problems", "aot.compile", "aot.qualify", "aot.pipeline", "aot.cli"),
        *("torch._dynamo", "torch._inductor", "numpy.f2py", "iced_x86", "capstone", "tomllib", "yaml"),
    )
    found = [name for name in node.said["modules"] for one in unwanted if name == one or name.startswith(f"{one}.")]
    assert found == []


def test_of_cryptography_only_what_verifies_a_signature_is_imported(node: Node) -> None:
    found = [name for name in node.said["modules"] if name.startswith("cryptography.hazmat.primitives.")]
    assert not [name for name in found if "serialization" in name and "_serialization" not in name], found
    assert not [name for name in found if ".ciphers" in name or ".kdf" in name or "x509" in name], found


def test_the_loader_stays_small(node: Node) -> None:
    ours = [name for name in node.said["modules"] if name == "aot" or name.startswith("aot.")]
    # 0.1 to 0.2 ms each. Raise the number only for what every pod needs before its first output.
    assert len(ours) <= 89, ours


def test_every_file_of_the_cache_is_opened_once(node: Node) -> None:
    library, bundle = node.library.hex, node.bundle.hex
    read = [path for path in node.said["opened"] if path.startswith(("/blobs", "/manifests", "/tags", "/views"))]
    assert sorted(read) == sorted([f"/blobs/{library[:2]}/{library[2:]}", f"/manifests/{bundle}.json"])
