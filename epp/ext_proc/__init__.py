"""The endpoint picker protocol over Envoy's ext_proc: messages of one stream in, answers out.

How messages travel is in `epp.wire`. Pure: time is passed in.
"""
