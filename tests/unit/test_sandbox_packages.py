"""Where a child finds the packages of a process that does not have them from its own site-packages."""

import os
import shutil
import site
import subprocess
import sys
import sysconfig
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aot.compile.layout import Layout
from aot.errors import InvalidConfig
from aot.qualify.children import Proving
from aot.sandbox import SandboxKind, find_packages, python_path
from aot.sandbox.packages import view_packages
from aot.schema.recipe import Recipe
from aot.schema.spec import Limits
from tests.builders import a_profile
from tests.sandbox_children import EACH_KIND, open_sandbox, run_python

ROOT = Path(__file__).parents[2]
STANDARD = sysconfig.get_path("stdlib")
OWN = site.getsitepackages()[0]
# A worker in small: its child needs what it has imported itself.
PARENT = """
import sys
from pathlib import Path
from aot.sandbox import Limits, NoSandbox, find_sandbox, python_path, run_child
sandbox = find_sandbox() if sys.argv[1] == "bubblewrap" else None
ended = run_child(
    [sys.executable, "-P", "-s", "-c", "import msgspec, aot.schema.codec; print(msgspec.__file__)"],
    cwd=Path("/"),
    env={"PYTHONPATH": python_path()},
    limits=Limits(wall_seconds=30, memory_bytes=1 << 30, processes=32, output_bytes=1 << 20),
    sandbox=sandbox,
    readable=[Path(sys.argv[2]) / "aot"],
)
print(ended.stdout_tail, ended.stderr_tail, sep="")
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """What `pip install --target` leaves of msgspec, outside of every place that a sandbox shows by itself."""
    return installed(tmp_path / "deps")


def installed(place: Path, name: str = "toy") -> Path:
    (place / f"{name}-1.0.dist-info").mkdir(parents=True)
    (place / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Name: {name}\n")
    (place / name).mkdir()
    (place / name / "__init__.py").write_text("PLACE = __file__\n")
    return place


def told(*entries: str | Path) -> tuple[str, ...]:
    return tuple(map(str, find_packages(["/start", *map(str, entries)]).path))


@EACH_KIND
def test_a_child_has_the_packages_of_a_parent_that_has_them_by_pythonpath(
    tmp_path: Path, target: Path, kind: SandboxKind
) -> None:
    open_sandbox(kind)  # skips
    for place in (Path(msgspec.__file__).parent, *Path(OWN).glob("msgspec-*.dist-info")):
        shutil.copytree(place, target / place.name)
    # The base interpreter: the virtual environment's has msgspec by itself.
    base = os.path.realpath(sys.executable)
    ran = subprocess.run(
        [base, "-s", "-c", PARENT, kind, str(ROOT)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "PYTHONPATH": f"{target}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert ran.stdout.strip() == str(target / "msgspec" / "__init__.py"), ran.stderr


def test_an_interpreter_that_has_all_by_itself_is_told_of_this_package_alone() -> None:
    assert told(STANDARD, OWN) == (str(ROOT),)
    assert find_packages([STANDARD, OWN, str(ROOT)]).path_of_others == ()


def test_the_order_is_the_parents(tmp_path: Path) -> None:
    """What shadows the standard library or another place does so in the child, and nothing else does."""
    first, last = installed(tmp_path / "first"), installed(tmp_path / "last")
    assert told(first, ROOT, STANDARD, OWN) == (str(first), str(ROOT))
    assert told(first, STANDARD, last, OWN) == (str(ROOT), str(first), STANDARD, str(last))
    assert told(ROOT, first, STANDARD, OWN, last) == (str(ROOT), str(first), STANDARD, OWN, str(last))


def test_a_command_of_somebody_else_is_told_of_packages_alone(target: Path) -> None:
    assert find_packages([str(ROOT), str(target), STANDARD]).path_of_others == (target,)


def test_code_that_merely_lies_on_the_path_does_not_travel(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "package").mkdir(parents=True)
    (checkout / ".env").write_text("TOKEN=secret\n")
    found = find_packages([str(checkout), str(tmp_path / "absent"), "relative", STANDARD, OWN])
    assert (found.added, found.shown, found.path) == ((), (), (ROOT,))


def test_neither_home_nor_the_working_directory_nor_tmp_is_shown(
    target: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Packages may have been installed there: what lies beside them is not for other people's code."""
    assert find_packages(["", str(target)]).added == (target,)
    monkeypatch.setenv("HOME", str(target))
    assert find_packages(["", str(target)]).added == ()
    monkeypatch.setenv("HOME", str(target / "below"))
    assert find_packages(["", str(target)]).added == ()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(target)
    assert find_packages(["", str(target)]).added == ()
    assert find_packages(["", "/"]).added == ()


@pytest.mark.parametrize("variable", ["AOT_DATA_DIR", "AOT_CACHE_DIR"])
@pytest.mark.parametrize("below", ["", "aot"])
def test_neither_our_data_nor_our_cache_is_shown(
    target: Path, monkeypatch: pytest.MonkeyPatch, variable: str, below: str
) -> None:
    """Tokens, keys and the sources of other builds lie there."""
    monkeypatch.setenv(variable, str(target / below))
    assert find_packages(["", str(target)]).added == ()


def test_what_cannot_be_looked_at_is_passed_over(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (target / "loop").symlink_to(target / "loop")
    (target / "other-1.0.dist-info").mkdir()
    (target / "other-1.0.dist-info" / "METADATA").symlink_to("/METADATA")
    closed = installed(tmp_path / "closed" / "deps")
    look = os.stat

    def stat(path: Any, *given: Any, **named: Any) -> os.stat_result:
        if not isinstance(path, int) and os.fspath(path) == str(closed):
            raise PermissionError(13, "Permission denied", path)
        return look(path, *given, **named)

    monkeypatch.setattr("os.stat", stat)
    assert find_packages(["", str(closed), str(target)]).shown == (target,)


def test_a_process_whose_working_directory_is_gone_has_its_packages(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert find_packages(["", str(target)]).added == (target,)


def test_a_package_that_an_import_hook_finds_is_found_by_children_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As installers make them of a checkout that is worked on: the hook lies among the installed packages."""
    origin = tmp_path / "checkout" / "torch" / "__init__.py"

    class Hook:
        @staticmethod
        def find_spec(name: str, path: object, target: object = None) -> ModuleSpec | None:
            return ModuleSpec(name, None, origin=str(origin)) if name == "torch" else None

    monkeypatch.setattr(sys, "meta_path", [Hook, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert python_path()


def test_the_place_that_a_program_was_started_in_is_none(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(target.parent)
    (target.parent / "torch").mkdir()
    assert find_packages([str(target.parent), str(target)]).added == (target,)


def test_a_copy_of_what_we_need_counts_without_an_installers_record(tmp_path: Path) -> None:
    (tmp_path / "vendored" / "msgspec").mkdir(parents=True)
    assert find_packages(["", str(tmp_path / "vendored")]).added == (tmp_path / "vendored",)


@pytest.mark.parametrize("whole", [True, False], ids=["directories", "files"])
def test_packages_that_are_links_are_shown_where_they_lie(tmp_path: Path, whole: bool) -> None:
    """As installers link them out of a store of theirs: whole packages, or each of their files."""
    store, place = installed(tmp_path / "store"), tmp_path / "linked"
    place.mkdir()
    for entry in store.iterdir():
        if whole:
            (place / entry.name).symlink_to(entry)
            continue
        (place / entry.name).mkdir()
        for file in entry.iterdir():
            (place / entry.name / file.name).symlink_to(file)
    shown = find_packages(["", str(place)]).shown
    code = "import sys; sys.path[:0] = sys.argv[1:]; import toy; print(toy.PLACE)"
    ended = run_python(code, str(place), kind=SandboxKind.BUBBLEWRAP, readable=shown)
    assert ended.stdout_tail.strip() == str(place / "toy" / "__init__.py"), ended.stderr_tail


def test_what_this_process_has_is_what_its_children_are_told(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(target))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert python_path().split(os.pathsep)[0] == str(target)
    assert [bind.host for bind in view_packages()] == [target]


def test_what_a_package_has_put_on_the_path_makes_no_difference(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """setuptools adds the place of its vendored packages when it is imported, which torch does at a first compile."""
    own = target.parent / "site-packages"
    (own / "setuptools" / "_vendor" / "toy-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr("site.getsitepackages", lambda: [str(own)])
    vendored = str(own / "setuptools" / "_vendor")
    assert find_packages(["", str(own), str(target), vendored]).added == (target,)
    assert find_packages(["", str(own), vendored]).added == ()


def test_no_variable_of_the_parent_is_read(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(target))
    monkeypatch.setenv("PYTHONSTARTUP", "secret")
    assert str(target) not in python_path()


@pytest.mark.parametrize("name", ["msgspec", "torch"])
def test_packages_that_no_child_may_see_are_told_with_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each build would fail, or be made with another torch than this worker is registered with."""
    monkeypatch.chdir(installed(tmp_path / "work", name))
    monkeypatch.setattr("sys.path", ["", str(tmp_path / "work"), *sys.path])
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(InvalidConfig, match=f"find {name}, which this process has from {tmp_path}/work") as caught:
        python_path()
    assert "PYTHONPATH" in caught.value.hint


@EACH_KIND
def test_a_proof_and_a_compile_are_told_the_same(
    target: Path, tmp_path: Path, kind: SandboxKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", ["", str(target), *sys.path])
    isolated = kind is SandboxKind.BUBBLEWRAP
    layout = Layout(scratch=tmp_path, isolated=isolated)
    proving = Proving(
        source=None,  # type: ignore[arg-type]
        scratch=tmp_path,
        recipe=Recipe(),
        profile=a_profile(),
        limits=Limits(),
        sandbox=None,
    )
    environments = (layout.environment(Recipe(), a_profile()), proving._environment(tmp_path))
    assert {environment["PYTHONPATH"] for environment in environments} == {python_path()}
    assert python_path().split(os.pathsep)[0] == str(target)
