"""Which requests of a browser are answered. A browser carries out what any page asks of an address it can reach."""

from starlette.requests import Request

from placewise_core.errors import PermissionDeniedError
from placewise_service.settings import LOOPBACK


def refuse_foreign_pages(request: Request, is_local: bool) -> None:
    """Only our own page may use that.

    Raises PermissionDeniedError for a request that another site's page makes, and, where everybody on this machine is
    trusted, for one that came by another name than this machine's (a page whose name was pointed here).
    """
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise PermissionDeniedError("pages of other sites may not ask")
    if is_local and (request.url.hostname or "") not in LOOPBACK:
        raise PermissionDeniedError("ask this machine by its own name: localhost, 127.0.0.1 or [::1]")
