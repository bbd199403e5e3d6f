"""Golden files freeze what is stored and sent. `python -m tests.documents` writes them; review the diff."""

import json
import re

import pytest

from aot.errors import MalformedDocument
from aot.keys import factors_of, key_of
from aot.proof import faults_of
from aot.schema.codec import decode, encode, to_builtins
from aot.schema.decision import Selection
from aot.schema.endpoints import ENDPOINTS
from aot.schema.environment import Environment
from aot.schema.lock import decode_lock
from aot.schema.manifest import Envelope, Manifest, decode_manifest, encode_manifest
from aot.schema.project import decode_project
from aot.schema.recipe import Dimension, Regions
from aot.schema.spec import Limits, Spec
from tests.builders import a_gpu_profile, a_manifest, a_profile, a_spec
from tests.documents import GOLDEN, a_lock, golden_files, messages
from tests.route_builders import a_capture_manifest, a_capture_source

KINDS = {
    "manifest": Manifest,
    "manifest-frozen": Manifest,
    "manifest-gpu": Manifest,
    "manifest-kernel": Manifest,
    "manifest-bytecode": Manifest,
    "manifest-function": Manifest,
    "manifest-capture": Manifest,
    "manifest-capture-union": Manifest,
    "envelope": Envelope,
    "selection": Selection,
    "environment": Environment,
    "spec-program": Spec,
}


@pytest.mark.parametrize("path", sorted(golden_files()))
def test_a_document_is_written_as_it_always_was(path: str) -> None:
    assert golden_files()[path] == (GOLDEN / path).read_bytes()


def test_no_golden_file_is_left_behind() -> None:
    on_disk = {path.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("*") if path.is_file()}
    on_disk = {path for path in on_disk if not path[0].isdigit()}  # those of a release: tests/contract
    on_disk = {path for path in on_disk if not path.startswith("kernels/")}  # compiled: tests.kernels
    assert on_disk - {"aot.toml"} == set(golden_files())


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_document_is_read_back_whole(name: str) -> None:
    content = (GOLDEN / f"{name}.json").read_bytes()
    assert json.loads(encode(decode(content, KINDS[name]))) == json.loads(content)


@pytest.mark.parametrize("name", sorted(ENDPOINTS))
def test_every_endpoint_has_a_golden_exchange(name: str) -> None:
    request, reply = messages()[name]
    endpoint = ENDPOINTS[name]
    assert (type(request) if request is not None else None) == endpoint.request
    assert (type(reply) if reply is not None else None) == endpoint.reply
    if request is not None:
        assert decode((GOLDEN / f"wire/{name}.request.json").read_bytes(), endpoint.request) == request
    if reply is not None:
        assert decode((GOLDEN / f"wire/{name}.reply.json").read_bytes(), endpoint.reply) == reply


@pytest.mark.parametrize("name", sorted(name for name, endpoint in ENDPOINTS.items() if endpoint.request))
def test_requests_refuse_and_replies_tolerate_unknown_fields(name: str) -> None:
    request, reply = messages()[name]
    extended = json.dumps(to_builtins(request) | {"from_the_future": 1}).encode()
    with pytest.raises(MalformedDocument, match="from_the_future"):
        decode(extended, ENDPOINTS[name].request)
    if reply is not None:
        extended = json.dumps(to_builtins(reply) | {"from_the_future": 1}).encode()
        assert decode(extended, ENDPOINTS[name].reply) == reply


def test_the_digest_of_the_golden_manifest_is_frozen() -> None:
    content, digest = encode_manifest(a_manifest())
    assert decode_manifest(content) == a_manifest()
    assert digest == FROZEN_DIGEST


def test_the_digest_of_a_captures_manifest_is_frozen() -> None:
    """Its blobs, facts and guards are what `aot run` restores by: written otherwise, it is another bundle."""
    content, digest = encode_manifest(a_capture_manifest())
    assert faults_of(decode_manifest(content)) == ()
    assert decode_manifest(content) == a_capture_manifest()
    assert digest == FROZEN_CAPTURE_DIGEST
    # Asked for by a project and not pushed, it has no entries of its own: the key that a CI step finds it by.
    asked = a_capture_manifest(a_capture_source(entries=None)).build_key
    assert (a_capture_manifest().build_key, asked) == (FROZEN_CAPTURE_KEY, FROZEN_ASKED_CAPTURE_KEY)


def test_a_manifest_reads_back_to_the_same_bytes_whatever_number_type_was_given() -> None:
    spec = a_spec(limits=Limits(wall_seconds=300))
    content, _ = encode_manifest(a_manifest(spec))
    assert encode_manifest(decode_manifest(content))[0] == content


def test_build_keys_are_frozen() -> None:
    assert key_of(factors_of(a_spec(), a_profile())) == FROZEN_KEY
    assert key_of(factors_of(a_spec(profile="h100"), a_gpu_profile())) == FROZEN_GPU_KEY


def test_a_manifest_of_another_format_is_refused_by_name() -> None:
    content = encode(to_builtins(a_manifest()) | {"format": 2, "unheard_of": True})
    with pytest.raises(MalformedDocument, match="format 2"):
        decode_manifest(content)


def test_a_format_version_is_always_written() -> None:
    for path in ("manifest.json", "aot.lock", "environment.json"):
        assert json.loads((GOLDEN / path).read_bytes())["format"] == 1


def test_a_lock_is_read_back_and_a_newer_one_refused() -> None:
    content = (GOLDEN / "aot.lock").read_bytes()
    assert decode_lock(content) == a_lock()
    with pytest.raises(MalformedDocument, match="format 9"):
        decode_lock(json.dumps(json.loads(content) | {"format": 9, "unheard_of": 1}).encode())


def test_aot_toml_is_read() -> None:
    project = decode_project((GOLDEN / "aot.toml").read_text())
    minilm, ranker = project.models
    assert project.namespace == "search"
    assert minilm.recipe.regions is Regions.AUTO
    assert minilm.recipe.dimensions == (
        Dimension(name="batch", low=1, high=32),
        Dimension(name="length", buckets=(128, 512)),
    )
    assert minilm.profiles == ("cpu-x86-64-v3", "cpu-x86-64-v4")
    assert (ranker.program, ranker.recipe.freeze, ranker.limits.wall_seconds) == ("ranker.pt2", True, 7200.0)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (('entry = "minilm:build"', ""), r"\$\.models\[0\]"),
        (('mode = "max-autotune"', 'mode = "fastest"'), r"\$\.models\[0\]\.recipe\.mode"),
        (('name = "minilm"', 'name = "Mini LM"'), r"\$\.models\[0\]\.name"),
        (("freeze = true", "frieze = true"), r"\$\.models\[1\]\.recipe"),
        (('namespace = "search"', "namespace = "), r"\$"),
    ],
)
def test_aot_toml_names_what_is_wrong(change: tuple[str, str], path: str) -> None:
    text = (GOLDEN / "aot.toml").read_text().replace(*change)
    with pytest.raises(MalformedDocument) as caught:
        decode_project(text)
    assert re.fullmatch(path, caught.value.details["path"])


FROZEN_DIGEST = "sha256:866597707bf22107cefc8da9d73448b79547fd30ac4268977eec1c95e06d870d"
FROZEN_KEY = "sha256:daa8a5d6487403a66099981e4de0fec3219bcb6a6ac4e2cb0965a6df88f40866"
FROZEN_GPU_KEY = "sha256:bf8320903dadd19da2a005ed78d174e20a94b0e2856c2dd908c51c7bbd718dfb"
FROZEN_CAPTURE_DIGEST = "sha256:9c4a0a2e8b09bcbd41080cc7096f9638d2a81e1f7e371dd0a3e93fdfb86571b5"
FROZEN_CAPTURE_KEY = "sha256:68f7ed10c4e04f07786151eeb7c875126bd54f9c3fb88ecd308b5a68e7e185f6"
FROZEN_ASKED_CAPTURE_KEY = "sha256:9c6f5721ce29f78f16fd8ee4bccaf91008a0ccb3a9598a2dc4a74d1720ba313e"


def test_a_lock_that_is_damaged_says_how_to_get_another() -> None:
    with pytest.raises(MalformedDocument, match="truncated") as caught:
        decode_lock(b"{")
    assert "`aot ensure`" in caught.value.hint
