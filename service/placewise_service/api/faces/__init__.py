"""The sockets: gRPC, REST and Connect, and what they refuse before a call is known."""
