"""The places that this process has its packages from, for children that start from an empty environment.

A child's interpreter finds its own site-packages. What PYTHONPATH, a user's site-packages or a launcher put on the
path it has to be told of, and shown: `python_path` is the one variable, `view_packages` the binds.

Only installed packages travel, never what merely lies on the path: a directory counts that an installer has written to,
or that holds what `aot` itself imports. The directory that a program was started in, a home, our own directories of
data and cache, and what holds one of them do not, since a child runs other people's code, and they hold more than
packages.
"""

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from importlib.util import find_spec
from pathlib import Path

import aot
from aot.config import Config
from aot.errors import AotError, InvalidConfig
from aot.sandbox.bubblewrap import Bind, BindMode, same_place

# What a child cannot do without; a directory with one of them counts also where no installer has written to it.
NEEDED = ("msgspec", "torch")
SYSTEM = tuple(map(Path, ("/tmp", "/dev/shm", "/proc", "/etc")))


@dataclass(frozen=True)
class Packages:
    """`path` is PYTHONPATH in its order, `added` the places in it that hold packages and are not the interpreter's own.

    `shown` are these, and where their files really lie when they are links, as some installers make them.
    """

    path: tuple[Path, ...]
    added: tuple[Path, ...]
    shown: tuple[Path, ...]

    @property
    def path_of_others(self) -> tuple[Path, ...]:
        """PYTHONPATH for a program that is none of ours: without the place of this package, where it lies by itself."""
        package = _package_place()
        return tuple(place for place in self.path if place != package or place in self.added)


def find_packages(entries: Sequence[str] | None = None) -> Packages:
    """Look at `entries`, `sys.path` when left out, as this process would: from the first place to the last."""
    found = sys.path if entries is None else entries
    places = [Path(entry) for entry in dict.fromkeys(_without_start(found)) if os.path.isabs(entry)]
    package, own, private = _package_place(), _own_places(), _private_places()
    ours = [place for place in places if place in own or _holds_packages(place, private)]
    added = [place for place in ours if place not in own]
    path = _in_order(places, {*added, package}, own) if added else [package]
    linked = (target for place in ours for target in _linked(place) if _may_be_shown(target, private))
    return Packages(tuple(path), tuple(added), tuple(dict.fromkeys((*added, *linked))))


def python_path() -> str:
    """Return PYTHONPATH for a child: this package's place, and those that its packages come from.

    Raises InvalidConfig where they come from a place that no child may see.
    """
    found = find_packages()
    seen = {*found.path, *_own_places()}
    for name, place in _places_of_needed():
        if place not in seen:
            raise InvalidConfig(
                f"children would not find {name}, which this process has from {place}: that is, or holds, the home or"
                " the directory that this was started in, or it is on no path",
                hint="install packages into a directory that holds nothing else, and name it in PYTHONPATH",
            )
    return os.pathsep.join(map(str, found.path))


def _places_of_needed() -> Iterator[tuple[str, Path]]:
    """Where this process has, or would have, what its children cannot do without."""
    for name in NEEDED:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None and not _is_hooked(name):
            yield name, Path(spec.origin).parents[1]


def _is_hooked(name: str) -> bool:
    """Whether a hook finds it that lies among installed packages, as of one being developed: a child runs it too."""
    hooks = [one for one in sys.meta_path if one not in (BuiltinImporter, FrozenImporter, PathFinder)]
    return any(find(name, None) is not None for hook in hooks if (find := getattr(hook, "find_spec", None)))


def view_packages() -> list[Bind]:
    """The places of packages beside the running Python's own, read-only."""
    return [same_place(place, BindMode.READ) for place in find_packages().shown]


def _in_order(places: Sequence[Path], told: set[Path], own: frozenset[Path]) -> list[Path]:
    """Return `told` in the order of `places`, with the interpreter's own between them: else those would be last."""
    listed = [place for place in places if os.path.isdir(place) and (place in told or place in own)]
    last = max(index for index, place in enumerate(listed) if place in told and place not in own)
    unlisted = [place for place in told if place not in places]
    return [*unlisted, *listed[: last + 1]]


def _package_place() -> Path:
    return Path(aot.__file__).resolve().parents[1]


def _without_start(entries: Sequence[str]) -> Sequence[str]:
    """Leave out the entry that Python puts first for the place that the program was started in."""
    return entries[1:] if not sys.flags.safe_path and entries and entries[0] in ("", _working_directory()) else entries


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return ""


def _own_places() -> frozenset[Path]:
    standard = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    dynamic = [place / "lib-dynload" for place in standard]
    return frozenset((*standard, *dynamic, *map(Path, site.getsitepackages())))


def _private_places() -> tuple[Path, ...]:
    places = [Path(os.path.expanduser("~")), Path(_working_directory() or "/"), *SYSTEM]
    with suppress(AotError):  # whoever uses the settings tells what is wrong
        config = Config.from_environ()
        places += [config.data_dir, config.cache_dir]
    return tuple(places)


def _holds_packages(place: Path, private: Iterable[Path]) -> bool:
    # What lies within a site-packages of our own is there for a child as well. A package put it on the path when it was
    # imported, as setuptools does with its vendored ones: who had it imported by then must make no difference.
    within = any(place != own and place.is_relative_to(own) for own in map(Path, site.getsitepackages()))
    if within or not _may_be_shown(place, private):
        return False
    names = _list(place)
    return any(name.endswith(".dist-info") for name in names) or any(name in names for name in NEEDED)


def _may_be_shown(place: Path, private: Iterable[Path]) -> bool:
    # os.path: what may not be searched, and a link that leads to itself, are as good as nothing there.
    real = os.path.realpath(place)
    return os.path.isdir(place) and not any(Path(os.path.realpath(one)).is_relative_to(real) for one in private)


def _list(place: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(place))
    except OSError:
        return frozenset()


def _linked(place: Path) -> Iterator[Path]:
    """Where packages of `place` really lie: one that is a link, and one whose files are."""
    for name in sorted(_list(place)):
        entry = place / name
        if os.path.islink(entry):
            yield _target(entry)
        elif name.endswith(".dist-info") and os.path.islink(metadata := entry / "METADATA"):
            yield _target(metadata).parent.parent


def _target(link: Path) -> Path:
    return Path(os.path.normpath(link.parent / os.readlink(link)))
