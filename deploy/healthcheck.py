"""Exit code 0 while the service in this container is ready: for HEALTHCHECK, so standard library only, no shell."""

import os
import sys
import urllib.error
import urllib.request

PORT = os.environ.get("PLACEWISE_SERVER__REST_PORT", "8080")

try:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz", timeout=2) as answer:
        sys.exit(0 if answer.status == 200 else 1)
except (urllib.error.URLError, OSError) as error:
    print(f"not ready: {error}", file=sys.stderr)
    sys.exit(1)
