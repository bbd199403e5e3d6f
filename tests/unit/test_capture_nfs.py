"""A node directory on a network file system: renames that fail or only seem to, stale handles, and its litter.

Each restore ends right, or says why and the command starts all the same.
"""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot.cache import LocalCache
from aot.capture.collect import Collected, collect, list_paths
from aot.capture.prepare import Prepared, prepare
from aot.capture.restore import MOST_DIRECTORIES, in_use, place_for, restore
from aot.capture.run import run_on
from aot.cli.capture import run_command_on
from aot.config import Config
from aot.errors import InvalidConfig
from aot.schema.digest import Digest
from aot.schema.names import Reference
from aot.schema.spec import Blob
from tests.builders import an_environment

FILES = {
    "inductor/fxgraph/ab/key/one": b"graph",
    "inductor/cd/code.so": b"code",
    "triton/KEY/__grp__add.json": b'{"child_paths": {"add.cubin": "[AOT_CACHES]/triton/KEY/add.cubin"}}',
}
PASSING = ("ESTALE", "EBUSY", "EEXIST", "ENOENT", "ETXTBSY")


class Faults:
    """`os.replace` of a file system that fails each new name so many times, before the rename or after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *, times: int, after: bool = False) -> None:
        self.number = getattr(errno, name)
        self.times = times
        self.after = after
        self.seen: dict[str, int] = {}
        self._replace = os.replace
        monkeypatch.setattr("os.replace", self.replace)

    def replace(self, source: Any, target: Any) -> None:
        self.seen[str(target)] = self.seen.get(str(target), 0) + 1
        failing = self.seen[str(target)] <= self.times
        if not failing or (self.after and self.seen[str(target)] == 1):
            self._replace(source, target)
        if failing:
            raise OSError(self.number, os.strerror(self.number))


@pytest.fixture
def entries(tmp_path: Path) -> Collected:
    for path, content in FILES.items():
        place = tmp_path / "first" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.replace(b"[AOT_CACHES]", str(tmp_path / "first").encode()))
    return collect(tmp_path / "first", scratch=tmp_path / "scratch")


def restored(entries: Collected, into: Path) -> dict[str, bytes]:
    restore(entries.entries, entries.paths, into=into)
    return {path: (into / path).read_bytes() for path in list_paths(into)}


def test_a_directory_that_an_older_version_filled_suffices_where_nothing_can_be_written(
    entries: Collected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has every entry, and no directory for what the driver compiles."""
    into = tmp_path / "second"
    before = restored(entries, into)
    (into / "cuda").rmdir()
    mkdir = Path.mkdir

    def read_only(path: Path, *given: Any, **named: Any) -> None:
        if not path.is_dir():
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        mkdir(path, *given, **named)

    monkeypatch.setattr(Path, "mkdir", read_only)
    assert restored(entries, into) == before
    with pytest.raises(InvalidConfig):
        restore(entries.entries, entries.paths, into=tmp_path / "third")


def wanted(into: Path) -> dict[str, bytes]:
    return {path: content.replace(b"[AOT_CACHES]", str(into).encode()) for path, content in FILES.items()}


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("after", [False, True], ids=["refused", "done-and-refused"])
def test_a_rename_that_fails_and_one_that_was_done_all_the_same_end_right(
    name: str, after: bool, entries: Collected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a rename is lost, and the repeated one finds no such file, or that the name is taken."""
    faults = Faults(monkeypatch, name, times=1, after=after)
    into = tmp_path / "second"
    assert restored(entries, into) == wanted(into)
    assert len(faults.seen) == len(FILES) and not list(into.rglob(".aot-*"))


@pytest.mark.parametrize("name", ["EXDEV", "ESTALE", "EBUSY", "EROFS"])
def test_a_rename_that_never_works_is_told_and_the_command_starts(
    name: str, entries: Collected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Faults(monkeypatch, name, times=1 << 30)
    with pytest.raises(InvalidConfig, match="could not restore into "):
        restore(entries.entries, entries.paths, into=tmp_path / "second")
    assert not [place for place in (tmp_path / "second").rglob("*") if place.is_file()]


def test_what_the_disk_does_is_a_reason_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("aot.capture.prepare.resolve", broken)
    found = prepare(Reference.parse("mini:v1"), config=Config(cache_dir=tmp_path, data_dir=tmp_path), environ={})
    assert found.directory is None and found.reasons == (f"{tmp_path} cannot be used: Stale file handle",)
    for name, value in (("AOT_CACHE_DIR", str(tmp_path)), ("AOT_OFFLINE", "1")):
        monkeypatch.setenv(name, value)
    command = ["/bin/sh", "-c", "echo went; exit 5"]
    assert run_command_on("mini:v1", command, lock=None, bytecode=None, write_back=False) == 5
    told = capfd.readouterr()
    assert told.out == "went\n" and "nothing restored:" in told.err and "Stale file handle" in told.err


def stale_reads(monkeypatch: pytest.MonkeyPatch, chosen: Callable[[Path], bool], *, times: int) -> list[Path]:
    """Let the first so many opened handles of each chosen file go stale at their first read."""
    opened = Path.open
    gone: list[Path] = []

    class Stale(io.RawIOBase):
        def stale(self, *_: object) -> Any:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

        read = readinto = readall = fileno = stale

        def readable(self) -> bool:
            return True

    def open_(place: Path, *arguments: Any, **named: Any) -> Any:
        if chosen(place) and "rb" in (*arguments, *named.values()) and gone.count(place) < times:
            gone.append(place)
            return Stale()
        return opened(place, *arguments, **named)

    monkeypatch.setattr(Path, "open", open_)
    return gone


def test_a_handle_that_goes_stale_while_it_is_read_is_opened_anew(
    entries: Collected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = set(entries.paths.values())
    gone = stale_reads(monkeypatch, blobs.__contains__, times=2)
    into = tmp_path / "second"
    assert restored(entries, into) == wanted(into)
    assert gone and not list(into.rglob(".aot-*"))


def test_a_restored_file_whose_handle_is_stale_is_written_again(
    entries: Collected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "second"
    restore(entries.entries, entries.paths, into=into)
    gone = stale_reads(monkeypatch, lambda place: place == into / "inductor/cd/code.so", times=1)
    assert restore(entries.entries, entries.paths, into=into) == 1 and len(gone) == 1
    assert {path: (into / path).read_bytes() for path in list_paths(into)} == wanted(into)


def test_a_blob_of_the_cache_is_stored_and_hashed_over_passing_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, content = LocalCache(tmp_path / "cache"), b"content"
    blob = Blob(digest=Digest.of(content), size_bytes=len(content))
    Faults(monkeypatch, "ENOENT", times=1, after=True)
    with cache.incoming(blob) as writer:
        writer.write(content)
    gone = stale_reads(monkeypatch, lambda place: "blobs" in place.parts, times=1)
    place = cache.verified_path(blob.digest)
    assert place is not None and place.read_bytes() == content and gone == [place]
    assert list((tmp_path / "cache" / "incoming").iterdir()) == []


def test_files_that_nfs_keeps_under_names_of_its_own_are_no_entries(entries: Collected, tmp_path: Path) -> None:
    """They appear where a file is removed or replaced while another process has it open, and go by themselves."""
    into = tmp_path / "second"
    restore(entries.entries, entries.paths, into=into)
    for path in ("inductor/fxgraph/ab/key/.nfs000000000012ab4500000001", "inductor/cd/.nfs0000000000000002"):
        (into / path).write_bytes(b"old")
    (into / "triton/.nfs0000000000000003").mkdir()
    (into / "triton/.nfs0000000000000003/add.cubin").write_bytes(b"old")
    assert list_paths(into) == set(FILES)
    prepared = Prepared(Reference.parse("default/mini:v1"), an_environment(), into)
    ran = run_on(prepared, ["/bin/sh", "-c", f"echo x > {into}/inductor/cd/.nfs0000000000000004"], environ={})
    assert ran.account is not None and (ran.account.compiled, ran.new) == (0, frozenset())


def test_a_directory_whose_handle_went_stale_is_listed_again(
    entries: Collected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into, listed, stale = tmp_path / "second", os.scandir, []
    restore(entries.entries, entries.paths, into=into)

    def scandir(place: Path) -> object:
        if place.name == "key" and not stale:
            stale.append(place)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return listed(place)

    monkeypatch.setattr("aot.capture.listing.os.scandir", scandir)
    assert list_paths(into) == set(FILES) and stale


def test_a_directory_that_cannot_go_does_not_keep_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [place_for(tmp_path, Digest.of(str(number).encode())) for number in range(MOST_DIRECTORIES + 3)]
    for age, place in enumerate(places):
        restore((), {}, into=place)
        os.utime(place, (1000 - age, 1000 - age))
    renamed = Path.rename

    def rename(place: Path, target: Path) -> Path:
        if place == places[-2]:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return renamed(place, target)

    monkeypatch.setattr(Path, "rename", rename)
    with in_use(places[0]):
        assert [place.is_dir() for place in places[-3:]] == [False, True, False]


def test_a_lock_whose_handle_goes_stale_is_no_lock_and_no_end(
    entries: Collected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("aot.cache.locks.locks.unlock", stale)
    monkeypatch.setattr("aot.cache.locks.os.path.samestat", stale)
    monkeypatch.setattr("aot.capture.restore.WAIT_SECONDS", 0.2)
    into = tmp_path / "second"
    assert restored(entries, into) == wanted(into)
