"""What the dispatcher counts, and who is told what happens to a request."""
