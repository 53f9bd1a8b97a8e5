"""The sidecar in front of a decode worker: has a prompt computed by the prefill worker that the picker named, then decodes.

`connectors` and `cached_tokens` say what each engine wants to be told, without a socket; `proxy` passes bytes, and
`disaggregated_request` is one request for two workers. It takes the place of llm-d's routing sidecar (`pd-sidecar`), and knows nothing of pickers but their header.
"""
