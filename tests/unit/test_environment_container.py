"""Container facts: versions from files, the libstdc++ that would be loaded, and threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aot.environment import Host, observe_container, observe_environment
from aot.environment.container import torch_threads
from aot.environment.libraries import libstdcxx_version
from aot.schema.codec import decode, encode
from aot.schema.environment import Environment
from tests.elf_files import an_elf_file
from tests.hosts import a_host, a_loader_cache

VERSION_CPU = "from typing import Optional\n\n__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip = None\n"
VERSION_CUDA = '__version__ = "2.11.0+cu130"\ndebug = False\ncuda: Optional[str] = "13.0"\n'


def site_packages(root: Path, **packages: str) -> tuple[str, ...]:
    """A search path with the named files: torch_version for torch/version.py, triton for triton/__init__.py."""
    site = root / "site"
    for name, text in packages.items():
        package, _, module = name.partition("_")
        directory = site / package
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "__init__.py").touch()
        (directory / f"{module or '__init__'}.py").write_text(text)
    return (str(site),)


@pytest.mark.parametrize(
    ("packages", "found"),
    [
        ({}, (None, None, None)),
        ({"torch_version": VERSION_CPU}, ("2.13.0+cpu", None, None)),
        ({"torch_version": VERSION_CUDA, "triton": "__version__ = '3.6.0'\n"}, ("2.11.0+cu130", "13.0", "3.6.0")),
        ({"torch_version": "raise RuntimeError('never run')\n"}, (None, None, None)),
        ({"torch": "import everything\n"}, (None, None, None)),
    ],
    ids=["none", "cpu", "cuda", "garbled", "no version file"],
)
def test_versions_come_from_files(tmp_path, packages, found):
    container = observe_container(a_host(tmp_path, packages=site_packages(tmp_path, **packages)))
    assert (container.torch, container.cuda, container.triton) == found


def test_the_facts_of_this_container_are_those_that_torch_states(tmp_path):
    """In a fresh interpreter, where torch is not loaded; then torch is asked."""
    script = """
import json, sys
from aot.environment import observe_container
facts = observe_container()
early = "torch" in sys.modules
import torch
print(json.dumps([early, facts.torch, torch.__version__, facts.threads, torch.get_num_threads(), facts.cuda,
                  torch.version.cuda]))
"""
    pytest.importorskip("torch")
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    early, version, torch_version, threads, torch_threads, cuda, torch_cuda = json.loads(run.stdout)
    assert not early
    assert (version, threads, cuda) == (torch_version, torch_threads, torch_cuda)


@pytest.mark.parametrize(
    "variables",
    [
        {"OMP_NUM_THREADS": "1"},
        {"OMP_NUM_THREADS": "64"},
        {"MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "2"},
        {"OMP_NUM_THREADS": "3", "MKL_DYNAMIC": "FALSE"},
        {"OMP_NUM_THREADS": "many"},
    ],
    ids=lambda variables: " ".join(f"{name}={value}" for name, value in variables.items()),
)
def test_the_number_of_threads_is_the_one_that_torch_chooses(variables):
    pytest.importorskip("torch")
    if os.uname().machine != "x86_64":
        pytest.skip("what is worked out for MKL can be compared on x86 only")
    script = (
        "from aot.environment import observe_container; expected = observe_container().threads; import torch;"
        "print(expected, torch.get_num_threads())"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMP", "MKL", "KMP"))}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environ | variables
    )
    expected, chosen = run.stdout.split()
    assert expected == chosen


@pytest.mark.parametrize(
    ("variables", "fields", "threads"),
    [
        ({}, {}, 16),
        ({}, {"threads": 2}, 8),  # hyper-threads are not counted
        ({}, {"allowed": "0-3"}, 4),
        ({"OMP_NUM_THREADS": "4"}, {}, 4),
        ({"OMP_NUM_THREADS": "4,2"}, {}, 4),
        ({"OMP_NUM_THREADS": "40"}, {}, 16),
        ({"OMP_NUM_THREADS": "40", "MKL_DYNAMIC": "false"}, {}, 40),
        ({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2"}, {}, 2),
        ({"OMP_NUM_THREADS": "0"}, {}, 16),
        ({"OMP_NUM_THREADS": "40"}, {"cpu": "graviton3"}, 40),
        ({}, {"cpu": "graviton3"}, 16),
        ({}, {"allowed": "?"}, None),
    ],
)
def test_threads_without_a_loaded_torch(tmp_path, variables, fields, threads):
    host = a_host(tmp_path, **({"processors": 16} | fields), environ=variables)
    assert torch_threads(host) == threads


def test_variables_are_those_that_the_process_started_with(tmp_path):
    host = a_host(tmp_path, files={"/proc/self/environ": "A=1\0OMP_NUM_THREADS=3\0B=x=y\0broken\0"}, processors=8)
    assert host.variables == {"A": "1", "OMP_NUM_THREADS": "3", "B": "x=y"}
    assert torch_threads(host) == 3


def a_libstdcxx(newest: str) -> bytes:
    return an_elf_file(soname="libstdc++.so.6", defined=("libstdc++.so.6", "GLIBCXX_3.4", f"GLIBCXX_{newest}"))


def test_libstdcxx_comes_from_the_default_directory(tmp_path):
    files = {"/usr/lib/x86_64-linux-gnu/libstdc++.so.6": a_libstdcxx("3.4.30")}
    assert libstdcxx_version(a_host(tmp_path, files=files)) == "3.4.30"


def test_the_loaders_cache_comes_before_the_default_directories(tmp_path):
    files = {
        "/usr/lib/libstdc++.so.6": a_libstdcxx("3.4.25"),
        "/opt/gcc/lib64/libstdc++.so.6": a_libstdcxx("3.4.33"),
        "/etc/ld.so.cache": a_loader_cache(
            [("libc.so.6", "/lib/libc.so.6"), ("libstdc++.so.6", "/opt/gcc/lib64/libstdc++.so.6")]
        ),
    }
    assert libstdcxx_version(a_host(tmp_path, files=files)) == "3.4.33"


def test_a_library_for_another_machine_is_passed_over(tmp_path):
    files = {
        "/opt/arm/libstdc++.so.6": an_elf_file(machine=183, defined=("GLIBCXX_3.4.99",)),
        "/usr/lib64/libstdc++.so.6": a_libstdcxx("3.4.28"),
        "/etc/ld.so.cache": a_loader_cache([("libstdc++.so.6", "/opt/arm/libstdc++.so.6")]),
    }
    assert libstdcxx_version(a_host(tmp_path, files=files)) == "3.4.28"


@pytest.mark.parametrize(
    ("search", "newest"),
    [({"rpath": "$ORIGIN/../../../.."}, "3.4.34"), ({"runpath": "$ORIGIN/../../../.."}, "3.4.31"), ({}, "3.4.31")],
    ids=["rpath", "runpath", "neither"],
)
def test_the_order_of_the_loader_is_kept(tmp_path, search, newest):
    """LD_LIBRARY_PATH stands between the two kinds of paths that torch's libraries may carry."""
    prefix = tmp_path / "prefix" / "lib"
    libraries = prefix / "python3.11" / "site-packages" / "torch" / "lib"
    libraries.mkdir(parents=True)
    (libraries.parent / "__init__.py").touch()
    (libraries / "libc10.so").write_bytes(an_elf_file(needed=("libstdc++.so.6",), **search))
    (prefix / "libstdc++.so.6").write_bytes(a_libstdcxx("3.4.34"))
    files = {
        "/usr/lib64/libstdc++.so.6": a_libstdcxx("3.4.28"),
        "/opt/vendor/libstdc++.so.6": a_libstdcxx("3.4.31"),
    }
    host = a_host(
        tmp_path / "root",
        files=files,
        packages=(str(libraries.parent.parent),),
        environ={"LD_LIBRARY_PATH": "/nowhere::/opt/vendor"},
    )
    assert libstdcxx_version(host) == newest


def test_a_mapped_library_is_the_one(tmp_path):
    files = {
        "/usr/lib64/libstdc++.so.6": a_libstdcxx("3.4.28"),
        "/opt/my app/libstdc++.so.6.0.33": a_libstdcxx("3.4.33"),
        "/proc/self/maps": "7f00-7f10 r-xp 00000000 fe:00 12    /usr/lib/libc.so.6\n"
        "7f20-7f30 r--p 00000000 fe:00 13                       /opt/my app/libstdc++.so.6.0.33\n",
    }
    assert libstdcxx_version(a_host(tmp_path, files=files)) == "3.4.33"


@pytest.mark.parametrize("cache", [b"", b"glibc-ld.so.cache1.1", a_loader_cache([("libstdc++.so.6", "/x")])[:70]])
def test_no_library_and_a_damaged_cache_are_nothing_observed(tmp_path, cache):
    assert libstdcxx_version(a_host(tmp_path, files={"/etc/ld.so.cache": cache})) is None


def test_the_libstdcxx_found_is_the_one_that_the_loader_maps():
    """The loader itself is asked, in a fresh process that maps the library after we have said which one it is."""
    script = (
        "from aot.environment import Host; from aot.environment.libraries import libstdcxx_version;"
        "import ctypes; before = libstdcxx_version(Host()); ctypes.CDLL('libstdc++.so.6');"
        "print(before, libstdcxx_version(Host()))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if run.returncode:
        pytest.skip("no libstdc++ here")
    before, after = run.stdout.split()
    assert before == after != "None"


def test_observing_is_quick_and_imports_neither_torch_nor_much_else():
    script = """
import sys, time
from aot.environment import observe_environment
observe_environment()
started = time.perf_counter()
observe_environment()
print(time.perf_counter() - started, "torch" in sys.modules, "importlib.metadata" in sys.modules)
"""
    fastest = 1.0
    for _ in range(3):
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        seconds, torch_loaded, metadata_loaded = run.stdout.split()
        assert (torch_loaded, metadata_loaded) == ("False", "False")
        fastest = min(fastest, float(seconds))
    assert fastest < 0.015


def test_an_environment_survives_its_document():
    environment = observe_environment(Host())
    assert decode(encode(environment), Environment) == environment
    assert environment.container.python == ".".join(map(str, sys.version_info[:3]))
    assert environment.container.libc is None or environment.container.libc.startswith("2.")


def test_a_container_without_glibc_says_musl_where_it_is_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", refuse)
    assert observe_container(a_host(tmp_path / "other")).libc is None
    alpine = a_host(tmp_path / "alpine", files={"/lib/ld-musl-x86_64.so.1": b""})
    assert observe_container(alpine).libc == "musl"
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36")
    assert observe_container(alpine).libc == "2.36"


def test_a_build_for_rocm_says_which(tmp_path):
    text = "__version__ = '2.13.0+rocm6.4'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4.43484'\n"
    container = observe_container(a_host(tmp_path, packages=site_packages(tmp_path, torch_version=text)))
    assert (container.torch, container.cuda, container.hip) == ("2.13.0+rocm6.4", None, "6.4.43484")


@pytest.mark.parametrize(
    ("symbol", "abi"),
    [
        (b"\0_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcEE\0", True),
        (b"\0_ZN3c105ErrorC2ENS_14SourceLocationESs\0", False),
        (b"\0_ZN3c105ErrorC2ENS_14SourceLocationE", None),
        (b"\0another symbol\0", None),
        (b"", None),
        (None, None),
    ],
    ids=["new", "old", "cut off", "no such symbol", "empty", "no library"],
)
def test_the_abi_of_torch_is_that_of_its_symbols(tmp_path, symbol, abi):
    packages = site_packages(tmp_path, torch_version=VERSION_CPU)
    library = tmp_path / "site" / "torch" / "lib" / "libc10.so"
    library.parent.mkdir()
    if symbol is not None:
        library.write_bytes(b"\x7fELF" + bytes(100) + symbol)
    assert observe_container(a_host(tmp_path, packages=packages)).cxx11_abi is abi


@pytest.mark.torch
def test_the_abi_of_this_torch_is_the_one_that_torch_states():
    import torch

    assert observe_container().cxx11_abi is torch.compiled_with_cxx11_abi()
