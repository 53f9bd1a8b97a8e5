"""What a client asks for: headers and a JSON body become an `InferenceRequest`.

Each inference API's fields live here. Nothing here knows Envoy, endpoints or scores. Pure.
"""
