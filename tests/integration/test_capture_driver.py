"""What a driver leaves of PTX that it compiled, by a program that imitates one: captured, published, restored, read."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import a_shell
from tests.integration.driver_captures import HERE, check_driver_cache, write_tree
from tests.integration.test_capture import own_profile, run_worker
from worker.run import Ended

IMITATION = HERE / "imitated_driver.c"


def imitated_driver(place: Path) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc on PATH")
    command = [compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", str(IMITATION), "-o", str(place)]
    subprocess.run(command, check=True)
    return place


def test_what_a_driver_compiled_is_captured_restored_and_read(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree")
    library = imitated_driver(tree / "driver.bin")

    with a_shell(tmp_path) as shell:
        shell.service.register(own_profile())
        environ = dict(shell.with_environ(AOT_PROFILE=None, PYTHONDONTWRITEBYTECODE="1").environ)

        def work() -> None:
            assert run_worker(shell, own_profile(), tmp_path) is Ended.PUBLISHED, shell.aot("ls", "--builds").out

        check_driver_cache(environ, tree, tmp_path / "node", f"./{library.name}", work=work)


def test_a_program_that_the_driver_cannot_compile_says_which_call_refused_it(tmp_path: Path) -> None:
    """The program that a card's test runs must not pass for another reason than a kernel that was compiled."""
    library = imitated_driver(tmp_path / "driver.bin")
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); import driven; driven.STEP = '';"
        f"driven.compute({str(library)!r})"
    )
    ran = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (1, "cuModuleLoadData ended with 218\n")
