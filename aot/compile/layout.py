"""The directories of one compile child, as its parent lays them out and as the child sees them.

In bubblewrap they are at fixed places; without it the child sees the host's own. Either way the compiler is told to
write `/b` for the build directory, so equal inputs give equal bytes.
"""

import shlex
import site
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import aot
from aot.compile.cutlass import CUTLASS_DIR
from aot.compile.multi_arch import find_toolkit, wants_multi_arch
from aot.compile.options import host_limits
from aot.compile.toolchain import SEARCH_PATH
from aot.compile.tuned import TUNING_FILE
from aot.config import whole_environ
from aot.environment.assembler import ASSEMBLER, LINE_INFO, find_assembler
from aot.environment.cards import card_variables
from aot.sandbox import Bind, BindMode, find_packages, python_path
from aot.schema.profile import Profile
from aot.schema.recipe import Recipe

_INSIDE = PurePosixPath("/aot")
_DIRECTORIES = ("job", "out", "build", "build/cache", "build/tmp", "build/home", "build/headers", "job/bin")

_DRIVER_PLACES = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib")

# torch 2.11 asks for the builder's own instruction set, whatever it is told. And only a linking call may get linker
# options: given one, g++ would link a precompiled header as well.
_WRAPPER = """#!/bin/sh
for word do
    shift
    [ "$word" = -march=native ] && word=-march={march}
    set -- "$@" "$word"
done
case " $* " in *" -shared "*) set -- "$@" -Wl,--build-id=none;; esac
exec {compiler} "$@" {maps}
"""
# Inductor hashes preprocessed headers with openssl, and takes the last word of what it prints.
_HASHER = """#!/bin/sh
[ "$1" = sha512 ] || exit 1
sum=$(sha512sum < "$2") && echo "SHA2-512 = ${sum%% *}"
"""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`scratch` is the host's directory of one child. `inside` says where the child sees each of its places."""

    scratch: Path
    isolated: bool
    source: Path | None = None  # a tree, or a program file
    weights: Sequence[Path] = ()
    headers: Path | None = None
    cutlass: Path | None = None  # for a recipe that asks for it

    def inside(self, place: str) -> PurePosixPath:
        """Where the child sees "job", "out", "build", "source", "headers" or "cutlass", or something below them."""
        if self.isolated:
            return _INSIDE / place
        head, _, rest = place.partition("/")
        given = {"source": self.source, "headers": self.headers, "cutlass": self.cutlass}.get(head)
        return PurePosixPath((given or self.scratch / head) / rest)

    def weights_inside(self) -> tuple[str, ...]:
        if self.isolated:
            return tuple(str(_INSIDE / "weights" / f"{index}.safetensors") for index in range(len(self.weights)))
        return tuple(str(path) for path in self.weights)

    def binds(self) -> tuple[Bind, ...]:
        """What bubblewrap shows, in its order: later ones win."""
        shown = [
            (self.scratch / "job", "job", BindMode.READ),
            (self.scratch / "out", "out", BindMode.WRITE),
            (self.scratch / "build", "build", BindMode.WRITE),
        ]
        shown += [(self.source, "source", BindMode.READ)] if self.source else []
        shown += [(self.headers, "headers", BindMode.READ)] if self.headers else []
        shown += [(self.cutlass, "cutlass", BindMode.READ)] if self.cutlass else []
        binds = [Bind(host, _INSIDE / place, mode) for host, place, mode in shown]
        for path, inside in zip(self.weights, self.weights_inside(), strict=True):
            binds.append(Bind(path, PurePosixPath(inside), BindMode.READ))
        return tuple(binds)

    def prepare(self, compiler: Path, *, march: str) -> None:
        """Make the directories, and a g++ that leaves nothing of this machine in what it compiles."""
        for name in _DIRECTORIES:
            (self.scratch / name).mkdir(parents=True, exist_ok=True)
        # Later maps win, so the narrower places come last.
        places = {
            # Those of the interpreter that a virtual environment stands on, too: it may take its packages from there.
            **dict.fromkeys(site.getsitepackages(), "/p"),
            **{str(place): "/p" for place in find_packages().added},
            sysconfig.get_paths()["purelib"]: "/p",
            sysconfig.get_paths()["platlib"]: "/p",
            str(self.inside("build")): "/b",
            str(self.inside("build/headers")): "/h",
            **({str(self.inside("headers")): "/h"} if self.headers else {}),
            **({str(self.inside("cutlass")): "/c"} if self.cutlass else {}),
        }
        maps = " ".join(shlex.quote(f"-ffile-prefix-map={place}={short}") for place, short in places.items())
        if march.startswith("arm"):
            # Else g++ links functions that choose at run time between the level's atomics and those of armv8.1-a.
            maps += " -mno-outline-atomics"
        self._write_program("g++", _WRAPPER.format(compiler=compiler, march=march, maps=maps))
        self._write_program("openssl", _HASHER)

    def write_tuning(self, content: bytes) -> None:
        """Give the child what earlier builds have measured; it sees the file as `job/tuning.json`."""
        (self.scratch / "job").mkdir(parents=True, exist_ok=True)
        (self.scratch / "job" / TUNING_FILE).write_bytes(content)

    def _write_program(self, name: str, text: str) -> None:
        path = self.scratch / "job" / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def environment(self, recipe: Recipe, profile: Profile) -> Mapping[str, str]:
        """The child's whole environment: what the recipe sets, under what a build needs and over what it prefers."""
        build = self.inside("build")
        needed = {
            "PATH": f"{self.inside('job/bin')}:{SEARCH_PATH}",
            "HOME": str(build / "home"),
            "TMPDIR": str(build / "tmp"),
            "TORCHINDUCTOR_CACHE_DIR": str(build / "cache"),
            "TRITON_CACHE_DIR": str(build / "cache" / "triton"),
            "PYTHONPATH": python_path(),
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
            "LANG": "C.UTF-8",
        }
        if profile.threads is not None:
            needed["OMP_NUM_THREADS"] = str(profile.threads)
        preferred = {}
        if profile.capability.family != "cpu":
            # A recipe may ask for lines, for a profiler. Without them a product's cubin has 14 KB instead of 36.
            preferred[LINE_INFO] = "1"
            # Where container runtimes put the driver's libraries when the image's loader does not know of them.
            needed["LD_LIBRARY_PATH"] = ":".join(place for place in _DRIVER_PLACES if Path(place).is_dir())
            if (self.cutlass or wants_multi_arch(recipe)) and (toolkit := find_toolkit()):
                needed["PATH"] += f":{toolkit}"
            if self.cutlass:
                needed[CUTLASS_DIR] = str(self.inside("cutlass"))
                # nvcc asks for gcc, and CUTLASS's own checks hold the names of their files: our g++ maps them. It is
                # found in PATH, for nvcc knows no quotes. What is compressed could not be listed.
                needed["NVCC_PREPEND_FLAGS"] = "-ccbin=g++ -no-compress"
            needed |= card_variables(whole_environ())
            if assembler := find_assembler():
                needed[ASSEMBLER] = str(assembler)
        else:
            # A pool of compile processes pays off for Triton only.
            needed |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", **host_limits(profile)}
        return {**preferred, **recipe.environment, **needed}


def package_place() -> Path:
    """The directory of this package, the only part of a checkout that a child sees."""
    return Path(aot.__file__).resolve().parent
