"""What a flag says about who may connect, and how, holds on the wire; what cannot hold stops the start."""

import asyncio
import datetime
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from epp.envoy.config import render
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings
from epp.wire import certificate
from epp.wire.certificate import CertificateError, KeyPair
from tests.epp import local_picker
from tests.eventually import eventually
from tests.http_server import http_server

AES_256 = "ECDHE-ECDSA-AES256-GCM-SHA384"


picker = partial(local_picker.picker, "--endpoint=127.0.0.1:9")


async def handshake(address: str, *, version: ssl.TLSVersion, ciphers: str = "") -> str | None:
    """The cipher that a client of that version gets; None for one that is refused."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    if ciphers:
        context.set_ciphers(ciphers)
    host, port = address.rsplit(":", 1)
    try:
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    except (ssl.SSLError, OSError):
        return None
    name: str = writer.get_extra_info("cipher")[0]
    writer.close()
    return name


def write(pair: KeyPair, folder: Path) -> None:
    (folder / "tls.key").write_bytes(pair.key)
    (folder / "tls.crt").write_bytes(pair.certificate)


def self_signed() -> KeyPair:
    return certificate.self_signed(datetime.datetime.now(datetime.UTC))


def rsa_pair() -> KeyPair:
    key = rsa.generate_private_key(65537, 2048)
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "picker")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    signed = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    kind, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return KeyPair(key.private_bytes(serialization.Encoding.PEM, kind, plain), signed)


SUITES = "--tls-cipher-suites="
RSA_128 = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"


@pytest.mark.parametrize(
    ("flags", "asked", "got"),
    [
        pytest.param([], "", AES_256, id="without a flag"),
        pytest.param(["--tls-min-version=VersionTLS13"], "", None, id="a least version"),
        pytest.param([f"{SUITES}{RSA_128}, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"], "", AES_256, id="two suites"),
        pytest.param(
            [f"{SUITES}{RSA_128}, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"], "ECDHE-ECDSA-AES128-GCM-SHA256", None,
            id="a suite that is not named",
        ),
        pytest.param(
            [f"{SUITES}TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256"], "", None,
            id="suites of TLS 1.3 alone",
        ),
        # the self-signed key fits: that of the Go picker is an RSA key
        pytest.param([f"{SUITES}{RSA_128}"], "", "ECDHE-RSA-AES128-GCM-SHA256", id="a suite for RSA"),
    ],
)  # fmt: skip
async def test_clients_of_tls_1_2_get_what_the_flags_leave_and_those_of_1_3_are_served(
    flags: list[str], asked: str, got: str | None
) -> None:
    async with picker(*flags) as where:
        assert await handshake(where["grpc"], version=ssl.TLSVersion.TLSv1_2, ciphers=asked) == got
        assert await handshake(where["grpc"], version=ssl.TLSVersion.TLSv1_3)


async def test_the_least_version_holds_for_a_certificate_that_was_replaced(tmp_path: Path) -> None:
    write(self_signed(), tmp_path)
    arguments = ("--tls-min-version=VersionTLS13", f"--cert-path={tmp_path}", "--enable-cert-reload")
    async with picker(*arguments) as where:
        before = await served(where["grpc"])
        write(self_signed(), tmp_path)
        async with asyncio.timeout(90):
            while await served(where["grpc"]) == before:
                await asyncio.sleep(0.1)
        assert await handshake(where["grpc"], version=ssl.TLSVersion.TLSv1_2) is None


async def served(address: str) -> str:
    host, port = address.rsplit(":", 1)
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))


async def test_suites_that_a_given_key_does_not_fit_stop_the_start(tmp_path: Path) -> None:
    only_rsa = SUITES + RSA_128
    write(self_signed(), tmp_path)
    with pytest.raises(ValueError, match="expected one of TLS_ECDHE_ECDSA_WITH_"):
        async with picker(only_rsa, f"--cert-path={tmp_path}"):
            pass
    write(rsa_pair(), tmp_path)
    async with picker(only_rsa, f"--cert-path={tmp_path}") as where:
        assert await handshake(where["grpc"], version=ssl.TLSVersion.TLSv1_2) == "ECDHE-RSA-AES128-GCM-SHA256"


async def test_a_replaced_certificate_that_no_suite_fits_stays_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(rsa_pair(), tmp_path)
    only_rsa = SUITES + RSA_128
    async with picker(only_rsa, f"--cert-path={tmp_path}", "--enable-cert-reload") as where:
        write(self_signed(), tmp_path)
        await eventually(
            lambda: "certificate not reloaded, the old one stays in use: --tls-cipher-suites" in caplog.text
        )
        assert await handshake(where["grpc"], version=ssl.TLSVersion.TLSv1_2) == "ECDHE-RSA-AES128-GCM-SHA256"


async def status(url: str, context: ssl.SSLContext | None = None) -> int | str:
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(url, ssl=context or True) as answer:
                return answer.status
        except aiohttp.ClientError as error:
            return type(error).__name__


def client_context(own: KeyPair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if own is not None:
        certificate.load(context, own)
    return context


async def test_the_metrics_page_has_tls_where_it_has_a_certificate(tmp_path: Path) -> None:
    pair = self_signed()
    write(pair, tmp_path)
    async with picker(f"--metrics-cert-dir={tmp_path}") as where:
        assert await status(f"https://{where['metrics']}/metrics", client_context()) == 200
        assert await status(f"http://{where['metrics']}/metrics") != 200


async def test_a_certificate_of_the_metrics_page_that_was_replaced_is_served(tmp_path: Path) -> None:
    write(self_signed(), tmp_path)
    async with picker(f"--metrics-cert-dir={tmp_path}") as where:
        before = await served(where["metrics"])
        write(self_signed(), tmp_path)

        async def is_replaced() -> bool:
            return await served(where["metrics"]) != before

        await eventually(is_replaced)


async def test_the_metrics_page_is_shown_to_clients_of_the_authority_only(tmp_path: Path) -> None:
    pair = self_signed()
    other = self_signed()
    write(pair, tmp_path)
    (tmp_path / "ca.crt").write_bytes(pair.certificate)
    arguments = (f"--metrics-cert-dir={tmp_path}", f"--metrics-client-ca-file={tmp_path}/ca.crt")
    async with picker(*arguments) as where:
        url = f"https://{where['metrics']}/debug/endpoints"
        assert await status(url, client_context(pair)) == 200
        for stranger in (None, other):
            assert await status(url, client_context(stranger)) != 200
        (tmp_path / "ca.crt").write_bytes(other.certificate)

        async def is_replaced() -> bool:
            return await status(url, client_context(other)) == 200

        await eventually(is_replaced)
        assert await status(url, client_context(pair)) != 200


@pytest.mark.parametrize(
    ("arguments", "told"),
    [("--metrics-address=0.0.0.0", True), ("--metrics-address=127.0.0.1", False), ("", False)],
)
async def test_a_page_that_everybody_can_read_is_said_to_be_one(
    arguments: str, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The Go picker asks for a token unless it is told not to."""
    caplog.set_level("INFO")
    async with picker(*arguments.split()):
        assert ("the metrics page is served to every client that reaches 0.0.0.0:" in caplog.text) is told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--metrics-cert-dir=/nonexistent", "--metrics-cert-dir: cannot read /nonexistent/tls.key"),
        (
            "--metrics-cert-dir={0} --metrics-client-ca-file=/none.crt",
            "--metrics-client-ca-file: cannot read /none",
        ),
    ],
)
async def test_files_of_the_metrics_page_that_cannot_be_read(
    arguments: str, said: str, tmp_path: Path
) -> None:
    write(self_signed(), tmp_path)
    with pytest.raises(CertificateError, match=said):
        async with picker(*arguments.format(tmp_path).split()):
            pass


async def test_a_picker_of_tls_1_3_serves_the_envoy_that_is_configured_by_us(running_envoy: Any) -> None:
    """An Envoy asks with TLS 1.2 at most unless it is told otherwise (its CommonTlsContext, tls_params)."""

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    any_port = Address("127.0.0.1", 0)
    async with (
        http_server({"/v1/completions": hello}) as port,
        local_picker.picker("--tls-min-version=VersionTLS13", f"--endpoint=127.0.0.1:{port}") as where,
    ):
        settings = EnvoySettings(listen=any_port, admin=any_port, pickers=(Address.parse(where["grpc"]),))
        async with running_envoy(render(settings)) as envoy, aiohttp.ClientSession() as client:
            asked = client.post(envoy.url("/v1/completions"), json={"model": "m", "prompt": "x"})
            async with asked as answer:
                assert (answer.status, await answer.text()) == (200, "hello")
