"""What the parts of a service see of the environment, and whom the worker of `aot up` trusts."""

import os
import socket
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

from aot.compile.cutlass import CUTLASS_DIR
from aot.sandbox import find_packages
from aot.schema.card_variables import CARD_VARIABLES

# The worker runs beside other people's sources, so it gets what it needs and no more: not the registry's database,
# blob store, signing keys or cloud credentials, nor anything that this user's shell happens to hold.
PASSED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
        *(*CARD_VARIABLES, "NVIDIA_VISIBLE_DEVICES", CUTLASS_DIR),
        *("SSL_CERT_FILE", "SSL_CERT_DIR"),  # links may lead to a store under a private authority
        *("AOT_DATA_DIR", "AOT_BROKER_URL", "AOT_PROFILE", "AOT_WORKER_NAME", "AOT_TRUST_SOURCES"),
    }
)
PASSED_PREFIXES = ("LC_", "XDG_", "PYTHON", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_")
TRUSTED_AT_HOME = "default"


def parts_path(server: Path, environ: Mapping[str, str]) -> str:
    """Return PYTHONPATH for a part of the service: the server's place before the caller's, which are made absolute.

    A part works in another directory. What a launcher has put on the path without PYTHONPATH comes after these.
    """
    given = [os.path.abspath(place) for place in environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    return os.pathsep.join(dict.fromkeys((str(server), *given, *map(str, find_packages().added))))


def worker_environ(environ: Mapping[str, str], *, url: str, token_file: Path, at_home: bool) -> dict[str, str]:
    """Return the whole environment of the worker.

    `at_home`: nobody but this machine's users reaches the service. Then the sources in the default namespace are this
    user's own, and run also where there is no bubblewrap; otherwise only those he names in AOT_TRUST_SOURCES.
    """
    passed = {name: value for name, value in environ.items() if name in PASSED or name.startswith(PASSED_PREFIXES)}
    trusted = {"AOT_TRUST_SOURCES": TRUSTED_AT_HOME} if at_home else {}
    return {**trusted, **passed, "AOT_URL": url, "AOT_TOKEN_FILE": str(token_file)}


def is_loopback(host: str) -> bool:
    """True when every address that `host` stands for is reached from this machine alone."""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        return bool(found) and all(ip_address(str(address).partition("%")[0]).is_loopback for address in found)
    except (OSError, ValueError):
        return False
