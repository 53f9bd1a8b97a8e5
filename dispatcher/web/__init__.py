"""Serves the HTTP pages of a dispatcher: the OpenAI-compatible front door, health, readiness, metrics."""
