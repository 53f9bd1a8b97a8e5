"""What every program is made of and what knows nothing of inference.

One kept HTTP/1.1 connection, listening sockets with bounds, threads. It imports no package of ours.
"""
