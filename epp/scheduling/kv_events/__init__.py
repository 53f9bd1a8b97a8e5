"""Knows from KV events what workers' prefix caches hold: the messages, the index, and the plugin that reads it. Pure.

The sockets and the requests to workers are in `epp.kv_events`.
"""
