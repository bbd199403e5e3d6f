"""A cache on a file system mounted noexec: the word is said, and what to set."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot.cache.faults import NOEXEC_HINT, is_noexec
from aot.capture.capture import capture
from aot.capture.entries import Entry, kind_of
from aot.capture.prepare import Prepared
from aot.capture.restore import restore
from aot.capture.run import lines_of, run_on
from aot.errors import InvalidConfig, InvalidInput
from aot.runtime.function import _unloadable
from aot.schema.digest import Digest
from aot.schema.names import Reference
from tests.builders import an_environment

# In a mount namespace of its own, with a library that does load elsewhere. Importing torch is no part of it.
STORY = """
import importlib.util, shutil, subprocess, sys, types
from pathlib import Path
from aot.cache.faults import NOEXEC_HINT
from aot.errors import LoadFailed
from aot.runtime.interface import open_interface

sys.modules["torch"] = types.ModuleType("torch")
root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", sys.argv[2], "tmpfs", str(root)], check=True)
library = Path(shutil.copy(importlib.util.find_spec("_json").origin, root / "some.so"))
try:
    open_interface(library)
except LoadFailed as error:
    print(error.message, "|", error.hint == NOEXEC_HINT)
"""


def fake_mount(monkeypatch: pytest.MonkeyPatch, *, below: Path) -> None:
    """Let `below`, and nothing else, lie on a file system mounted noexec."""
    original = os.statvfs

    def statvfs(place: Path) -> object:
        original(place)
        return SimpleNamespace(f_flag=os.ST_NOEXEC if place.is_relative_to(below) else 0, f_blocks=0)

    monkeypatch.setattr("aot.cache.faults.os.statvfs", statvfs)


def test_a_library_on_a_real_mount_is_refused_with_the_reason(tmp_path: Path) -> None:
    enter = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*enter, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True).returncode:
        pytest.skip("this system allows no mount namespaces")
    said = [
        subprocess.run(
            [*enter, sys.executable, "-c", STORY, str(tmp_path), option], capture_output=True, text=True, check=True
        ).stdout
        for option in ("noexec", "exec")
    ]
    assert said[0].startswith(f"some.so cannot be mapped: {tmp_path} is on a file system mounted noexec (")
    assert said[0].endswith("| True\n")
    assert said[1] == "some.so has no AOTInductorModelContainerCreateWithDevice | False\n"


def test_a_directory_that_is_yet_to_be_made_counts_as_what_it_is_made_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_mount(monkeypatch, below=tmp_path / "volume")
    (tmp_path / "volume").mkdir()
    assert is_noexec(tmp_path / "volume" / "aot" / "captures")
    assert not is_noexec(tmp_path / "elsewhere" / "aot")


def test_a_function_whose_kernels_cannot_be_mapped_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_mount(monkeypatch, below=tmp_path)
    failure = OSError("failed to map segment from shared object")
    error = _unloadable(failure, [tmp_path / "kernel.so"])
    assert (
        "failed to map segment" in error.message and f"{tmp_path} is on a file system mounted noexec" in error.message
    )
    assert error.hint == NOEXEC_HINT and "AOT_CACHE_DIR" in NOEXEC_HINT
    assert "noexec" not in _unloadable(failure, [Path("/usr/lib/kernel.so")]).message


@pytest.mark.parametrize(("code", "told"), [(9, True), (0, False)])
def test_a_command_that_fails_on_such_a_mount_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, told: bool
) -> None:
    fake_mount(monkeypatch, below=tmp_path)
    (tmp_path / "caches").mkdir()
    prepared = Prepared(Reference.parse("default/mini:v1"), an_environment(), tmp_path / "caches")
    ran = run_on(prepared, ["/bin/sh", "-c", f"exit {code}"], environ={})
    lines = lines_of(prepared, ran, {})
    assert (ran.code, f"  {NOEXEC_HINT}" in lines) == (code, told)
    assert any("mounted noexec" in line for line in lines) is told


def test_a_capture_that_fails_on_such_a_mount_names_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["/bin/sh", "-c", "exit 3"]
    options: Any = {"environ": {"PATH": "/usr/bin"}, "effective": an_environment()}
    with pytest.raises(InvalidInput, match="ended with 3") as plain:
        capture(command, scratch=tmp_path / "first", **options)
    assert "noexec" not in plain.value.as_line
    fake_mount(monkeypatch, below=tmp_path)
    with pytest.raises(InvalidInput, match=r"ended with 3.* on a file system mounted noexec") as raised:
        capture(command, scratch=tmp_path / "second", **options)
    assert raised.value.hint.startswith("set TMPDIR to")


@pytest.mark.parametrize(("name", "refused"), [("inductor/ab/kernel.so", True), ("triton/KEY/kernel.cubin", False)])
def test_shared_objects_are_not_restored_where_none_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, refused: bool
) -> None:
    blob, content = tmp_path / "blob", b"code"
    blob.write_bytes(content)
    entry = Entry(kind_of(name), name, Digest.of(content), len(content))
    into = tmp_path / "volume" / "captures" / "bundle"
    fake_mount(monkeypatch, below=tmp_path)
    if not refused:
        assert restore([entry], {entry.digest: blob}, into=into) == 1
        return
    with pytest.raises(InvalidConfig, match="mounted noexec") as raised:
        restore([entry], {entry.digest: blob}, into=into)
    assert raised.value.hint.startswith(NOEXEC_HINT) and "TMPDIR" in raised.value.hint and not into.exists()
