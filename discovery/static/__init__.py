"""Source: fixed addresses and host names, from a URL or from the Go picker's endpoints file."""
