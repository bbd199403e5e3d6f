"""What `aot doctor` finds. Compilers are scripts around the real one."""

import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from aot.environment.problems import DISK_BYTES, Place, Problem, describe_problems
from tests.hosts import a_host

GXX = shutil.which("g++")
needs_compiler = pytest.mark.skipif(GXX is None, reason="no g++ on PATH")


def a_program(directory: Path, name: str, script: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def healthy(tmp_path):
    """A place without a problem: builders of deviations call it with other files, variables or fields."""

    def make(*, variables=None, files=None, bwrap=True, **fields) -> Place:
        binaries = tmp_path / "bin"
        if bwrap:
            a_program(binaries, "bwrap", "exit 0")
        a_program(binaries, "g++", f'exec {GXX or "false"} "$@"')
        environ = {"PATH": f"{binaries}:/usr/bin:/bin" if bwrap else str(binaries)} | (variables or {})
        host = a_host(tmp_path / "root", environ=environ, files=files, packages=(str(tmp_path / "site"),))
        return Place(**({"host": host, "cache": tmp_path / "cache", "scratch": tmp_path} | fields))

    return make


def kinds(place: Place) -> list[str]:
    return [problem.kind for problem in describe_problems(place) if not problem.kind.startswith("little-space")]


@needs_compiler
def test_a_healthy_place_has_no_problem(healthy):
    assert kinds(healthy()) == []


@needs_compiler
def test_a_second_compiler_is_named(healthy, tmp_path):
    other = a_program(tmp_path / "other", "g++", f'exec {GXX} "$@"')
    place = healthy(variables={"CXX": str(other)})
    problems = [problem for problem in describe_problems(place) if problem.kind == "two-compilers"]
    assert str(other) in problems[0].text and str(tmp_path / "bin" / "g++") in problems[0].text


@needs_compiler
def test_the_same_compiler_twice_is_no_problem(healthy, tmp_path):
    assert kinds(healthy(variables={"CXX": str(tmp_path / "bin" / "g++")})) == []


@needs_compiler
def test_a_compiler_that_links_libstdcxx_statically_is_found(healthy, tmp_path):
    other = a_program(tmp_path / "other", "c++", f'exec {GXX} -static-libstdc++ "$@"')
    assert kinds(healthy(variables={"CXX": str(other)})) == ["two-compilers", "static-libstdcxx"]


@pytest.mark.parametrize(
    "script", ["echo no headers >&2; exit 1", "exit 0", "echo text > probe.so"], ids=["fails", "nothing", "noise"]
)
def test_a_compiler_that_does_not_work_is_found(healthy, tmp_path, script):
    other = a_program(tmp_path / "other", "c++", script)
    assert "broken-compiler" in kinds(healthy(variables={"CXX": str(other)}))


@pytest.mark.parametrize("variables", [{"PATH": "/nowhere"}, {"CXX": "/nowhere/g++"}])
def test_no_compiler(healthy, variables):
    assert "no-compiler" in kinds(healthy(variables=variables))


@needs_compiler
def test_no_bubblewrap(healthy, tmp_path):
    for tool in ("as", "ld", "collect2"):
        if found := shutil.which(tool):
            (tmp_path / "bin").mkdir(exist_ok=True)
            (tmp_path / "bin" / tool).symlink_to(found)
    assert kinds(healthy(bwrap=False)) == ["no-bubblewrap"]


@needs_compiler
@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        ("/dev/vda / ext4 rw,noexec 0 0\n", ["noexec-cache", "noexec-scratch"]),
        ("/dev/vda / ext4 rw,noexec 0 0\ntmpfs {tmp} tmpfs rw 0 0\n", []),
        ("/dev/vda / ext4 rw 0 0\nx {tmp}/cache ext4 ro,noexec 0 0\n", ["noexec-cache", "ro-cache"]),
        ("/dev/vda / ext4 rw,noexec 0 0\ntmpfs / tmpfs rw 0 0\n", []),
        ("x {tmp}/cach tmpfs rw,noexec 0 0\n", []),
    ],
    ids=["root", "covered", "cache", "mounted over", "a sibling"],
)
def test_mounts_that_forbid_code_or_writing(healthy, tmp_path, mounts, found):
    text = mounts.format(tmp=os.path.realpath(tmp_path))
    assert kinds(healthy(files={"/proc/self/mounts": text})) == found


@pytest.mark.parametrize("inside", ["", "/below/it"])
def test_a_cache_that_is_a_file_or_below_one_is_found(healthy, tmp_path, inside):
    (tmp_path / "file").touch()
    problems = describe_problems(healthy(cache=Path(f"{tmp_path}/file{inside}")))
    (problem,) = [problem for problem in problems if problem.kind == "unusable-cache"]
    assert f"{tmp_path}/file is no directory" in problem.text and "AOT_CACHE_DIR" in problem.hint


def test_a_cache_that_this_user_may_not_write_is_found(healthy, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: not (mode & os.W_OK and Path(path) == tmp_path))
    assert [one.kind for one in describe_problems(healthy()) if one.kind == "unusable-cache"] == ["unusable-cache"]


def test_a_host_where_nothing_can_be_written_is_looked_at_none_the_less(healthy, tmp_path, monkeypatch):
    """As a pod with a read-only root: Python then knows no temporary directory at all."""

    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none)
    assert Place(cache=tmp_path).scratch == Path("/tmp")
    (tmp_path / "file").touch()
    problems = describe_problems(replace(healthy(), scratch=tmp_path / "file"))
    (problem,) = [problem for problem in problems if problem.kind == "unusable-scratch"]
    assert f"{tmp_path}/file is no directory" in problem.text and "TMPDIR" in problem.hint
    assert "broken-compiler" not in [problem.kind for problem in problems]


@needs_compiler
def test_more_threads_than_the_quota_allows(healthy):
    files = {
        "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "/proc/self/cgroup": "0::/",
        "/sys/fs/cgroup/cpu.max": "100000 100000",
    }
    problems = [problem for problem in describe_problems(healthy(files=files)) if problem.kind == "threads-over-cores"]
    assert problems == [
        Problem(
            kind="threads-over-cores",
            text="torch would use 2 threads, and this container may use 1 cores",
            hint="set OMP_NUM_THREADS=1: threads beyond the quota wait for each other",
        )
    ]


@needs_compiler
@pytest.mark.parametrize(
    ("compiled", "variables", "writes", "found"),
    [
        (False, {}, False, ["no-bytecode"]),
        (True, {}, False, []),
        (False, {"PYTHONPYCACHEPREFIX": "/cache"}, False, []),
        (False, {}, True, []),
    ],
)
def test_starts_that_compile_bytecode_each_time(healthy, tmp_path, compiled, variables, writes, found):
    package = tmp_path / "site" / "torch"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").touch()
    if compiled:
        (package / "__pycache__" / "__init__.cpython-311.pyc").touch()
    assert kinds(healthy(variables=variables, writes_bytecode=writes)) == found


@needs_compiler
def test_little_space_is_told_from_the_nearest_directory_that_exists(healthy, tmp_path, monkeypatch):
    asked = []
    real = shutil.disk_usage

    def usage(path):
        asked.append(Path(path))
        if not Path(path).exists():
            raise FileNotFoundError(path)
        return type(real(tmp_path))(10 * DISK_BYTES, 9 * DISK_BYTES, DISK_BYTES - 1)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    problems = describe_problems(healthy(cache=tmp_path / "not" / "yet"))
    assert {"little-space-cache", "little-space-scratch"} <= {problem.kind for problem in problems}
    assert tmp_path / "not" / "yet" in asked and tmp_path in asked


@needs_compiler
def test_small_shared_memory(healthy, tmp_path, monkeypatch):
    shared = tmp_path / "root" / "dev" / "shm"
    shared.mkdir(parents=True)
    real = shutil.disk_usage

    def usage(path):
        return type(real(tmp_path))(64 << 20, 0, 64 << 20) if Path(path) == shared else real(path)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert kinds(healthy()) == ["small-shared-memory"]
