"""The transport over grpc.aio. The tests run over both transports, so each checks the other.

Only this folder imports grpc.
"""
