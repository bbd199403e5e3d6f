import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.errors import InvalidDigest, InvalidInput, InvalidName
from aot.schema.digest import Digest
from aot.schema.names import Name, Namespace, Reference, Tag
from aot.schema.state import BundleState
from aot.schema.text import parse_word

ZERO = "sha256:" + "0" * 64


def test_digest_of_bytes_is_their_sha256() -> None:
    assert Digest.of(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("text", ["", "0" * 64, "sha256:" + "A" * 64, "md5:" + "0" * 32, ZERO + "\n", " " + ZERO])
def test_digest_refuses_any_other_spelling(text: str) -> None:
    with pytest.raises(InvalidDigest):
        Digest.parse(text)


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("minilm", "default/minilm:latest"),
        ("minilm:v2", "default/minilm:v2"),
        ("team/minilm", "team/minilm:latest"),
        (f"team/minilm@{ZERO}", f"team/minilm@{ZERO}"),
    ],
)
def test_reference_is_completed(text: str, complete: str) -> None:
    assert Reference.parse(text) == complete
    assert Reference.parse(complete) == complete


def test_a_word_of_a_few_is_read_and_another_refused_with_all_there_are() -> None:
    assert parse_word("live", BundleState, of="the state") is BundleState.LIVE
    with pytest.raises(InvalidInput, match=f"wanted the state {' or '.join(BundleState)}, found 'lively'"):
        parse_word("lively", BundleState, of="the state")


def test_reference_parts() -> None:
    tagged, pinned = Reference.parse("team/minilm:v2"), Reference.parse(f"team/minilm@{ZERO}")
    assert (tagged.namespace, tagged.name, tagged.tag, tagged.digest) == ("team", "minilm", "v2", None)
    assert (pinned.namespace, pinned.name, pinned.tag, pinned.digest) == ("team", "minilm", None, ZERO)
    assert tagged.pinned_to(Digest(ZERO)) == pinned


@pytest.mark.parametrize(
    "text",
    ["", "/x", "x/", "a/b/c", "Model", "model:", "model:a b", "..", "a/../b", "model:v1@" + ZERO, "-x", "x\n", "é"],
)
def test_reference_refuses_what_is_not_a_name(text: str) -> None:
    with pytest.raises(InvalidName):
        Reference.parse(text)


@given(
    st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True),
    st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True),
)
def test_reference_round_trips(namespace: str, name: str, tag: str) -> None:
    reference = Reference.parse(f"{namespace}/{name}:{tag}")
    assert (reference.namespace, reference.name, reference.tag) == (
        Namespace.parse(namespace),
        Name.parse(name),
        Tag.parse(tag),
    )
