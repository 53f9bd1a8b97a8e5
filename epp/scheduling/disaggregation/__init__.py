"""Prefill, decode and encode apart: which stages of a request go to workers of their own, and to which.

What the stages do, and how a KV cache is carried, is the business of the workers and their sidecars.
"""
