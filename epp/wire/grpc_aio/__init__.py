"""The same server on grpc.aio: the other transport, and the oracle of the first one's tests.

Only this folder imports grpc.
"""
