"""A simulated model server: the OpenAI API and vLLM's metrics page over a model of vLLM's scheduler.

It registers itself through `registry`, like any worker. `python -m examples.simulator --help`.
"""
