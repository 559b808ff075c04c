"""The two faces of the engine, gRPC and REST: transport, contract and credentials. Nothing here decides."""
