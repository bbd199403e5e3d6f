"""What `aot up` gives its worker, and when it trusts sources."""

import sys
from pathlib import Path

import pytest

from aot.cli import admin, run, up
from aot.cli.part_environ import is_loopback, parts_path, worker_environ
from aot.cli.up import Place

URL, TOKEN_FILE = "http://127.0.0.1:8750", Path("/somewhere/worker-token")
NEEDED = {
    "PATH": "/usr/bin",
    "HOME": "/home/user",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TMPDIR": "/var/tmp",
    "XDG_CACHE_HOME": "/cache",
    "PYTHONPATH": "/checkout",
    "OMP_NUM_THREADS": "2",
    "MKL_NUM_THREADS": "2",
    "CUDA_VISIBLE_DEVICES": "1",
    "HIP_VISIBLE_DEVICES": "1",
    "ROCR_VISIBLE_DEVICES": "1",
    "LD_LIBRARY_PATH": "/opt/lib",
    "TORCHINDUCTOR_CUTLASS_DIR": "/opt/cutlass",
    "AOT_DATA_DIR": "/data",
    "AOT_BROKER_URL": "redis://broker",
    "AOT_PROFILE": "cpu-v3",
    "AOT_WORKER_NAME": "worker-1",
    "AOT_TRUST_SOURCES": "research",
}
SECRETS = (
    "AOT_DATABASE_URL",
    "AOT_BLOB_URL",
    "AOT_SIGNING_KEYS",
    "AOT_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "PGPASSWORD",
    "GITHUB_TOKEN",
)


def environ_of(environ: dict[str, str], *, at_home: bool = True) -> dict[str, str]:
    return worker_environ(environ, url=URL, token_file=TOKEN_FILE, at_home=at_home)


def test_a_worker_gets_what_it_needs_and_none_of_the_registrys_secrets() -> None:
    found = environ_of({**NEEDED, **dict.fromkeys(SECRETS, "secret"), "AOT_URL": "other", "AOT_TOKEN_FILE": "other"})
    assert found == {**NEEDED, "AOT_URL": URL, "AOT_TOKEN_FILE": str(TOKEN_FILE)}


def test_the_default_namespace_is_trusted_only_where_nobody_else_can_submit() -> None:
    assert environ_of({})["AOT_TRUST_SOURCES"] == "default"
    assert "AOT_TRUST_SOURCES" not in environ_of({}, at_home=False)


@pytest.mark.parametrize("at_home", [True, False])
@pytest.mark.parametrize("named", ["research", ""])
def test_what_the_user_says_about_trust_holds(at_home: bool, named: str) -> None:
    assert environ_of({"AOT_TRUST_SOURCES": named}, at_home=at_home)["AOT_TRUST_SOURCES"] == named


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("10.0.0.7", False),
        ("2001:db8::1", False),
        ("no such host", False),
    ],
)
def test_only_loopback_is_this_machine_alone(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone


@pytest.mark.parametrize(("arguments", "address"), [([], ("::1", 7001)), (["--port", "7002"], ("::1", 7002))])
def test_the_address_is_that_of_the_registrys_variables_unless_it_is_given(
    arguments: list[str], address: tuple[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[Place] = []
    monkeypatch.setattr("aot.cli.up.serve", lambda place, *_, **__: served.append(place))
    monkeypatch.setenv("AOT_HOST", "::1")
    monkeypatch.setenv("AOT_PORT", "7001")
    assert run(["up", "--data", str(tmp_path), *arguments]) == 0
    assert [(place.host, place.port) for place in served] == [address]


def test_a_file_in_place_of_the_data_directory_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run(["up", "--data", str(tmp_path / "file")]) == 2
    assert f"wanted a directory, found the file {tmp_path / 'file'}" in capsys.readouterr().err


def test_the_parts_find_what_the_command_found_wherever_they_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative place would be looked for in the checkout; a launcher may have told Python alone."""
    launched = tmp_path / "launched"
    (launched / "toy-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr("sys.path", ["", str(launched), *sys.path])
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    found = parts_path(Path("/checkout"), {"PYTHONPATH": f"deps::/absolute:{launched}"})
    assert found.split(":") == ["/checkout", str(work / "deps"), "/absolute", str(launched)]
    assert parts_path(Path("/checkout"), {}).split(":") == ["/checkout", str(launched)]


def test_the_service_and_its_housekeeping_are_given_that_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = str(tmp_path / "deps")
    shared = up._shared(Place(tmp_path, "127.0.0.1", 1), Path("/checkout"), {"PYTHONPATH": "deps"})
    assert shared["PYTHONPATH"].split(":") == ["/checkout", wanted]
    became: list[dict[str, str]] = []
    monkeypatch.setattr("os.execve", lambda program, words, environ: became.append(environ))
    admin.become(("keys",), {"PYTHONPATH": "deps"})
    assert became[0]["PYTHONPATH"].split(":")[1:] == [wanted]
