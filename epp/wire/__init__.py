"""What carries messages between Envoy and the picker: our own gRPC server, and grpc.aio.

What a message means belongs to `epp.ext_proc`.
"""
