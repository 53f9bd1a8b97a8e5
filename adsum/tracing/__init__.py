"""Traces: W3C trace context, sampling, spans, and how OpenTelemetry exports them; off unless a program asks for it.

Programs know `span.py`. Only `exporting.py` imports OpenTelemetry, which is an extra.
"""
