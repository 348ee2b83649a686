"""What readers of data sets with a layout of their own share: their folders by name, and lists of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from onepass.data import HIDDEN
from onepass.data.archive import sniff
from onepass.errors import UsageError

LARGEST = 16 << 20  # bytes of a list


def plain(name: str) -> str:
    """A name without what people spell differently."""
    return "".join(letter for letter in name.lower() if letter not in "-_ ")


def named_folders(place: Path, names: Sequence[str]) -> Iterator[Path]:
    """The folder itself and those directly inside whose plain names begin with one of these."""
    if not place.is_dir():
        return
    inside = sorted(path for path in place.iterdir() if not path.name.startswith(HIDDEN) and path.is_dir())
    yield from (path for path in (place.resolve(), *inside) if plain(path.name).startswith(tuple(names)))


def rows(path: Path, columns: int) -> list[list[str]]:
    """The first words of each line of a text file: as many as there are columns."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: expected lines of text, got {sniff(content[:1024]) or 'bytes'}; get it again"
        ) from error
    if len(content) > LARGEST:
        raise UsageError(f"{path}: expected a list of at most {LARGEST >> 20} MiB, got a larger file; get it again")
    found = [line.split()[:columns] for line in text.splitlines() if line.strip()]
    for number, words in enumerate(found, 1):
        if len(words) < columns:
            raise UsageError(
                f"{path}: expected {columns} words a line, got {len(words)} in line {number}; get it again"
            )
    return found
