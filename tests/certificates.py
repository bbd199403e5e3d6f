"""Certificates of a server on this host that no authority knows."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path


def certificate(directory: Path, *, owner: str = "registry", host: str = "127.0.0.1") -> tuple[Path, ssl.SSLContext]:
    """Of `host` alone: the file that a client may be told to trust, and what a server answers with.

    They are `OWNER.pem`, its own authority, and `OWNER.key` in `directory`.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, owner)])
    is_address = host.replace(".", "").isdigit()
    called = x509.IPAddress(ip_address(host)) if is_address else x509.DNSName(host)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([called]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = serialization.PrivateFormat.PKCS8
    pem = directory / f"{owner}.pem"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret = directory / f"{owner}.key"
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, secret)
    return pem, context
