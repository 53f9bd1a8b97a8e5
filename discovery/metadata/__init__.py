"""A worker's own document: how it is asked for, held, checked and followed."""
