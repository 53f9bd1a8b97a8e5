"""One ext_proc stream: Envoy's messages in, the picker's answers out.

The endpoint picker protocol lives here. How messages travel belongs to `epp.wire`. Pure: time is passed in.
"""
