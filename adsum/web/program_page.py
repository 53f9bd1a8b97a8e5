"""Serves a program's page: the common frame, its own part, and the files that both need, from the package's folders."""

import hashlib
import string
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from adsum.command_line import installed_version
from adsum.web.access import wants_page
from adsum.web.live_feed import LiveFeed

UPDATES_PATH: Final = "/updates"
FILES_PATH: Final = "/web/{name}"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_BY_ACCEPT: Final = {"Vary": "Accept"}
_COMMON: Final = Path(__file__).parent / "static"


class ProgramPage:
    """`folder` has `main.html`, the program's part of the page, and the modules and pictures that it names.

    `main.html` is put into the frame (`static/frame.html`) as it is. The module `script` is the page's first one; it reads
    `updates`, which `feed` serves. Everything is read once.
    """

    PATHS: Final = frozenset({UPDATES_PATH, FILES_PATH})
    """To be guarded, as the rest of the page is."""

    def __init__(self, title: str, folder: Path, script: str, feed: LiveFeed) -> None:
        self._feed = feed
        found = [one for place in (_COMMON, folder) for one in place.iterdir() if one.suffix in _TYPES]
        self._files = {one.name: (one.read_bytes(), _TYPES[one.suffix]) for one in found}
        frame = string.Template((_COMMON / "frame.html").read_text("utf-8"))
        main = (folder / "main.html").read_text("utf-8")
        self._html = frame.substitute(
            title=title, main=main, script=script, version=installed_version() or ""
        )

    def add_routes(self, app: web.Application) -> None:
        """Among them `/`: the page for browsers, for others the paths that there are."""
        app.router.add_get("/", self._index)
        app.router.add_get(UPDATES_PATH, self._feed.serve, allow_head=False)
        app.router.add_get(FILES_PATH, self._file)
        app.on_shutdown.append(self._feed.aclose)

    async def _index(self, request: web.Request) -> web.Response:
        if wants_page(request):
            return web.Response(text=self._html, content_type="text/html", headers=_BY_ACCEPT)
        paths = (resource.canonical for resource in request.app.router.resources())
        listed = (path for path in paths if path != "/" and path not in self.PATHS)
        return web.Response(text="".join(f"{path}\n" for path in listed), headers=_BY_ACCEPT)

    async def _file(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        content, kind = found
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        # kept, and asked for again: a new version is seen at once
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get(hdrs.IF_NONE_MATCH) == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers)
