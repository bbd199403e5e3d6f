"""The commit of a source: git's word, else CI's, else nothing."""

import subprocess
from pathlib import Path

import pytest

from aot.keys import factors_of, key_of
from aot.pipeline.build import provenance_of
from aot.schema.report import Provenance
from aot.schema.spec import Commit, CommitTeller
from aot.source import find_commit
from tests.builders import a_profile, a_spec, altered

SHA = "0123456789abcdef0123456789abcdef01234567"


def git(place: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    command = ("git", "-C", str(place), *identity, *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "src").mkdir(parents=True)
    (root / "src" / "model.py").write_text("def make(): ...\n")
    (root / "README").write_text("A model.\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "First")
    return root


def test_a_clean_tree_is_its_commit(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    assert find_commit(repository / "src") == Commit(revision=head)
    assert find_commit(repository / "src" / "model.py") == Commit(revision=head)


@pytest.mark.parametrize("name", ["model.py", "new.py"], ids=["changed", "not known to git"])
def test_a_change_below_the_source_makes_it_dirty(repository: Path, name: str) -> None:
    (repository / "src" / name).write_text("# changed\n")
    assert find_commit(repository / "src") == Commit(revision=git(repository, "rev-parse", "HEAD"), dirty=True)


def test_a_change_beside_the_source_does_not(repository: Path) -> None:
    (repository / "README").write_text("Changed.\n")
    found = find_commit(repository / "src")
    assert found is not None and not found.dirty


def test_git_goes_before_what_ci_says(repository: Path) -> None:
    assert find_commit(repository / "src", ci=SHA) == Commit(revision=git(repository, "rev-parse", "HEAD"))


def test_without_a_repository_ci_is_asked(tmp_path: Path) -> None:
    assert find_commit(tmp_path) is None
    assert find_commit(tmp_path, ci=SHA) == Commit(revision=SHA, told_by=CommitTeller.CI)
    assert find_commit(tmp_path, ci="refs/heads/main") is None


def test_without_git_nothing_is_known(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert find_commit(repository / "src") is None


def test_a_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert find_commit(tmp_path) is None


def test_the_commit_is_no_factor_of_the_key() -> None:
    plain, committed = a_spec(), altered(a_spec(), commit=Commit(revision=SHA, dirty=True))
    assert key_of(factors_of(committed, a_profile())) == key_of(factors_of(plain, a_profile()))


def test_provenance_names_the_commit_of_the_spec() -> None:
    made = provenance_of(altered(a_spec(), commit=Commit(revision=SHA, dirty=True)), builder="worker-1")
    assert (made.builder, made.commit, made.dirty, made.commit_told_by) == ("worker-1", SHA, True, "git")
    assert provenance_of(a_spec(), builder="worker-1").commit == Provenance().commit == ""
