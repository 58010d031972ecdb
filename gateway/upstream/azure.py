"""Azure OpenAI's own form of OpenAI's API: a deployment in the path, a version in the query, the key in a header of its own.

Source: learn.microsoft.com/azure/ai-services/openai/reference. Its newer `/openai/v1` needs none of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from gateway.upstream.openai import OpenAIAdapter

if TYPE_CHECKING:
    from gateway.routing.routes import Route


class AzureAdapter(OpenAIAdapter):
    def credentials(self, secret: str) -> dict[str, str]:
        return {"api-key": secret}

    def address(self, route: Route, path: str) -> str:
        version = quote(route.provider.settings.api_version or "", safe="")
        deployment = quote(route.model, safe="")
        return f"{route.provider.url(f'/openai/deployments/{deployment}{path}')}?api-version={version}"
