"""Compares picker configurations by the latency that users see: in virtual time, and in real time against the Go picker."""
