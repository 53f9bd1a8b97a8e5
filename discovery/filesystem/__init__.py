"""Source: a directory with one JSON record for each instance, beside a lock file that its living owner holds."""
