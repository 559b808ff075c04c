"""Client certificates: their names, and the file with the permissions of each name.

    certificates:
      - name: slurm                          # the caller, in the audit log and in records
        subject: cn:slurm-controller         # or dns:…, uri:…, email:…, ip:… of the subject alternative names
        scopes: [decide, report]
        clusters: [prod]                     # absent: every cluster

A certificate whose names are all unknown may do nothing. Whether a certificate is one of the authority's is settled
before, in the handshake.
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from placewise_core.basics.clock import Clock
from placewise_service.api.identity.auth import Method, Principal
from placewise_service.api.identity.caller_files import CallerEntry, watched_entries
from placewise_service.api.identity.watched import OnStale, document_of, ignore_stale

_KEPT = 1024  # certificates whose names are remembered: connections come again, and calls on them


class CertificateEntry(CallerEntry):
    """One line of the certificates file."""

    subject: str = Field(pattern=r"^(cn|dns|uri|email|ip):.+$")


class _CertificateDocument(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    certificates: tuple[CertificateEntry, ...]


def parse_certificates(content: bytes) -> tuple[CertificateEntry, ...]:
    """The entries. Raises CredentialsFileError, also for a file that says nothing at all."""
    return document_of(content, _CertificateDocument, "certificates: []").certificates


class CertificateFile:
    """Recognises certificates by their names. Raises CredentialsFileError at construction."""

    def __init__(self, path: Path, clock: Clock, keep_s: float, on_stale: OnStale = ignore_stale) -> None:
        self.file = watched_entries("certificates file", path, parse_certificates, clock, keep_s, on_stale)

    def find(self, subjects: Iterable[str]) -> Principal | None:
        """Who holds a certificate with these names: the first entry of the file that names one of them; None if none
        does. Raises StateUnavailableError."""
        shown = frozenset(subjects)
        for entry in self.file.value():
            if entry.subject in shown:
                return entry.principal(Method.CERTIFICATE)
        return None


@lru_cache(_KEPT)
def subjects_of_der(certificate: bytes) -> tuple[str, ...]:
    """The names in a certificate, as the certificates file writes them; () for one that cannot be read."""
    return _subjects(certificate, is_pem=False)


@lru_cache(_KEPT)
def subjects_of_pem(certificate: bytes) -> tuple[str, ...]:
    """As subjects_of_der."""
    return _subjects(certificate, is_pem=True)


def _subjects(encoded: bytes, *, is_pem: bool) -> tuple[str, ...]:
    # A service that asks for no client certificates needs none of its 9 MB.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    try:
        certificate = (x509.load_pem_x509_certificate if is_pem else x509.load_der_x509_certificate)(encoded)
    except ValueError:
        return ()
    names = [f"cn:{_text(name.value)}" for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return tuple(names)
    alternatives = extension.value
    names += [f"dns:{name}" for name in alternatives.get_values_for_type(x509.DNSName)]
    names += [f"uri:{name}" for name in alternatives.get_values_for_type(x509.UniformResourceIdentifier)]
    names += [f"email:{name}" for name in alternatives.get_values_for_type(x509.RFC822Name)]
    names += [f"ip:{name}" for name in alternatives.get_values_for_type(x509.IPAddress)]
    return tuple(names)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
