"""Source: the keys of one component under a prefix in etcd, watched from the revision at which they were read.

Also the client that the registry writes with. Only `connection` imports grpc, and only an `etcd://` URL imports it.
"""
