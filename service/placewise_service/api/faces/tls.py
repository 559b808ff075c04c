"""Server certificates that are read again when their files change, for both faces. Never writes or makes one.

A reload that fails (a half-written file, a key that is not the certificate's) keeps the last good certificate.
"""

import ssl
import threading
from pathlib import Path
from typing import Any

import grpc
import structlog

from placewise_service.api.identity.certificates import subjects_of_pem
from placewise_service.files import why_unreadable
from placewise_service.settings import TlsSettings

log = structlog.get_logger(__name__)


class CertificateError(ValueError):
    """The certificate files cannot be used; the text says why."""


class Certificates:
    """The files of TlsSettings. Raises CertificateError when built. Thread-safe: gRPC asks from its own threads."""

    def __init__(self, settings: TlsSettings) -> None:
        if settings.cert_file is None or settings.key_file is None:
            raise CertificateError("TLS needs cert_file and key_file")
        self._cert, self._key, self._ca = settings.cert_file, settings.key_file, settings.client_ca_file
        self._lock = threading.Lock()
        self._stamp = self._stamps()
        self._context = self._load()
        self._version = 1

    def context(self) -> ssl.SSLContext:
        """The context in force; later handshakes on it switch to newer certificates by themselves."""
        return self._context

    def current(self) -> tuple[ssl.SSLContext, int]:
        """The newest usable context, and a number that grows with each reload."""
        with self._lock:
            self._reload_if_changed()
            return self._context, self._version

    def names(self) -> frozenset[str]:
        """DNS names and addresses of the server's certificate, as the file has them now."""
        kinds = (subject.partition(":") for subject in subjects_of_pem(self._cert.read_bytes()))
        return frozenset(name.lower() for kind, _, name in kinds if kind in ("dns", "ip"))

    def grpc_configuration(self) -> Any:
        """What gRPC wants: PEM bytes."""
        return grpc.ssl_server_certificate_configuration(
            [(self._key.read_bytes(), self._cert.read_bytes())], self._ca.read_bytes() if self._ca else None
        )

    def _reload_if_changed(self) -> None:
        try:
            stamp = self._stamps()
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._context = self._load()
        except CertificateError as error:
            log.error("certificate not usable; the last good one stays in force", reason=str(error))
            return
        self._version += 1
        log.info("certificate reloaded")

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
            if self._ca is not None:
                context.load_verify_locations(self._ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:  # what ssl raises is an OSError and names no file
            raise CertificateError(_what_is_wrong(self._cert, self._key, self._ca, error)) from None
        context.sni_callback = self._switch
        return context

    def _switch(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        """At the start of a handshake: moves the connection to the newest context."""
        newest, _ = self.current()
        if newest is not context:
            connection.context = newest

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(_stamp(path) for path in (self._cert, self._key, self._ca) if path is not None)


def grpc_credentials(certificates: Certificates, demands_client: bool) -> grpc.ServerCredentials:
    """Credentials that follow the files: gRPC asks before each handshake."""
    seen = certificates.current()[1]

    def fetch() -> Any:
        nonlocal seen
        _, version = certificates.current()
        if version == seen:
            return None
        seen = version
        return certificates.grpc_configuration()

    return grpc.dynamic_ssl_server_credentials(certificates.grpc_configuration(), fetch, demands_client)


def end_time_s(settings: TlsSettings) -> float:
    """When the server's certificate ends, in seconds since the epoch: found as a client finds it, in a handshake.

    Raises CertificateError if clients would refuse it now (expired, not valid yet), OSError if the files do not load.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(str(settings.cert_file), str(settings.key_file))
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # its own certificate is trust enough: only time is asked
    client.load_verify_locations(str(settings.cert_file))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (asking, answering, asking):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            raise CertificateError(f"{settings.cert_file}: {error.verify_message}") from None
    found = asking.getpeercert()
    assert found is not None
    return ssl.cert_time_to_seconds(str(found["notAfter"]))


def _no_password() -> str:
    """In place of the terminal, which would be asked for it."""
    raise ValueError("the key is encrypted: store it without a password")


def _what_is_wrong(cert: Path, key: Path, ca: Path | None, error: Exception) -> str:
    """Which file cannot be used, and what to do; `error` is what loading all of them raised."""
    for path in (cert, key, ca):
        if path is None:
            continue
        try:
            path.read_bytes()
        except OSError as unreadable:
            return why_unreadable(path, unreadable)
    for path in (cert, ca):
        if path is not None and not _has_certificate(path):
            return f"{path}: holds no certificate in PEM (-----BEGIN CERTIFICATE-----)"
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"{key}: is not the key of the certificate {cert}; give the key that the certificate was made with"
    return f"{key}: holds no private key in PEM that can be read without a password"


def _has_certificate(path: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        return False
    return True


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise CertificateError(why_unreadable(path, error)) from None
    return status.st_mtime_ns, status.st_size, status.st_ino
