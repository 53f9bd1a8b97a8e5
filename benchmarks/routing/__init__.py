"""Where requests go, and what users feel of it: workloads in virtual time, and one of them in real time against the Go picker."""
