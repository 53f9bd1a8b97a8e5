"""EndpointSlices: decoded, merged into one set of a component's Pods, and the source of its instances.

Nothing here watches Pods.
"""
