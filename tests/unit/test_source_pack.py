"""Packing: equal trees give equal bytes, and what has no place in a source is refused by name."""

import os
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aot.errors import InvalidSource
from aot.schema.digest import Digest
from aot.source import LeftOut, blob_of, pack_tree, unpack_tree
from aot.source.pack import BULK_BYTES

TREE = {
    "model.py": b"import torch\n",
    "pkg/__init__.py": b"",
    "pkg/layers/attention.py": b"class Attention: ...\n",
    "run.sh": b"#!/bin/sh\n",
    "data/vocabulary.bin": b"small",
    "a" * 120 + ".py": b"a long name\n",
    "größe/模型.py": b"names of the world\n",
}


def a_tree(root: Path, files: dict[str, bytes] | None = None) -> Path:
    for path, content in (TREE if files is None else files).items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    if files is None:
        (root / "run.sh").chmod(0o755)
    return root


def content_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_tree_comes_back_as_it_was(tmp_path):
    packed = pack_tree(a_tree(tmp_path / "tree"), tmp_path / "out")
    files = unpack_tree(packed.path, tmp_path / "back")
    assert content_of(tmp_path / "back") == TREE
    assert files == packed.files == tuple(sorted(TREE, key=str.encode))
    assert (tmp_path / "back" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "back" / "model.py").stat().st_mode & 0o777 == 0o644
    assert packed.left_out == ()


def test_the_archive_is_named_after_its_bytes(tmp_path):
    packed = pack_tree(a_tree(tmp_path / "tree"), tmp_path / "out")
    assert packed.path == tmp_path / "out" / f"{packed.blob.digest.hex}.tar"
    assert packed.blob == blob_of(packed.path)
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == [packed.path.name]


def test_the_bytes_never_change(tmp_path):
    """This digest is part of build keys that exist. It may only change together with BUILD_GENERATION."""
    packed = pack_tree(a_tree(tmp_path / "tree"), tmp_path / "out")
    assert packed.blob.digest == Digest("sha256:b70f4b89be20a7fbdeda122b153ff41140195d763721693ac2aea196b50636a5")


def test_place_time_order_and_umask_do_not_matter(tmp_path):
    first = pack_tree(a_tree(tmp_path / "one"), tmp_path / "out")
    before = os.umask(0o077)
    try:
        other = a_tree(tmp_path / "two" / "deeper", dict(reversed(TREE.items())))
        (other / "run.sh").chmod(0o700)
        second = pack_tree(other, tmp_path / "out2")
        (other / "empty" / "directory").mkdir(parents=True)
        os.utime(other / "model.py", (1, 1))
        third = pack_tree(other, tmp_path / "out2")
    finally:
        os.umask(before)
    assert first.blob == second.blob == third.blob


@pytest.mark.parametrize("change", ["content", "name", "mode", "more"])
def test_what_matters_changes_the_digest(tmp_path, change):
    tree = a_tree(tmp_path / "tree")
    before = pack_tree(tree, tmp_path / "out").blob.digest
    match change:
        case "content":
            (tree / "model.py").write_bytes(b"import torcH\n")
        case "name":
            (tree / "model.py").rename(tree / "models.py")
        case "mode":
            (tree / "run.sh").chmod(0o644)
        case "more":
            (tree / "more.py").touch()
    assert pack_tree(tree, tmp_path / "out").blob.digest != before


def test_other_programs_read_the_archive(tmp_path):
    packed = pack_tree(a_tree(tmp_path / "tree"), tmp_path / "out")
    with tarfile.open(packed.path) as archive:
        assert {member.name for member in archive} == set(TREE)
        assert {(member.uid, member.mtime, member.mode) for member in archive} == {(0, 0, 0o644), (0, 0, 0o755)}
    if shutil.which("tar"):
        (tmp_path / "tar").mkdir()
        command = ["tar", "-xf", str(packed.path), "-C", str(tmp_path / "tar")]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        assert (run.stderr, content_of(tmp_path / "tar")) == ("", TREE)


def test_what_every_tree_has_is_left_out(tmp_path):
    tree = a_tree(tmp_path / "tree", {"model.py": b"x"})
    plain = pack_tree(tree, tmp_path / "out").blob
    for path in (".git/HEAD", "__pycache__/model.pyc", "pkg/__pycache__/x.pyc", ".venv/bin/python", "old.pyc"):
        a_tree(tree, {path: b"noise"})
    a_tree(tree, {".aotignore": b"# nothing\n"})
    packed = pack_tree(tree, tmp_path / "out")
    assert (packed.blob, packed.left_out) == (plain, ())


def test_the_ignore_file_may_have_another_name(tmp_path):
    tree = a_tree(tmp_path / "tree", {"model.py": b"x", "notes.txt": b"y", ".leave": b"*.txt\n"})
    assert pack_tree(tree, tmp_path / "out", ignore_file=".leave").files == ("model.py",)


def test_weights_are_left_out_with_a_notice(tmp_path):
    big = bytes(BULK_BYTES + 1)
    files = {
        "model.py": b"x",
        "model.safetensors": b"tiny",
        "sub/Model.PTH": b"w",
        "tokens.bin": b"small",
        "table.npy": bytes(BULK_BYTES),
        "weights.bin": big,
        "embedding.npy": big,
    }
    packed = pack_tree(a_tree(tmp_path / "tree", files), tmp_path / "out")
    assert packed.files == ("model.py", "table.npy", "tokens.bin")
    assert packed.left_out == (
        LeftOut("embedding.npy", len(big)),
        LeftOut("model.safetensors", 4),
        LeftOut("sub/Model.PTH", 1),
        LeftOut("weights.bin", len(big)),
    )
    assert str(packed.left_out[1]) == "model.safetensors (weights, 4 bytes)"


def test_a_link_to_weights_is_no_way_in(tmp_path):
    tree = a_tree(tmp_path / "tree", {"model.py": b"x", "w/model.safetensors": b"w"})
    (tree / "table.txt").symlink_to("w/model.safetensors")
    assert [entry.path for entry in pack_tree(tree, tmp_path / "out").left_out] == [
        "table.txt",
        "w/model.safetensors",
    ]


def test_links_inside_the_tree_are_packed_as_what_they_point_to(tmp_path):
    plain = a_tree(tmp_path / "plain", {"a/x.py": b"x", "b/x.py": b"x", "y.py": b"x"})
    linked = a_tree(tmp_path / "linked", {"a/x.py": b"x"})
    (linked / "b").symlink_to("a")
    (linked / "y.py").symlink_to(linked / "a" / "x.py")
    assert pack_tree(plain, tmp_path / "out").blob == pack_tree(linked, tmp_path / "out").blob


def make_outside(tree: Path) -> str:
    (tree.parent / "secret").write_bytes(b"s")
    (tree / "way").symlink_to("../secret")
    return "way"


def make_absolute(tree: Path) -> str:
    (tree / "way").symlink_to("/etc/hostname")
    return "way"


def make_through(tree: Path) -> str:
    (tree / "pkg").mkdir()
    (tree / "pkg" / "up").symlink_to("../..")
    return "pkg/up"


def make_dangling(tree: Path) -> str:
    (tree / "way").symlink_to("nothing")
    return "way"


def make_circle(tree: Path) -> str:
    (tree / "one").symlink_to("two")
    (tree / "two").symlink_to("one")
    return "one"


def make_parent(tree: Path) -> str:
    (tree / "pkg").mkdir()
    (tree / "pkg" / "again").symlink_to("..")
    return "pkg/again"


def make_pipe(tree: Path) -> str:
    os.mkfifo(tree / "pipe")
    return "pipe"


def make_socket(tree: Path) -> str:
    here = os.getcwd()
    os.chdir(tree)  # the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
    finally:
        os.chdir(here)
    return "socket"


def make_large(tree: Path) -> str:
    with (tree / "large.py").open("wb") as file:
        file.truncate((1 << 20) + 1)
    return "large.py"


def make_name(tree: Path) -> str:
    (tree / "new\nline.py").touch()
    return "new\nline.py"


def make_bytes(tree: Path) -> str:
    os.close(os.open(os.fsencode(tree) + b"/\xff.py", os.O_CREAT))
    return "\\udcff.py"


def make_backslash(tree: Path) -> str:
    (tree / "a\\b.py").touch()
    return "a\\b.py"


def make_deep(tree: Path) -> str:
    deep = tree.joinpath(*["d"] * 70)
    deep.mkdir(parents=True)
    (deep / "x.py").touch()
    return "/".join(["d"] * 65)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_outside, "outside the tree"),
        (make_absolute, "outside the tree"),
        (make_through, "outside the tree"),
        (make_dangling, "not there"),
        (make_circle, "not there"),
        (make_parent, "directory that holds it"),
        (make_pipe, "neither a file nor a directory"),
        (make_socket, "neither a file nor a directory"),
        (make_large, "the limit is 1048576"),
        (make_name, "control character"),
        (make_bytes, "UTF-8"),
        (make_backslash, "backslash"),
        (make_deep, "directories deep"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_cannot_be_packed_is_named(tmp_path, make, reason):
    tree = a_tree(tmp_path / "tree", {"model.py": b"x"})
    path = make(tree)
    with pytest.raises(InvalidSource, match=reason) as caught:
        pack_tree(tree, tmp_path / "out", limit_file_bytes=1 << 20)
    assert caught.value.details == {"path": path}
    assert not list((tmp_path / "out").glob("*"))


def test_what_is_ignored_is_not_looked_at(tmp_path):
    tree = a_tree(tmp_path / "tree", {"model.py": b"x", ".aotignore": b"way\npipe\n"})
    make_outside(tree)
    make_pipe(tree)
    assert pack_tree(tree, tmp_path / "out").files == ("model.py",)


def test_the_limits_of_the_whole_tree(tmp_path):
    tree = a_tree(tmp_path / "tree", {f"{index}.py": bytes(100) for index in range(10)})
    assert len(pack_tree(tree, tmp_path / "out", limit_total_bytes=1000, limit_files=10).files) == 10
    with pytest.raises(InvalidSource, match="tree has 1000 bytes, the limit is 999"):
        pack_tree(tree, tmp_path / "out", limit_total_bytes=999)
    with pytest.raises(InvalidSource, match="more than 9 files"):
        pack_tree(tree, tmp_path / "out", limit_files=9)


def test_links_that_multiply_directories_are_counted(tmp_path):
    """Each directory links twice to the next: 2**15 paths and not one file.

    No more: Linux follows 40 links in a path, and counts those twice of a look-up that it had to begin again.
    """
    tree = a_tree(tmp_path / "tree", {"model.py": b"x"})
    for index in range(15):
        (tree / f"z{index}").mkdir()
        for link in ("a", "b"):
            (tree / f"z{index}" / link).symlink_to(f"../z{index + 1}")
    (tree / "z15").mkdir()
    with pytest.raises(InvalidSource, match="more than 500 files and directories"):
        pack_tree(tree, tmp_path / "out", limit_files=500)


@pytest.mark.parametrize("make", [lambda tree: tree.mkdir(), lambda tree: tree.touch(), lambda tree: None])
def test_no_tree_and_an_empty_tree_are_refused(tmp_path, make):
    make(tmp_path / "tree")
    with pytest.raises(InvalidSource):
        pack_tree(tmp_path / "tree", tmp_path / "out")


@pytest.mark.parametrize("new_size", [3, 30])
def test_a_file_that_changes_while_it_is_packed_is_refused(tmp_path, monkeypatch, new_size):
    tree = a_tree(tmp_path / "tree", {"a.py": bytes(10), "b.py": bytes(10)})
    from aot.source import pack

    real = pack._copy

    def copy(entry, writer):
        (tree / "b.py").write_bytes(bytes(new_size))
        return real(entry, writer)

    monkeypatch.setattr(pack, "_copy", copy)
    with pytest.raises(InvalidSource, match=r"b\.py cannot be packed: it changed"):
        pack_tree(tree, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


NAMES = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="/\\\x7f"), min_size=1, max_size=60
).filter(lambda name: name not in (".", "..") and len(name.encode()) <= 200)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.dictionaries(PATHS, st.tuples(st.binary(max_size=1500), st.booleans()), min_size=1, max_size=8))
def test_any_tree_comes_back(tmp_path_factory, files):
    from aot.bundle.paths import why_unsafe_together
    from aot.source.ignore import Ignore

    files = {
        path: value
        for path, value in files.items()
        if not any(Ignore().leaves_out(part, directory=False) for part in path.split("/"))
    }
    if not files or why_unsafe_together(files) is not None:
        return
    root = tmp_path_factory.mktemp("any")
    tree = a_tree(root / "tree", {path: content for path, (content, _) in files.items()})
    for path, (_, executable) in files.items():
        (tree / path).chmod(0o755 if executable else 0o644)
    packed = pack_tree(tree, root / "out")
    kept = {path: files[path][0] for path in packed.files}
    assert {entry.path for entry in packed.left_out} == files.keys() - kept.keys()
    unpack_tree(packed.path, root / "back")
    assert content_of(root / "back") == kept
    assert pack_tree(root / "back", root / "out").blob == packed.blob
