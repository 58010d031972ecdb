"""One product for the tests that only call it; tests that kill or configure start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.product import Product, running


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with running(tmp_path_factory.mktemp("metergate") / "var") as product:
        yield product
