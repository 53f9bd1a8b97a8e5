"""What a client asks for: headers and a bounded body become an `InferenceRequest`, or a `Rejection`.

Each inference API's fields live here. Nothing here knows Envoy's messages, endpoints or scores. Pure.
"""
