"""The page's files below `/_ttc/ui`, as they stand in `assets`.

They are read once, when the gateway starts. Nothing in them is of anyone: what the page shows it asks for itself, with
the credentials of whoever uses it.
"""

import gzip
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from es_ttc.serving.admin.endpoint import PAGE, not_found_response

ASSETS = Path(__file__).parent / "assets"
LOCK = Path(__file__).parent / "vendor.lock.json"
VENDOR = "vendor"
INDEX_PAGE = "index.html"
WITHOUT_LIBRARIES = "without-libraries.html"

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_HEADERS = {
    "content-security-policy": "default-src 'self'; style-src 'self'; script-src 'self'; object-src 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'none'",
    "cache-control": "no-cache",  # asked for again each time, by the tag: a new release shows at once
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page."""

    body: bytes
    compressed: bytes
    media_type: str
    tag: str


def lacks_libraries() -> bool:
    """Return whether a library of the page is not there, as in an installation from a checkout without npm."""
    return not all((ASSETS / name).is_file() for name in library_files())


def read_assets(folder: Path = ASSETS) -> dict[str, Asset]:
    """Return the page's files by path; in a checkout that lacks a library, one page that says how to get it."""
    found = {
        path.relative_to(folder).as_posix(): _asset(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in _TYPES
    }
    if not found.keys() >= set(library_files()):
        return {INDEX_PAGE: found[WITHOUT_LIBRARIES], "style.css": found["style.css"]}
    return found


def library_files() -> list[str]:
    """Return the paths of the libraries that the page needs, below `assets`."""
    lock = json.loads(LOCK.read_text("utf-8"))
    return [f"{VENDOR}/{file['as']}" for package in lock["packages"] for file in package["files"]]


def page_routes() -> list[Route]:
    """Return the routes of the page's files."""
    assets = read_assets()

    async def page(_: Request) -> Response:
        return RedirectResponse(f"{PurePosixPath(PAGE).name}/", headers=_HEADERS)

    async def file(request: Request) -> Response:
        name = request.path_params["name"] or INDEX_PAGE
        asset = assets.get(name)
        if asset is None:
            return not_found_response(request)
        headers = _HEADERS | {"etag": asset.tag}
        if asset.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers |= {"content-encoding": "gzip"}
            return Response(asset.compressed, media_type=asset.media_type, headers=headers)
        return Response(asset.body, media_type=asset.media_type, headers=headers)

    return [Route(PAGE, page), Route(f"{PAGE}/{{name:path}}", file)]


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(body, gzip.compress(body, mtime=0), _TYPES[path.suffix], tag)
