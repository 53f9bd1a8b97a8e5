"""Which endpoint gets this request? An endpoint picker for Envoy, fed by `discovery`.

`server` puts the parts together; ARCHITECTURE.md says what lives in which folder.
"""
