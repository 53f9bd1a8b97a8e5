"""Source: fixed addresses, host names, and the Go picker's endpoints file."""
