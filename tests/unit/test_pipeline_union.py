"""What a worker joins a union with, and where there is nothing to join it with: a reason, never a smaller bundle."""

from pathlib import Path

import pytest

from aot.errors import BundleNotFound, BundleWithdrawn, QualificationFailed, TagNotFound
from aot.pipeline.union import fetch_bases
from aot.schema.digest import Digest
from aot.schema.manifest import Envelope, Manifest, encode_manifest
from aot.schema.names import Reference, Tag
from aot.schema.spec import Spec
from aot.schema.wire.blobs import Link
from aot.schema.wire.bundles import SignedManifest
from tests.builders import BYTES, a_blob, a_manifest
from tests.route_builders import a_capture_manifest, a_capture_source

BASE = a_capture_manifest()
BASE_DIGEST = encode_manifest(BASE)[1]


class Registry:
    """Answers what a tag and a digest stand for: bundles, or an error."""

    def __init__(self, tagged: Manifest | Exception, pinned: Manifest | Exception = BASE) -> None:
        self._answers = {False: tagged, True: pinned}
        self._links: dict[Digest, list[Link]] = {}

    def resolve(self, reference: Reference) -> tuple[SignedManifest, ...]:
        answer = self._answers[reference.digest is not None]
        if isinstance(answer, Exception):
            raise answer
        content, digest = encode_manifest(answer)
        self._links[digest] = [
            Link(digest=blob.digest, size_bytes=blob.size_bytes, url="", method="GET") for blob in answer.blobs
        ]
        return (SignedManifest(digest=digest, manifest=content.decode(), envelope=Envelope(payload="", signatures=())),)

    def get_download_links(self, digest: Digest) -> list[Link]:
        return self._links[digest]

    def get_blob(self, link: Link, writer: object, *, limit_bytes: int) -> None:
        writer.write(BYTES[link.digest])


def a_union() -> Spec:
    return a_capture_manifest(a_capture_source(union_of=BASE_DIGEST)).spec


def bases(registry: Registry, tmp_path: Path, spec: Spec | None = None) -> list[Digest]:
    found = fetch_bases(registry, spec or a_union(), tags=(Tag("v1"),), into=tmp_path, should_stop=lambda: None)
    for base in found:
        assert all(base.paths[file.digest].read_bytes() == BYTES[file.digest] for file in base.artifact.files)
    return [base.digest for base in found]


def test_a_union_holds_what_the_tag_stands_for_and_what_the_run_had(tmp_path: Path) -> None:
    grown = a_capture_manifest(a_capture_source(command=("python", "serve.py"), union_of=BASE_DIGEST))
    assert bases(Registry(grown), tmp_path / "1") == [encode_manifest(grown)[1], BASE_DIGEST]
    assert bases(Registry(BASE), tmp_path / "2") == [BASE_DIGEST]
    # A tag that stands for nothing takes nothing away.
    assert bases(Registry(TagNotFound("none")), tmp_path / "3") == [BASE_DIGEST]


def test_a_capture_that_is_no_union_asks_for_nothing(tmp_path: Path) -> None:
    assert bases(Registry(RuntimeError("asked")), tmp_path, BASE.spec) == []


@pytest.mark.parametrize(
    ("registry", "text"),
    [
        (Registry(a_capture_manifest(a_capture_source(tree=a_blob(b"another tree")))), "stands for another program"),
        (Registry(BundleWithdrawn("the bundle was withdrawn: wrong")), "was withdrawn: wrong"),
        (Registry(BASE, BundleWithdrawn("the bundle was withdrawn: wrong")), "was withdrawn: wrong"),
        (Registry(BASE, BundleNotFound("none")), "is gone"),
    ],
    ids=["another-tree", "tag-withdrawn", "base-withdrawn", "base-gone"],
)
def test_what_cannot_be_joined_fails_with_the_reason(registry: Registry, text: str, tmp_path: Path) -> None:
    with pytest.raises(QualificationFailed, match=text):
        bases(registry, tmp_path)


def test_a_package_under_the_tag_is_another_program(tmp_path: Path) -> None:
    package = a_manifest()
    with pytest.raises(QualificationFailed, match="stands for another program"):
        bases(Registry(package), tmp_path)
