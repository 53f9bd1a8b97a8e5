"""The queues of llm-d's Go processor: its messages, and the lists that its results go to."""
