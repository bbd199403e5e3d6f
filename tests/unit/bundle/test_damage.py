"""Every damage to a bundle on disk is found and named, all at once."""

import os
from pathlib import Path

import pytest

from aot.bundle import Violation, ViolationKind, raise_first, verify_bundle, write_envelope
from aot.errors import (
    AotError,
    DigestMismatch,
    IntegrityFailed,
    MalformedDocument,
    SignatureRejected,
    SizeMismatch,
    UnknownFile,
)
from aot.schema.codec import encode
from aot.schema.names import Name
from aot.schema.spec import File
from tests.builders import a_manifest, altered
from tests.unit.bundle.bundles import CUBIN, LIBRARY, STRANGER, TRUSTED, kinds, signed


def blob_file(stored, file: File = LIBRARY) -> Path:
    return stored.blob_path(file.digest)


def path_of(file: File) -> str:
    return f"blobs/sha256/{file.digest.hex}"


def remove(stored):
    blob_file(stored).unlink()
    return [(ViolationKind.MISSING, path_of(LIBRARY))]


def truncate(stored):
    os.truncate(blob_file(stored), 5)
    return [(ViolationKind.TRUNCATED, path_of(LIBRARY))]


def empty(stored):
    os.truncate(blob_file(stored), 0)
    return [(ViolationKind.TRUNCATED, path_of(LIBRARY))]


def extend(stored):
    with blob_file(stored).open("ab") as file:
        file.write(b"!")
    return [(ViolationKind.EXTENDED, path_of(LIBRARY))]


def flip(stored):
    content = bytearray(blob_file(stored).read_bytes())
    content[7] ^= 1
    blob_file(stored).write_bytes(content)
    return [(ViolationKind.ALTERED, path_of(LIBRARY))]


def rename(stored):
    other = blob_file(stored).with_name("0" * 64)
    blob_file(stored).rename(other)
    return [
        (ViolationKind.MISSING, path_of(LIBRARY)),
        (ViolationKind.UNKNOWN, f"blobs/sha256/{'0' * 64}"),
    ]


def swap(stored):
    first, second = blob_file(stored), blob_file(stored, CUBIN)
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    return [(ViolationKind.TRUNCATED, path_of(LIBRARY)), (ViolationKind.EXTENDED, path_of(CUBIN))]


def add_file(stored):
    (stored.directory / "extra.so").touch()
    return [(ViolationKind.UNKNOWN, "extra.so")]


def add_blob(stored):
    (stored.directory / "blobs" / "sha256" / "extra").touch()
    return [(ViolationKind.UNKNOWN, "blobs/sha256/extra")]


def add_directory(stored):
    (stored.directory / "blobs" / "md5").mkdir()
    return [(ViolationKind.UNKNOWN, "blobs/md5")]


def link_blob(stored):
    outside = stored.directory.parent / "outside"
    blob_file(stored).rename(outside)
    blob_file(stored).symlink_to(outside)
    return [(ViolationKind.NOT_A_FILE, path_of(LIBRARY))]


def replace_by_directory(stored):
    blob_file(stored).unlink()
    blob_file(stored).mkdir()
    return [(ViolationKind.NOT_A_FILE, path_of(LIBRARY))]


def replace_by_pipe(stored):
    blob_file(stored).unlink()
    os.mkfifo(blob_file(stored))
    return [(ViolationKind.NOT_A_FILE, path_of(LIBRARY))]


def link_blobs(stored):
    outside = stored.directory.parent / "outside"
    (stored.directory / "blobs").rename(outside)
    (stored.directory / "blobs").symlink_to(outside)
    return [(ViolationKind.UNKNOWN, "blobs")]


def remove_signature(stored):
    (stored.directory / "envelope.json").unlink()
    return [(ViolationKind.UNSIGNED, "envelope.json")]


def garble_signature(stored):
    (stored.directory / "envelope.json").write_bytes(b"{")
    return [(ViolationKind.MALFORMED, "envelope.json")]


def pipe_as_signature(stored):
    (stored.directory / "envelope.json").unlink()
    os.mkfifo(stored.directory / "envelope.json")
    return [(ViolationKind.MALFORMED, "envelope.json")]


def sign_by_stranger(stored):
    write_envelope(stored.directory, signed(stored.manifest, STRANGER))
    return [(ViolationKind.SIGNATURE, "envelope.json")]


def sign_another_name(stored):
    write_envelope(stored.directory, signed(stored.manifest, name=Name("other")))
    return [(ViolationKind.SIGNATURE, "envelope.json")]


def sign_another_manifest(stored):
    write_envelope(stored.directory, signed(a_manifest()))
    return [(ViolationKind.SIGNATURE, "envelope.json")]


def indent(stored):
    """The same document in other bytes: another digest, so the signature is not about it either."""
    path = stored.directory / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"', b' "', 1))
    return [(ViolationKind.NOT_CANONICAL, "manifest.json"), (ViolationKind.SIGNATURE, "envelope.json")]


def rename_model(stored):
    changed = altered(stored.manifest, name=Name("other"))
    (stored.directory / "manifest.json").write_bytes(encode(changed))
    return [(ViolationKind.SIGNATURE, "envelope.json")]


def several_at_once(stored):
    flip(stored)
    os.truncate(blob_file(stored, CUBIN), 1)
    (stored.directory / "extra").touch()
    remove_signature(stored)
    return [
        (ViolationKind.UNSIGNED, "envelope.json"),
        *sorted(
            [(ViolationKind.ALTERED, path_of(LIBRARY)), (ViolationKind.TRUNCATED, path_of(CUBIN))],
            key=lambda found: found[1],
        ),
        (ViolationKind.UNKNOWN, "extra"),
    ]


DAMAGE = [
    *(remove, truncate, empty, extend, flip, rename, swap, add_file, add_blob, add_directory, link_blob),
    *(replace_by_directory, replace_by_pipe, link_blobs, remove_signature, garble_signature, pipe_as_signature),
    *(sign_by_stranger, sign_another_name, sign_another_manifest, indent, rename_model, several_at_once),
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_named(stored, damage):
    expected = damage(stored)
    assert sorted(kinds(stored)) == sorted(expected)
    with pytest.raises(AotError):
        raise_first(verify_bundle(stored.directory, TRUSTED))


def test_every_single_flipped_byte_is_noticed(stored):
    for path in [path for path in stored.directory.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        # Of long documents every seventh byte, of blobs every one.
        for offset in range(0, len(content), 7 if path.suffix == ".json" else 1):
            flipped = bytearray(content)
            flipped[offset] ^= 0x01
            path.write_bytes(flipped)
            assert verify_bundle(stored.directory, TRUSTED), f"{path.name} at {offset}"
        path.write_bytes(content)
    assert verify_bundle(stored.directory, TRUSTED) == ()


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (ViolationKind.MALFORMED, MalformedDocument),
        (ViolationKind.NOT_CANONICAL, IntegrityFailed),
        (ViolationKind.UNSIGNED, SignatureRejected),
        (ViolationKind.SIGNATURE, SignatureRejected),
        (ViolationKind.MISSING, IntegrityFailed),
        (ViolationKind.TRUNCATED, SizeMismatch),
        (ViolationKind.EXTENDED, SizeMismatch),
        (ViolationKind.ALTERED, DigestMismatch),
        (ViolationKind.UNKNOWN, UnknownFile),
        (ViolationKind.NOT_A_FILE, UnknownFile),
    ],
)
def test_each_kind_of_violation_has_its_error(kind, error):
    with pytest.raises(error) as caught:
        raise_first([Violation(kind, "a", "first"), Violation(ViolationKind.MISSING, "b", "second")])
    assert type(caught.value) is error
    assert caught.value.message == "first (and 1 more)"
    assert caught.value.details == {"violations": ["a: first", "b: second"]}


def test_no_violation_raises_nothing():
    raise_first(())
