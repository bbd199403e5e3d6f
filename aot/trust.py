"""Trust: Ed25519 signatures over a bundle's identity. The registry signs at publish, every client verifies before one
byte of an artifact is unpickled, mapped or opened (design.md, sections 4 and 5).

Envelopes are DSSE (secure-systems-lab/dsse, protocol v1.0.0): the signature is over `PAE(type, payload)`, so a payload
can't be read as another type. Keys rotate: a verifier holds a set, and one trusted signature of several suffices.
`cryptography` is imported by the functions that need it, since `import aot` must stay light.
"""

import base64
import binascii
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from aot.errors import InvalidConfig, MalformedDocument, SignatureRejected
from aot.schema.codec import decode, encode
from aot.schema.digest import BuildKey, Digest
from aot.schema.manifest import PAYLOAD_TYPE, Envelope, Signature, Statement
from aot.schema.names import Name, Namespace

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PREFIX = "ed25519:"
SIGNATURES = 32  # the most that an envelope may carry
_KEY_BYTES = 32


class PublicKey(Struct, frozen=True):
    """One key that may be trusted, written `ed25519:` and base64 of its 32 bytes."""

    raw: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises InvalidConfig for any other spelling."""
        try:
            raw = base64.b64decode(text.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if not text.startswith(PREFIX) or len(raw) != _KEY_BYTES:
            raise InvalidConfig(
                f"wanted a public key, found {text[:80]!r}",
                hint=f"write {PREFIX} and the base64 of 32 bytes, as `aot up` prints it",
            )
        return cls(raw)

    @property
    def keyid(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of the key."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    def __str__(self) -> str:
        return PREFIX + base64.b64encode(self.raw).decode()

    def signed(self, message: bytes, signature: bytes) -> bool:
        """True when `signature` is this key's over `message`."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


class TrustedKeys(Struct, frozen=True):
    """The keys whose signature is believed. They come from outside the registry, never from it."""

    keys: tuple[PublicKey, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse AOT_TRUSTED_KEYS: keys separated by commas, white space or lines; `#` begins a comment.

        Raises InvalidConfig naming the first entry that is no key.
        """
        lines = (line.partition("#")[0] for line in text.splitlines())
        return cls.of(entry for line in lines for entry in line.replace(",", " ").split())

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Parse one key an entry, as a lock file lists them."""
        return cls(tuple(dict.fromkeys(PublicKey.parse(text) for text in texts)))

    def with_keyid(self, keyid: str) -> tuple[PublicKey, ...]:
        return tuple(key for key in self.keys if key.keyid == keyid)

    def __or__(self, other: "TrustedKeys") -> "TrustedKeys":
        return TrustedKeys(tuple(dict.fromkeys((*self.keys, *other.keys))))

    def __iter__(self) -> Iterator[PublicKey]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class SigningKey:
    """The registry's private key. Its text never appears in a message or a repr."""

    _private: "Ed25519PrivateKey" = field(repr=False)

    @classmethod
    def generate(cls) -> Self:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a PKCS#8 PEM file that only its owner can read. Raises InvalidConfig."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                content = file.read(64 * 1024)
        except OSError as error:
            raise InvalidConfig(
                f"the signing key {path} cannot be read: {error.strerror}", hint="check the path and its owner"
            ) from error
        if mode & 0o077:
            raise InvalidConfig(
                f"the signing key {path} may be used by others: its mode is {mode:04o}, wanted 0600",
                hint=f"chmod 600 {path}, and replace the key if others had access",
            )
        try:
            private = load_pem_private_key(content, password=None)
        except (ValueError, TypeError) as error:
            raise _no_key(path) from error
        if not isinstance(private, Ed25519PrivateKey):
            raise _no_key(path)
        return cls(private)

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """Return the key at `path`, made first if there is none; of several processes that try, one makes it."""
        if not path.exists():
            cls.generate()._create(path)
        return cls.load(path)

    def save(self, path: Path) -> None:
        """Write the key with mode 0600; it appears whole. Raises InvalidConfig: a key is never overwritten."""
        if not self._create(path):
            raise InvalidConfig(
                f"{path} exists, and a key is never overwritten", hint="move it away first, or choose another path"
            )

    def _create(self, path: Path) -> bool:
        """Write the key unless `path` is there already, and return whether it was written."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        content = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # A link, not a rename: it fails where another process was first.
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    @property
    def public(self) -> PublicKey:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return PublicKey(self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)


def sign(statement: Statement, *keys: SigningKey) -> Envelope:
    """Return an envelope with one signature by each key; two keys while one replaces the other."""
    return seal(encode(statement), PAYLOAD_TYPE, *keys)


def seal(payload: bytes, kind: str, *keys: SigningKey) -> Envelope:
    """Return an envelope around `payload`, which can be read as a `kind` alone, with one signature by each key."""
    message = pre_authentication_encoding(kind, payload)
    return Envelope(
        payload=base64.b64encode(payload).decode(),
        payload_type=kind,
        signatures=tuple(
            Signature(keyid=key.public.keyid, sig=base64.b64encode(key.sign(message)).decode()) for key in keys
        ),
    )


def verify(
    envelope: Envelope,
    trusted: TrustedKeys,
    *,
    manifest: Digest,
    namespace: Namespace,
    name: Name,
    build_key: BuildKey | None = None,
) -> Statement:
    """Return the statement, which a trusted key signed and which is about exactly this bundle.

    `manifest` is the digest of the bytes received; `build_key` None: any build of that model. Raises SignatureRejected.
    """
    statement = verified_statement(envelope, trusted)
    wanted = {"manifest": manifest, "namespace": namespace, "name": name, "build_key": build_key}
    for field_name, value in wanted.items():
        found = getattr(statement, field_name)
        if value is not None and found != value:
            raise SignatureRejected(
                f"the signature is for {field_name} {found}, wanted {value}",
                hint="the registry or the cache answered with another bundle; fetch again, and report it if it stays",
                details={"field": field_name, "wanted": str(value), "found": str(found)},
            )
    return statement


def verified_statement(envelope: Envelope, trusted: TrustedKeys) -> Statement:
    """Return what a trusted key signed, whatever it is about. Raises SignatureRejected."""
    payload = unseal(envelope, trusted, kind=PAYLOAD_TYPE)
    try:
        return decode(payload, Statement, what="signed statement")
    except MalformedDocument as error:
        raise SignatureRejected(
            f"the signed payload is no statement about a bundle: {error.message}",
            hint="update aot if the registry is newer",
        ) from error


def unseal(envelope: Envelope, trusted: TrustedKeys, *, kind: str) -> bytes:
    """Return the payload, a `kind` that a trusted key signed. Raises SignatureRejected."""
    if envelope.payload_type != kind:
        raise SignatureRejected(
            f"the envelope holds {envelope.payload_type[:80]!r}, wanted {kind!r}",
            hint="it was signed for another purpose; update aot if the registry is newer",
        )
    payload = _from_base64(envelope.payload)
    if payload is None:
        raise SignatureRejected("the envelope's payload is not base64", hint="fetch the bundle again")
    _check_signature(envelope, payload, trusted)
    return payload


def pre_authentication_encoding(kind: str, payload: bytes) -> bytes:
    """Return DSSE's PAE: `DSSEv1`, then length and bytes of the type and of the payload, separated by spaces."""
    name = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(payload), payload)


def _check_signature(envelope: Envelope, payload: bytes, trusted: TrustedKeys) -> None:
    if not trusted:
        raise SignatureRejected(
            "no key is trusted, so no signature can be believed",
            hint="set AOT_TRUSTED_KEYS to the line that `aot up` prints, or pin keys in aot.lock",
        )
    if not 0 < len(envelope.signatures) <= SIGNATURES:
        raise SignatureRejected(
            f"the envelope has {len(envelope.signatures)} signatures, wanted 1 to {SIGNATURES}",
            hint="fetch the bundle again",
        )
    message = pre_authentication_encoding(envelope.payload_type, payload)
    named: list[str] = []
    for signature in envelope.signatures:
        for key in trusted.with_keyid(signature.keyid):
            named.append(key.keyid)
            if key.signed(message, _from_base64(signature.sig) or b""):
                return
    if named:
        raise SignatureRejected(
            f"the signature by trusted key {named[0]} does not match: the statement was altered",
            hint="fetch again; if it stays, the bundle was tampered with: report it, do not run it",
        )
    signers = ", ".join(signature.keyid[:16] for signature in envelope.signatures[:4])
    raise SignatureRejected(
        f"signed by {signers}, trusted are {', '.join(key.keyid for key in trusted)}",
        hint="if the registry changed its key, add the new one to AOT_TRUSTED_KEYS after asking its operator",
    )


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _no_key(path: Path) -> InvalidConfig:
    return InvalidConfig(
        f"{path} holds no Ed25519 private key in PKCS#8 PEM",
        hint="make one with `openssl genpkey -algorithm ed25519`, or let `aot up` make it",
    )
