"""Where requests wait: queues, ledgers, quotas, and what a broker promises.

Two brokers keep the promises of `contract`: `memory` and `redis`. Nothing here sends a request.
"""
