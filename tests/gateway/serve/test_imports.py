"""What a gateway does not load: it starts sooner and stays smaller without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "gateway.serve.single",
            {
                "torch",
                "triton",
                "local_engine",
                "kernels",
                "alembic",
                "pyreqwest",
                "rich",
                "pygments",
                "sqlalchemy.orm",
            },
        ),
        ("gateway.cli.serve", {"rich", "pygments", "sqlalchemy", "httpx"}),
        ("gateway.serve.fleet", {"torch", "litestar", "sqlalchemy", "uvicorn", "jinja2"}),
        (
            "gateway.metering.recording",
            {"torch", "litestar", "uvicorn", "jinja2", "alembic", "httpx", "sqlalchemy.orm"},
        ),
    ],
)
def test_what_is_not_needed_to_serve_is_not_imported(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({absent!r} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_application_loads_no_types_that_its_handlers_do_not_use() -> None:
    code = (
        "import sys; from gateway.litestar_app import LitestarApp; LitestarApp([], openapi_config=None); "
        "print(*sorted({'pydantic', 'attr'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
