"""`python -m sglang.launch_server`, as SGLang is started."""

import asyncio
import sys

from engine import options, serve

asyncio.run(serve("sglang", options("sglang", sys.argv[1:])))
