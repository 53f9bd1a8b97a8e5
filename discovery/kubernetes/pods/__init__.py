"""Pods that a label selector or an InferencePool selects: the set of them, and the source of its instances.

Nothing here reads EndpointSlices.
"""
