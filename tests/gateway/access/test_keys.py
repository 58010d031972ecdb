from __future__ import annotations

import hashlib
import hmac
import re

from gateway.access.keys import digest, looks_like_key, new_key
from gateway.access.pepper import Pepper

PEPPER = Pepper(b"p" * 32, "test")


def test_a_key_has_the_prefix_a_public_id_and_a_secret() -> None:
    key = new_key(PEPPER)
    assert re.fullmatch(r"sk-mg-[a-z2-7]{16}-[A-Za-z0-9_]{43}", key.secret.reveal())
    assert key.secret.reveal().split("-")[2] == key.public_id
    assert looks_like_key(key.secret.reveal().encode())


def test_what_is_stored_is_the_keyed_hash_of_the_whole_key() -> None:
    key = new_key(PEPPER)
    expected = hmac.new(b"p" * 32, key.secret.reveal().encode(), hashlib.sha256).digest()
    assert key.digest == expected
    assert digest(PEPPER, key.secret.reveal().encode()) == expected


def test_a_rotation_keeps_the_public_id_and_changes_the_secret() -> None:
    first = new_key(PEPPER)
    second = new_key(PEPPER, first.public_id)
    assert second.public_id == first.public_id
    assert second.digest != first.digest


def test_rule_27_a_new_key_does_not_print() -> None:
    key = new_key(PEPPER)
    assert key.secret.reveal() not in repr(key)


def test_what_has_not_the_shape_of_a_key_is_not_hashed() -> None:
    for text in (b"", b"sk-mg-", b"sk-mg-short-x", b"Bearer", b"sk-" + b"a" * 100_000, b"' OR 1=1 --"):
        assert not looks_like_key(text)
