"""When does a queued request go? Batch work fed into spare capacity.

This package imports no broker: `dispatcher.broker.redis` and `dispatcher.broker.memory` are opened by `dispatcher.server`.
"""
