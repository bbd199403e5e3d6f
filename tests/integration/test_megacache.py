"""Mega-Cache round trip with torch itself: saved, split, joined, loaded in a fresh process, and hit."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from aot.capture.interchange import export_saved, import_saved
from aot.capture.megacache import SavedKind, entry_at, join, place_of, split
from aot.capture.pins import effective_environment
from aot.environment import observe_environment
from aot.schema.names import Name, Namespace
from tests.integration import compiled as builds
from tests.integration.compiled import scratch_directory

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]

CHILD = """
import json, sys, torch
from torch._dynamo.utils import counters

save, load = sys.argv[1:3]
if load:
    with open(load, "rb") as file:
        info = torch.compiler.load_cache_artifacts(file.read())
        assert info is not None and info.inductor_artifacts

@torch.compile
def f(x, y):
    return torch.relu(x @ y).sum(0) * 2

torch.manual_seed(0)
x, y = torch.randn(16, 8), torch.randn(8, 4)
with torch.no_grad():
    error = float((f(x, y) - torch.relu(x @ y).sum(0) * 2).abs().max())
if save:
    content, _ = torch.compiler.save_cache_artifacts()
    with open(save, "wb") as file:
        file.write(content)
inductor, autograd = dict(counters["inductor"]), dict(counters["aot_autograd"])
hits, misses = inductor.get("fxgraph_cache_hit", 0), inductor.get("fxgraph_cache_miss", 0)
print(json.dumps({"error": error, "hit": hits, "miss": misses,
                  "autograd_hit": autograd.get("autograd_cache_hit", 0)}))
"""


def run(place: Path, *, save: Path | None = None, load: Path | None = None) -> dict[str, Any]:
    """Compile in a fresh process whose caches are below `place`."""
    (place / "tmp").mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHINDUCTOR_", "TRITON_"))}
    environ = {
        **kept,
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_VEC_ISA_OK": "1",  # no trying of the compiler's instruction sets: half of a start, and no graph
        "TMPDIR": str(place / "tmp"),
    }
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, str(save or ""), str(load or "")],
        env=environ,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


@cache
def saved() -> tuple[Path, bytes]:
    """The cache directory of a cold run, and what torch saved of it."""
    place = scratch_directory("megacache")
    said = run(place / "cold", save=place / "saved.bin")
    assert (said["hit"], said["miss"]) == (0, 1)
    return place / "cold" / "inductor", (place / "saved.bin").read_bytes()


def test_what_torch_saved_lies_where_torch_keeps_it() -> None:
    directory, content = saved()
    entries = split(content)
    assert {entry.kind for entry in entries} >= {SavedKind.INDUCTOR, SavedKind.AOT_AUTOGRAD}
    for entry in entries:
        place = directory / place_of(entry)
        # The name of a graph's file is of no meaning, and may differ by release.
        beside = [path.read_bytes() for path in place.parent.iterdir() if path.is_file()]
        assert entry.content in beside, place_of(entry)


def test_a_blob_that_was_split_and_joined_is_loaded_by_torch_and_hits(tmp_path: Path) -> None:
    _, content = saved()
    (tmp_path / "joined.bin").write_bytes(join(split(content)))
    said = run(tmp_path / "fresh", load=tmp_path / "joined.bin")
    assert (said["hit"], said["miss"], said["autograd_hit"]) == (1, 0, 1)
    assert said["error"] < 1e-5


def test_entries_put_into_a_cache_directory_hit_without_torchs_own_loader(tmp_path: Path) -> None:
    _, content = saved()
    for entry in split(content):
        place = tmp_path / "inductor" / place_of(entry)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(entry.content)
    said = run(tmp_path)
    assert (said["hit"], said["miss"], said["autograd_hit"]) == (1, 0, 1)


def test_a_captured_directory_becomes_a_blob_that_torch_loads(tmp_path: Path) -> None:
    directory, content = saved()
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    found = [entry_at(str(path.relative_to(directory)), path.read_bytes()) for path in paths]
    entries = [entry for entry in found if entry is not None]
    assert {(entry.kind, entry.key) for entry in entries} == {
        (entry.kind, entry.key) for entry in split(content) if entry.kind is not SavedKind.PGO
    }
    (tmp_path / "blob.bin").write_bytes(join(entries))
    assert run(tmp_path / "fresh", load=tmp_path / "blob.bin")["hit"] == 1


def test_an_imported_file_that_is_exported_again_is_loaded_by_torch_and_hits(tmp_path: Path) -> None:
    _, content = saved()
    profile = builds.here()
    staged = import_saved(
        content,
        namespace=Namespace("default"),
        name=Name("llm"),
        profile=profile,
        effective=effective_environment(observe_environment(), {}),
        environ={},
        command=("python", "serve.py"),
        tree=None,
        scratch=tmp_path / "import",
        builder="test",
    )
    exported = export_saved(staged.manifest.artifacts, lambda file: staged.paths[file.digest].read_bytes())
    assert exported.left_out == ()
    (tmp_path / "exported.bin").write_bytes(exported.content)
    assert run(tmp_path / "fresh", load=tmp_path / "exported.bin")["hit"] == 1
