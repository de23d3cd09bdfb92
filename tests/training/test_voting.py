import csv
import json

import pytest
import torch
from torch import nn

from pointvit.cli import main
from pointvit.data.transforms import Compose, RandomJitter, RandomScaleTranslate
from pointvit.training.classifier import PointClassifier
from pointvit.training.voting import protocol, vote


class Extent(nn.Module):
    """Logits that change with the size of a cloud."""

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return points.abs().mean(dim=1) * 20


def test_votes_are_the_mean_of_the_probabilities_of_seeded_copies():
    points, augment = torch.randn(5, 9, 3), Compose([RandomScaleTranslate()])
    voted = vote(Extent(), points, augment, 3, seed=7)
    generator = torch.Generator().manual_seed(7)
    copies = [Extent()(augment(points, generator)).softmax(dim=1) for _ in range(3)]
    torch.testing.assert_close(voted, sum(copies) / 3)
    torch.testing.assert_close(voted.sum(dim=1), torch.ones(5))
    assert torch.equal(vote(Extent(), points, augment, 3, seed=7), voted)
    assert not torch.equal(vote(Extent(), points, augment, 3, seed=8), voted)


def test_the_protocol_says_all_that_made_the_score():
    said = protocol(Compose([RandomScaleTranslate(), RandomJitter()]), 10, 4, 64)
    assert said == (
        "mean of the class probabilities over 10 copies of each cloud, augmented by "
        f"{RandomScaleTranslate()!r}, {RandomJitter()!r} with seed 4 in batches of 64"
    )
    with pytest.raises(ValueError, match=r"model\.votes=10 needs copies that differ; give data.augment"):
        protocol(Compose([]), 10, 0, 64)
    with pytest.raises(ValueError, match=r"model\.votes must be at least 1, got 0"):
        PointClassifier(votes=0)


def test_a_voted_score_stands_beside_the_plain_one(options, tmp_path, capsys):
    assert main(["fit", *options, "--trainer.max_epochs", "1"]) == 0
    best = str(tmp_path / "runs" / "version_0" / "checkpoints" / "best.ckpt")
    for more in ([], ["--model.votes", "4"]):
        assert main(["test", *options, *more, "--ckpt_path", best]) == 0
    out = capsys.readouterr().out
    plain, voted = (tmp_path / "runs" / f"version_{n}" for n in (1, 2))
    assert (voted / "test" / "metrics.json").read_text() == (plain / "test" / "metrics.json").read_text()
    assert not (plain / "test" / "voted").exists()
    with (voted / "metrics.csv").open() as file:
        [row] = [row for row in csv.DictReader(file) if row["test/oa"]]
    scores = json.loads((voted / "test" / "voted" / "metrics.json").read_text())
    assert float(row["test/oa_voted"]) == pytest.approx(scores["overall_accuracy"])
    assert float(row["test/macc_voted"]) == pytest.approx(scores["mean_class_accuracy"])
    assert scores["shapes"] == 20
    sentence = (voted / "test" / "voted" / "protocol.txt").read_text().strip()
    assert f"Voted: {sentence}" in out
    assert sentence.startswith("mean of the class probabilities over 4 copies")
