from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from local_engine.detokenizer import IncrementalDetokenizer, StopStrings
from local_engine.tokenizer import Tokenizer

from .tiny import END


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [*(detokenizer.feed(id) for id in ids), detokenizer.flush()]


def test_rule_35_a_character_waits_for_its_bytes(tiny_tokenizer: Tokenizer) -> None:
    assert stream(tiny_tokenizer, list("a你😀".encode())) == ["a", "", "", "你", "", "", "", "😀", ""]


def test_rule_35_an_unfinished_tail_is_flushed(tiny_tokenizer: Tokenizer) -> None:
    assert stream(tiny_tokenizer, list("好".encode()[:2])) == ["", "", "\ufffd"]


def test_special_tokens_are_skipped_unless_wanted(tiny_tokenizer: Tokenizer) -> None:
    assert stream(tiny_tokenizer, [65, END, 66]) == ["A", "", "B", ""]
    shown = IncrementalDetokenizer(tiny_tokenizer, skip_special_tokens=False)
    assert shown.feed(END) == "<|end|>"


@given(st.lists(st.integers(0, 255), max_size=40))
def test_the_pieces_make_what_the_library_decodes_at_once(tiny_tokenizer: Tokenizer, ids: list[int]) -> None:
    assert "".join(stream(tiny_tokenizer, ids)) == tiny_tokenizer.decode(ids)


def shown_by(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    strings = StopStrings(stops)
    text = "".join(strings.feed(piece) for piece in pieces)
    return text + strings.flush(), strings.matched


def test_rule_35_a_stop_string_across_tokens_never_leaks() -> None:
    strings = StopStrings(["<END>"])
    assert [strings.feed(piece) for piece in ["hello <", "E", "ND", "> more"]] == ["hello ", "", "", ""]
    assert strings.matched == "<END>"
    assert strings.flush() == ""


def test_rule_35_text_that_only_began_like_a_stop_string_is_delivered() -> None:
    strings = StopStrings(["<END>"])
    assert [strings.feed(piece) for piece in ["a<E", "N!", "<EN"]] == ["a", "<EN!", ""]
    assert strings.flush() == "<EN"


def test_the_stop_string_can_be_kept() -> None:
    strings = StopStrings(["ab"], include=True)
    assert strings.feed("xxabyy") == "xxab"


def test_stop_strings_wait_for_min_tokens() -> None:
    strings = StopStrings(["ab"])
    assert strings.feed("ab", check=False) == "ab"
    assert strings.matched is None


def reference(stops: list[str], text: str) -> tuple[str, str | None]:
    """Character by character: the first stop string that is complete ends the text."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_rule_35_what_is_shown_does_not_depend_on_the_pieces(stops: list[str], pieces: list[str]) -> None:
    assert shown_by(stops, pieces) == reference(stops, "".join(pieces))


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_rule_35_nothing_is_shown_that_is_taken_back(stops: list[str], pieces: list[str]) -> None:
    strings = StopStrings(stops)
    shown = ""
    final, _ = reference(stops, "".join(pieces))
    for piece in pieces:
        shown += strings.feed(piece)
        assert final.startswith(shown)
