"""From the head of a queue through its gate: look, ask, claim, send, for every queue of a process."""
