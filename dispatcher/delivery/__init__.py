"""One claimed request on its way to a target: the POST, what its answer means, when to try again."""
