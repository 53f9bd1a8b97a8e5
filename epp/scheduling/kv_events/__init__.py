"""What workers' prefix caches hold, as their KV events say: the messages, the index, and the plugin that reads it. Pure.

The sockets and the requests to workers are in `epp.kv_events`.
"""
