"""Workers that fail behind a real Envoy: which requests are lost, before and with what the picker and Envoy do about it."""
