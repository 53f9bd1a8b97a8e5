"""What tests of the whole way need: workers that answer, a picker of them, and an Envoy before it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiohttp.typedefs import Handler

from epp.envoy import flags as envoy_flags
from epp.envoy.config import render
from epp.server import PickerServer
from tests.epp.local_picker import addresses, local
from tests.http_server import http_server


async def started_worker(stack: AsyncExitStack, path: str, answer: Handler) -> int:
    """Returns the port, on 127.0.0.1, where `answer` is asked by POST; a client that leaves cancels it."""
    return await stack.enter_async_context(http_server({f"POST {path}": answer}))


@asynccontextmanager
async def picker_behind_envoy(
    running_envoy: Any, ports: Sequence[int], *flags: str, descriptors: int | None = None, **settings: Any
) -> AsyncIterator[tuple[Any, Mapping[str, str]]]:
    """The Envoy, and by name the addresses of the picker. `flags`: of `envoy-config`; `settings`: fields of Settings.

    `descriptors`: that Envoy may open.
    """
    listed = "static://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    given = local(**{"discovery": listed} | settings)
    async with PickerServer(given) as server:
        where = addresses(server)
        own = ["--listen-port=0", "--admin-port=0", "--secure=false", f"--epp={where['grpc']}"]
        with TemporaryDirectory() as folder:
            file = given.config_file or Path(folder) / "picker.yaml"
            if given.config_text is not None:
                file.write_text(given.config_text)
            if file.exists():
                own.append(f"--picker-config={file}")
            config = render(envoy_flags.parse([*own, *flags]))
        async with running_envoy(config, descriptors=descriptors) as envoy:
            yield envoy, where
