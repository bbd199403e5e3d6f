"""`aot pull` when something happens in the middle of it, and a lock against the real registry."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from aot.cache import LocalCache
from aot.cli.doctor import Report
from aot.errors import BundleNotFound, BundleWithdrawn, InvalidInput
from aot.runtime.fetch import resolve
from aot.schema.codec import encode
from aot.schema.digest import Digest
from aot.schema.lock import Lock, LockEntry
from aot.schema.names import Reference
from aot.schema.wire.bundles import WithdrawRequest
from aot.schema.wire.workers import Scope
from aot.trust import TrustedKeys
from registry.storage import links
from tests.builders import a_file, a_manifest, a_profile, a_spec, an_artifact, an_environment
from tests.commands import Shell, a_shell, interrupt
from tests.service import Service, a_service
from tests.transport import AppTransport, client_of

LIBRARY = a_file("lib/model.so", b"\x7fELF" + bytes(4 << 20))
MINI = Reference("default/mini:latest")
PROFILES = tuple(a_profile(f"cpu-{level}", capability=f"cpu:{level}") for level in ("x86-64-v2", "x86-64-v3"))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with a_shell(tmp_path_factory.mktemp("shell")) as shell:
        profile = a_profile()
        shell.service.register(profile)
        spec = a_spec()
        build = shell.service.submit(spec, tags=("latest",)).build
        manifest = a_manifest(spec, profile=profile, artifacts=(an_artifact(files=(LIBRARY,)),))
        shell.service.publish(shell.service.claim(profile.name, build=build.id), manifest)
        yield shell


class Held:
    """The registry's blob route, which stops in the middle of a body until it is released or told to break."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()
        self.breaks = False

    def read(self, file: BinaryIO, part: Any) -> Iterator[bytes]:
        chunks = links_read(file, part)
        if self.breaks and part.start:
            raise ConnectionAbortedError("the store stays away")
        yield next(chunks)
        self.reached.set()
        self.released.wait(30)
        if self.breaks:
            raise ConnectionAbortedError("the store went away")
        yield from chunks


links_read = links._read
in_the_registry = pytest.mark.embedded("bytes are held up in the registry's own routes")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held()
    monkeypatch.setattr(links, "_read", held.read)
    yield held
    held.released.set()


@pytest.fixture
def node(shell: Shell, tmp_path: Path) -> tuple[Shell, tuple[str, ...], LocalCache]:
    """A shell with a cold cache of its own, the command to fill it, and that cache."""
    host = tmp_path / "host.json"
    host.write_bytes(encode(Report(environment=an_environment(), problems=(), exit_code=0)))
    place = tmp_path / "cache"
    return shell.with_environ(AOT_CACHE_DIR=str(place)), ("pull", "mini", "--host", str(host)), LocalCache(place)


@in_the_registry
def test_ctrl_c_in_the_middle_of_a_blob_leaves_no_half_blob(
    node: tuple[Shell, tuple[str, ...], LocalCache], held: Held
) -> None:
    shell, pull, cache = node
    process = shell.start(*pull)
    assert held.reached.wait(30)
    begun = time.monotonic()
    ran = interrupt(process)
    assert (ran.code, ran.out, ran.err) == (130, "", "interrupted\n")
    assert time.monotonic() - begun < 5
    assert cache.path_of(LIBRARY.digest) is None
    held.released.set()
    ran = shell.aot(*pull)
    assert ran.code == 0, ran.err
    assert cache.verify(LIBRARY.digest)


@in_the_registry
def test_a_store_that_breaks_off_is_unavailable_and_nothing_is_lost(
    node: tuple[Shell, tuple[str, ...], LocalCache], held: Held
) -> None:
    shell, pull, cache = node
    held.breaks = True
    held.released.set()
    ran = shell.aot(*pull)
    assert (ran.code, ran.out, cache.path_of(LIBRARY.digest)) == (5, "", None), ran.err
    assert ran.err.startswith("error: ") and "  try: " in ran.err
    held.breaks = False
    assert shell.aot(*pull).code == 0
    assert cache.verify(LIBRARY.digest)


# A lock of several profiles


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with a_service(tmp_path / "registry") as service:
        service.register(*PROFILES)
        yield service


def published(service: Service) -> list[Digest]:
    return [service.published(a_spec(profile=profile.name), tags=("latest",)).bundle for profile in PROFILES]


def a_lock(service: Service, digests: list[Digest]) -> Lock:
    views = [service.call("get_bundle", digest=digest) for digest in digests]
    entries = [
        LockEntry(reference=MINI, profile=view.profile, bundle=view.digest, build_key=view.build_key) for view in views
    ]
    return Lock(entries=tuple(entries))


def test_a_lock_of_several_profiles_is_one_request_to_the_real_registry(service: Service, tmp_path: Path) -> None:
    digests = published(service)
    client, cache = client_of(service), LocalCache(tmp_path / "cache")
    trusted = TrustedKeys.of(service.call("get_keys").keys)
    resolved = resolve(MINI, client=client, cache=cache, trusted=trusted, lock=a_lock(service, digests))
    assert [one.digest for one in resolved.candidates] == digests
    assert isinstance(client.transport, AppTransport)
    assert len(client.transport.sent) == 1


def test_of_several_digests_those_that_are_live_are_answered_in_the_order_asked(service: Service) -> None:
    digests = published(service)
    client = client_of(service)
    assert [one.digest for one in client.resolve(MINI, pins=digests[::-1])] == digests[::-1]
    assert [one.digest for one in client.resolve(MINI, pins=[digests[0], Digest.of(b"no")])] == digests[:1]
    service.call("withdraw", WithdrawRequest(reason="a test"), digest=digests[0])
    assert [one.digest for one in client.resolve(MINI, pins=digests)] == digests[1:]
    service.call("withdraw", WithdrawRequest(reason="a test"), digest=digests[1])
    with pytest.raises(BundleWithdrawn, match="a test"):
        client.resolve(MINI, pins=digests)


def test_several_digests_are_of_one_model_and_readable(service: Service) -> None:
    digests = published(service)
    client = client_of(service)
    with pytest.raises(BundleNotFound):
        client.resolve(Reference("default/other:latest"), pins=digests)
    with pytest.raises(BundleNotFound):
        client_of(service, token=service.token(Scope.READ, namespaces=["team"])).resolve(MINI, pins=digests)
    with pytest.raises(InvalidInput, match="at most 100 digests"):
        client.resolve(MINI, pins=[Digest.of(b"%d" % number) for number in range(101)])
