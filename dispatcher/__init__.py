"""Sends queued requests to a gateway when the pool behind it has spare capacity.

This package imports no broker: `dispatcher.broker.redis` and `dispatcher.broker.memory` are opened by `dispatcher.server`.
"""

from adsum.imports import check_not_shadowed

check_not_shadowed("discovery")
