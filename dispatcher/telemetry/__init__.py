"""What the dispatcher counts."""
