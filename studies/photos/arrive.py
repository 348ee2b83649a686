"""CIFAR-10 as photos that arrive in class folders, class by class, while `onepass learn --watch` learns them.

    python studies/photos/arrive.py DATA FOLDER [--each 500] [--kills 5] [--save results/photos/photos.json]

Images of a class are written as PNG files, one class after the other, each file whole when its name appears. The
learner is killed with SIGKILL at random moments and started again. At the end it has learned every file exactly once;
the test images, as files too, are predicted by `onepass predict`.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from onepass.data.catalog import load

ONEPASS = [sys.executable, "-m", "onepass"]
SAVE_SECONDS = 5.0


def write(images: np.ndarray, labels: np.ndarray, names: list[str], folder: Path, prefix: str) -> None:
    """A file for each image, made aside and then moved to the folder of its class."""
    aside = folder.with_name(f".{folder.name}.aside")
    aside.mkdir(parents=True, exist_ok=True)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / names[label] / f"{prefix}{number:05}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.moveaxis(image, 0, -1)).save(aside / place.name)
        (aside / place.name).replace(place)
    aside.rmdir()


def known(model: Path) -> dict[str, int]:
    """Samples the model's file has learned, by class."""
    done = subprocess.run([*ONEPASS, "inspect", str(model), "--json"], capture_output=True, text=True)
    if done.returncode:
        return {}
    return {str(one["name"]): int(one["samples"]) for one in json.loads(done.stdout)["classes"]}


def accuracy(model: Path, test: Path) -> float:
    asked = [*ONEPASS, "predict", str(model), str(test), "--json"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    answers = [json.loads(line) for line in lines]
    return sum(Path(one["path"]).parent.name == one["classes"][0]["class"] for one in answers) / len(answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=500, help="images of a class (default: 500)")
    parser.add_argument("--test", type=int, default=100, help="test images of a class (default: 100)")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    data = load("cifar10", root=options.data)
    x, y, names = np.asarray(data.x), np.asarray(data.y), [str(name) for name in data.classes]
    shutil.rmtree(options.folder, ignore_errors=True)
    photos, test, model = options.folder / "photos", options.folder / "test", options.folder / "m.onepass"
    photos.mkdir(parents=True)
    held = [np.flatnonzero(np.asarray(data.y_test) == c)[: options.test] for c in range(len(names))]
    write(
        np.asarray(data.x_test)[np.concatenate(held)], np.asarray(data.y_test)[np.concatenate(held)], names, test, "t"
    )
    words = [*ONEPASS, "learn", str(photos), "--model", str(model), "--watch", "--save-seconds", str(SAVE_SECONDS)]
    begin, rng, kills, said = time.monotonic(), random.Random(0), 0, []
    learner = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for label, name in enumerate(names):
        some = np.flatnonzero(y == label)[: options.each]
        write(x[some], y[some], names, photos, "i")
        if kills < options.kills:
            time.sleep(rng.uniform(0, 2 * SAVE_SECONDS))
            learner.kill()
            learner.wait()
            kills += 1
            learner = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while known(model).get(name, 0) < options.each:
            assert learner.poll() is None, "the learner ended by itself"
            time.sleep(1)
        said.append(accuracy(model, test) * len(names) / (label + 1))  # among the classes that came so far
        print(f"{name:12} {100 * said[-1]:5.1f} % of the test images of {label + 1} classes", flush=True)
    learner.send_signal(signal.SIGTERM)
    learner.wait()
    counts = known(model)
    assert counts == dict.fromkeys(names, options.each), counts
    figures = {
        "each": options.each,
        "tested": options.test,
        "kills": kills,
        "accuracy": said,
        "samples": sum(counts.values()),
    }
    figures["seconds"] = time.monotonic() - begin
    print(json.dumps(figures))
    if options.save:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
