"""Signatures: who may be believed, about what, and what every refusal says."""

import base64
import shutil
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.errors import InvalidConfig, SignatureRejected
from aot.schema.codec import encode
from aot.schema.digest import BuildKey, Digest
from aot.schema.manifest import PAYLOAD_TYPE, Envelope, Signature, Statement
from aot.schema.names import Name, Namespace
from aot.trust import (
    SIGNATURES,
    PublicKey,
    SigningKey,
    TrustedKeys,
    pre_authentication_encoding,
    sign,
    verified_statement,
    verify,
)
from tests.builders import altered

OLD, NEW, STRANGER = SigningKey.generate(), SigningKey.generate(), SigningKey.generate()
STATEMENT = Statement(
    manifest=Digest.of(b"manifest"),
    namespace=Namespace("acme"),
    name=Name("bert"),
    build_key=BuildKey.of(b"key"),
)
RIGHT = {"manifest": STATEMENT.manifest, "namespace": STATEMENT.namespace, "name": STATEMENT.name}


def trust(*keys: SigningKey) -> TrustedKeys:
    return TrustedKeys(tuple(key.public for key in keys))


def test_what_a_trusted_key_signed_is_returned():
    assert verify(sign(STATEMENT, OLD), trust(OLD), **RIGHT) == STATEMENT
    assert verify(sign(STATEMENT, OLD), trust(OLD), **RIGHT, build_key=STATEMENT.build_key) == STATEMENT


def test_the_signed_bytes_are_those_of_the_dsse_protocol():
    """The example of the protocol's own text, version 1.0.0."""
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pre_authentication_encoding("http://example.com/HelloWorld", b"hello world") == expected
    envelope = sign(STATEMENT, OLD)
    message = pre_authentication_encoding(PAYLOAD_TYPE, encode(STATEMENT))
    assert OLD.public.signed(message, base64.b64decode(envelope.signatures[0].sig))


@pytest.mark.parametrize("signers", [(OLD, NEW), (NEW, OLD), (STRANGER, NEW)])
def test_one_trusted_signature_of_several_is_enough(signers):
    assert verify(sign(STATEMENT, *signers), trust(NEW), **RIGHT) == STATEMENT


def test_during_a_rotation_both_keys_are_believed():
    for signer in (OLD, NEW):
        assert verify(sign(STATEMENT, signer), trust(OLD) | trust(NEW), **RIGHT) == STATEMENT


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("manifest", Digest.of(b"another")),
        ("namespace", Namespace("evil")),
        ("name", Name("gpt")),
        ("build_key", BuildKey.of(b"another")),
    ],
)
def test_a_statement_about_another_bundle_names_the_field(field, other):
    with pytest.raises(SignatureRejected) as caught:
        verify(sign(STATEMENT, OLD), trust(OLD), **(RIGHT | {field: other}))
    found = str(getattr(STATEMENT, field))
    assert caught.value.message == f"the signature is for {field} {found}, wanted {other}"
    assert caught.value.details == {"field": field, "wanted": str(other), "found": found}


def refused(envelope: Envelope, trusted: TrustedKeys) -> SignatureRejected:
    with pytest.raises(SignatureRejected) as caught:
        verified_statement(envelope, trusted)
    assert caught.value.hint
    return caught.value


def test_each_refusal_has_its_own_words():
    envelope = sign(STATEMENT, OLD)
    other_payload = base64.b64encode(encode(altered(STATEMENT, name=Name("gpt")))).decode()
    messages = [
        refused(envelope, TrustedKeys()).message,
        refused(envelope, trust(NEW)).message,
        refused(altered(envelope, payload_type="application/json"), trust(OLD)).message,
        refused(altered(envelope, payload="!"), trust(OLD)).message,
        refused(altered(envelope, payload=other_payload), trust(OLD)).message,
        refused(altered(envelope, signatures=()), trust(OLD)).message,
    ]
    assert messages == [
        "no key is trusted, so no signature can be believed",
        f"signed by {OLD.public.keyid}, trusted are {NEW.public.keyid}",
        f"the envelope holds 'application/json', wanted {PAYLOAD_TYPE!r}",
        "the envelope's payload is not base64",
        f"the signature by trusted key {OLD.public.keyid} does not match: the statement was altered",
        f"the envelope has 0 signatures, wanted 1 to {SIGNATURES}",
    ]


def test_a_flood_of_signatures_is_not_tried():
    signature = sign(STATEMENT, STRANGER).signatures[0]
    assert "wanted 1 to" in refused(Envelope(payload="", signatures=(signature,) * 33), trust(OLD)).message


def test_a_signature_under_anothers_name_is_refused():
    stranger = sign(STATEMENT, STRANGER)
    posing = Signature(keyid=OLD.public.keyid, sig=stranger.signatures[0].sig)
    assert "does not match" in refused(altered(stranger, signatures=(posing,)), trust(OLD)).message


@pytest.mark.parametrize("sig", ["", "!", "AAAA", base64.b64encode(bytes(64)).decode()])
def test_a_garbled_signature_is_refused(sig):
    envelope = altered(sign(STATEMENT, OLD), signatures=(Signature(keyid=OLD.public.keyid, sig=sig),))
    assert "does not match" in refused(envelope, trust(OLD)).message


@pytest.mark.parametrize("payload", [b"{}", b"not json", b'{"manifest":"sha256:0"}', b"\xff", b""])
def test_a_signed_payload_that_is_no_statement_is_refused(payload):
    message = pre_authentication_encoding(PAYLOAD_TYPE, payload)
    envelope = Envelope(
        payload=base64.b64encode(payload).decode(),
        signatures=(Signature(keyid=OLD.public.keyid, sig=base64.b64encode(OLD.sign(message)).decode()),),
    )
    assert "no statement about a bundle" in refused(envelope, trust(OLD)).message


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_every_flipped_bit_of_payload_or_signature_is_noticed(position, bit):
    envelope = sign(STATEMENT, OLD)
    payload, signature = base64.b64decode(envelope.payload), base64.b64decode(envelope.signatures[0].sig)
    both = bytearray(payload + signature)
    both[position % len(both)] ^= 1 << bit
    changed = Envelope(
        payload=base64.b64encode(both[: len(payload)]).decode(),
        signatures=(Signature(keyid=OLD.public.keyid, sig=base64.b64encode(both[len(payload) :]).decode()),),
    )
    refused(changed, trust(OLD))


def test_trusted_keys_are_read_from_lines_commas_and_comments():
    text = f"# production\n{OLD.public},{NEW.public}\n\n  {STRANGER.public} # staging\n{OLD.public}\n"
    assert TrustedKeys.parse(text) == trust(OLD, NEW, STRANGER)
    assert TrustedKeys.of([str(OLD.public)]) == trust(OLD)
    assert len(TrustedKeys.parse(" ,\n#\n")) == 0


@pytest.mark.parametrize(
    "text",
    ["ed25519", "ed25519:", "ed25519:AAAA", "rsa:" + "A" * 43 + "=", "A" * 43 + "=", "ed25519:" + "*" * 44],
)
def test_a_key_of_another_spelling_is_named(text):
    with pytest.raises(InvalidConfig, match="wanted a public key"):
        TrustedKeys.parse(f"{OLD.public} {text}")


def test_a_keyid_is_the_beginning_of_the_digest_of_the_key():
    assert PublicKey(bytes(32)).keyid == "66687aadf862bd77"


def test_a_key_is_saved_for_its_owner_only_and_loaded_again(tmp_path):
    path = tmp_path / "signing.pem"
    OLD.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert SigningKey.load(path).public == OLD.public
    assert [entry.name for entry in tmp_path.iterdir()] == ["signing.pem"]


def test_a_key_is_never_overwritten(tmp_path):
    OLD.save(tmp_path / "signing.pem")
    with pytest.raises(InvalidConfig, match="never overwritten"):
        NEW.save(tmp_path / "signing.pem")
    assert SigningKey.load(tmp_path / "signing.pem").public == OLD.public
    assert [entry.name for entry in tmp_path.iterdir()] == ["signing.pem"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o620])
def test_a_key_that_others_can_use_is_refused(tmp_path, mode):
    path = tmp_path / "signing.pem"
    OLD.save(path)
    path.chmod(mode)
    with pytest.raises(InvalidConfig, match=f"mode is {mode:04o}"):
        SigningKey.load(path)


@pytest.mark.parametrize("content", [b"", b"noise", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"])
def test_another_file_is_no_key_and_is_not_quoted(tmp_path, content):
    path = tmp_path / "signing.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InvalidConfig, match="holds no Ed25519 private key") as caught:
        SigningKey.load(path)
    assert "AAAA" not in caught.value.message
    with pytest.raises(InvalidConfig, match="cannot be read"):
        SigningKey.load(tmp_path / "nothing")


def test_a_key_of_openssl_is_loaded_and_one_of_another_kind_is_not(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on PATH")
    for kind in ("ed25519", "x25519"):
        command = ["openssl", "genpkey", "-algorithm", kind, "-out", str(tmp_path / kind)]
        subprocess.run(command, check=True, capture_output=True)
        (tmp_path / kind).chmod(0o600)
    key = SigningKey.load(tmp_path / "ed25519")
    assert verify(sign(STATEMENT, key), trust(key), **RIGHT) == STATEMENT
    with pytest.raises(InvalidConfig, match="no Ed25519"):
        SigningKey.load(tmp_path / "x25519")


def test_of_several_that_create_a_key_all_get_the_same(tmp_path):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(SigningKey.load_or_create(tmp_path / "k").public))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


def test_the_private_key_is_in_no_text():
    assert "Private" not in repr(OLD) and "object at" not in repr(OLD)


def test_importing_trust_does_not_import_cryptography():
    script = "import sys, aot.trust; print('cryptography' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
