"""Sources that misbehave, in real children: each has its own clear error, and the parent goes on."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot.compile.run import Compiled
from aot.compile.toolchain import Observed, observe_toolchain
from aot.errors import (
    BackendFailed,
    CompileFailed,
    CompileOutOfMemory,
    CompileStopped,
    CompileTimedOut,
    InvalidProfile,
    InvalidSpec,
    SourceNotExportable,
    SourceNotLoadable,
)
from aot.schema.recipe import Recipe
from aot.schema.spec import Limits
from tests.integration import compiled as builds

pytestmark = pytest.mark.torch
MODEL = "import torch\ndef make():\n    return torch.nn.Linear(4, 4), (torch.ones(2, 4),)\n"


def run(tmp_path: Path, code: str, **options: Any) -> Compiled:
    return builds.build(builds.write_source(tmp_path / "tree", code), tmp_path / "scratch", **options)


def failure(tmp_path: Path, code: str, kind: type[CompileFailed], **options: Any) -> CompileFailed:
    with pytest.raises(kind) as caught:
        run(tmp_path, code, **options)
    assert type(caught.value) is kind
    assert caught.value.hint or kind is CompileStopped
    return caught.value


def test_a_source_that_does_not_import_is_told_with_its_line(tmp_path: Path) -> None:
    error = failure(tmp_path, "import torch\nimport no_such_library\ndef make(): ...\n", SourceNotLoadable)
    assert "model" in error.message and "No module named 'no_such_library'" in error.message
    assert error.details["frame"]["line"] == 2


def test_a_factory_that_returns_something_else_is_told_what_it_returned(tmp_path: Path) -> None:
    error = failure(tmp_path, "def make():\n    return 'a model'\n", SourceNotLoadable)
    assert "model:make" in error.message and "str" in error.message


def test_a_factory_that_raises_is_told_with_its_line_and_log(tmp_path: Path) -> None:
    code = "import sys\ndef make():\n    print('almost', file=sys.stderr)\n    raise KeyError('weights')\n"
    error = failure(tmp_path, code, SourceNotLoadable)
    assert error.message == "model:make raised KeyError: 'weights'"
    line = "raise KeyError('weights')"
    assert error.details["frame"] == {"file": "model.py", "line": 4, "function": "make", "text": line}
    assert "almost" in error.details["log"]


def test_a_factory_that_hangs_is_timed_out(tmp_path: Path) -> None:
    code = "import time\ndef make():\n    time.sleep(1000)\n"
    error = failure(tmp_path, code, CompileTimedOut, limits=Limits(wall_seconds=8, memory_bytes=2 << 30))
    assert "longer than 8 s, while loading" in error.message


def test_a_factory_that_prints_a_gigabyte_is_cut_off(tmp_path: Path) -> None:
    code = "def make():\n    for _ in range(1024):\n        print('x' * (1 << 20))\n"
    error = failure(tmp_path, code, SourceNotLoadable)
    assert "too much output" in error.message
    assert (tmp_path / "scratch" / "stdout.txt").stat().st_size <= 64 << 20


def test_a_factory_that_ends_the_process_is_told(tmp_path: Path) -> None:
    error = failure(tmp_path, "import os\ndef make():\n    os._exit(0)\n", SourceNotLoadable)
    assert "ended without an outcome while loading: it exited with code 0" in error.message


def test_a_factory_that_takes_100_gigabytes_is_out_of_memory(tmp_path: Path) -> None:
    code = "def make():\n    return [bytearray(b'x' * (64 << 20)) for _ in range(1600)]\n"
    limits = Limits(wall_seconds=100, memory_bytes=1 << 30)
    error = failure(tmp_path, code, CompileOutOfMemory, limits=limits)
    assert "1073741824 bytes" in error.message


def test_a_source_that_crashes_has_its_signal_named(tmp_path: Path) -> None:
    code = "import ctypes\ndef make():\n    ctypes.string_at(0)\n"
    error = failure(tmp_path, code, SourceNotLoadable)
    assert error.details["signal"] == "SIGSEGV"
    assert "died of SIGSEGV while loading" in error.message


def test_a_build_that_is_stopped_ends_within_seconds(tmp_path: Path) -> None:
    started = time.monotonic()
    code = "import time\ndef make():\n    time.sleep(1000)\n"
    reason = "cancelled by somebody"
    ask = lambda: reason if time.monotonic() - started > 1 else None  # noqa: E731
    error = failure(tmp_path, code, CompileStopped, should_stop=ask)
    assert reason in error.message
    assert time.monotonic() - started < 15


def test_a_program_that_does_not_export_is_told_with_its_line(tmp_path: Path) -> None:
    code = (
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x * 2 if x.sum().item() > 0 else x\n"
        "def make():\n    return Net(), (torch.ones(2, 4),)\n"
    )
    error = failure(tmp_path, code, SourceNotExportable)
    assert error.details["source"]["line"] == 4
    assert error.details["source"]["file"] == "model.py"
    assert "depends on data" in error.details["operation"]


def test_an_output_that_is_text_is_refused_before_compiling(tmp_path: Path) -> None:
    code = MODEL.replace("torch.nn.Linear(4, 4)", "Net()") + (
        "class Net(torch.nn.Module):\n    def forward(self, x):\n        return {'y': x, 'name': 'model'}\n"
    )
    error = failure(tmp_path, code, SourceNotExportable)
    assert "name" in error.message
    assert "compiling" not in error.details["phases"]


def test_an_unknown_option_is_refused_with_its_neighbours(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="option max_autotun cannot be set") as caught:
        run(tmp_path, MODEL, recipe=Recipe(options={"max_autotun": True}))
    assert "max_autotune" in caught.value.hint


def test_an_option_of_another_type_than_this_torchs_is_refused_by_the_child(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="option max_autotune must be a bool, found str 'yes'"):
        run(tmp_path, MODEL, recipe=Recipe(options={"max_autotune": "yes"}))


def test_a_profile_of_another_torch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec

    profile = builds.here()
    toolchain = msgspec.structs.replace(profile.toolchain, torch="2.99.0")
    monkeypatch.setattr(builds, "here", lambda: msgspec.structs.replace(profile, toolchain=toolchain))
    with pytest.raises(InvalidProfile, match=r"is for torch 2\.99\.0"):
        run(tmp_path, MODEL)


def test_the_source_sees_neither_network_home_nor_the_parents_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if builds.sandbox() is None:
        pytest.skip("bubblewrap does not work here")
    monkeypatch.setenv("AOT_TOKEN", "secret")
    secret = Path.home() / ".aot-test-secret"
    secret.write_text("secret")
    code = (
        "import os, socket, pathlib\ndef make():\n"
        f"    seen = [name for name in os.environ if 'TOKEN' in name] + [pathlib.Path({str(secret)!r}).exists()]\n"
        "    try:\n        socket.create_connection(('127.0.0.1', 9), timeout=1)\n"
        "    except OSError as error:\n        seen.append(error.errno)\n"
        "    interfaces = [name for _, name in socket.if_nameindex()]\n"
        "    raise RuntimeError(f'{seen} {interfaces} {os.environ[\"SIZE\"]}')\n"
    )
    try:
        error = failure(tmp_path, code, SourceNotLoadable, recipe=Recipe(environment={"SIZE": "small"}))
    finally:
        secret.unlink()
    assert error.message.endswith("[False, 111] ['lo'] small")


def test_a_source_that_rewrites_the_builds_files_is_not_believed(tmp_path: Path) -> None:
    # It runs before the work does: here it leaves an outcome of its own and ends the process.
    code = (
        "import os, sys\ndef make():\n"
        "    out = [frame for frame in sys.argv if frame.endswith('job.json')][0].replace('job/job.json', 'out')\n"
        "    os.makedirs(out + '/artifacts/0/lib')\n"
        "    os.symlink('/etc/passwd', out + '/artifacts/0/lib/model.so')\n"
        "    open(out + '/outcome.json', 'w').write('{\"artifacts\": [], \"surprise\": 1}')\n"
        "    os._exit(0)\n"
    )
    assert "without an outcome" in failure(tmp_path, code, SourceNotLoadable).message


def test_weights_of_another_module_are_refused(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(5, 5)}, str(tmp_path / "w.safetensors"))
    source = replace(builds.write_source(tmp_path / "tree", MODEL), weights=(tmp_path / "w.safetensors",))
    with pytest.raises(InvalidSpec, match="weights do not fit the module"):
        builds.build(source, tmp_path / "scratch")


def test_a_source_that_fills_the_disk_is_ended(tmp_path: Path) -> None:
    code = (
        "import os\ndef make():\n"
        "    with open(os.path.join(os.environ.get('TMPDIR', '.'), 'big'), 'wb') as file:\n"
        "        while True:\n"
        "            file.write(os.urandom(8 << 20))\n"
    )
    error = failure(tmp_path, code, SourceNotLoadable, limits=Limits(disk_bytes=64 << 20))
    assert error.message == f"the child wrote more than {64 << 20} bytes to disk while loading"


def test_a_source_leaves_no_grandchildren_behind(tmp_path: Path) -> None:
    word = f"grandchild-of-{tmp_path.name}"
    code = (
        "import subprocess, sys\ndef make():\n"
        "    sleeper = [sys.executable, '-c', 'import time; time.sleep(300)']\n"
        f"    subprocess.Popen([*sleeper, {word!r}], start_new_session=True)\n"
        "    raise RuntimeError('and then it fails')\n"
    )
    failure(tmp_path, code, SourceNotLoadable)
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(word.encode() in command for command in commands)


def test_a_source_cannot_change_its_own_files(tmp_path: Path) -> None:
    code = "def make():\n    with open(__file__, 'a') as file:\n        file.write('# changed')\n"
    error = failure(tmp_path, code, SourceNotLoadable)
    assert "Read-only file system" in str(error.details) + error.message or "Permission" in error.message


def test_a_package_with_a_libstdcxx_inside_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded, it may end the child with a signal that tells nothing."""
    observed = observe_toolchain()
    compiler = tmp_path / "c++"
    # Where it links alone: with such an option g++ would link a precompiled header as well.
    linking = 'case " $* " in *" -shared "*) set -- "$@" -static-libstdc++;; esac'
    compiler.write_text(f'#!/bin/sh\n{linking}\nexec {observed.compiler} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setattr("aot.compile.run.observe_toolchain", lambda: Observed(observed.toolchain, compiler))
    source = builds.write_source(tmp_path / "tree", builds.STATELESS)
    with pytest.raises(BackendFailed) as caught:
        builds.build(source, tmp_path / "scratch", isolated=False, shared=builds.shared_headers())
    named = f"the C++ compiler, {observed.toolchain.compiler}, linked libstdc++ statically"
    assert named in caught.value.message, caught.value.details
