"""Numbers as people write them."""

from __future__ import annotations


def one_line(text: str) -> str:
    """Write a text in one line that no terminal takes for a command: lines joined, control characters by number.

    >>> one_line("two  blanks and" + chr(10) + "  a line" + chr(27) + "[2J")
    'two  blanks and a line\\\\x1b[2J'
    """
    return harmless(" ".join(line.strip() for line in text.splitlines() if line.strip()))


def harmless(text: str, *, kept: str = "") -> str:
    """Write control characters by number, but for those that are `kept`: a terminal would take them for commands.

    >>> harmless("a" + chr(27) + "[2J" + chr(10), kept=chr(10))
    'a\\\\x1b[2J\\n'
    """
    controls = {one for one in text if ord(one) < 32 or 127 <= ord(one) < 160} - set(kept)
    return "".join(f"\\x{ord(one):02x}" if one in controls else one for one in text)


def graph_name(dataset: object, stand_in: str | None) -> str:
    """Name a graph; one that was generated is never named without saying so.

    >>> graph_name("big.store", "stand-in of products, seed 1"), graph_name("wordnet", None)
    ('big.store (stand-in of products, seed 1)', 'wordnet')
    """
    return f"{dataset} ({stand_in})" if stand_in else str(dataset)


def duration(seconds: float) -> str:
    """Write seconds for people.

    >>> duration(0.0123), duration(4.2), duration(150), duration(7300)
    ('12 ms', '4.2 s', '2 min 30 s', '2 h 1 min')
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def percent(value: float | None, *, metric: str = "accuracy") -> str:
    """Write a score for people: shares in per cent, errors as they are.

    >>> percent(0.7312), percent(1.5, metric="rmse"), percent(None)
    ('73.12 %', '1.5', '-')
    """
    if value is None:
        return "-"
    return f"{value:.4g}" if metric in ("rmse", "mae", "r2") else f"{100 * value:.2f} %"
