"""Event streams are parsed correctly for any split into chunks."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from synth_optimizers.client.sse import SseDecoder

STREAM = (
    '\ufeff: a comment\n\nid: 3\nevent: candidate.accepted\ndata: {"a":\ndata: "ü"}\n\n'
    "data:no space\r\rid: 4\r\ndata: crlf\r\n\r\nevent: empty\n\nretry: 1500\nunknown: x\nid\ndata\n\ndata: cut off"
).encode()
MESSAGES = [
    ("candidate.accepted", '{"a":\n"ü"}'),
    ("message", "no space"),
    ("message", "crlf"),
    ("message", ""),
]


def read(pieces: list[bytes]) -> list[tuple[str, str]]:
    decoder = SseDecoder()
    return [message for piece in pieces for message in decoder.feed(piece)]


def test_messages_are_parsed_as_the_standard_says() -> None:
    decoder = SseDecoder()
    assert list(decoder.feed(STREAM)) == MESSAGES
    assert decoder.retry == 1.5


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_split_into_chunks_gives_the_same_messages(cuts: list[int]) -> None:
    places = sorted({0, *cuts, len(STREAM)})
    assert read([STREAM[start:end] for start, end in itertools.pairwise(places)]) == MESSAGES


def test_single_byte_chunks_give_the_same_messages() -> None:
    assert read([STREAM[place : place + 1] for place in range(len(STREAM))]) == MESSAGES


def test_a_message_without_its_blank_line_is_incomplete() -> None:
    assert read([b"data: half\n"]) == []
