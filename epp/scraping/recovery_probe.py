"""Asks an ejected endpoint whether it answers at all, before it gets a request again."""

import asyncio
import logging
import ssl
from typing import Final

from yarl import URL

from adsum.addresses import authority
from epp.endpoints.endpoint import Endpoint
from epp.scraping.page_client import PageClient, PageError

logger = logging.getLogger(__name__)

_LIMIT: Final = 1024 * 1024
"""Bytes of an answer."""
_BUFFER_BYTES: Final = 16 * 1024


async def answers_probe(endpoint: Endpoint, path: str, timeout: float, tls: ssl.SSLContext | None) -> bool:
    """Whether `GET path` on the port that serves is answered within `timeout` seconds, by anything but a 5xx.

    A worker may have no such page; 501 says so too.
    """
    # the scheme is known for the page of metrics only
    scheme = endpoint.scheme if endpoint.port == endpoint.metrics_port else "http"
    url = URL(f"{scheme}://{authority(endpoint.address, endpoint.port)}{path}")
    client = PageClient(url, bytearray(_BUFFER_BYTES), tls=tls, timeout=timeout, limit=_LIMIT, accept="*/*")
    try:
        async with asyncio.timeout(timeout):
            await client.get()
        return True
    except PageError as error:
        return error.status is not None and (error.status < 500 or error.status == 501)
    except TimeoutError:
        return False
    except Exception as error:  # noqa: BLE001  # an answer is untrusted: whatever it has, the picker goes on
        logger.debug("the probe of %s failed: %s", endpoint.destination, type(error).__name__)
        return False
    finally:
        client.close()
