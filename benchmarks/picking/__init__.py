"""What a pick costs: our HTTP/2 server against grpc.aio and, where there is one, the Go picker; direct and behind Envoy."""
