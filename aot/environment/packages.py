"""Versions of installed packages, read from their files: importing torch costs seconds, this a fraction of one."""

import re
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from mmap import ACCESS_READ, mmap
from pathlib import Path

from aot.environment.host import Host

_VERSION = re.compile(r"^__version__\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_ERROR_CONSTRUCTOR = b"_ZN3c105ErrorC2ENS_14SourceLocationE"  # c10::Error(SourceLocation, std::string)
_HIP = re.compile(r"^hip\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
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


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """What torch says of itself in its files: its version with the local part, and what it was built for."""

    version: str | None = None  # "2.13.0+cpu"
    cuda: str | None = None  # "13.0"
    hip: str | None = None  # "6.4.43482"
    cxx11_abi: bool | None = None


def torch_build(host: Host) -> TorchBuild:
    """Return what the files of torch say; every field None where it is not installed. Does not import it."""
    directory = find_package(host, "torch")
    if directory is None:
        return TorchBuild()
    text = _text(directory / "version.py")
    version, cuda, hip = (pattern.search(text) for pattern in (_VERSION, _CUDA, _HIP))
    return TorchBuild(
        version=version[1] if version else None,
        cuda=cuda[1] if cuda else None,
        hip=hip[1] if hip else None,
        cxx11_abi=_cxx11_abi(directory),
    )


def _cxx11_abi(directory: Path) -> bool | None:
    """Return whether torch was built with the std::string of GCC 5: the mangled name of a constructor spells it.

    Source: the Itanium C++ ABI: "Ss" is std::string itself, "NSt7__cxx11" begins libstdc++'s newer one.
    """
    try:
        with (
            (directory / "lib" / "libc10.so").open("rb") as file,
            mmap(file.fileno(), 0, access=ACCESS_READ) as content,
        ):
            place = content.find(_ERROR_CONSTRUCTOR)
            start = place + len(_ERROR_CONSTRUCTOR)
            argument = content[start : start + 11] if place >= 0 else b""
    except (OSError, ValueError):
        return None  # not there, or empty
    if argument == b"NSt7__cxx11":
        return True
    return False if argument.startswith(b"Ss") else None


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
