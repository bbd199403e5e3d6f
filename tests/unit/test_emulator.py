"""Emulated CPUs: of exactly their level, seen by whoever observes, and counted through."""

import sys
from pathlib import Path

import pytest

from aot.emulator import Emulator, NoEmulator, find_emulator, on_cpu
from aot.sandbox import Bubblewrap, ChildExit, Limits, find_sandbox, run_child
from aot.schema.capability import Capability
from tests.builders import an_environment

V3 = Capability("cpu:x86-64-v3")
LIMITS = Limits(wall_seconds=60, memory_bytes=1 << 30, processes=16, output_bytes=1 << 20)

needs_qemu = pytest.mark.skipif(isinstance(find_emulator(V3), NoEmulator), reason="needs qemu-user")


def emulator(level: str) -> Emulator:
    found = find_emulator(Capability(f"cpu:{level}"))
    assert isinstance(found, Emulator), found
    return found


def run(code: str, place: Path, *, isolated: bool) -> ChildExit:
    found = find_sandbox()
    return run_child(
        emulator("x86-64-v3").wrap([sys.executable, "-I", "-S", "-c", code]),
        cwd=place,
        env={"PATH": "/usr/bin:/bin"},
        limits=LIMITS,
        sandbox=found if isolated and isinstance(found, Bubblewrap) else None,
        writable=(place,),
        count_processes=True,
    )


@needs_qemu
@pytest.mark.parametrize("level", ["x86-64", "x86-64-v2", "x86-64-v3"])
def test_each_level_has_a_cpu_that_was_tried(level: str) -> None:
    found = emulator(level)
    assert found.cpu.capability == f"cpu:{level}"
    assert ("avx2" in found.cpu.features, "sse4_2" in found.cpu.features) == (level == "x86-64-v3", level != "x86-64")
    assert found.wrap(["/bin/true"]) == [str(found.program), "-cpu", found.model, "/bin/true"]


@pytest.mark.parametrize("capability", ["cpu:x86-64-v4", "cpu:armv8.2-a", "cuda:sm_90"])
def test_what_nothing_emulates_is_said_to(capability: str) -> None:
    assert find_emulator(Capability(capability)) == NoEmulator(f"no emulator has a CPU of exactly {capability}")


def test_a_host_without_qemu_says_what_to_install(tmp_path: Path) -> None:
    assert find_emulator(V3, search_path=str(tmp_path)) == NoEmulator(
        "qemu-x86_64 is not installed (apt-get install qemu-user)"
    )


@needs_qemu
def test_an_emulator_that_gives_another_level_is_not_used(tmp_path: Path) -> None:
    # One that passes no CPU model on gives the host's own, or its default.
    fake = tmp_path / "qemu-x86_64"
    fake.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "qemu-x86_64 version 9.9" && exit\nshift 2\nexec "$@"\n')
    fake.chmod(0o755)
    found = find_emulator(Capability("cpu:x86-64"), search_path=str(tmp_path))
    assert isinstance(found, NoEmulator)
    assert found.reason.startswith("qemu-x86_64 9.9 gives a CPU of level x86-64-v")


@needs_qemu
def test_a_process_observes_what_it_runs_on_and_no_more() -> None:
    here = an_environment()
    seen = on_cpu(here, emulator("x86-64-v3").cpu)
    assert (seen.node.cpu, seen.node.cpu_model) == (V3, "Haswell-noTSX (emulated)")
    assert seen.node.cpu_features == emulator("x86-64-v3").cpu.features
    assert (seen.node.memory_bytes, seen.container) == (here.node.memory_bytes, here.container)


@needs_qemu
@pytest.mark.parametrize("isolated", [True, False])
def test_processes_are_counted_through_the_emulator(tmp_path: Path, isolated: bool) -> None:
    threads = "import threading; t = threading.Thread(target=print); t.start(); t.join()"
    alone = run(threads, tmp_path, isolated=isolated)
    assert alone.succeeded and alone.processes is not None, alone
    assert alone.processes.proves_none, alone.processes
    other = run("import subprocess; subprocess.run(['/bin/true'])", tmp_path, isolated=isolated).processes
    assert other is not None
    assert (other.counted_by, other.forks, [Path(one.path).name for one in other.programs]) == ("ptrace", 1, ["true"])


@needs_qemu
@pytest.mark.parametrize("isolated", [True, False])
def test_an_instruction_that_the_cpu_has_not_ends_the_process(tmp_path: Path, isolated: bool) -> None:
    # mmap a page of code: vpxord zmm16, zmm16, zmm16; ret
    code = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex(WORDS) + b"\\xc3")
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
    avx2 = run(code.replace("WORDS", "'c5fdefc0'"), tmp_path, isolated=isolated)
    assert avx2.succeeded, avx2
    ended = run(code.replace("WORDS", "'62a17d40efc0'"), tmp_path, isolated=isolated)
    assert ended.describe() == "died of SIGILL"
