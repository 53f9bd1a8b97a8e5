"""When does a queued request go? Batch work fed into spare capacity (seed 003).

This package imports no broker: `dispatcher.redis` and `dispatcher.memory` are opened by `dispatcher.server`.
"""
