"""The verdict of `aot doctor`: what fails a script, and what is only told."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aot.cli import run
from aot.cli.exits import Exit
from aot.environment.problem import Problem
from aot.errors import AotError, Forbidden, InvalidConfig, RegistryUnreachable
from tests.builders import a_container, an_environment

WARNINGS = (
    *("two-compilers", "hidden-cards", "different-cards", "torch-without-cuda", "no-bubblewrap", "no-bytecode"),
    *("threads-over-cores", "small-shared-memory", "little-space-cache", "little-space-scratch"),
)
OF_SERVING = ("noexec-cache", "ro-cache", "unusable-cache", "no-compute-libraries", "driver-too-old")
OF_BUILDING = ("broken-compiler", "static-libstdcxx", "noexec-scratch", "ro-scratch", "unusable-scratch")


class Host:
    """A host with the problems that a test gives it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch, self._capsys = monkeypatch, capsys
        self.is_well()

    def is_well(self) -> None:
        self.has()
        self.patch.setattr("aot.cli.doctor.observe_environment", an_environment)
        self.patch.setattr("aot.cli.doctor.observe_toolchain", lambda: None)

    def has(self, *kinds: str) -> None:
        problems = tuple(Problem(kind=kind, text=f"{kind} was found", hint="mend it") for kind in kinds)
        self.patch.setattr("aot.cli.doctor.describe_problems", lambda place: problems)

    def doctor(self, *words: str) -> tuple[int, str]:
        code = run(["doctor", *words])
        return code, self._capsys.readouterr().out

    def codes(self) -> tuple[int, int, int]:
        """Of the command alone, and asked for serving and for building; JSON has to say the same."""
        found = []
        for words in ([], ["--for", "serving"], ["--for", "building"]):
            code, _ = self.doctor(*words)
            told, out = self.doctor(*words, "--json")
            assert (told, json.loads(out)["exit_code"]) == (code, code)
            found.append(code)
        return tuple(found)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Host]:
    for name in ("AOT_URL", "AOT_TRUSTED_KEYS", "CXX", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AOT_CACHE_DIR", str(tmp_path / "cache"))
    yield Host(monkeypatch, capsys)


def test_a_host_without_a_problem_is_well(host: Host) -> None:
    assert host.codes() == (0, 0, 0)
    assert host.doctor()[1].splitlines()[-1] == "no problem found"


@pytest.mark.parametrize("kind", WARNINGS)
def test_a_warning_fails_no_script(host: Host, kind: str) -> None:
    host.has(kind)
    assert host.codes() == (0, 0, 0)
    assert f"\nwarning: {kind} was found\n  try: mend it\n" in host.doctor()[1]


@pytest.mark.parametrize("kind", OF_SERVING)
def test_what_keeps_a_host_from_serving_fails(host: Host, kind: str) -> None:
    host.has("no-bytecode", kind)
    assert host.codes() == (Exit.NOTHING_FITS,) * 3
    assert f"\nproblem (keeps it from serving): {kind} was found\n" in host.doctor()[1]
    problems = json.loads(host.doctor("--json")[1])["problems"]
    assert [one.get("keeps_from", "") for one in problems] == ["", "serving"]


@pytest.mark.parametrize("kind", OF_BUILDING)
def test_what_keeps_a_host_from_building_fails_unless_it_only_serves(host: Host, kind: str) -> None:
    host.has(kind)
    assert host.codes() == (Exit.NOTHING_FITS, 0, Exit.NOTHING_FITS)


def test_a_pod_has_no_compiler_and_a_builder_has(host: Host) -> None:
    host.has("no-compiler")
    assert host.codes() == (0, 0, Exit.NOTHING_FITS)


@pytest.mark.parametrize("kind", ["noexec-scratch", "ro-scratch", "unusable-scratch"])
def test_where_builds_would_work_is_nothing_to_a_pod(host: Host, kind: str) -> None:
    """Its root is read-only, and what it has from a registry is in a volume."""
    host.has("no-compiler", kind)
    assert host.codes() == (0, 0, Exit.NOTHING_FITS)


def test_a_builder_whose_variable_names_no_compiler_needs_another_one(host: Host) -> None:
    def missing() -> None:
        raise InvalidConfig("no C++ compiler is on PATH", hint="install one")

    host.patch.setattr("aot.cli.doctor.observe_toolchain", missing)
    host.patch.setenv("CXX", "/nowhere/g++")
    host.has("no-compiler")
    assert host.codes() == (0, 0, Exit.NOTHING_FITS)


@pytest.mark.parametrize("kind", ["no-driver-libraries", "no-compute-libraries", "driver-too-old"])
@pytest.mark.parametrize(("setting", "code"), [("", 0), ("-1", 0), ("0", Exit.NOTHING_FITS)])
def test_a_pod_that_is_to_use_no_card_needs_nothing_of_them(host: Host, kind: str, setting: str, code: int) -> None:
    """Its torch could, as what a plain `pip install` brings; its node has cards for others."""
    environment = an_environment(container=a_container(cuda="12.8"))
    host.patch.setattr("aot.cli.doctor.observe_environment", lambda: environment)
    host.patch.setenv("CUDA_VISIBLE_DEVICES", setting)
    host.has(kind)
    assert host.codes() == (code,) * 3


@pytest.mark.parametrize("kind", ["no-compiler", "broken-compiler", "static-libstdcxx"])
def test_a_compiler_that_builds_do_not_take_is_a_warning(host: Host, kind: str) -> None:
    """They take the system's, whatever CXX names."""
    host.patch.setenv("CXX", "/opt/conda/bin/g++")
    host.has(kind)
    assert host.codes() == (0, 0, 0)


def test_a_builder_needs_what_every_build_begins_with(host: Host) -> None:
    def missing() -> None:
        raise InvalidConfig("torch is not installed here", hint="install it")

    host.patch.setattr("aot.cli.doctor.observe_toolchain", missing)
    assert host.codes() == (0, 0, Exit.NOTHING_FITS)
    assert "problem (keeps it from building): torch is not installed here" in host.doctor("--for", "building")[1]


def test_cards_that_cannot_be_asked_matter_where_torch_would_use_them(host: Host) -> None:
    host.has("no-driver-libraries")
    for cuda, code in (("12.8", Exit.NOTHING_FITS), (None, 0)):
        environment = an_environment(container=a_container(cuda=cuda))
        host.patch.setattr("aot.cli.doctor.observe_environment", lambda found=environment: found)
        assert host.codes() == (code,) * 3


@pytest.mark.parametrize(
    ("error", "code"),
    [(RegistryUnreachable("nobody answers"), Exit.UNAVAILABLE), (Forbidden("not for you"), Exit.REFUSED)],
)
def test_a_registry_that_cannot_be_used_has_its_own_code(host: Host, error: AotError, code: Exit) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    host.patch.setenv("AOT_URL", "http://127.0.0.1:9")
    host.patch.setattr("aot.cli.doctor.open_client", refuse)
    assert host.codes() == (code,) * 3
    # What trying again cannot mend is worse.
    host.has("noexec-cache")
    assert host.codes() == (Exit.NOTHING_FITS if code is Exit.UNAVAILABLE else code,) * 3
    host.patch.setenv("AOT_OFFLINE", "1")
    host.is_well()
    assert host.codes() == (0, 0, 0)


def test_keys_may_come_from_a_lock(host: Host) -> None:
    class Client:
        def get_health(self) -> Any:
            return type("Health", (), {"version": "1"})

    host.patch.setenv("AOT_URL", "http://127.0.0.1:9")
    host.patch.setattr("aot.cli.doctor.open_client", lambda *_, **__: Client())
    assert host.codes() == (0, 0, 0)
    assert "warning: AOT_TRUSTED_KEYS is not set" in host.doctor()[1]


def test_every_problem_that_is_looked_for_has_been_weighed() -> None:
    """A new kind of problem is a warning until somebody has thought about it here."""
    sources = ("problems", "card_problems")
    text = "".join((Path(__file__).parents[2] / f"aot/environment/{name}.py").read_text() for name in sources)
    kinds = {part.split('"')[0] for part in text.split('kind="')[1:]}
    known = {*WARNINGS, *OF_SERVING, *OF_BUILDING, "no-compiler", "no-driver-libraries"}
    assert kinds - known == set()
