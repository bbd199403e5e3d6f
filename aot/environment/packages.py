"""Versions of installed packages, read from their files: importing torch costs seconds, this a fraction of one."""

import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from aot.environment.host import Host

_VERSION = re.compile(r"^__version__\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_CUDA = re.compile(r"^cuda\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def find_package(host: Host, name: str) -> Path | None:
    """Return the directory of an installed package without importing it."""
    if host.is_this_process:
        # An editable install is found by a hook, not by the path; a module that was replaced in place has no origin.
        try:
            from importlib.util import find_spec

            spec = find_spec(name)
        except (ImportError, ValueError):
            return None
    else:
        spec = PathFinder.find_spec(name, [str(directory) for directory in host.package_directories])
    return Path(spec.origin).parent if spec and spec.origin and spec.has_location else None


def torch_versions(host: Host) -> tuple[str | None, str | None]:
    """Return torch's version with its local part ("2.13.0+cpu"), and the CUDA runtime that it was built for."""
    directory = find_package(host, "torch")
    text = _text(directory / "version.py") if directory else ""
    version, cuda = _VERSION.search(text), _CUDA.search(text)
    return version[1] if version else None, cuda[1] if cuda else None


def triton_version(host: Host) -> str | None:
    """Return the version that the package states, whatever distribution brought it (triton, pytorch-triton)."""
    directory = find_package(host, "triton")
    match = _VERSION.search(_text(directory / "__init__.py")) if directory else None
    return match[1] if match else None


def loaded_torch_threads(host: Host) -> int | None:
    """Return the number of threads of a torch that this process has loaded already; None where it has not."""
    torch = sys.modules.get("torch") if host.is_this_process else None
    threads = getattr(torch, "get_num_threads", None)
    return int(threads()) if threads else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
