"""Bytecode: equal sources give equal bytes, the tree is what was verified, and a changed file never runs old code."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aot.bytecode import (
    Archive,
    Installed,
    Tree,
    compile_distribution,
    count_own,
    ensure_tree,
    find_installed,
    list_installed,
    read_archive,
    spell_interpreter,
)
from aot.bytecode.interpreter import cached_name
from aot.errors import InvalidConfig, InvalidInput, InvalidSource
from aot.schema.digest import Digest
from aot.source.archive import END, header_of, padding

HERE = spell_interpreter()
FIRST, SECOND = "VALUE = 'old'\n", "VALUE = 'new'\n"


def an_installed(root: Path, **files: str) -> Installed:
    """A distribution in a directory of its own."""
    for name, text in files.items():
        (root / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (root / f"{name}.py").write_text(text)
    record = Digest.of(repr(sorted(files.items())).encode())
    return Installed("toy", "1.0", root, record, tuple(sorted(f"{name}.py" for name in files)))


def a_tree(installed: Installed, place: Path) -> Tree:
    """The tree of everything that is installed, below `place`."""
    archive = place / "toy.tar"
    compile_distribution(installed, installed.files, into=archive)
    return ensure_tree(place / "trees", HERE, [an_archive(installed.root, archive)], places=(installed.root,))


def an_archive(root: Path, archive: Path) -> Archive:
    return Archive(root, Digest.of(archive.read_bytes()), read_archive(archive, HERE))


def run(code: str, *, path: Path, **variables: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-S", "-v", "-c", code],
        env={"PYTHONPATH": str(path), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout + ended.stderr


@pytest.fixture
def toy(tmp_path: Path) -> Installed:
    return an_installed(tmp_path / "site", toy=FIRST, other="def f(x):\n    return x + 1\n")


def test_equal_sources_give_equal_bytes_wherever_they_lie(tmp_path: Path) -> None:
    text = "NAMES = {'a', 'b', 'c', 'd'}\ndef f(x):\n    return x in {'toy', 'value', 'self', 'name'}\n"
    made = []
    for place in ("one", "another/deeper"):
        installed = an_installed(tmp_path / place, toy=text, other=FIRST)
        archive = tmp_path / f"{place.partition('/')[0]}.tar"
        compile_distribution(installed, installed.files, into=archive)
        made.append(archive.read_bytes())
    assert made[0] == made[1]


def test_a_file_that_does_not_compile_is_left_out_and_named(tmp_path: Path) -> None:
    installed = an_installed(tmp_path / "site", toy=FIRST, template="{{ cookiecutter }} =\n")
    archive = tmp_path / "toy.tar"
    assert compile_distribution(installed, installed.files, into=archive) == ("template.py",)
    assert [one.path for one in read_archive(archive, HERE)] == ["toy.py"]


def test_only_modules_of_the_distribution_are_compiled(tmp_path: Path, toy: Installed) -> None:
    with pytest.raises(InvalidInput, match=r"has no module \.\./secret\.py"):
        compile_distribution(toy, ("../secret.py",), into=tmp_path / "toy.tar")


def test_an_interpreter_reads_the_tree_and_compiles_nothing(tmp_path: Path, toy: Installed) -> None:
    tree = a_tree(toy, tmp_path)
    said = run("import toy; print(toy.VALUE, toy.__cached__)", path=toy.root, **tree.environment)
    assert f"old {tree.prefix}" in said
    assert f"# code object from '{tree.prefix}" in said
    assert f"# code object from {toy.root}" not in said  # what an interpreter says of a source that it has compiled
    assert (tree.restored, tree.linked) == (2, 0)


def test_a_traceback_names_the_file_on_this_host(tmp_path: Path) -> None:
    installed = an_installed(tmp_path / "site", toy="def fail():\n    raise ValueError\n")
    tree = a_tree(installed, tmp_path)
    said = run("import toy; print(toy.fail.__code__.co_filename)", path=installed.root, **tree.environment)
    assert f"{installed.root}/toy.py" in said


@pytest.mark.parametrize("kept", ["times", "nothing"])
def test_a_changed_source_never_runs_old_code(tmp_path: Path, toy: Installed, kept: str) -> None:
    """Also where length and time stay the same, as in images of reproducible bytes."""
    tree = a_tree(toy, tmp_path)
    source = toy.root / "toy.py"
    seen = source.stat()
    source.write_text(SECOND)
    if kept == "times":
        os.utime(source, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        assert source.stat().st_size == seen.st_size
    assert "new" in run("import toy; print(toy.VALUE)", path=toy.root, **tree.environment)


def test_a_process_on_the_tree_leaves_nothing_in_it(tmp_path: Path, toy: Installed) -> None:
    tree = a_tree(toy, tmp_path)
    (toy.root / "own.py").write_text("import toy\n")
    before = sorted(tree.prefix.rglob("*"))
    run("import own", path=toy.root, **tree.environment)
    assert sorted(tree.prefix.rglob("*")) == before


def test_bytecode_beside_its_source_is_still_found(tmp_path: Path, toy: Installed) -> None:
    (toy.root / "own.py").write_text("VALUE = 1\n")
    made = toy.root / "__pycache__" / Path(cached_name("own.py", HERE)).name
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(toy.root / "own.py")], check=True)
    assert made.exists()
    tree = a_tree(toy, tmp_path)
    link = tree.prefix / cached_name(str(toy.root / "own.py"), HERE)
    assert (link.is_symlink(), link.resolve()) == (True, made)
    assert tree.linked == 1
    assert f"# code object from {toy.root}" not in run("import own", path=toy.root, **tree.environment)
    (toy.root / "own.py").write_text("VALUE = 22\n")
    assert "22" in run("import own; print(own.VALUE)", path=toy.root, **tree.environment)


@pytest.mark.parametrize("damage", ["changed", "added", "removed", "linked"])
def test_a_tree_that_was_touched_is_made_anew(tmp_path: Path, toy: Installed, damage: str) -> None:
    tree = a_tree(toy, tmp_path)
    victim = tree.prefix / cached_name(str(toy.root / "toy.py"), HERE)
    whole = victim.read_bytes()
    match damage:
        case "changed":
            victim.write_bytes(whole[:-1] + b"X")
        case "added":
            victim.with_name("planted.cpython-311.pyc").write_bytes(whole)
        case "removed":
            victim.unlink()
        case "linked":
            victim.unlink()
            victim.symlink_to(tmp_path / "toy.tar")
    again = ensure_tree(tmp_path / "trees", HERE, [an_archive(toy.root, tmp_path / "toy.tar")], places=(toy.root,))
    assert again.prefix == tree.prefix
    assert victim.read_bytes() == whole and not victim.is_symlink()
    assert sorted(path.name for path in victim.parent.iterdir() if not path.is_symlink()) == sorted(
        Path(cached_name(name, HERE)).name for name in toy.files
    )
    assert [path for path in (tmp_path / "trees").iterdir() if path != tree.prefix] == []


def test_a_whole_tree_is_used_as_it_is(tmp_path: Path, toy: Installed) -> None:
    tree = a_tree(toy, tmp_path)
    before = tree.prefix.stat().st_ino
    assert (
        ensure_tree(tmp_path / "trees", HERE, [an_archive(toy.root, tmp_path / "toy.tar")], places=(toy.root,)) == tree
    )
    assert tree.prefix.stat().st_ino == before


def test_modules_that_have_bytecode_already_are_counted(tmp_path: Path, toy: Installed) -> None:
    a_tree(toy, tmp_path)
    archives = [an_archive(toy.root, tmp_path / "toy.tar")]
    assert count_own(archives, HERE) == 0
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(toy.root / "toy.py")], check=True)
    assert count_own(archives, HERE) == 1


def test_only_the_trees_used_last_stay(tmp_path: Path) -> None:
    trees = []
    for number in range(6):
        installed = an_installed(tmp_path / f"site{number}", toy=f"VALUE = {number}\n")
        place = tmp_path / str(number)
        compile_distribution(installed, installed.files, into=place / "toy.tar")
        tree = ensure_tree(tmp_path / "trees", HERE, [an_archive(installed.root, place / "toy.tar")], places=())
        os.utime(tree.prefix, (number, number))
        trees.append(tree.prefix)
    assert sorted((tmp_path / "trees").iterdir()) == sorted(trees[2:])


def write_archive(place: Path, **members: bytes) -> Path:
    content = b"".join(
        header_of(path, size_bytes=len(body), executable=False) + body + padding(len(body))
        for path, body in members.items()
    )
    place.write_bytes(content + END)
    return place


def test_bytecode_that_is_not_compared_with_its_source_is_refused(tmp_path: Path, toy: Installed) -> None:
    archive = tmp_path / "toy.tar"
    compile_distribution(toy, toy.files, into=archive)
    content = read_archive(archive, HERE)[0].content
    for flags in (0b00, 0b01):
        bad = write_archive(
            tmp_path / f"{flags}.tar", **{"toy.py": content[:4] + bytes((flags, 0, 0, 0)) + content[8:]}
        )
        with pytest.raises(InvalidSource, match=r"is no bytecode of .* compared with its source"):
            read_archive(bad, HERE)
    with pytest.raises(InvalidSource, match="is no bytecode of"):
        read_archive(archive, "cpython-312 cb0d0d0a")


@pytest.mark.parametrize("path", ["../toy.py", "/etc/toy.py", "a/../../toy.py", "a/./toy.py", "toy.so"])
def test_hostile_paths_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidSource, match="cannot be used"):
        read_archive(write_archive(tmp_path / "bad.tar", **{path: b"x" * 64}), HERE)


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path, toy: Installed) -> None:
    archive = tmp_path / "toy.tar"
    compile_distribution(toy, toy.files, into=archive)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match="could not write bytecode"):
        ensure_tree(tmp_path / "file", HERE, [an_archive(toy.root, archive)], places=())


# What is installed


def a_dist_info(site: Path, record: str, *, name: str = "Toy_Box", version: str = "1.2") -> None:
    place = site / f"{name}-{version}.dist-info"
    place.mkdir(parents=True, exist_ok=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (place / "RECORD").write_text(record)


ROWS = "toy/__init__.py,sha256=aaa,3\ntoy/b.py,sha256=bbb,4\n"


def test_a_record_is_the_same_whatever_an_installer_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    a_dist_info(tmp_path / "site", ROWS)
    plain = find_installed("toy-box")
    assert plain is not None
    assert (plain.name, plain.version, plain.root, plain.files) == (
        "toy-box",
        "1.2",
        tmp_path / "site",
        ("toy/__init__.py", "toy/b.py"),
    )
    scripts = "../../../bin/toy,sha256=ccc,9\n../../../bin/toy.py,sha256=ccd,9\ntoy/__pycache__/b.cpython-311.pyc,,\n"
    a_dist_info(tmp_path / "site", scripts + "toy/b.py,sha256=bbb,4\ntoy/__init__.py,sha256=aaa,3\nINSTALLER,,\n")
    assert find_installed("toy-box") == plain
    a_dist_info(tmp_path / "site", ROWS.replace("bbb", "bbc"))
    changed = find_installed("toy-box")
    assert changed is not None and changed.record != plain.record


def test_what_has_no_hashes_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    a_dist_info(tmp_path / "site", "__editable__.toy.pth,sha256=aaa,3\n")
    assert find_installed("toy-box") is None
    assert find_installed("absent") is None


def test_the_standard_library_is_a_distribution_of_its_own() -> None:
    library = find_installed("python")
    assert library is not None
    assert "json/decoder.py" in library.files
    assert not any("site-packages" in path or path.startswith("test/") for path in library.files)


def test_every_distribution_that_has_modules_is_listed() -> None:
    found = {one.name: one.version for one in list_installed()}
    assert found["msgspec"] == importlib.metadata.version("msgspec")
    assert "python" in found
