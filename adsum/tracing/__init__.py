"""Traces: W3C trace context, sampling, spans, and how OpenTelemetry exports them; off unless a program asks for it.

Programs know the Protocols of `span.py`. Only `ended_spans.py` and `exporting.py` import OpenTelemetry, which is an extra.
"""
