"""Finds the sockets on which workers publish KV events, reads them, and asks workers for the tokens of prompts.

Only `subscriber` knows ZeroMQ. What the events mean is in `epp.scheduling.kv_events`.
"""
