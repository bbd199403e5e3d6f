"""One pull of `benchmarks.pull`, in a process of its own: what `aot pull` does once it has links.

Imports no more than a pod does. Says on stdout what it cost.
"""

import json
import resource
import sys
import time
from pathlib import Path

from aot.cache import LocalCache
from aot.client import HttpTransport, RegistryClient
from aot.schema.codec import decode
from aot.schema.spec import Blob
from aot.schema.wire.blobs import LinksReply


def main(links_path: str, cache: str) -> None:
    links = decode(Path(links_path).read_bytes(), LinksReply).links
    blobs = [Blob(digest=link.digest, size_bytes=link.size_bytes) for link in links]
    begun = time.perf_counter()
    RegistryClient(HttpTransport(), "http://unused", None).fetch_blobs(blobs, links, LocalCache(Path(cache)))
    seconds = time.perf_counter() - begun
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_seconds = used.ru_utime + used.ru_stime
    print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes(), "cpu_seconds": cpu_seconds}))


def peak_bytes() -> int:
    """Of this program: what `getrusage` says includes the process that it was forked from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(*sys.argv[1:])
