"""A shell with a registry of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.cli.doctor import Report
from aot.schema.codec import encode
from aot.schema.digest import Digest
from tests.builders import a_spec, an_environment
from tests.commands import Shell, a_shell
from tests.fake_backend import a_packed_source
from tests.integration.cli.shells import PROFILE


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    place = tmp_path_factory.mktemp("shell")
    with a_shell(place) as shell:
        shell.service.register(PROFILE)
        yield shell


@pytest.fixture(scope="module")
def bundle(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Digest:
    """default/mini:latest and :v1."""
    spec = a_spec(profile=PROFILE.name, source=a_packed_source(tmp_path_factory.mktemp("source")))
    return shell.service.published(spec, tags=("latest", "v1")).bundle


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host file on which the bundle fits."""
    path = tmp_path / "host.json"
    path.write_bytes(encode(Report(environment=an_environment(), problems=(), exit_code=0)))
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "src"
    tree.mkdir()
    (tree / "model.py").write_text(f"def make(): ...  # {tmp_path.name}\n")
    return tree
