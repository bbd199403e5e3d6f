"""`aot pull --as-bundle`, `inspect`, `verify`, `push`: a bundle carried by hand, and every damage it may take."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aot.bundle import StoredBundle, read_bundle, write_bundle, write_envelope
from aot.schema.digest import Digest
from aot.schema.manifest import Statement
from aot.trust import SigningKey, sign
from tests.builders import BYTES, a_file, a_manifest, a_profile, a_qualification, a_spec, altered, an_artifact
from tests.commands import Shell, a_shell
from tests.fake_backend import a_packed_source

PROFILE = a_profile("cpu-base", capability="cpu:x86-64")
OTHER = a_profile("cpu-other", capability="cpu:x86-64-v2")
FILES = (a_file("lib/model.so", b"\x7fELF " + b"library" * 900), a_file("constants/0.bin", b"constant" * 300))
BLOB = f"blobs/sha256/{FILES[0].digest.hex}"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with a_shell(tmp_path_factory.mktemp("shell")) as shell:
        shell.service.register(PROFILE, OTHER)
        yield shell


@pytest.fixture(scope="module")
def published(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Digest:
    source = a_packed_source(tmp_path_factory.mktemp("source"))
    spec = a_spec(profile=PROFILE.name, source=source)
    manifest = a_manifest(spec, profile=PROFILE, artifacts=(an_artifact(capability="cpu:x86-64", files=FILES),))
    build = shell.service.submit(spec, tags=("latest",)).build
    return shell.service.publish(shell.service.claim(PROFILE.name, build=build.id), manifest).bundle


@pytest.fixture(scope="module")
def original(shell: Shell, published: Digest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pulled") / "bundle"
    ran = shell.aot("pull", "mini", "--as-bundle", str(directory))
    assert (ran.code, ran.out) == (0, f"{published}\n"), ran.err
    return directory


@pytest.fixture
def directory(original: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    copied = tmp_path / "bundle"
    shutil.copytree(original, copied)
    for path in copied.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copied


def test_a_pulled_bundle_is_whole_and_signed(shell: Shell, published: Digest, original: Path) -> None:
    ran = shell.aot("verify", str(original))
    assert (ran.code, ran.out) == (0, f"{published} whole: 2 blob(s), signature verified\n")
    assert shell.aot("verify", str(original), "--json").json == {"ok": True, "bundle": published}
    assert read_bundle(original).digest == published


def test_inspect_shows_it_without_keys_or_a_registry(shell: Shell, published: Digest, original: Path) -> None:
    alone = shell.with_environ(AOT_URL=None, AOT_TOKEN=None, AOT_TRUSTED_KEYS=None)
    ran = alone.aot("inspect", str(original))
    assert ran.code == 0
    assert ran.lines[0] == f"bundle     {published}"
    assert "model      default/mini (any weights of this architecture)" in ran.lines
    assert "(`aot verify` checks it)" in ran.lines[-1]
    assert alone.aot("inspect", str(original), "--json").json["name"] == "mini"


def truncate(directory: Path) -> None:
    content = (directory / BLOB).read_bytes()
    (directory / BLOB).write_bytes(content[:-1])


def extend(directory: Path) -> None:
    with (directory / BLOB).open("ab") as file:
        file.write(b"!")


def flip(directory: Path) -> None:
    content = bytearray((directory / BLOB).read_bytes())
    content[len(content) // 2] ^= 1
    (directory / BLOB).write_bytes(content)


def lose(directory: Path) -> None:
    (directory / BLOB).unlink()


def link(directory: Path) -> None:
    (directory / BLOB).rename(directory.parent / "elsewhere")
    (directory / BLOB).symlink_to(directory.parent / "elsewhere")


def smuggle(directory: Path) -> None:
    (directory / "blobs" / "sha256" / "extra").write_bytes(b"more")


def cut_manifest(directory: Path) -> None:
    content = (directory / "manifest.json").read_bytes()
    (directory / "manifest.json").write_bytes(content[: len(content) // 2])


def lose_manifest(directory: Path) -> None:
    (directory / "manifest.json").unlink()


def edit_manifest(directory: Path) -> None:
    content = (directory / "manifest.json").read_bytes()
    (directory / "manifest.json").write_bytes(content.replace(b'"name":"mini"', b'"name":"maxi"'))


def respell_manifest(directory: Path) -> None:
    content = (directory / "manifest.json").read_bytes()
    (directory / "manifest.json").write_bytes(content + b"\n")


def unsign(directory: Path) -> None:
    (directory / "envelope.json").unlink()


def cut_envelope(directory: Path) -> None:
    (directory / "envelope.json").write_bytes(b'{"payload":')


def sign_again(directory: Path) -> None:
    manifest = read_bundle(directory).manifest
    statement = Statement(
        manifest=read_bundle(directory).digest,
        namespace=manifest.namespace,
        name=manifest.name,
        build_key=manifest.build_key,
    )
    write_envelope(directory, sign(statement, SigningKey.generate()))


BYTES_DAMAGED: list[tuple[Callable[[Path], None], str]] = [
    (truncate, "the manifest says"),
    (extend, "the manifest says"),
    (flip, "have digest"),
    (lose, "is missing"),
    (link, "is no plain file"),
    (smuggle, "is not listed in the manifest"),
    (cut_manifest, "does not decode"),
    (lose_manifest, "manifest.json is missing"),
    (respell_manifest, "canonical"),
]
SIGNATURE_DAMAGED: list[tuple[Callable[[Path], None], str]] = [
    (edit_manifest, "the signature is for"),
    (unsign, "is not signed"),
    (cut_envelope, "envelope does not decode"),
    (sign_again, "trusted are"),
]


@pytest.mark.parametrize(("damage", "message"), BYTES_DAMAGED + SIGNATURE_DAMAGED)
def test_verify_names_every_damage(shell: Shell, directory: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(directory)
    ran = shell.aot("verify", str(directory))
    assert (ran.code, ran.out) == (6, "")
    assert message in ran.err
    assert "try: fetch or build the bundle again; do not load this one" in ran.err


def test_verify_names_all_damages_at_once(shell: Shell, directory: Path) -> None:
    truncate(directory)
    smuggle(directory)
    unsign(directory)
    ran = shell.aot("verify", str(directory))
    assert (ran.code, "has 3 violation(s)" in ran.err) == (6, True)
    assert "the bundle is not signed" in ran.err and "the manifest says" in ran.err and "extra" in ran.err


def test_a_bundle_under_another_name_is_not_the_one_wanted(shell: Shell, published: Digest, original: Path) -> None:
    for reference in ("mini", f"default/mini@{published}"):
        assert shell.aot("verify", str(original), "--reference", reference).code == 0
    for reference in ("maxi", "team/mini", f"mini@{Digest.of(b'another')}"):
        ran = shell.aot("verify", str(original), "--reference", reference)
        assert (ran.code, f"is default/mini@{published}, wanted {reference}" in ran.err) == (6, True)


@pytest.mark.parametrize("command", ["inspect", "verify", "push"])
def test_what_is_no_directory_is_bad_input(shell: Shell, tmp_path: Path, command: str) -> None:
    for place in (tmp_path / "nowhere", Path(__file__)):
        ran = shell.aot(command, str(place))
        assert (ran.code, "is no directory" in ran.err) == (2, True)


@pytest.mark.parametrize("command", ["inspect", "verify", "push"])
def test_a_nodes_cache_is_called_so(shell: Shell, tmp_path: Path, published: Digest, command: str) -> None:
    pulled = shell.aot("pull", f"mini@{published}", "--into", str(tmp_path / "cache"))
    ran = shell.aot(command, str(tmp_path / "cache"))
    assert (ran.code, ran.out) == (2, ""), pulled.err
    assert f"{tmp_path}/cache is a node's cache, with manifests of 1 bundle(s), and no bundle\n" in ran.err
    assert "aot pull REFERENCE --as-bundle DIR" in ran.err and "do not load" not in ran.err


def test_inspect_of_a_damaged_manifest_is_an_integrity_error(shell: Shell, directory: Path) -> None:
    cut_manifest(directory)
    ran = shell.aot("inspect", str(directory))
    assert (ran.code, ran.out) == (6, "")
    assert "manifest" in ran.err and ran.err.count(str(directory)) == 1


def test_inspect_of_a_directory_without_a_manifest_is_bad_input(shell: Shell, directory: Path) -> None:
    lose_manifest(directory)
    ran = shell.aot("inspect", str(directory))
    assert (ran.code, ran.out) == (2, "")
    assert f"error: {directory} holds no bundle: manifest.json is missing\n" in ran.err
    assert "do not load" not in ran.err


@pytest.mark.parametrize(("damage", "message"), BYTES_DAMAGED)
def test_a_damaged_bundle_is_not_pushed(
    shell: Shell, directory: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(directory)
    ran = shell.aot("push", str(directory))
    assert (ran.code, message in ran.err) == (6, True)


def test_a_pushed_bundle_is_pending_until_it_is_proven(
    shell: Shell, published: Digest, original: Path, tmp_path: Path
) -> None:
    stored = read_bundle(original)
    # Of other bytes or facts than what is live: what is equal would be answered with that.
    artifacts = tuple(altered(one, facts={**one.facts, "built": "by hand"}) for one in stored.manifest.artifacts)
    manifest = altered(stored.manifest, artifacts=artifacts, canaries=())
    files = {blob.digest: stored.blob_path(blob.digest) for blob in manifest.blobs}
    built = write_bundle(tmp_path / "built", manifest=manifest, files=files)
    ran = shell.aot("push", str(built.directory), "--tag", "handmade")
    build = ran.out.split()[-1]
    assert (ran.code, ran.out) == (0, f"{built.digest} pending, proven again by build {build}\n")
    assert shell.aot("pull", "mini:handmade").code == 7
    assert shell.aot("push", str(built.directory), "--json").json["build"] == build, "pushed twice is once"
    claim = shell.service.claim(PROFILE.name, build=build)
    assert claim.requalify == built.digest
    proof = altered(manifest, qualification=a_qualification(seconds=9.0, profile=PROFILE.name))
    proven = shell.service.publish(claim, proof)
    waited = shell.aot("wait", build)
    assert (waited.code, f"bundle    {proven.bundle}" in waited.lines) == (0, True)
    assert shell.aot("show", "mini:handmade").lines[0] == f"bundle     {proven.bundle}"


def test_a_bundle_that_is_live_already_is_told_so(shell: Shell, published: Digest, original: Path) -> None:
    ran = shell.aot("push", str(original))
    assert (ran.code, ran.out) == (0, f"{published} live already\n")


@pytest.fixture
def carried(tmp_path: Path) -> Callable[..., StoredBundle]:
    """Writes a bundle that was built elsewhere, with its source in `tree` and weights in `fine.safetensors`."""

    def write(name: str, *, weights: bool = False) -> StoredBundle:
        source = a_packed_source(tmp_path, text=f"def make(): return {name!r}\n")
        files = (a_file("fine.safetensors", name.encode()),) if weights else ()
        (tmp_path / "fine.safetensors").write_bytes(name.encode())
        manifest = a_manifest(a_spec(name, profile=PROFILE.name, source=source, weights=files), profile=PROFILE)
        blobs = {blob.digest: tmp_path / blob.digest.hex for blob in manifest.blobs}
        for digest, path in blobs.items():
            path.write_bytes(BYTES[digest])
        return write_bundle(tmp_path / "built", manifest=manifest, files=blobs)

    return write


def test_a_bundle_whose_source_the_registry_lacks_says_how_to_bring_it(
    shell: Shell, carried: Callable[..., StoredBundle]
) -> None:
    built = carried("stranger", weights=True)
    ran = shell.aot("push", str(built.directory))
    assert (ran.code, ran.out) == (7, "")
    source, _ = built.manifest.spec.blobs
    assert f"the registry lacks what default/stranger was built from: the source {source.digest}" in ran.err
    assert "add --source TREE --weights fine.safetensors" in ran.err


def test_a_bundle_is_pushed_with_its_source_and_weights(
    shell: Shell, carried: Callable[..., StoredBundle], tmp_path: Path
) -> None:
    built = carried("immigrant", weights=True)
    brought = ("--source", str(tmp_path / "tree"), "--weights", str(tmp_path / "fine.safetensors"))
    ran = shell.aot("push", str(built.directory), *brought)
    assert (ran.code, f"{built.digest} pending" in ran.out) == (0, True), ran.err
    claim = shell.service.claim(PROFILE.name, build=ran.out.split()[-1])
    assert claim.requalify == built.digest
    assert {link.digest for link in claim.links} >= {blob.digest for blob in built.manifest.spec.blobs}


def test_what_the_registry_has_of_a_source_need_not_be_brought_again(
    shell: Shell, carried: Callable[..., StoredBundle], tmp_path: Path
) -> None:
    built = carried("neighbour", weights=True)
    source, _ = built.manifest.spec.blobs
    shell.service.upload([source])
    ran = shell.aot("push", str(built.directory))
    assert (ran.code, "add --weights fine.safetensors" in ran.err) == (7, True)
    ran = shell.aot("push", str(built.directory), "--weights", str(tmp_path / "fine.safetensors"))
    assert ran.code == 0, ran.err


def test_another_source_than_the_one_that_was_built_is_refused(
    shell: Shell, carried: Callable[..., StoredBundle], tmp_path: Path
) -> None:
    built = carried("changed")
    (tmp_path / "tree" / "model.py").write_text("def make(): return 'something else'\n")
    ran = shell.aot("push", str(built.directory), "--source", str(tmp_path / "tree"))
    (source,) = built.manifest.spec.blobs
    assert (ran.code, ran.out) == (2, "")
    assert "is not what changed was built from" in ran.err and str(source.digest) in ran.err
    ran = shell.aot("push", str(built.directory), "--source", str(tmp_path / "nothing"))
    assert (ran.code, "nothing does not exist" in ran.err) == (2, True)


def test_as_bundle_needs_one_reference_and_a_new_directory(shell: Shell, published: Digest, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("here")
    ran = shell.aot("pull", "mini", "--as-bundle", str(tmp_path / "full"))
    assert (ran.code, "is not empty" in ran.err) == (2, True)
    assert shell.aot("pull", "--as-bundle", str(tmp_path / "new")).code == 2
    lock = tmp_path / "aot.lock"
    assert shell.aot("pull", "mini", "--lock", str(lock), "--as-bundle", str(tmp_path / "new")).code == 2
    assert not (tmp_path / "new").exists()


def test_as_bundle_takes_the_profile_that_is_named(shell: Shell, published: Digest, tmp_path: Path) -> None:
    for profile in (PROFILE, OTHER):
        spec = a_spec("several", profile=profile.name)
        build = shell.service.submit(spec, tags=("latest",)).build
        shell.service.publish(shell.service.claim(profile.name, build=build.id))
    ran = shell.aot("pull", "several", "--as-bundle", str(tmp_path / "a"), "--profile", OTHER.name, "--json")
    assert ran.code == 0, ran.err
    assert read_bundle(tmp_path / "a").manifest.profile.name == OTHER.name
    ran = shell.aot("pull", "several", "--as-bundle", str(tmp_path / "b"), "--profile", "h100")
    assert (ran.code, "its profiles are cpu-base, cpu-other" in ran.err) == (2, True)
