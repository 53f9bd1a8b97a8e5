"""Shows what users see of a pool that gets ten times what it can serve. Here live the load, the stage and the tables; no picker."""
