"""A private certificate authority for tests, and files signed by it."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
EXPIRED = datetime.datetime(2021, 1, 1, tzinfo=datetime.UTC)
LATER = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)
LOCAL = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1")))


@dataclass
class Authority:
    """Signs certificates for 127.0.0.1 and localhost."""

    name: str

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        self.certificate = (
            _builder(subject, subject, self.key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self, name: str, end: datetime.datetime = LATER, names: Sequence[x509.GeneralName] = LOCAL
    ) -> tuple[bytes, bytes]:
        """Certificate and key, PEM; `names` are the alternative ones."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject, self.certificate.subject, key, end)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def write(self, folder: Path, name: str, end: datetime.datetime = LATER) -> tuple[Path, Path]:
        """Files of a new certificate and its key."""
        cert, key = self.issue(name, end)
        paths = folder / "server.pem", folder / "server.key"
        for path, content in zip(paths, (cert, key), strict=True):
            path.write_bytes(content)
        return paths


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime.datetime = LATER
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW)
        .not_valid_after(end)
    )
