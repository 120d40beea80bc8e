"""The curve of a training: rows and points go together, whatever was cut off before."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the training extra is not installed")

from specedge.export.training.curve import Curve  # noqa: E402


def test_the_plot_has_a_point_for_each_row_and_says_which_weights_are_kept(tmp_path: Path) -> None:
    curve = Curve(tmp_path / "ctc.csv")
    curve.add(200, 2.0, 3.0, 2.5)
    assert "the weights that it began with are kept" in curve.plot.read_text()
    curve.add(400, 1.0, 2.0, 2.0)
    curve.add(600, 0.5, 2.25, 2.0)
    drawn = curve.plot.read_text()
    assert drawn.count("<circle") == 6 and "the weights of step 400 are kept" in drawn
    assert curve.path.read_text().splitlines()[1:] == ["200,2,3,2.5", "400,1,2,2", "600,0.5,2.25,2"]


def test_a_row_that_was_cut_off_is_left_out_of_the_plot(tmp_path: Path) -> None:
    curve = Curve(tmp_path / "ctc.csv")
    curve.add(100, float("inf"), float("nan"), float("inf"))
    curve.add(200, 2.0, 3.0, 3.0)
    curve.path.write_text(curve.path.read_text() + "400,1.0\n")
    curve.add(600, 0.5, float("nan"), 3.0)
    curve.add(800, 0.5, 1.0, 1.0)
    assert curve.plot.read_text().count("<circle") == 4
    curve.clear()
    assert not list(tmp_path.iterdir())
