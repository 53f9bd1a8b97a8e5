"""The configuration file: its schema, its checks and its reload. Every error names its place in the file."""
