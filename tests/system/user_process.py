"""A program of ours that another user runs: `python user_process.py UID GROUPS UMASK list|explain|register ARGUMENTS`.

All that it imports is imported before the user changes: the interpreter may lie where only root can read.
"""

import asyncio
import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

import discovery.__main__
from registry.filesystem.membership import FilesystemMembership


async def join(root: str, instance_id: str) -> FilesystemMembership:
    membership = FilesystemMembership(Path(root) if root else None)
    await membership.join(discovery.Instance(instance_id, "prod", "decode", "127.0.0.1", 9, "one"))
    return membership


async def register(root: str, instance_id: str) -> None:
    try:
        await join(root, instance_id)
    except discovery.RegistrationError as error:
        sys.exit(f"refused: {error}")
    print("joined", flush=True)
    await asyncio.sleep(600)


async def rehearse(root: str) -> None:
    membership = await join(root, "rehearsal")
    async with discovery.open(f"file://{root}") as service:
        await service.list_instances("prod", "decode")
        str(await service.explain("prod", "decode"))
    await membership.leave()


def probe_all(*arguments: str) -> int:
    return discovery.__main__.main(arguments)


with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
    asyncio.run(rehearse(directory))
    probe_all("list", "prod", "decode", "--discovery", f"file://{directory}")

uid, groups, umask, what, *arguments = sys.argv[1:]
os.umask(int(umask, 8))
os.setgroups([int(group) for group in groups.split(",") if group])
os.setgid(int(uid))
os.setuid(int(uid))
if what == "register":
    asyncio.run(register(*arguments))
else:
    sys.exit(probe_all(what, *arguments))
