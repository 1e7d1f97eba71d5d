"""Plots are there and show something; what they show is worked out by hand."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from fedapps.errors import UserError
from fedapps.results.plots import grouped, learning_curves, plot_runs
from fedapps.results.record import read_record


def shows_something(file: Path) -> bool:
    picture = imread(file)  # [H, W, 4] in 0..1
    assert file.read_bytes().startswith(b"\x89PNG")
    return min(picture.shape[:2]) > 400 and len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 20


def test_plots_of_one_run(fedafd_run: Path) -> None:
    files = plot_runs([fedafd_run])
    assert files == [fedafd_run / "plots" / "learning.png", fedafd_run / "plots" / "communication.png"]
    assert all(shows_something(file) for file in files)


def test_plots_of_several_runs(fedafd_run: Path, local_run: Path, tmp_path: Path) -> None:
    files = plot_runs([fedafd_run, local_run], tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["communication.png", "learning.png"]
    assert all(shows_something(file) for file in files)


def test_curves(fedafd_run: Path) -> None:
    figure = learning_curves(grouped([read_record(fedafd_run)]))
    panels = {axis.get_title(): axis for axis in figure.axes if axis.get_visible()}
    assert list(panels) == ["image", "text", "server"]
    thin, other, mean = panels["image"].lines
    assert list(thin.get_ydata()) == [10, 40, 30]
    assert list(other.get_ydata()) == [20, 20, 60]
    assert list(mean.get_ydata()) == [15, 30, 45]
    assert mean.get_linewidth() > thin.get_linewidth()
    assert list(panels["server"].lines[-1].get_xdata()) == [0, 1, 2, 3]
    assert list(panels["text"].lines[-1].get_ydata()) == [50, 50]


def test_runs_are_grouped_by_method_and_its_keys(make_run: Callable[..., Path]) -> None:
    def settings(baa: bool) -> dict:
        return {"settings": {"fedafd.baa": baa, "fedafd.beta": 0.5}}

    paths = [
        make_run("a", "fedafd", seed=1, **settings(True)),
        make_run("b", "fedafd", seed=2, **settings(True)),
        make_run("c", "fedafd", **settings(False)),
        make_run("d", "local"),
    ]
    groups = grouped([read_record(path) for path in paths])
    labels = {label: [record.path.name for record in records] for label, records in groups.items()}
    assert labels == {"fedafd[baa=true]": ["a", "b"], "fedafd[baa=false]": ["c"], "local": ["d"]}


def test_bytes_of_each_round(fedafd_run: Path) -> None:
    assert read_record(fedafd_run).bytes_by_round("bytes_up") == {1: 350, 2: 350, 3: 300}


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/below"])
def test_out_that_cannot_be_written(where: str, fedafd_run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UserError, match=r"^plot: .* cannot be written: "):
        plot_runs([fedafd_run], tmp_path / where)


def test_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        plot_runs([tmp_path])
