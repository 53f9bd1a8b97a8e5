"""`python -m epp` as a process of a test."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.warm_python import WARM_PYTHON

LOCAL = ("--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")
"""Flags of a picker on free ports."""


@asynccontextmanager
async def epp_program(*arguments: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m epp ARGUMENTS` with pipes, killed in the end if it still runs."""
    pipe = asyncio.subprocess.PIPE
    command = [WARM_PYTHON, "-m", "epp", *arguments]
    env = os.environ | environment
    running = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()
