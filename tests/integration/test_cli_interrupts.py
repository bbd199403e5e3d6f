"""Ctrl-C while bytes move: exit code 130 at once, nothing half made on either side, and the next run does the whole."""

import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import pytest

from aot.bundle import StoredBundle, read_bundle, write_bundle
from aot.schema.digest import Digest
from registry.storage import links
from tests.builders import BYTES, a_file, a_manifest, a_profile, a_spec, an_artifact
from tests.commands import Shell, a_shell, interrupt
from tests.fake_backend import a_packed_source

pytestmark = pytest.mark.embedded("bytes are held up in the registry's own routes")

# What every x86-64 machine can be.
PROFILE = a_profile("cpu-base", capability="cpu:x86-64")
# More than sockets buffer, so that an upload cannot be over before anybody has read it.
LARGE = 16 << 20
SECONDS = 5.0


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with a_shell(tmp_path_factory.mktemp("shell")) as shell:
        shell.service.register(PROFILE)
        yield shell


class Held:
    """The registry's blob route, which stops in the middle of a body, in either direction, until it is released."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()

    async def gathered(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self.reached.set()
        await anyio.to_thread.run_sync(self.released.wait, 30)
        async for chunk in links_gathered(chunks):
            yield chunk

    def read(self, file: BinaryIO, part: Any) -> Iterator[bytes]:
        chunks = links_read(file, part)
        yield next(chunks)
        self.reached.set()
        self.released.wait(30)
        yield from chunks


links_gathered, links_read = links._gathered, links._read


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held()
    monkeypatch.setattr(links, "_gathered", held.gathered)
    monkeypatch.setattr(links, "_read", held.read)
    yield held
    held.released.set()


def interrupt_in_the_middle(shell: Shell, held: Held, *arguments: str) -> None:
    process = shell.start(*arguments)
    assert held.reached.wait(30), "no byte has moved"
    begun = time.monotonic()
    ran = interrupt(process)
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.splitlines()[-1] == "interrupted"
    assert time.monotonic() - begun < SECONDS
    held.released.set()


def stored_size(shell: Shell, digest: Digest) -> int | None:
    return shell.service.deps.store.stat(digest)


@pytest.fixture
def built(shell: Shell, tmp_path: Path) -> Callable[[str], StoredBundle]:
    """Writes a bundle that was built elsewhere, whose source the registry has and whose library it has not."""

    def write(name: str) -> StoredBundle:
        library = a_file("lib/model.so", b"\x7fELF" + os.urandom(LARGE))
        spec = a_spec(name, profile=PROFILE.name, source=a_packed_source(tmp_path / name))
        shell.service.upload(spec.blobs)
        artifact = an_artifact(capability="cpu:x86-64", files=(library,))
        manifest = a_manifest(spec, profile=PROFILE, artifacts=(artifact,))
        paths = {blob.digest: tmp_path / blob.digest.hex for blob in manifest.blobs}
        for digest, path in paths.items():
            path.write_bytes(BYTES[digest])
        return write_bundle(tmp_path / f"{name}-bundle", manifest=manifest, files=paths)

    return write


def test_while_submit_uploads_the_source_nothing_is_submitted(shell: Shell, held: Held, tmp_path: Path) -> None:
    tree = tmp_path / "src"
    tree.mkdir()
    (tree / "model.py").write_text("def make(): ...\n")
    (tree / "table.bin").write_bytes(os.urandom(LARGE))
    command = ("submit", "large:v1", "--source", str(tree), "--entry", "model:make", "--profile", PROFILE.name)
    interrupt_in_the_middle(shell, held, *command)
    assert shell.service.call("list_builds").builds == ()
    ran = shell.aot(*command)
    assert ran.code == 0, ran.err
    [build] = shell.service.call("list_builds").builds
    assert build.id == ran.out.strip()


def test_while_push_uploads_the_bundle_is_not_there(
    shell: Shell, held: Held, built: Callable[[str], StoredBundle]
) -> None:
    bundle = built("pushed")
    [library] = bundle.manifest.blobs
    interrupt_in_the_middle(shell, held, "push", str(bundle.directory))
    assert stored_size(shell, library.digest) is None
    assert shell.service.call("search", query={"name": "pushed"}).bundles == ()
    ran = shell.aot("push", str(bundle.directory))
    assert (ran.code, f"{bundle.digest} pending" in ran.out) == (0, True), ran.err
    assert stored_size(shell, library.digest) == library.size_bytes


def test_while_a_bundle_is_pulled_no_directory_is_left(
    shell: Shell, held: Held, built: Callable[[str], StoredBundle], tmp_path: Path
) -> None:
    bundle = built("pulled")
    held.released.set()
    build = shell.service.submit(bundle.manifest.spec, tags=("latest",)).build
    shell.service.publish(shell.service.claim(PROFILE.name, build=build.id), bundle.manifest)
    held.released.clear()
    held.reached.clear()
    cold, into = shell.with_environ(AOT_CACHE_DIR=str(tmp_path / "cold")), tmp_path / "out" / "bundle"
    into.parent.mkdir()
    interrupt_in_the_middle(cold, held, "pull", "pulled", "--as-bundle", str(into))
    assert list(into.parent.iterdir()) == []
    ran = cold.aot("pull", "pulled", "--as-bundle", str(into))
    assert ran.code == 0, ran.err
    assert read_bundle(into).digest == bundle.digest
