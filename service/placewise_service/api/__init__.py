"""The two faces of the engine, gRPC and REST: transport, contract and credentials. Nothing here decides."""

import os

# gRPC's newer listener gives each read to a thread of its own, which costs a switch of threads before our loop hears of
# a call: a bare echo takes 475 instead of 420 µs. gRPC reads this at its import, which comes after this file.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
