"""The last decisions, and what they say: the ring that keeps them, and their JSON.

What a pick notes of itself is in `epp.scheduling.decision`; the pages that show it are in `epp.telemetry`. No I/O, no clock.
"""
