"""How fast the bytes of a bundle come down: 200 blobs of 500 MB together, ours against curl and obstore.

    python -m benchmarks.pull [--rounds 5] [--result FILE]

Two stores, each a server process of its own on this host: the directory store behind the registry's own link routes,
and an S3 server (nanio). Every round runs each tool once, in turn, each in a process of its own. `seconds` are those
of the transfer, which ours and obstore take themselves, without the start of Python; for curl they are the process's.
Ours writes into a cache, hashing every byte; `curl --parallel` follows the same signed links and hashes nothing, and
once more with `sha256sum` after it; obstore reads the bucket with credentials and hashes nothing (it cannot follow
signed links to a directory store, so it is in the S3 comparison alone). Bytes land in memory (/dev/shm where there is
one): the disk is not what is measured.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.wire.blobs import Link, LinksReply
from benchmarks.cold_start import cpu_label, host
from benchmarks.servers import free_port, running_server
from benchmarks.starts import ROOT

SIZES = (100_000,) * 160 + (5_000_000,) * 30 + (33_400_000,) * 10
HOUR = timedelta(hours=1)
SECRET = b"s" * 32
BUCKET, KEY = "bundles", "benchmark"
HASHED = "curl, then sha256sum"
CURL_PARALLEL = 50  # curl's own default


def main() -> int:
    options = _parser().parse_args()
    if options.command is not None:
        return int(options.run(options))
    result = options.result or ROOT / f"benchmarks/results/pull-{cpu_label()}.json"
    with tempfile.TemporaryDirectory(dir=_memory()) as scratch:
        found = {"host": host(), **measure(Path(scratch), rounds=options.rounds)}
    result.write_text(json.dumps(found, indent=2) + "\n")
    for name, store in found["stores"].items():
        print(
            f"{name}: {store['ratio']:.2f} of {store['best_other']}, {store['ratio_hashed']:.2f} of {HASHED}, "
            f"{store['peak_bytes'] / 2**20:.0f} MiB",
            file=sys.stderr,
        )
    return 0


def measure(scratch: Path, *, rounds: int) -> dict[str, Any]:
    blobs = make_blobs(scratch / "source")
    with directory_links(scratch, blobs) as links:
        directory = compare(
            {
                "ours": lambda: ours(links, scratch),
                "curl": lambda: curl(links, scratch),
                HASHED: lambda: curl_and_hash(links, scratch),
            },
            rounds=rounds,
        )
    with s3_links(scratch, blobs) as (links, endpoint):
        store = compare(
            {
                "ours": lambda: ours(links, scratch),
                "curl": lambda: curl(links, scratch),
                HASHED: lambda: curl_and_hash(links, scratch),
                "obstore": lambda: obstore(links, endpoint, scratch),
            },
            rounds=rounds,
        )
    return {
        "blobs": len(blobs),
        "bytes": sum(blob.size_bytes for blob in blobs),
        "rounds": rounds,
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "stores": {"directory": directory, "s3": store},
    }


def compare(tools: dict[str, Callable[[], dict[str, Any]]], *, rounds: int) -> dict[str, Any]:
    """Each tool once a round, the first one of a round in turn, after a round that does not count.

    `ratio`: how fast ours is over the fastest other one, of the medians; `ratio_of_fastest`, of each one's best round,
    which other work on the host disturbs least; `ratio_hashed`, over curl with `sha256sum` after it, which does the
    same work as ours.
    """
    names = list(tools)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            run = tools[name]()
            if number:
                runs[name].append(run)
    seconds = {name: [run["seconds"] for run in runs[name]] for name in names}
    others = [name for name in names if name not in ("ours", HASHED)]
    best = min(others, key=lambda name: statistics.median(seconds[name]))
    processes = {name: statistics.median(run["process_seconds"] for run in runs[name]) for name in names}
    return {
        "ratio": statistics.median(seconds[best]) / statistics.median(seconds["ours"]),
        "ratio_of_fastest": min(seconds[best]) / min(seconds["ours"]),
        "ratio_hashed": statistics.median(seconds[HASHED]) / statistics.median(seconds["ours"]),
        "best_other": best,
        "median_seconds": {name: statistics.median(column) for name, column in seconds.items()},
        "median_process_seconds": processes,
        "seconds": seconds,
        "cpu_seconds": statistics.median(run["cpu_seconds"] for run in runs["ours"]),
        "peak_bytes": max(run["peak_bytes"] for run in runs["ours"]),
    }


def ours(links: tuple[Link, ...], scratch: Path) -> dict[str, Any]:
    cache, reply = scratch / "cache", scratch / "links.json"
    reply.write_bytes(encode(LinksReply(links=links)))
    return _run([sys.executable, "-m", "benchmarks.pull_child", str(reply), str(cache)], cache)


def curl(links: tuple[Link, ...], scratch: Path) -> dict[str, Any]:
    into, listing = _listed(links, scratch)
    return _run(_curl(listing), into)


def curl_and_hash(links: tuple[Link, ...], scratch: Path) -> dict[str, Any]:
    into, listing = _listed(links, scratch)
    hash_all = f"find '{into}' -type f -print0 | xargs -0 -n 10 -P {len(os.sched_getaffinity(0))} sha256sum > /dev/null"
    return _run(["sh", "-c", f"{' '.join(_curl(listing))} && {hash_all}"], into)


def _listed(links: tuple[Link, ...], scratch: Path) -> tuple[Path, Path]:
    into, listing = scratch / "curl", scratch / "curl.txt"
    into.mkdir()
    listing.write_text("".join(f'url = "{link.url}"\noutput = "{into / link.digest.hex}"\n' for link in links))
    return into, listing


def _curl(listing: Path) -> list[str]:
    options = ["--parallel", "--parallel-max", str(CURL_PARALLEL), "--parallel-immediate", "--fail"]
    return ["curl", "--silent", "--show-error", *options, "--config", str(listing)]


def obstore(links: tuple[Link, ...], endpoint: str, scratch: Path) -> dict[str, Any]:
    into, listing = scratch / "obstore", scratch / "keys.json"
    into.mkdir()
    listing.write_text(json.dumps([_key(link.digest) for link in links]))
    return _run([sys.executable, "-m", "benchmarks.pull", "obstore", str(listing), endpoint, str(into)], into)


def _run(command: list[str], into: Path) -> dict[str, Any]:
    """What one process took and said; its files are counted and removed."""
    begun = time.perf_counter()
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    if ended.returncode != 0:
        raise RuntimeError(f"{command[:4]} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    size = sum(path.stat().st_size for path in into.rglob("*") if path.is_file())
    if size < sum(SIZES):
        raise RuntimeError(f"{command[:4]} left {size} bytes, wanted {sum(SIZES)}")
    shutil.rmtree(into)
    return {"seconds": seconds, "process_seconds": seconds, **json.loads(ended.stdout or "{}")}


def get_by_obstore(options: argparse.Namespace) -> int:
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        endpoint=options.endpoint,
        access_key_id=KEY,
        secret_access_key=KEY,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )

    async def fetch(key: str, slots: asyncio.Semaphore) -> None:
        async with slots:
            answer = await store.get_async(key)
            with (options.into / key.rpartition("/")[2]).open("wb") as file:
                async for chunk in answer.stream(min_chunk_size=1 << 20):
                    file.write(memoryview(chunk))

    async def fetch_all() -> None:
        slots = asyncio.Semaphore(16)
        await asyncio.gather(*(fetch(key, slots) for key in json.loads(options.keys.read_text())))

    begun = time.perf_counter()
    asyncio.run(fetch_all())
    print(json.dumps({"seconds": time.perf_counter() - begun}))
    return 0


# Stores


def make_blobs(directory: Path) -> dict[Blob, Path]:
    directory.mkdir()
    numbers, blobs = random.Random(0), {}
    for index, size in enumerate(SIZES):
        path = directory / str(index)
        path.write_bytes(numbers.randbytes(size))
        blobs[Blob(digest=Digest.of(path.read_bytes()), size_bytes=size)] = path
    return blobs


@contextlib.contextmanager
def directory_links(scratch: Path, blobs: dict[Blob, Path]) -> Iterator[tuple[Link, ...]]:
    from registry.storage.directory import DirectoryBlobStore
    from registry.storage.signing import LinkSigner

    port = free_port()
    store = DirectoryBlobStore(scratch / "store", LinkSigner(SECRET, f"http://127.0.0.1:{port}"))
    for blob, path in blobs.items():
        with store.incoming(blob) as writer:
            writer.write(path.read_bytes())
    command = [sys.executable, "-m", "benchmarks.pull", "serve", str(scratch / "store"), str(port)]
    with running_server(command, port):
        yield tuple(store.download_link(blob, expires_in=HOUR) for blob in blobs)
    shutil.rmtree(scratch / "store")


@contextlib.contextmanager
def s3_links(scratch: Path, blobs: dict[Blob, Path]) -> Iterator[tuple[tuple[Link, ...], str]]:
    import boto3

    from registry.storage.place import S3Place
    from registry.storage.s3 import connect_s3

    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}
    environ = {**os.environ, "NANIO_ACCESS_KEY": KEY, "NANIO_SECRET_KEY": KEY}
    where = ["--data-dir", str(scratch / "nanio"), "--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-m", "nanio", "serve", *where, "--no-access-log", "--log-level", "warning"]
    with running_server(command, port, environ=environ):
        client = boto3.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        for blob, path in blobs.items():
            client.put_object(Bucket=BUCKET, Key=_key(blob.digest), Body=path.read_bytes())
        store = connect_s3(S3Place(bucket=BUCKET, endpoint=endpoint, region="us-east-1"))
        yield tuple(store.download_link(blob, expires_in=HOUR) for blob in blobs), endpoint


def serve(options: argparse.Namespace) -> int:
    """The link routes of the registry over one directory, with the settings of `python -m registry serve`."""
    import uvicorn
    from litestar import Litestar

    from registry.storage.directory import DirectoryBlobStore
    from registry.storage.links import link_routes
    from registry.storage.signing import LinkSigner

    store = DirectoryBlobStore(options.root, LinkSigner(SECRET, "http://unused"))
    uvicorn.run(Litestar(link_routes(store)), port=options.port, log_level="warning", access_log=False)
    return 0


def _key(digest: Digest) -> str:
    return f"sha256/{digest.hex[:2]}/{digest.hex[2:]}"


def _memory() -> str | None:
    shared = Path("/dev/shm")
    enough = shared.is_dir() and shutil.disk_usage(shared).free > 4 * sum(SIZES)
    return str(shared) if enough else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--result", type=Path)
    commands = parser.add_subparsers(dest="command")
    child = commands.add_parser("obstore")
    child.add_argument("keys", type=Path)
    child.add_argument("endpoint")
    child.add_argument("into", type=Path)
    child.set_defaults(run=get_by_obstore)
    child = commands.add_parser("serve")
    child.add_argument("root", type=Path)
    child.add_argument("port", type=int)
    child.set_defaults(run=serve)
    return parser


if __name__ == "__main__":
    sys.exit(main())
