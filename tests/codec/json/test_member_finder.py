"""One member of a document that crosses: found at its place alone, replaced without another byte changed."""

import json
import random
import re

import pytest

from gateway.codec.json.member_finder import MAX_KEY_BYTES, MemberFinder, MemberReplacer

NAME = '"é\\"x"'
"""What is put in, as JSON: the name has a quote."""


def replaced(text: bytes, cuts: list[int]) -> bytes:
    """*text* after it went through in the pieces between *cuts*."""
    replacer = MemberReplacer("model_name", 'é"x')
    crossed = bytearray()
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        for piece in replacer.feed(text[start:end]):
            crossed += piece
    return bytes(crossed + replacer.finish())


LONG = "a" * 40_000
BLANKS = " \t\r\n" * 10_000
CASES = [
    ('{"model_name":"m"}', f'{{"model_name":{NAME}}}'),
    (
        ' {"a":1, "model_name" : \t"m\\"}," , "id":"model_name"}\n',
        f' {{"a":1, "model_name" : \t{NAME} , "id":"model_name"}}\n',
    ),
    ('{"outputs":[{"model_name":"m","data":["model_name",1]}],"model_name":""}', None),
    ('{"parameters":{"model_name":"m"},"model_name":"m"}', None),
    ('{"model\\u005fname":"m"}', f'{{"model\\u005fname":{NAME}}}'),
    ('{"model_name":"a","model_name":"b"}', f'{{"model_name":{NAME},"model_name":{NAME}}}'),
    ('{"x":"\\"model_name\\":\\"m\\"","model_name":"m"}', None),
    (f'{{"x":"{LONG}","model_name":"{LONG}","y":"{LONG}"}}', f'{{"x":"{LONG}","model_name":{NAME},"y":"{LONG}"}}'),
    (f'{{"{LONG}":1,"model_name":"m"}}', f'{{"{LONG}":1,"model_name":{NAME}}}'),
    ('data: {"model_name":"m","t":"a"}\n\ndata: {"model_name":"m"}\n\n', None),
    ('{"model_name":"\\\\"}', f'{{"model_name":{NAME}}}'),
    (f'{{"model_name"{BLANKS}:{BLANKS}"m"}}', f'{{"model_name"{BLANKS}:{BLANKS}{NAME}}}'),
    (f'{{{BLANKS}"a":["model_name"{BLANKS},"m"],"model_name":"m"}}', None),
]


def expected(before: str, after: str | None) -> str:
    """What must come out: *after*, or *before* with the name in place of the last members' `m` or nothing."""
    if after is not None:
        return after
    if before.startswith("data"):
        return before.replace('"model_name":"m"', f'"model_name":{NAME}')
    at = before.rindex('"model_name":') + len('"model_name":')
    return before[:at] + NAME + "}"


@pytest.mark.parametrize(("before", "after"), CASES, ids=range(len(CASES)))
def test_the_member_at_the_top_is_replaced_and_nothing_else(before: str, after: str | None) -> None:
    text, wanted = before.encode(), expected(before, after).encode()
    assert replaced(text, []) == wanted
    random.seed(1)
    for cut in range(1, len(text)) if len(text) < 1000 else random.sample(range(len(text)), 50):
        assert replaced(text, [cut]) == wanted
    assert replaced(text, list(range(1, len(text)))) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '["model_name","m"]',
        '[{"model_name":"m"}]',
        '{"model_name":7}',
        '{"model_name":null,"a":"b"}',
        '{"model_name":{"model_name":"m"}}',
        '{"model_name":["m"]}',
        '{"model_names":"m","Model_name":"m","":"m"}',
        '{"model_name"',
        '{"model_name":',
        '{"model_name": ',
        '{"a":"cut \\',
        '{"\\x":"m"}',
        '}}}]]]"',
        "\x00\xff no JSON, it's {not}",
        "model_name: m",
    ],
)
def test_all_else_crosses_byte_for_byte(text: str) -> None:
    sent = text.encode("latin-1")
    assert replaced(sent, []) == sent
    assert replaced(sent, list(range(1, len(sent)))) == sent


def test_only_a_key_is_held_back() -> None:
    replacer = MemberReplacer("model_name", "n")
    text = json.dumps({"data": [1.5] * 100_000, "text": LONG, "model_name": "m", LONG: LONG}).encode()
    crossed = 0
    for start in range(0, len(text), 1000):
        crossed += sum(map(len, replacer.feed(text[start : start + 1000])))
        assert min(start + 1000, len(text)) - crossed < MAX_KEY_BYTES


def test_steps_are_short_and_end_where_documents_end() -> None:
    finder = MemberFinder("a")
    text = b'{"a":1,"b":{"a":2}}{"a":[{"a":3}],"b":4,"c":[5]}{"b":[{"a":6}],"a":7}'
    found, ends, position = [], [], 0
    while position < len(text):
        position += finder.step(bytearray(text[position:]))
        if finder.found:
            found.append(text[position : position + 1])
        elif finder.depth == 0:
            ends.append(position)
    assert found == [b"1", b"[", b"7"]
    assert ends == [text.index(b"}{") + 1, text.rindex(b"}{") + 1, len(text)]


KEYS = ["model_name", "name", "model_nam", "model_name\0", "a", "", 'model_name"', "model\\name", "{", "x" * 300]
STRINGS = [*KEYS, '{"model_name":"m"}', ',"model_name":"m"', "[[[", "}}}", "\\", "\u00e9\U0001f600", "y" * 20_000]
OTHERS = ["0", "-2.5e9", "12345678901234567890", "true", "false", "null"]


class Writer:
    """Writes random JSON as text: keys more than once, any character escaped, blanks where they may stand."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._escapes = rng.choice([0, 0, 0.1, 0.5, 1])

    def object(self, depth: int = 0) -> str:
        """An object, in which one key of two is the one that is looked for."""
        keys = [self._rng.choice(["model_name", *self._rng.choices(KEYS)]) for _ in range(self._rng.randrange(6))]
        members = [f"{self._string(key)}{self._blank()}:{self._blank()}{self._value(depth + 1)}" for key in keys]
        return self._blank() + "{" + self._blank() + ",".join(members) + self._blank() + "}" + self._blank()

    def _value(self, depth: int) -> str:
        kind = self._rng.random()
        if depth > 5 or kind < 0.5:
            return self._rng.choice([self._string(self._rng.choice(STRINGS)), self._rng.choice(OTHERS)])
        if kind < 0.7:
            return "[" + ",".join(self._value(depth + 1) + self._blank() for _ in range(self._rng.randrange(5))) + "]"
        return self.object(depth)

    def _string(self, value: str) -> str:
        if len(value) > 1000:
            return f'"{value}"'
        pieces = [json.dumps(each, ensure_ascii=self._rng.random() < self._escapes)[1:-1] for each in value]
        escaped = [f"\\u{ord(each):04x}" if self._rng.random() < self._escapes else "" for each in value]
        return (
            '"'
            + "".join(
                code if code and ord(plain) < 0x10000 else piece
                for plain, piece, code in zip(value, pieces, escaped, strict=True)
            )
            + '"'
        )

    def _blank(self) -> str:
        return self._rng.choice(["", "", "", " ", "\n\t", " " * 50])


def replaced_at_once(text: str) -> str:
    """*text* with the name in place of each string that is the member at its top, as Python's parser finds them."""
    decoder = json.JSONDecoder()
    blank = re.compile(r"[ \t\r\n,:]*")

    def skip(at: int) -> int:
        found = blank.match(text, at)
        assert found is not None
        return found.end()

    pieces: list[str] = []
    copied = 0
    at = skip(skip(0) + 1)
    while text[at] != "}":
        key, at = decoder.raw_decode(text, at)
        at = skip(at)
        value, end = decoder.raw_decode(text, at)
        if key == "model_name" and isinstance(value, str):
            pieces += (text[copied:at], NAME)
            copied = end
        at = skip(end)
    return "".join(pieces) + text[copied:]


@pytest.mark.parametrize("seed", range(20))
def test_any_document_in_any_pieces_differs_by_its_member_alone(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(15):
        text = Writer(rng).object()
        sent, wanted = text.encode(), replaced_at_once(text).encode()
        assert replaced(sent, []) == wanted
        assert replaced(sent, sorted(rng.sample(range(len(sent)), min(len(sent), 20)))) == wanted
        if len(sent) < 2000:
            assert replaced(sent, list(range(1, len(sent)))) == wanted
