"""Isolation by bubblewrap: what a child can see, as bubblewrap's arguments, and whether that works on this host.

The child gets an empty file system plus what is named: system directories and the Python prefixes read-only, and the
caller's places. It has no network, no capabilities, no home, its own processes, and cannot make namespaces itself.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from aot.errors import InvalidInput

PROBE_SECONDS = 20
TMP_BYTES = 256 * 1024 * 1024
HOST_NAME = "aot"
# The child's /etc/hosts: without a network it is its own only host, and ranks of one command meet there by name.
HOSTS = Path(__file__).with_name("hosts")
ISOLATION = (
    *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
    *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
)
SYSTEM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# From /etc only what the loader, compilers and user look-up need: it also holds secrets, and root may read them.
SYSTEM_FILES = (
    "/etc/alternatives",
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
)
# Topology, for thread pools and libraries that detect the CPU.
TOPOLOGY = ("/sys/devices/system/cpu", "/sys/devices/system/node")


class BindMode(StrEnum):
    READ = "read"
    WRITE = "write"
    DEVICE = "device"


@dataclass(frozen=True)
class Bind:
    """A path of the host and where the child sees it."""

    host: Path
    inside: PurePosixPath
    mode: BindMode


@dataclass(frozen=True)
class NoSandbox:
    """Why children cannot be isolated on this host."""

    reason: str


@dataclass(frozen=True)
class Bubblewrap:
    """A bubblewrap that works here: its path and the options that this release knows."""

    program: Path
    options: frozenset[str]


@functools.cache
def find_sandbox() -> Bubblewrap | NoSandbox:
    """Look once for a bubblewrap that may really make namespaces here: it may be installed and forbidden."""
    found = shutil.which("bwrap")
    if found is None:
        return NoSandbox("bwrap is not installed")
    try:
        return _probe(Path(found))
    except (OSError, subprocess.TimeoutExpired) as error:
        return NoSandbox(f"{found} does not run: {error}")


def _probe(program: Path) -> Bubblewrap | NoSandbox:
    usage = _run([str(program), "--help"])
    words = frozenset(word for word in (usage.stdout + usage.stderr).split() if word.startswith("--"))
    sandbox = Bubblewrap(program, words)
    arguments = write_arguments(sandbox, view_system(), env={}, cwd=PurePosixPath("/"), memory_bytes=TMP_BYTES)
    tried = _run([str(program), *arguments, "--", sys.executable, "-I", "-S", "-c", "pass"])
    if tried.returncode != 0:
        said = tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"]
        return NoSandbox(f"{program} cannot isolate a process here: {said[-1]}")
    return sandbox


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, env={}, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PROBE_SECONDS
    )


def view_system() -> list[Bind]:
    """The system and the running Python, read-only."""
    places = [Path(place) for place in (*SYSTEM_DIRECTORIES, *SYSTEM_FILES, *TOPOLOGY)]
    prefixes = {Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)}
    shown = [same_place(place, BindMode.READ) for place in (*places, *sorted(prefixes)) if place.exists()]
    return [*shown, checked(Bind(HOSTS.absolute(), PurePosixPath("/etc/hosts"), BindMode.READ))]


def same_place(path: Path, mode: BindMode) -> Bind:
    """`path`, seen by the child under its own name. Raises InvalidInput when it is not absolute or not there."""
    return checked(Bind(path, PurePosixPath(path), mode))


def checked(bind: Bind) -> Bind:
    if not bind.host.is_absolute() or not bind.inside.is_absolute():
        raise InvalidInput(f"a sandbox sees absolute paths only, found {bind.host} as {bind.inside}")
    if not bind.host.exists():
        raise InvalidInput(f"the sandbox cannot show {bind.host}: it does not exist", hint="create it first")
    return bind


def list_gpu_devices(family: str, *, root: Path = Path("/dev")) -> tuple[Path, ...]:
    """The device files of this host's cards of a capability's family, for the `devices` of a child; none for a CPU.

    Directories among them too: a slice of a card is opened through `nvidia-caps/` (NVIDIA MIG user guide, "Device
    nodes and capabilities"), AMD cards through `dri/` beside `kfd`.
    """
    patterns = {"cuda": ("nvidia*",), "rocm": ("kfd", "dri")}.get(family, ())
    return tuple(sorted(path for pattern in patterns for path in root.glob(pattern)))


def write_arguments(
    sandbox: Bubblewrap,
    binds: Iterable[Bind],
    *,
    env: dict[str, str],
    cwd: PurePosixPath,
    memory_bytes: int,
) -> list[str]:
    """Bubblewrap's arguments, without the command. Later binds win over earlier ones at the same place."""
    words = [*ISOLATION, "--hostname", HOST_NAME]
    if "--disable-userns" in sandbox.options:
        words.append("--disable-userns")
    for name, value in env.items():
        words += ["--setenv", name, value]
    words += ["--proc", "/proc", *_protect_proc(), "--dev", "/dev"]
    words += [*_tmpfs(sandbox, "/dev/shm", memory_bytes // 4), *_tmpfs(sandbox, "/tmp", TMP_BYTES)]
    words += _write_binds(binds)
    # What remains writable is memory without a limit.
    words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(cwd)]
    if any("\0" in word for word in words):
        # The words travel separated by NUL: one inside a value would be an option of the child's choice.
        raise InvalidInput("a sandbox's paths and variables must not hold NUL characters")
    return words


def _protect_proc() -> list[str]:
    """Make what lies in /proc beside the processes read-only.

    A worker that runs as root stays root of the host for these files: no capability is asked for to write
    /proc/sys/kernel/core_pattern, which names a program for the host to run. The directories of the processes stay
    writable, because CUDA gives up when it cannot name its threads there.
    """
    places = [os.path.join("/proc", name) for name in sorted(os.listdir("/proc")) if not name.isdigit()]
    shown = [place for place in places if not os.path.islink(place) and _may_be_written(place)]
    return [word for place in shown for word in ("--ro-bind", place, place)]


def _may_be_written(place: str) -> bool:
    return os.path.isdir(place) or bool(os.stat(place).st_mode & 0o222)


def _tmpfs(sandbox: Bubblewrap, place: str, size_bytes: int) -> list[str]:
    size = ["--size", str(size_bytes)] if "--size" in sandbox.options else []
    return [*size, "--tmpfs", place]


_FLAGS = {BindMode.READ: "--ro-bind", BindMode.WRITE: "--bind", BindMode.DEVICE: "--dev-bind"}


def _write_binds(binds: Iterable[Bind]) -> list[str]:
    """Mount parents before what lies in them, follow links as the host does, and never mount one place twice."""
    mounts: dict[str, tuple[str, str]] = {}
    links: dict[str, str] = {}
    binds = list(binds)
    if any(bind.mode is BindMode.DEVICE for bind in binds):
        binds.insert(0, same_place(Path("/sys"), BindMode.READ))  # drivers look their cards up there
    for bind in binds:
        inside = str(bind.inside)
        if str(bind.host) == inside:
            inside = _follow(inside, links)
        mounts[inside] = (_FLAGS[bind.mode], os.path.realpath(bind.host))
    words: list[str] = []
    for inside, (flag, host) in sorted(mounts.items(), key=lambda item: PurePosixPath(item[0]).parts):
        words += [flag, host, inside]
    for place, target in links.items():
        # A link inside something mounted came along with it.
        if not any(PurePosixPath(place).is_relative_to(mounted) for mounted in mounts):
            words += ["--symlink", target, place]
    return words


def _follow(path: str, links: dict[str, str]) -> str:
    """The real path, noting in `links` every link on the way to it."""
    place = "/"
    waiting = path.strip("/").split("/")
    while waiting:
        step = os.path.normpath(os.path.join(place, waiting.pop(0)))
        if not os.path.islink(step):
            place = step
            continue
        links[step] = os.readlink(step)
        waiting = os.path.join(place, links[step]).strip("/").split("/") + waiting
        place = "/"
    return place
