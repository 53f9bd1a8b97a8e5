"""What we tell Envoy: the only place where its configuration is written."""
