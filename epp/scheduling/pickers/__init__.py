"""Pickers: choose endpoints by the weighted sum of their scores."""
