"""Pickers: which endpoints win, given the weighted scores."""
