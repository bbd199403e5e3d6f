"""What a bundle is assembled from, and paths that are refused everywhere."""

import pytest

from aot.bundle import (
    ViolationKind,
    assemble,
    materialise_view,
    verify_bundle,
    why_unsafe,
    why_unsafe_together,
    write_bundle,
)
from aot.errors import MalformedDocument
from aot.keys import key_of
from aot.schema.codec import encode
from tests.builders import a_fingerprint, a_manifest, a_profile, a_qualification, a_report, a_spec, altered, an_artifact
from tests.unit.bundle.bundles import LIBRARY


def test_assembling_works_out_factors_and_key():
    spec, profile = a_spec(name="bert", namespace="acme"), a_profile()
    manifest = assemble(
        spec,
        profile,
        fingerprint=a_fingerprint(),
        artifacts=(an_artifact(),),
        qualification=a_qualification(),
        compile_report=a_report(),
        provenance=a_manifest().provenance,
    )
    assert (manifest.namespace, manifest.name) == ("acme", "bert")
    assert manifest.build_key == key_of(manifest.factors)
    assert manifest.spec == spec and manifest.profile == profile


UNSAFE = ["/etc/passwd", "../a", "a/../b", "", "a//b", "a\0b", "a\\b", "lib/", ".", "x" * 300, "\ud800"]


@pytest.mark.parametrize("path", UNSAFE, ids=repr)
def test_hostile_paths_are_refused_everywhere(tmp_path, bytes_of, path):
    artifact = an_artifact(files=(altered(LIBRARY, path=path),))
    assert why_unsafe(path)
    with pytest.raises(MalformedDocument):
        materialise_view(lambda _: None, artifact, tmp_path / "view")
    with pytest.raises(MalformedDocument):
        write_bundle(tmp_path / "bundle", manifest=a_manifest(artifacts=(artifact,)), files={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["/evil", "../evil", "a\x00b"])
def test_a_manifest_that_lists_a_hostile_path_is_malformed(tmp_path, path):
    manifest = a_manifest(artifacts=(an_artifact(files=(altered(LIBRARY, path=path),)),))
    (tmp_path / "manifest.json").write_bytes(encode(manifest))
    found = verify_bundle(tmp_path, None)
    assert [violation.kind for violation in found] == [ViolationKind.MALFORMED]
    assert "cannot be used" in found[0].text


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_paths_that_exclude_each_other_are_refused(paths):
    assert why_unsafe_together(paths) is not None
    assert why_unsafe_together(("a/b", "a/c", "ab", "b")) is None


def test_one_digest_with_two_sizes_is_malformed(tmp_path):
    files = (LIBRARY, altered(LIBRARY, path="lib/other.so", size_bytes=1))
    with pytest.raises(MalformedDocument, match="with 130 and with 1 bytes"):
        write_bundle(tmp_path / "bundle", manifest=a_manifest(artifacts=(an_artifact(files=files),)), files={})
