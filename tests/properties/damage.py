"""Damage files in the ways of disks, editors and other people's programs."""

from hypothesis import strategies as st

WORDS = (
    *("", "nan", "inf", "-1", "1e400", "1e300", "9" * 40, "0x10", "true", "null", "None", "[]", "{}", "é", "雪"),
    *("\x00", "\ud800", "\\", '"', "'", "\n", ";", "\t", ",", "=", "#", "[bold]", "<script>", "../..", "%s", "a" * 500),
)
TEXT = st.one_of(st.sampled_from(WORDS), st.text(max_size=12))


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw a damaged copy: cut, a bit flipped, parts removed, doubled, moved or replaced; or something else."""
    place = st.integers(0, max(0, len(content) - 1))
    start, end = sorted((draw(place), draw(place)))
    how = draw(st.sampled_from(("cut", "flip", "remove", "double", "insert", "swap", "zeros", "other")))
    if how == "cut":
        return content[:start]
    if how == "flip":
        bit = 1 << draw(st.integers(0, 7))
        return content[:start] + bytes([content[start] ^ bit]) + content[start + 1 :] if content else b"\xff"
    if how == "remove":
        return content[:start] + content[end:]
    if how == "double":
        return content[:end] + content[start:]
    if how == "insert":
        return content[:start] + _bytes(draw(TEXT)) + content[start:]
    if how == "swap":
        return content[end:] + content[start:end] + content[:start]
    if how == "zeros":
        return content[:start] + bytes(end - start) + content[end:]
    return draw(
        st.one_of(st.binary(max_size=64), TEXT.map(_bytes), st.just(content.decode("latin-1").encode("utf-16")))
    )


@st.composite
def retyped(draw: st.DrawFn, text: str) -> str:
    """Draw a copy of a text with a few of its words replaced."""
    words = text.split(" ")
    for _ in range(draw(st.integers(1, 3))):
        words[draw(st.integers(0, len(words) - 1))] = draw(TEXT)
    return " ".join(words)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
