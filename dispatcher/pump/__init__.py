"""Takes requests from the head of each queue through its gate: peek, admit, claim, deliver."""
