"""Which tags a repository has, asked over the registry's own HTTP API: only to name neighbours of a tag that does not exist.

The engine has no such call. What goes wrong here is never an error: there are then simply no names to suggest.
API: https://distribution.github.io/distribution/spec/api/ (tags/list, bearer tokens).
"""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Callable

import requests

from validator.registry import DEFAULT_REGISTRY, parse_reference

Credentials = Callable[[str], tuple[str, str] | None]
LIMIT = 2000
TIMEOUT = 5.0


def nearest(reference: str, credentials: Credentials, count: int = 3) -> tuple[str, ...]:
    """Existing tags of the reference's repository that look most like the one asked for, best first; () when nobody says."""
    parsed = parse_reference(reference)
    if not parsed.suffix.startswith(":"):
        return ()
    try:
        tags = _tags(parsed.registry, parsed.repository, credentials)
    except (requests.RequestException, ValueError, KeyError, TypeError):
        return ()
    return tuple(difflib.get_close_matches(parsed.suffix[1:], tags, n=count, cutoff=0.5))


def _tags(registry: str, repository: str, credentials: Credentials) -> list[str]:
    host = "registry-1.docker.io" if registry == DEFAULT_REGISTRY else registry
    # Docker, too, speaks plain HTTP to registries on loopback.
    scheme = "http" if re.match(r"(localhost|127\.\d+\.\d+\.\d+)(:\d+)?$", host) else "https"
    url = f"{scheme}://{host}/v2/{repository}/tags/list?n={LIMIT}"
    login = credentials(registry)
    with requests.Session() as session:
        answer = session.get(url, timeout=TIMEOUT)
        if answer.status_code == 401:
            answer = session.get(url, timeout=TIMEOUT, headers=_answer_to(answer, session, login))
        answer.raise_for_status()
        return [str(tag) for tag in answer.json()["tags"] or []]


def _answer_to(refused: requests.Response, session: requests.Session, login: tuple[str, str] | None) -> dict[str, str]:
    """The header to send after a 401: a bearer token from the service it names, or the login itself."""
    challenge = refused.headers.get("WWW-Authenticate", "")
    if challenge.lower().startswith("bearer"):
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        realm = fields.pop("realm")
        token = session.get(realm, params=fields, auth=login, timeout=TIMEOUT).json()
        return {"Authorization": f"Bearer {token.get('token') or token['access_token']}"}
    basic = base64.b64encode(":".join(login).encode()).decode() if login else ""
    return {"Authorization": f"Basic {basic}"} if basic else {}
