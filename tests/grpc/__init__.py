"""The front for gRPC: real clients, and clients that break HTTP/2.

The folder's name is that of the package `grpc` only below `tests`; imports of that package are absolute.
"""
