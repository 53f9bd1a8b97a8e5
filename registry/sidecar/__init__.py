"""The sidecar: registers a model server that cannot register itself, follows its health and describes it."""
