"""`aot import megacache` and `aot export megacache`: a file becomes a bundle of entries and the same file again."""

import base64
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.bundle import read_bundle
from aot.capture.megacache import Saved, SavedKind, join, split
from aot.capture.pins import TAG, effective_environment, key_tag
from aot.environment import observe_environment
from aot.schema.recipe import Route
from tests.commands import Shell, a_shell

KEY = "fab3xk7wlzm4o2ucahbnfnkqfjkw5wq4xhq5jkfmvwcrg2t2gdkx"
SAVED = (
    Saved(SavedKind.INDUCTOR, KEY, b"\x80\x04graph"),
    Saved(SavedKind.AOT_AUTOGRAD, "a" + KEY[1:], b"\x80\x04autograd"),
    Saved(SavedKind.AUTOTUNE, "xk/cxkq.best_config", b'{"XBLOCK": 64}'),
    Saved(SavedKind.PGO, "job:rank:0:11:model.py/forward", b"\x80\x04state"),
)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with a_shell(tmp_path_factory.mktemp("shell")) as shell:
        yield shell.with_environ(AOT_URL=None, AOT_TOKEN=None, TORCH_COMPILE_CACHE_KEY_TAG=None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "saved.bin").write_bytes(join(SAVED))
    return tmp_path / "saved.bin"


def take(shell: Shell, file: Path, out: Path, *more: str) -> dict[str, object]:
    ran = shell.aot("import", "megacache", str(file), "llm:v1", "--as-bundle", str(out), "--json", *more)
    assert ran.code == 0, ran.err
    return ran.json


def test_every_entry_is_a_blob_and_comes_back(shell: Shell, file: Path, tmp_path: Path) -> None:
    said = take(shell, file, tmp_path / "out")
    assert (said["entries"], said["graphs"], said["key_tag"]) == (4, 1, None)
    [artifact] = read_bundle(tmp_path / "out").manifest.artifacts
    assert artifact.route is Route.CACHE
    assert [one.path.split("/")[:2] for one in artifact.files] == [
        ["inductor", "aotautograd"],
        ["inductor", "dynamo"],
        ["inductor", "fxgraph"],
        ["inductor", "xk"],
    ]
    ran = shell.aot("export", "megacache", str(tmp_path / "out"), str(tmp_path / "again.bin"))
    assert ran.code == 0, ran.err
    assert "1 aot_autograd, 1 autotune, 1 inductor, 1 pgo" in ran.out
    assert sorted(split((tmp_path / "again.bin").read_bytes()), key=repr) == sorted(SAVED, key=repr)
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_equal_files_are_equal_bundles_but_for_who_made_them(shell: Shell, file: Path, tmp_path: Path) -> None:
    take(shell, file, tmp_path / "one")
    (tmp_path / "other.bin").write_bytes(join(tuple(reversed(SAVED))))
    take(shell, tmp_path / "other.bin", tmp_path / "two")
    one, two = (read_bundle(tmp_path / name).manifest for name in ("one", "two"))
    assert (one.build_key, one.artifacts) == (two.build_key, two.artifacts)


def test_only_what_was_saved_under_the_tag_is_for_a_run(shell: Shell, file: Path, tmp_path: Path) -> None:
    """Without the tag torch's keys do not tell one CPU from another, so nothing puts the entries into its cache."""
    assert (
        "`aot run` leaves it alone"
        in shell.aot("import", "megacache", str(file), "llm:v1", "--as-bundle", str(tmp_path / "plain")).out
    )
    tag = key_tag(effective_environment(observe_environment(), {}))
    pinned = shell.with_environ(**{TAG: tag})
    assert take(pinned, file, tmp_path / "tagged")["key_tag"] == tag


def hostile(key: str, kind: str = "inductor") -> bytes:
    def sized(content: bytes) -> bytes:
        return len(content).to_bytes(8, "big") + content

    body = (1).to_bytes(8, "big") + sized(base64.b64encode(kind.encode())) + (1).to_bytes(8, "big")
    body += sized(base64.b64encode(key.encode())) + sized(b"content")
    return zlib.crc32(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (hostile("../../../../tmp/evil"), "cannot be used"),
        (hostile("/etc/cron.d/evil"), "cannot be used"),
        (hostile("ab\0cd"), "cannot be used"),
        (hostile("aux"), "is a device"),
        (b"\x80\x04not a cache", "checksum"),
        (join([SAVED[2]]), "no compiled graph"),
    ],
)
def test_hostile_files_leave_nothing(shell: Shell, tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "bad.bin").write_bytes(content)
    ran = shell.aot("import", "megacache", str(tmp_path / "bad.bin"), "llm:v1", "--as-bundle", str(tmp_path / "out"))
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("llm:v1",), "nothing would be kept"),
        (("llm:v1", "--push"), "give --source TREE and the command"),
        (("llm@sha256:" + "0" * 64, "--as-bundle", "out"), "named by a tag"),
    ],
)
def test_what_cannot_be_kept_is_said_before(shell: Shell, file: Path, arguments: tuple[str, ...], text: str) -> None:
    ran = shell.aot("import", "megacache", str(file), *arguments)
    assert ran.code == 2 and text in ran.err


def test_a_damaged_bundle_is_not_exported(shell: Shell, file: Path, tmp_path: Path) -> None:
    take(shell, file, tmp_path / "out")
    [victim, *_] = sorted((tmp_path / "out" / "blobs" / "sha256").iterdir())
    victim.chmod(0o644)
    victim.write_bytes(b"x" * victim.stat().st_size)
    ran = shell.aot("export", "megacache", str(tmp_path / "out"), str(tmp_path / "again.bin"))
    assert ran.code == 6
    assert not (tmp_path / "again.bin").exists()
