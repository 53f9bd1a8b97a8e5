"""Serves one component to people and to Prometheus: who is there, who is not and why, what happened (`discovery serve`).

Here is what its page shows. How pages look, who may see them and how they stay current is in `adsum.web`.
"""
