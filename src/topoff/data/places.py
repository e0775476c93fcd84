"""Where a graph lies on the disk, so that nothing is ever written over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from topoff.data.layout import STORE_FILES
from topoff.data.published import RAW
from topoff.data.sources import PREFIX, graph_file, known_name, places_of
from topoff.data.write import TABLES
from topoff.machine.places import expand_home


def refuse_source(out: str | Path, source: str | Path, *, root: str | Path | None = None, inside: bool = False) -> None:
    """Refuse to write `out` where the graph `source` lies: over its files, or beside them under a name that is read.

    Links are followed. With `inside`, nothing may be written into the folder of the graph at all.

    Raises ValueError in one sentence.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "nodes.csv").write_text("id\\n1\\n")
    ...     refuse_source(Path(folder) / "predictions.csv", folder)
    ...     try:
    ...         refuse_source(Path(folder) / "sub" / ".." / "nodes.csv", folder)
    ...     except ValueError as error:
    ...         print(str(error).partition(" (got")[0])
    Expected the output to lie apart from the graph that is read
    """
    path = expand_home(out).resolve()
    for place in dict.fromkeys(_places(source, root=root)):
        files = [file.resolve() for file in _files(place)]
        within = path.is_relative_to(place) and (inside or path == place or path.is_relative_to(place / "raw"))
        if within or any(file.is_relative_to(path) for file in files):
            raise ValueError(
                f"Expected the output to lie apart from the graph that is read (got {path}, and the graph is in "
                f"{place}); choose another path, since a source is never overwritten."
            )


def _places(source: str | Path, *, root: str | Path | None) -> Iterator[Path]:
    """Yield the files and folders that exist and that a source may stand for, with links followed."""
    name = known_name(source)
    if name is not None and name in RAW:
        yield from (file.resolve() for file in RAW[name].paths(places_of(PREFIX, root=root)[1]) if file.exists())
    for place in places_of(source, root=root):
        if place.exists():
            yield place.resolve()
        if name is not None and place.parent.is_dir():  # PyG spells the folders of some in another case
            others = place.parent.iterdir()
            yield from (each.resolve() for each in others if known_name(each.name) == name)


def _files(place: Path) -> list[Path]:
    """Return what is read of a place, or would be if it were there: the file itself, or tables and arrays."""
    if not place.is_dir():
        return [place]
    names = [place / name for name in (*TABLES, "graph.npz", *STORE_FILES)]
    return [*names, *(name for file in names if (name := file.resolve()) != file), graph_file(place)]
