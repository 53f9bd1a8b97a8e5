"""Flow control: requests wait in the picker while the pool is full or empty, and leave in an order that operators choose.

Priority bands, flows by fairness id, policies, limits and times to live. Nothing here reads a socket or a clock: time is
passed in. Names, parameters, defaults and outcomes: llm-d-router, pkg/epp/flowcontrol.
"""
