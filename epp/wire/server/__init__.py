"""Our own gRPC server: calls, messages, TLS and sockets over `epp.wire.http2`."""
