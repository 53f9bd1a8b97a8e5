"""Measures the cost of a pick: our HTTP/2 server, grpc.aio and, if given, the Go picker; direct and behind Envoy."""
