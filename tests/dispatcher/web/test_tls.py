"""The front door with TLS, and the warning without it."""

import datetime
import ssl
from pathlib import Path

import aiohttp
import pytest

from adsum.config.problems import ConfigError
from dispatcher.config.config_file import read_config
from dispatcher.server import DispatcherServer
from epp.wire.certificate import KeyPair, self_signed
from tests.eventually import eventually

DOOR = """
broker: memory://
http: {{host: '{host}', port: 0{more}}}
targets: [{{name: pool, url: "http://127.0.0.1:9"}}]
queues: [{{name: batch, target: pool, gate: {{type: constant}}}}]
front_door: {{queue: batch, tokens: {{team: a-token}}}}
"""


def write(pair: KeyPair, folder: Path) -> str:
    """The fields of the file."""
    (folder / "tls.key").write_bytes(pair.key)
    (folder / "tls.crt").write_bytes(pair.certificate)
    return f", tls_cert_file: {folder}/tls.crt, tls_key_file: {folder}/tls.key"


async def served_to(pair: KeyPair, ready: str) -> bool:
    """Whether a client that trusts this certificate alone is served."""
    port = ready.split()[1].rpartition(":")[2]
    trusting = ssl.create_default_context(cadata=pair.certificate.decode())
    async with aiohttp.ClientSession() as client:
        try:
            async with client.get(f"https://localhost:{port}/healthz", ssl=trusting) as answer:
                return answer.status == 200
        except aiohttp.ClientConnectorCertificateError:
            return False


async def test_a_certificate_is_served_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = (self_signed(datetime.datetime.now(datetime.UTC)) for _ in range(2))
    config = read_config(DOOR.format(host="127.0.0.1", more=write(first, tmp_path)), {})
    async with DispatcherServer(config) as server:
        assert await served_to(first, server.ready_line)
        (tmp_path / "tls.key").write_text("nonsense")
        await eventually(lambda: "certificate not reloaded, the old one stays in use" in caplog.text)
        assert await served_to(first, server.ready_line)
        write(second, tmp_path)
        await eventually(lambda: served_to(second, server.ready_line))


async def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    pair = self_signed(datetime.datetime.now(datetime.UTC))
    more = write(pair, tmp_path)
    (tmp_path / "tls.key").unlink()
    with pytest.raises(ConfigError, match=r"http\.tls_cert_file: no certificate and key in .*: No such file"):
        async with DispatcherServer(read_config(DOOR.format(host="127.0.0.1", more=more), {})):
            pass
    with pytest.raises(ConfigError, match="TLS takes two files; give tls_cert_file and tls_key_file"):
        read_config(DOOR.format(host="127.0.0.1", more=", tls_cert_file: a"), {})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
async def test_nobody_is_warned_on_loopback(host: str, caplog: pytest.LogCaptureFixture) -> None:
    async with DispatcherServer(read_config(DOOR.format(host=host, more=""), {})):
        assert "without TLS" not in caplog.text


@pytest.mark.parametrize("tls", [False, True])
async def test_tokens_without_tls_are_warned_of(
    tls: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = write(self_signed(datetime.datetime.now(datetime.UTC)), tmp_path) if tls else ""
    # 127.1 is a spelling of 127.0.0.1 that is not recognised as loopback: the test needs no port that others reach
    async with DispatcherServer(read_config(DOOR.format(host="127.1", more=more), {})):
        assert ("clients send them without TLS" in caplog.text) is not tls
        assert "a-token" not in caplog.text
