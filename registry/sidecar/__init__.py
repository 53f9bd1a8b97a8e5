"""Registers a model server that is not ours: follows its health and describes it."""
