"""HTTP/1.1 from the client's side: one kept connection, one answer read within bounds (RFC 9112)."""
