"""Source: a directory with one record for each instance, and the locks that prove that their owners live."""
