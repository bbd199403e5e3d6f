"""A program with many gigabytes of weights on its way to a worker: the memory and the time of each step.

    python -m benchmarks.large_program [--gib 6] [--store directory | s3] [--build] [--result FILE]

Makes an exported program with so many GiB of weights (a chain of linear layers in bfloat16) and a safetensors file with
as many, and takes them through an `aot up` of its own, every part a process of its own:

    strip     what `aot submit` does with the program before anything is uploaded
    submit    `aot submit`: the stripped program and the weights are hashed and uploaded; in parts, and then hashed by
              the sweeper, where the store is S3 (nanio) and they are above `largest_put`, here 4 GiB
    fetch     the worker downloads both, and hashes them
    build     with --build only, and from the program alone: it is compiled and proven with synthetic weights

Without --build the build is cancelled once its source has arrived. Peaks are VmHWM and ru_maxrss: pages of mapped
files count. The weights are zeros, and both files are holes on the disk: reading one is as fast as reading what the
system has in its cache. All else (the store's blob, the worker's copy) is written in full: three times `--gib`.
"""

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aot.client.connect import open_client
from aot.schema.report import Phase
from aot.schema.wire.builds import BuildView
from benchmarks.cold_start import default_label, host
from benchmarks.servers import free_port, running_server
from benchmarks.service import Service, running_service
from benchmarks.starts import ROOT

WIDTH = 4096
LAYER_BYTES = 2 * WIDTH * WIDTH
BUCKET, KEY = "large", "benchmark"
LARGEST_PUT = "4GiB"
# What a process is, by what its command line holds.
PARTS = {
    "registry": "registry serve",
    "sweeper": "registry sweep",
    "worker": "-m worker",
    "compile": "-m aot.compile",
    "proof": "-m aot.qualify",
}
POLL_SECONDS = 0.25


def main() -> int:
    options = _parser().parse_args()
    if options.command is not None:
        return int(options.run(options))
    result = options.result or ROOT / f"benchmarks/results/large-program-{options.store}-{default_label()}.json"
    with tempfile.TemporaryDirectory(prefix="aot-large-", dir=options.scratch, ignore_cleanup_errors=True) as folder:
        found = measure(Path(folder), options)
    result.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    return 0


def measure(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    weight_bytes = max(1, round(options.gib * (1 << 30) / LAYER_BYTES)) * LAYER_BYTES
    program, weights = scratch / "program.pt2", scratch / "weights.safetensors"
    found: dict[str, Any] = {"host": host(), "store": options.store, "weight_bytes": weight_bytes}
    found["load"] = os.getloadavg()
    found["write"] = _timed("write", str(program), str(weight_bytes))
    (found["strip"],) = _timed("strip", str(program))
    write_weights(weights, weight_bytes)
    stripped = program.with_suffix(".stripped.pt2")
    with _service(scratch, options.store) as service:
        extra = [] if options.build else ["--weights", str(weights)]
        arguments = ["submit", "large:1", "--source", str(stripped), *extra, "--json"]
        build, used = _submit(service, arguments)
        found["submit"] = {**used, "store_bytes": _disk_bytes(scratch / "store", service.data / "blobs")}
        found |= _follow(service, build, whole=options.build)
        if not options.build:
            service.aot("cancel", build, quiet=True)
    return found


def _submit(service: Service, arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The build that `aot submit` began, and what the command took."""
    begun, command = time.perf_counter(), [sys.executable, "-m", "aot.cli", *arguments]
    environ = {**os.environ, **service.environ}
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"aot submit ended with {process.returncode}")
    told = {"seconds": round(time.perf_counter() - begun, 2), "peak_bytes": used.ru_maxrss * 1024}
    return json.loads(said)["build"]["id"], told


def _follow(service: Service, build: str, *, whole: bool) -> dict[str, Any]:
    """Watch the service's processes until the build's source has arrived, or with `whole` until it ends."""
    found: dict[str, Any] = {}
    peaks: dict[str, int] = {}
    client = open_client(service.environ["AOT_URL"], Path(service.environ["AOT_TOKEN_FILE"]).read_text().strip())
    while True:
        view = client.get_build(build)
        for part, peak in _peaks().items():
            peaks[part] = max(peaks.get(part, 0), peak)
        arrived = view.state.finished or view.phase not in (None, Phase.FETCHING)
        if "fetch" not in found and arrived:
            found["fetch"] = {"seconds": _since(view)}
        if view.state.finished or (arrived and not whole):
            break
        time.sleep(POLL_SECONDS)
    if whole:
        found["build"] = {"seconds": _since(view), "state": view.state}
        found["build"] |= {"error": view.error.message} if view.error else {}
    return {**found, "peak_bytes": peaks}


def _since(view: BuildView) -> float | None:
    """Seconds since the worker has claimed the build: the registry runs by this host's clock."""
    return view.started_at and round((datetime.now(UTC) - view.started_at).total_seconds(), 2)


def _peaks() -> dict[str, int]:
    """The highest resident memory of each part of the service so far; of several processes, the largest one's."""
    from aot.sandbox.tree import find_descendants

    found: dict[str, int] = {}
    for entry in find_descendants(os.getpid()):
        try:
            command = Path(f"/proc/{entry.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            lines = Path(f"/proc/{entry.pid}/status").read_text().splitlines()
        except OSError:
            continue
        peak = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
        for part, words in PARTS.items():
            if words in command and "bwrap" not in command.partition(" ")[0]:
                found[part] = max(found.get(part, 0), peak)
    return found


def _timed(*arguments: str) -> Any:
    """What a command of this module says, which runs in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.large_program", *arguments]
    return json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)


def _disk_bytes(*places: Path) -> int:
    from aot.sandbox.usage import read_disk_bytes

    return read_disk_bytes(str(place) for place in places)


@contextmanager
def _service(scratch: Path, store: str) -> Iterator[Service]:
    with ExitStack() as stack:
        if store == "s3":
            stack.enter_context(_bucket(scratch / "store"))
        yield stack.enter_context(running_service(scratch / "service"))


@contextmanager
def _bucket(directory: Path) -> Iterator[None]:
    """A bucket of an S3 server of its own, and the variables by which a registry finds it."""
    import boto3

    directory.mkdir()
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    credentials = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}
    where = ["--data-dir", str(directory), "--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-m", "nanio", "serve", *where, "--no-access-log", "--log-level", "warning"]
    place = f"s3://{BUCKET}?endpoint={endpoint}&region=us-east-1&largest_put={LARGEST_PUT}"
    before = dict(os.environ)
    with running_server(command, port, environ={**os.environ, "NANIO_ACCESS_KEY": KEY, "NANIO_SECRET_KEY": KEY}):
        os.environ.update({**credentials, "AOT_BLOB_URL": place})
        try:
            client = boto3.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1")
            client.create_bucket(Bucket=BUCKET)
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


# What is measured, and made to be measured


class HoledFile(io.FileIO):
    """A file in which zeros are holes: they take no room on the disk, and no time to write."""

    _ZEROS = bytes(1 << 20)

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        for start in range(0, len(view), len(self._ZEROS)):
            part = view[start : start + len(self._ZEROS)]
            if part == self._ZEROS[: len(part)]:
                self.truncate(max(self.tell() + len(part), os.fstat(self.fileno()).st_size))
                self.seek(len(part), os.SEEK_CUR)
            else:
                super().write(part)
        return len(view)


def write_program(path: Path, weight_bytes: int, *, width: int = WIDTH) -> None:
    """Export a chain of layers with so many bytes of weights, and save it with memory for one layer."""
    import torch

    layers = max(1, weight_bytes // (2 * width * width))
    with torch.device("meta"):
        linear = [torch.nn.Linear(width, width, bias=False, dtype=torch.bfloat16) for _ in range(layers)]
        module = torch.nn.Sequential(*linear)
    # Memory that nobody has written to takes none, and is all zeros.
    module = module.to_empty(device="cpu").eval()
    program = torch.export.export(module, (torch.ones(1, width, dtype=torch.bfloat16),))
    with HoledFile(path, "w+") as file:
        torch.export.save(program, file)


def write_weights(path: Path, weight_bytes: int, *, width: int = WIDTH) -> None:
    """Write weights for the program of `write_program` as safetensors: the header's length, the header, the bytes."""
    layer_bytes = 2 * width * width
    header = {
        f"{layer}.weight": {
            "dtype": "BF16",
            "shape": [width, width],
            "data_offsets": [layer * layer_bytes, (layer + 1) * layer_bytes],
        }
        for layer in range(max(1, weight_bytes // layer_bytes))
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + len(header) * layer_bytes)


def write(options: argparse.Namespace) -> int:
    begun = time.perf_counter()
    write_program(options.path, options.bytes)
    size = options.path.stat()
    written = {"bytes": size.st_size, "disk_bytes": size.st_blocks * 512}
    print(json.dumps({"seconds": round(time.perf_counter() - begun, 2), "peak_bytes": _peak(), **written}))
    return 0


def strip(options: argparse.Namespace) -> int:
    """Strip each program to a file beside it, and say what this process held by then at most."""
    from aot.compile.strip import strip_program

    told = []
    for source in options.paths:
        target, begun = source.with_suffix(".stripped.pt2"), time.perf_counter()
        weight_bytes = strip_program(source, target)
        seconds = round(time.perf_counter() - begun, 2)
        sizes = {"weight_bytes": weight_bytes, "stripped_bytes": target.stat().st_size}
        told.append({"seconds": seconds, "peak_bytes": _peak(), **sizes})
    print(json.dumps(told))
    return 0


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=6.0)
    parser.add_argument("--store", choices=("directory", "s3"), default="directory")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--scratch", type=Path, help="directory for the files, if not the system's temporary one")
    parser.add_argument("--result", type=Path)
    commands = parser.add_subparsers(dest="command")
    child = commands.add_parser("write")
    child.add_argument("path", type=Path)
    child.add_argument("bytes", type=int)
    child.set_defaults(run=write)
    child = commands.add_parser("strip")
    child.add_argument("paths", type=Path, nargs="+")
    child.set_defaults(run=strip)
    return parser


if __name__ == "__main__":
    sys.exit(main())
