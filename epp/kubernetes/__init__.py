"""The picker's own resources of Kubernetes: its InferencePool, priorities, model rewrites.

The workers are none of them: discovery follows the Pods. Nothing here decides about a request.
"""
