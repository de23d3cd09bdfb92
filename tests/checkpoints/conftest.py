"""What the checkpoint tests share: comparing outputs, and asserting a refusal."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture(scope="session")
def error_of() -> Callable[[Tensor, Tensor], float]:
    """The largest difference of two tensors of the same shape, relative to the second's largest entry."""

    def error(ours: Tensor, theirs: Tensor) -> float:
        assert ours.shape == theirs.shape
        assert theirs.abs().max() > 0
        return ((ours - theirs).abs().max() / theirs.abs().max()).item()

    return error


@pytest.fixture(scope="session")
def refused() -> Callable[..., AbstractContextManager[None]]:
    """``with refused(path, "what it says", model):`` expects one sentence, and the model left as it was."""

    @contextmanager
    def expect(path: Path | None, message: str, model: nn.Module | None = None) -> Iterator[None]:
        before = {} if model is None else {n: t.clone() for n, t in model.state_dict().items()}
        with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
            yield
        said = str(caught.value)
        assert "\n" not in said
        assert len(said) < 500 + 2 * len(str(path)), said
        assert not re.search(r"[a-z)]\. [A-Z]", said.replace(str(path), "")), (
            f"more than one sentence: {said}"
        )
        assert path is None or str(path) in said
        for name, tensor in before.items():
            assert torch.equal(model.state_dict()[name], tensor), f"{name} was changed"

    return expect
