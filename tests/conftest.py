"""Fixtures that several test files share."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data: modelnet40/, weights/ and fixtures/."""
    value = os.environ.get("POINTVIT_DATA")
    if not value:
        pytest.skip("POINTVIT_DATA does not name a folder with modelnet40/, weights/ and fixtures/")
    root = Path(value)
    assert root.is_dir(), f"POINTVIT_DATA={value} is not a folder"
    return root


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def randomise() -> Callable[..., nn.Module]:
    """The function ``randomise(model, seed=0)``, which fills a model with numbers that hide no mistake.

    A fresh model has zeros and ones in its norms and biases, where a parameter that is swapped or left out
    changes nothing. Here every number is random and none is zero, at a scale that keeps features near one.
    """

    def fill(model: nn.Module, seed: int = 0) -> nn.Module:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if not tensor.is_floating_point():
                    tensor.fill_(3)
                elif name.endswith((".gamma", "norm.weight", "running_var")) or (
                    tensor.ndim == 1 and "weight" in name
                ):
                    tensor.uniform_(0.5, 1.5, generator=generator)
                else:
                    weights = tensor.ndim > 1 and name.endswith("weight")
                    tensor.normal_(std=tensor[0].numel() ** -0.5 if weights else 0.3, generator=generator)
                    tensor.add_(1e-6 * (tensor == 0))
        return model

    return fill


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for found in map(shutil.which, names) if found), None)
    if program is None:
        pytest.skip(f"there is no browser ({', '.join(names)}) on this machine")
    with api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=program, args=options)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Opens a page and watches it: no request, nothing on the console, no error."""
    contexts, seen = [], []

    def open_page(path: Path, width: int = 1200, height: int = 800, **settings):
        context = browser.new_context(viewport={"width": width, "height": height}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        url = path.as_uri()
        page.route("**/*", lambda route: route.continue_() if route.request.url == url else route.abort())
        page.on("request", lambda request: request.url.startswith(("data:", url)) or seen.append(request.url))
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("dialog", lambda dialog: (seen.append(dialog.message), dialog.dismiss()))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert seen == []
