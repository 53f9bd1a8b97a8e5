"""Registers the Pod that this process runs in: checks its labels, and that a Service selects it.

kubelet's probes report readiness and the control plane writes EndpointSlices; nothing here writes to the API server.
"""
