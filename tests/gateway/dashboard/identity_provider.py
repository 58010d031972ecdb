"""A real OpenID Connect provider as a process of its own, and the settings with which a gateway signs people in through it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

PROVIDER = """
import sys
from oidc_provider_mock import User, run_server_in_thread
users = [
    User(sub="mei", claims={"email": "mei@example.com", "email_verified": True, "groups": ["staff", "money"]}),
    User(sub="lin", claims={"email": "lin@example.com", "groups": ["search leads"]}),
    User(sub="eve", claims={"email": "eve@example.com", "groups": ["visitors"]}),
]
with run_server_in_thread(user_claims=users) as server:
    print(server.server_port, flush=True)
    sys.stdin.read()
"""
SETTINGS = """
oidc:
  issuer: "http://localhost:{port}"
  client_id: metergate
  client_secret: a-secret-of-the-tests
  public_url: "http://localhost:1"
  name: the house
  roles: {{money: billing, "search leads": "team_admin:{team}"}}
"""


@contextlib.contextmanager
def oidc_provider() -> Iterator[str]:
    command = [sys.executable, "-W", "ignore", "-c", PROVIDER]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
