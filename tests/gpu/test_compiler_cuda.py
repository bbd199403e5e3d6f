"""The C++ compiler that a machine presets: where it links libstdc++ statically, a package of it must go nowhere."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from aot.compile import run
from aot.compile.toolchain import Observed, observe_toolchain
from aot.errors import BackendFailed
from aot.facts import read_elf
from aot.schema.recipe import Mode, Recipe
from aot.schema.spec import Limits
from tests.builders import altered
from tests.gpu.test_compile_cuda import this_card
from tests.integration import compiled as builds

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

PROBE = (
    '#include <regex>\nextern "C" int probe(const char *text) { return std::regex_match(text, std::regex("a+")); }\n'
)


def preset_compiler(directory: Path) -> Path:
    """The one that torch would take on this machine. Skips where it links libstdc++ dynamically, as it should."""
    preset = shutil.which(os.environ.get("CXX") or "c++")
    if preset is None:
        pytest.skip("no C++ compiler is preset here: no CXX, no c++")
    source, library = directory / "probe.cpp", directory / "probe.so"
    source.write_text(PROBE)
    subprocess.run([preset, "-shared", "-fPIC", str(source), "-o", str(library)], check=True, capture_output=True)
    if not read_elf(library).static_libstdcxx:
        pytest.skip(f"the preset compiler {preset} links libstdc++ dynamically, so there is no hazard here")
    return Path(preset)


def test_a_package_of_a_compiler_that_links_libstdcxx_statically_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = preset_compiler(tmp_path)
    release = subprocess.run([preset, "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    toolchain = altered(observe_toolchain().toolchain, compiler=f"{preset.name} {release}")
    monkeypatch.setattr(run, "observe_toolchain", lambda: Observed(toolchain, preset))
    profile = altered(this_card(), toolchain=toolchain)
    source = builds.write_source(tmp_path / "tree", builds.STATELESS)
    with pytest.raises(BackendFailed) as caught:
        builds.build(
            source,
            tmp_path / "scratch",
            profile=profile,
            recipe=Recipe(mode=Mode.DEFAULT),
            limits=Limits(memory_bytes=32 << 30, wall_seconds=500),
            isolated=False,  # a toolchain of its own may lie where a sandbox shows nothing
        )
    # Where its own headers cannot be used with it, the build fails before: any cause must not pass for this one.
    assert f"the C++ compiler, {preset.name} {release}, linked libstdc++ statically" in caught.value.message
