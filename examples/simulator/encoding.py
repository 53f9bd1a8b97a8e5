"""Encodes the images, sounds and videos of prompts, or fetches what an encode worker made of them: vLLM's `ec_transfer_params`.

An item is known by a hash of its part of the message. Encoding takes some time for each, one after another.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import anyio
import msgspec
from aiohttp import web

from examples.simulator.pacing import Pacer

PATH: Final = "/encoded/{hash}"
MEDIA: Final = ("image_url", "audio_url", "video_url", "input_audio")
_KEPT: Final = 1024
_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)


def item_hash(media: object) -> str:
    """Equal items have one hash, wherever they are."""
    return hashlib.blake2b(msgspec.json.encode(media), digest_size=16).hexdigest()


class Encoder:
    """`item_seconds`: simulated, for one item. `address`: where others fetch what was encoded here."""

    def __init__(self, pacer: Pacer, item_seconds: float) -> None:
        self.address = ("127.0.0.1", 0)
        self.encoded_here = 0
        self._pacer = pacer
        self._item_seconds = item_seconds
        self._turn = anyio.Lock()
        # bounded: _KEPT
        self._encoded: OrderedDict[str, None] = OrderedDict()

    async def encode(self, items: Sequence[str]) -> dict[str, Any]:
        """Encode the items that are not there yet; what an answer says of all of them."""
        async with self._turn:
            for item in items:
                if item not in self._encoded:
                    await self._pacer.pass_seconds(self._item_seconds)
                    self.encoded_here += 1
                self._keep(item)
        host, port = self.address
        return {
            item: {"peer_host": host, "peer_port": port, "item_indices": [index]}
            for index, item in enumerate(items)
        }

    async def need(self, items: Sequence[str], told: Mapping[str, Any]) -> None:
        """Have all of these here: from where `told` says, or else encoded here."""
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            for item in items:
                place = told.get(item)
                if item not in self._encoded and isinstance(place, Mapping):
                    url = f"http://{place.get('peer_host')}:{place.get('peer_port')}/encoded/{item}"
                    try:
                        async with session.get(url) as response:
                            if response.status == 200:
                                self._keep(item)
                    except (aiohttp.ClientError, TimeoutError, ValueError):
                        pass  # it has the media itself
        await self.encode(items)

    async def serve(self, request: web.Request) -> web.Response:
        """Answers 404 for what is not there."""
        return web.Response(status=200 if request.match_info["hash"] in self._encoded else 404)

    def _keep(self, item: str) -> None:
        self._encoded[item] = None
        self._encoded.move_to_end(item)
        if len(self._encoded) > _KEPT:
            self._encoded.popitem(last=False)
