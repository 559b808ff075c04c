"""The yardstick: a bare grpc.aio server that parses each request and answers with one recorded response.

    python -m placewise_service.bench.echo METHOD RESPONSE_FILE

METHOD is Place, Partition or AdmitOrWait; messages are the real ones, so that only the work of deciding differs. Prints
its port as the first line of stdout.
"""

import sys
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import uvloop

from placewise.v1 import decision_pb2

SERVICE: Final = "placewise.bench.Echo"


def echo_handler(method: str, response: bytes) -> Any:
    """A generic handler with one method that always answers the same."""
    request_type: Any = getattr(decision_pb2, f"{method}Request")
    response_type: Any = getattr(decision_pb2, f"{method}Response")
    answer = response_type.FromString(response)

    async def echo(request: Any, context: Any) -> Any:
        return answer

    handler = grpc.unary_unary_rpc_method_handler(
        echo, request_deserializer=request_type.FromString, response_serializer=response_type.SerializeToString
    )
    return grpc.method_handlers_generic_handler(SERVICE, {method: handler})


async def serve(method: str, response: bytes) -> None:
    """Serves on a free loopback port until the process is ended."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((echo_handler(method, response),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2]).read_bytes()))
