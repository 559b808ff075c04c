"""Exit code 0 while the service in this container is ready: for HEALTHCHECK, so standard library only, no shell.

Asks the plain health listener, which needs neither certificate nor token.
"""

import os
import sys
import urllib.error
import urllib.request

HOST = os.environ.get("PLACEWISE_SERVER__HEALTH_HOST", "127.0.0.1")
HOST = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(HOST, f"[{HOST}]" if ":" in HOST else HOST)  # noqa: S104
PORT = os.environ.get("PLACEWISE_SERVER__HEALTH_PORT", "8082")
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy of the environment is not meant

try:
    with OPENER.open(f"http://{HOST}:{PORT}/readyz", timeout=2) as answer:
        sys.exit(0 if answer.status == 200 else 1)
except (urllib.error.URLError, OSError) as error:
    print(f"not ready: {error}", file=sys.stderr)
    sys.exit(1)
