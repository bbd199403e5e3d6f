"""What the CUDA driver has compiled, through a capture and `aot run`: for a card's driver and for its imitation alike.

That the driver read an entry, and did not compile once more, follows from three things together: it writes a file each
time it compiles (on an empty directory, with the same environment), with what was restored it opened the entry, and it
wrote nothing. Times prove nothing here.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aot.capture.pins import effective_environment, pins
from aot.capture.watch import OpenWatch
from aot.environment import observe_environment
from aot.schema.digest import Digest
from aot.schema.manifest import Manifest, decode_manifest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INDEX = "cuda/index"
SECONDS = 300.0
_ENTRY = re.compile(r"cuda/[0-9a-f]/[0-9a-f]/[0-9a-f]+")


def write_tree(place: Path) -> Path:
    """The tree that the command of `command_of` runs in."""
    place.mkdir(parents=True)
    for name in ("driven.py", "graph_writer.py"):
        shutil.copyfile(HERE / name, place / name)
    return place


def command_of(library: str) -> tuple[str, ...]:
    """With a graph of torch's beside the kernel: a worker publishes no capture without one."""
    return ("python3", "-S", "driven.py", library, "graph")


def check_driver_cache(
    environ: Mapping[str, str], tree: Path, node: Path, library: str, *, work: Callable[[], object] = lambda: None
) -> None:
    """Capture, publish, run on an empty `node`, and show that the driver of `library` reads what was restored.

    `environ` leads to a registry; `work` does a worker's next turn where none waits for builds by itself.
    """
    command = command_of(library)
    words = ("capture", "driven:v1", "--once", "--source", str(tree), "--push", "--json", "--", *command)
    pushed = json.loads(_aot(environ, tree, *words).stdout)
    work()
    _aot(environ, tree, "wait", pushed["build"])
    wanted = _driver_files(environ, tree)
    environ = {**environ, "AOT_CACHE_DIR": str(node)}
    ran = _aot(environ, tree, "run", "driven:v1", "--", *command)
    assert "aot: 1 graphs: 1 from the bundle, 0 compiled" in ran.stderr, ran.stderr
    [directory] = [place for place in (node / "captures").iterdir() if place.is_dir()]
    assert _digests(directory / "cuda") == wanted
    _check_that_it_reads(environ, tree, directory, command)
    _check_that_it_would_write(environ, tree, node, command)
    # Of two pods that write back, one's index is kept, and a restore puts the bundle's in the place of the node's own.
    (directory / INDEX).unlink(missing_ok=True)
    _check_that_it_reads(environ, tree, directory, command)


def _driver_files(environ: Mapping[str, str], tree: Path) -> dict[str, Digest]:
    """The driver's entries of what has gone live, which the worker's own driver has written and read again."""
    (shown,) = json.loads(_aot(environ, tree, "show", "driven:v1", "--json").stdout)
    manifest: Manifest = decode_manifest(shown["manifest"].encode())
    files = {file.path: file.digest for file in manifest.artifacts[0].files if file.path.startswith("cuda/")}
    entries = [path for path in files if path != INDEX]
    assert entries and all(_ENTRY.fullmatch(path) for path in entries), files
    return {path: digest for path, digest in files.items() if path != INDEX}


def _check_that_it_reads(environ: Mapping[str, str], tree: Path, directory: Path, command: Sequence[str]) -> None:
    """Without `aot run`, which opens every file itself to compare it."""
    before = _written(directory / "cuda")
    watch = OpenWatch(directory)
    assert watch.works
    _start(_pinned(environ, directory, command), tree, command)
    opened = watch.finish()
    assert opened is not None and before.keys() <= opened, opened
    assert _written(directory / "cuda") == before


def _check_that_it_would_write(environ: Mapping[str, str], tree: Path, node: Path, command: Sequence[str]) -> None:
    """On an empty directory, unless its cache is switched off: then it compiles and writes nothing."""
    for number, disabled in enumerate(("0", "1")):
        directory = node / f"control-{number}"
        (directory / "cuda").mkdir(parents=True)
        pinned = _pinned(environ, directory, command)
        _start({**pinned, "CUDA_CACHE_DISABLE": disabled}, tree, command)
        assert bool(_digests(directory / "cuda")) == (disabled == "0")


def _digests(cache: Path) -> dict[str, Digest]:
    """Of the driver's entries; its index is its own to change."""
    files = [place for place in cache.rglob("*") if place.is_file() and place.name != "index"]
    return {f"cuda/{place.relative_to(cache)}": Digest.of(place.read_bytes()) for place in files}


def _written(cache: Path) -> dict[str, tuple[int, int, Digest]]:
    """The same with when each was written and as which file: to compile once more gives equal bytes."""
    stats = {path: (cache.parent / path).stat() for path in _digests(cache)}
    return {path: (stats[path].st_mtime_ns, stats[path].st_ino, digest) for path, digest in _digests(cache).items()}


def _pinned(environ: Mapping[str, str], directory: Path, command: Sequence[str]) -> dict[str, str]:
    effective = effective_environment(observe_environment(), environ, command=command)
    return {**environ, **pins(effective, directory, environ)}


def _aot(environ: Mapping[str, str], tree: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return _start({**environ, "PYTHONPATH": str(ROOT)}, tree, (sys.executable, "-m", "aot.cli", *arguments))


def _start(environ: Mapping[str, str], tree: Path, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    path = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    ran = subprocess.run(
        command, cwd=tree, env={**environ, "PATH": path}, capture_output=True, text=True, timeout=SECONDS
    )
    assert ran.returncode == 0, f"{' '.join(command)}: {ran.stderr[-3000:]}"
    return ran
