"""Certificates that live as long as a test: an authority, and servers that it vouches for or not."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Authority:
    """Signs certificates, and is trusted by whoever takes `trusting`."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def trusting(self) -> ssl.SSLContext:
        pem = self.certificate.public_bytes(serialization.Encoding.PEM).decode()
        return ssl.create_default_context(cadata=pem)

    def server(self, name: str, days: int = 1) -> ssl.SSLContext:
        """What a server of this name needs; a negative number of days makes a certificate that has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        found = _builder(name, key, days).issuer_name(self.certificate.subject)
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        signed = found.add_extension(names, critical=False).sign(self.key, hashes.SHA256())
        file = self.folder / f"{name}{days}.pem"
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(signed.public_bytes(serialization.Encoding.PEM) + secret)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(file)
        return context


def authority(folder: Path) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    built = _builder("test authority", key, 1).issuer_name(_name("test authority"))
    certificate = built.add_extension(x509.BasicConstraints(True, None), critical=True).sign(key, hashes.SHA256())
    return Authority(folder, key, certificate)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(name: str, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    ends = datetime.now(UTC) + timedelta(days=days)
    begins = ends - timedelta(days=2 * abs(days))
    builder = x509.CertificateBuilder().subject_name(_name(name)).public_key(key.public_key())
    serial = x509.random_serial_number()
    return builder.serial_number(serial).not_valid_before(begins).not_valid_after(ends)
