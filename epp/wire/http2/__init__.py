"""HTTP/2 without I/O: frames, connections, streams, header blocks, limits (RFC 9113, RFC 7541).

Bytes in, bytes out. Sockets and gRPC belong to `epp.wire.server`. Pure.
"""
