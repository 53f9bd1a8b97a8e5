import datetime
import logging
import ssl
import tempfile
from pathlib import Path

import pytest

from epp.config.tls_rules import TlsRules
from epp.wire import certificate
from epp.wire.certificate import Certificate, KeyPair, server_context

NOW = datetime.datetime.now(datetime.UTC)


def test_nothing_is_written_to_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's may be read-only."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    pair = certificate.self_signed(NOW)
    assert (
        server_context(Certificate(pair, client_ca=pair.certificate), TlsRules()).verify_mode
        is ssl.CERT_REQUIRED
    )


def test_a_pair_that_cannot_be_served_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "epp")
    served = Certificate(certificate.self_signed(NOW))
    server_context(served, TlsRules())
    served.pair = KeyPair(b"no key", b"no certificate")
    for changed in served.on_change:
        changed()
    assert "certificate not reloaded" in caplog.text


def test_a_ca_file_may_say_anything_between_its_certificates() -> None:
    pair = certificate.self_signed(NOW)
    authorities = "# Főtanúsítvány\n".encode() + pair.certificate
    assert (
        server_context(Certificate(pair, client_ca=authorities), TlsRules()).cert_store_stats()["x509"] == 1
    )
