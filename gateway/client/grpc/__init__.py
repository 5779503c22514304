"""The front for gRPC: clients of `inference.GRPCInferenceService`, served by the same corridor as those of HTTP/1.1.

    connection   HTTP/2: frames, windows, floods, and how a connection ends; frames and fields as bytes: frames, heads
    stream       one call: its messages as they come, and what is written back
    call         the requests that the messages of a stream become, and their replies as messages
    methods      what each method asks for in the protocol's terms of HTTP, and how its answer becomes a message
    inference    an inference's message as JSON and blobs, and its answer as a message
    messages     the schema, and fields as bytes

A call becomes the request that asks for the same over HTTP, so routes, access, limits, dialects and records are those
of HTTP. Needs the extra `grpc`: nothing outside of this folder imports from it before `grpc:` is configured.
"""
