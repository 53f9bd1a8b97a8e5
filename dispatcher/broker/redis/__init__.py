"""The broker on Redis or Valkey: what it holds outlives every dispatcher."""
