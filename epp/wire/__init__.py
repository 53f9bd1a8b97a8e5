"""Carries messages between Envoy and the picker over gRPC: our own server, or grpc.aio.

What a message means belongs to `epp.ext_proc`.
"""
