"""Parses requests: headers and a bounded body become an `InferenceRequest`, or a `Rejection`.

The fields of each inference API are here. Nothing here knows Envoy's messages, endpoints or scores. Pure.
"""
