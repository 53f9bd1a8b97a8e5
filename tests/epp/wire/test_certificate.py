import asyncio
import datetime
import logging
import ssl
import tempfile
from pathlib import Path

import pytest
from cryptography import x509

from epp.config.tls_rules import TlsRules
from epp.wire import certificate
from epp.wire.certificate import Certificate, CertificateError, CertificateFiles, KeyPair, server_context
from tests.eventually import eventually

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def write(pair: KeyPair, folder: Path) -> None:
    (folder / "tls.key").write_bytes(pair.key)
    (folder / "tls.crt").write_bytes(pair.certificate)


def test_a_self_signed_pair_is_valid_for_years_and_can_be_read_back(tmp_path: Path) -> None:
    pair = certificate.self_signed(NOW)
    parsed = x509.load_pem_x509_certificate(pair.certificate)
    assert parsed.not_valid_before_utc < NOW < parsed.not_valid_after_utc - datetime.timedelta(days=3000)
    write(pair, tmp_path)
    assert certificate.read(tmp_path) == pair
    assert "PRIVATE" not in repr(pair)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"tls\.key: No such file"):
        certificate.read(tmp_path)


def test_no_pem(tmp_path: Path) -> None:
    write(KeyPair(b"x", b"y"), tmp_path)
    with pytest.raises(CertificateError, match="no PEM key and certificate"):
        certificate.read(tmp_path)


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    one, other = certificate.self_signed(NOW), certificate.self_signed(NOW)
    write(KeyPair(one.key, other.certificate), tmp_path)
    with pytest.raises(CertificateError, match="is not the key of"):
        certificate.read(tmp_path)


def test_a_chain_that_openssl_does_not_take(tmp_path: Path) -> None:
    """Its first certificate is sound: that is as far as a look at it goes."""
    pair = certificate.self_signed(NOW)
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    write(KeyPair(pair.key, pair.certificate + broken), tmp_path)
    with pytest.raises(CertificateError, match=r"OpenSSL rejects tls\.crt"):
        certificate.read(tmp_path)


async def test_a_pair_that_was_replaced_is_said_once_with_what_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "epp.wire.certificate")
    old, new = certificate.self_signed(NOW), certificate.self_signed(NOW)
    write(old, tmp_path)
    served = Certificate(old)
    following = asyncio.create_task(served.reload_when_changed(CertificateFiles(tmp_path), 0.01))
    await asyncio.sleep(0)  # it has looked at what is there
    write(new, tmp_path)
    await eventually(lambda: served.pair == new and caplog.records)
    (tmp_path / "tls.crt").touch()  # the same again
    serial = x509.load_pem_x509_certificate(new.certificate).serial_number
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert said == [
        f"certificate reloaded from {tmp_path}: CN=endpoint-picker, serial {serial:x}, until 2035-12-30 00:00 UTC"
    ]
    following.cancel()
    await asyncio.wait([following])


TODAY = datetime.datetime.now(datetime.UTC)


def test_nothing_is_written_to_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's may be read-only."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    pair = certificate.self_signed(TODAY)
    assert (
        server_context(Certificate(pair, client_ca=pair.certificate), TlsRules()).verify_mode
        is ssl.CERT_REQUIRED
    )


def test_a_pair_that_cannot_be_served_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "epp")
    served = Certificate(certificate.self_signed(TODAY))
    server_context(served, TlsRules())
    served.pair = KeyPair(b"no key", b"no certificate")
    for changed in served.on_change:
        changed()
    assert "certificate not reloaded" in caplog.text


def test_a_ca_file_may_say_anything_between_its_certificates() -> None:
    pair = certificate.self_signed(TODAY)
    authorities = "# Főtanúsítvány\n".encode() + pair.certificate
    assert (
        server_context(Certificate(pair, client_ca=authorities), TlsRules()).cert_store_stats()["x509"] == 1
    )
