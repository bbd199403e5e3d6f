"""Unpacking archives that other people wrote: nothing but plain files below the directory, or nothing at all."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aot.errors import AotError, InvalidInput, InvalidSource
from aot.source import TreeLimits, pack_tree, unpack_tree
from aot.source.archive import END, header_of, padding


def member(path: str, content: bytes = b"x", *, executable: bool = False) -> bytes:
    return header_of(path, size_bytes=len(content), executable=executable) + content + padding(len(content))


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "source.tar"
    path.write_bytes(content)
    return path


def refused(tmp_path: Path, content: bytes, *, limits: TreeLimits | None = None) -> InvalidSource:
    before = {path for path in tmp_path.rglob("*") if path.name != "source.tar"}
    with pytest.raises(InvalidSource) as caught:
        unpack_tree(written(tmp_path, content), tmp_path / "tree", limits=limits or TreeLimits())
    after = {path for path in tmp_path.rglob("*") if path.name != "source.tar"}
    assert after == before, "something was left behind"
    return caught.value


@pytest.mark.parametrize(
    "path",
    [
        "../evil",
        "a/../../evil",
        "/etc/evil",
        "a//b",
        "./a",
        "a/.",
        "..",
        ".",
        "",
        "a\\..\\b",
        "a\nb",
        "a\x7fb",
        "d/" * 65 + "x",
        "x" * 256,
        "é" * 600,
    ],
)
def test_a_path_that_is_not_plain_is_refused(tmp_path, path):
    error = refused(tmp_path, member("good.py") + member(path) + END)
    assert error.hint
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a/b/c", "a/b"), ("a/b", "a/b/c/d")])
def test_paths_that_cannot_be_there_together_are_refused(tmp_path, paths):
    refused(tmp_path, b"".join(member(path) for path in paths) + END)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, b"S", b"g", b"L"]
)
def test_every_other_kind_of_member_is_refused(tmp_path, kind):
    info = tarfile.TarInfo("way")
    info.type, info.linkname, info.size = kind, "/etc/passwd", 0
    error = refused(tmp_path, member("good.py") + info.tobuf(tarfile.USTAR_FORMAT) + END)
    assert "only plain files" in error.message


@pytest.mark.parametrize("mode", [0o4755, 0o777, 0o600, 0])
def test_other_modes_are_refused(tmp_path, mode):
    info = tarfile.TarInfo("a.py")
    info.mode = mode
    refused(tmp_path, info.tobuf(tarfile.USTAR_FORMAT) + END)


@pytest.mark.parametrize("form", ["gnu", "pax", "gz"])
def test_archives_of_other_programs_are_refused_or_unpacked_alike(tmp_path, form):
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer,
        mode="w:gz" if form == "gz" else "w",
        format=tarfile.GNU_FORMAT if form == "gnu" else tarfile.PAX_FORMAT,
    ) as archive:
        info = tarfile.TarInfo("a" * 150)
        info.size, info.mtime = 1, 1.5
        archive.addfile(info, io.BytesIO(b"x"))
    refused(tmp_path, buffer.getvalue())


def test_limits_are_checked_before_a_byte_is_written(tmp_path):
    content = member("a.py", bytes(600)) + member("b.py", bytes(600)) + END
    assert "limit is 599" in refused(tmp_path, content, limits=TreeLimits(file_bytes=599)).message
    assert "1199 bytes together" in refused(tmp_path, content, limits=TreeLimits(total_bytes=1199)).message
    assert "more than 1 files" in refused(tmp_path, content, limits=TreeLimits(files=1)).message
    assert unpack_tree(tmp_path / "source.tar", tmp_path / "tree") == ("a.py", "b.py")


@pytest.mark.parametrize("size", ["77777777777", "00000003000"])
def test_a_size_that_is_not_there_is_refused(tmp_path, size):
    """A bomb in a header: eight gigabytes that the archive does not have."""
    header = bytearray(header_of("bomb", size_bytes=0, executable=False))
    header[124:135] = size.encode()
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    assert "cut off" in refused(tmp_path, bytes(header) + END).message


def test_a_negative_or_binary_size_is_refused(tmp_path):
    for field in (b"-0000000001\0", b"\x80" + b"\xff" * 11, b" " * 12, b"\0" * 12):
        header = bytearray(header_of("bomb", size_bytes=0, executable=False))
        header[124:136] = field
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
        assert "not octal" in refused(tmp_path, bytes(header) + END).message


@pytest.mark.parametrize(
    "record",
    [
        b"13 path=abc\n",
        b"11 path=abc",
        b"17 linkpath=abc\n\n",
        b"",
        b"99999999999 path=a\n",
        b"18 path=\xff\xfeabcdef\n",
    ],
)
def test_a_pax_header_with_anything_else_than_a_path_is_refused(tmp_path, record):
    info = tarfile.TarInfo("PaxHeader")
    info.type, info.size = b"x", len(record)
    head = info.tobuf(tarfile.USTAR_FORMAT) + record + padding(len(record))
    refused(tmp_path, head + member("a.py") + END)


def test_a_pax_header_of_many_bytes_is_not_read(tmp_path):
    info = tarfile.TarInfo("PaxHeader")
    info.type, info.size = b"x", 1 << 20
    refused(tmp_path, info.tobuf(tarfile.USTAR_FORMAT) + bytes(1 << 20) + member("a.py") + END)


def test_two_pax_headers_or_one_at_the_end_are_refused(tmp_path):
    long_path = "d" * 120
    pax = header_of(long_path, size_bytes=0, executable=False)[:1024]
    refused(tmp_path, pax + pax + member("a.py") + END)
    refused(tmp_path, pax + END)


@pytest.mark.parametrize("tail", [b"", bytes(512), END + b"x", END + bytes(512), END + member("hidden.py") + END])
def test_anything_but_one_end_is_refused(tmp_path, tail):
    refused(tmp_path, member("a.py") + tail)


def test_an_existing_directory_is_not_touched(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "mine").touch()
    with pytest.raises(InvalidInput, match="not empty"):
        unpack_tree(written(tmp_path, member("a.py") + END), tmp_path / "tree")
    assert [path.name for path in (tmp_path / "tree").iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    assert unpack_tree(tmp_path / "source.tar", tmp_path / "empty") == ("a.py",)


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    from aot.source import unpack

    def write(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(unpack, "_write", write)
    with pytest.raises(OSError):
        unpack_tree(written(tmp_path, member("a.py") + END), tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["source.tar"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> bytes:
    root = tmp_path_factory.mktemp("packed")
    for name in ("a.py", "b/c.py", "d" * 120, "größe.py"):
        (root / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "tree" / name).write_bytes(name.encode() * 7)
    return pack_tree(root / "tree", root / "out").path.read_bytes()


fuzz = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def unpack_in(root: Path, content: bytes) -> None:
    """Either a tree below `root/tree`, or a refusal and nothing."""
    archive = root / "source.tar"
    archive.write_bytes(content)
    try:
        files = unpack_tree(archive, root / "tree")
    except AotError:
        assert sorted(path.name for path in root.iterdir()) == ["source.tar"]
        return
    for path in (root / "tree").rglob("*"):
        assert path.is_dir() or (path.is_file() and not path.is_symlink())
    assert {str(path.relative_to(root / "tree")) for path in (root / "tree").rglob("*") if path.is_file()} == set(files)


@fuzz
@given(
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.none() | st.integers(0, 10_000),
)
def test_damaged_archives(tmp_path_factory, packed, changes, cut):
    damaged = bytearray(packed)
    for offset, value in changes:
        damaged[offset % len(damaged)] = value
    unpack_in(tmp_path_factory.mktemp("damaged"), bytes(damaged[:cut]))


@fuzz
@given(content=st.binary(max_size=2048))
def test_noise(tmp_path_factory, content):
    unpack_in(tmp_path_factory.mktemp("noise"), content)


def test_a_flipped_bit_in_any_header_is_noticed(tmp_path, packed):
    for offset in range(512):
        damaged = bytearray(packed)
        damaged[offset] ^= 1
        with pytest.raises(InvalidSource):
            unpack_tree(written(tmp_path, bytes(damaged)), tmp_path / "tree")


def test_the_mode_does_not_depend_on_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        unpack_tree(written(tmp_path, member("a.py") + member("b.sh", executable=True) + END), tmp_path / "tree")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tree").iterdir()}
    assert modes == {"a.py": 0o644, "b.sh": 0o755}
