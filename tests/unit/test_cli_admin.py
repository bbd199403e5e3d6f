"""`aot admin`: the same command as `python -m registry` where its parts are, and where to run it elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aot.cli.admin import find_server
from aot.cli.app import create_app
from aot.errors import InvalidConfig

ROOT = Path(__file__).parents[2]


def admin(cwd: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "AOT_DATA_DIR": str(cwd / "data"), "PYTHONPATH": str(ROOT), **environ}
    command = [sys.executable, "-P", "-m", "aot.cli", "admin", *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


def test_what_follows_is_the_registrys_with_its_exit_code(tmp_path: Path) -> None:
    # Another's package of that name, where the command is run, is not taken for it.
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry/__main__.py").write_text("raise SystemExit('another registry')\n")
    (tmp_path / "registry/__init__.py").touch()
    ran = admin(tmp_path, "keys")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("ed25519:") and (tmp_path / "data/signing.key").exists()
    ran = admin(tmp_path, "check", "--json", AOT_BROKER_URL="kafka://host")
    assert ran.returncode == 1 and "AOT_BROKER_URL" in ran.stdout
    ran = admin(tmp_path, "fsck", "--help")
    assert (ran.returncode, "--force" in ran.stdout) == (0, True)
    assert admin(tmp_path, "fsck", "--no-such").returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("token", "--", "-x"),
        ("--", "fsck"),
        ("--", "--", "x", "--"),
        ("-xh", "--a=b", "--help", "-"),
        ("--no-such",),
    ],
)
def test_words_are_handed_on_as_they_are(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    handed = []
    monkeypatch.setattr("aot.cli.admin.become", lambda given, environ: handed.append(tuple(given)))
    assert CliRunner().invoke(create_app(), ["admin", *words]).exit_code == 0
    assert handed == [words]


def test_beside_the_wheel_alone_it_says_where_to_run_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages/aot/__init__.py"
    monkeypatch.setattr("aot.__file__", str(installed))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidConfig) as refusal:
        find_server()
    assert "python -m registry" in refusal.value.hint


def test_in_an_image_it_is_found_on_pythons_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("aot.__file__", str(tmp_path / "site-packages/aot/__init__.py"))
    for place, files in (("other", ("__main__.py",)), ("opt", ("__main__.py", "services/check.py"))):
        (tmp_path / place / "registry/services").mkdir(parents=True)
        for file in ("__init__.py", *files):
            (tmp_path / place / "registry" / file).touch()
    monkeypatch.delitem(sys.modules, "registry", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "opt")])
    assert find_server() == tmp_path / "opt"
    monkeypatch.setattr(sys, "path", [str(tmp_path / "other")])
    with pytest.raises(InvalidConfig):
        find_server()
