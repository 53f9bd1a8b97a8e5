"""An HTTP/1.1 client (RFC 9112): persistent connections, and a response parser with limits."""
