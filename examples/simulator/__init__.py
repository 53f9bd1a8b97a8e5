"""A model server without a model: the OpenAI API, a queueing model behind it, and the vLLM metrics page of that queue.

It registers itself through `registry`, as any worker would. `python -m examples.simulator --help`.
"""
