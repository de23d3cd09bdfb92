"""What `--help` says: a short usage first, and every name that an option takes."""

import re
from collections.abc import Callable

import pytest

import pointvit
from pointvit.cli import main
from pointvit.data.module import DATASETS
from pointvit.data.scanobjectnn import VARIANTS
from pointvit.training import TRANSFER_MODES
from pointvit.training.adapters import LAYERS
from pointvit.training.agreement import PATCH_LOSSES
from pointvit.training.alignment import TEACHER_INITS
from pointvit.training.initial import INITS
from pointvit.views.cameras import RIGS

LONG = ("fit", "validate", "test", "align", "transfer")
MODELS = pointvit.list_models("pointvit")
LAYER_OPTIONS = [option for layers in LAYERS.values() for option in layers.options]


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.setenv("COLUMNS", "80")

    def shown(command: str) -> str:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        return capsys.readouterr().out

    return shown


@pytest.mark.parametrize("command", LONG)
def test_usage_is_short_and_options_of_the_trainer_come_last(help_of, command):
    usage, _, rest = help_of(command).partition("\n\n")
    assert len(usage.splitlines()) <= 4
    assert max(map(len, usage.splitlines())) <= 80
    assert f"usage: pointvit {command} " in usage
    order = [rest.index(f"\n  --{option} ") for option in ("model.lr", "data.name", "trainer.max_epochs")]
    assert order == sorted(order)


def entry(text: str, option: str) -> str:
    """What the help says of one option, on one line, without its default and type."""
    found = re.search(rf"^ +--{re.escape(option)} [^\n]*?(?:\n| {{2,}})(.*?)\(type:", text, re.M | re.S)
    assert found is not None, option
    return " ".join(found[1].split())


@pytest.mark.parametrize(
    ("command", "option", "names"),
    [
        ("fit", "model.model", [*MODELS, "auto"]),
        ("fit", "model.transfer", TRANSFER_MODES),
        ("fit", "model.init", INITS),
        ("fit", "model.transfer_options", [*LAYER_OPTIONS, "tokenizer", "k"]),
        ("fit", "data.name", DATASETS),
        ("fit", "data.variant", VARIANTS),
        ("align", "model.model", [*MODELS, "auto"]),
        ("align", "model.teacher_init", TEACHER_INITS),
        ("align", "model.student_init", INITS),
        ("align", "model.view_rig", RIGS),
        ("align", "model.patch_loss", PATCH_LOSSES),
        ("transfer", "model.transfer", TRANSFER_MODES),
    ],
)
def test_options_name_all_that_they_take(help_of, command, option, names):
    said = entry(help_of(command), option)
    assert [name for name in names if f"``{name}``" not in said] == []


@pytest.mark.parametrize(("option", "names"), [("modes", TRANSFER_MODES), ("init", [*INITS, "--start"])])
def test_options_of_the_grid_name_all_that_they_take(help_of, option, names):
    said = entry(help_of("transfer"), option)
    assert set(names) <= set(re.findall(r"[\w-]+", said))


def test_the_teacher_is_not_called_optional(help_of):
    assert entry(help_of("align"), "teacher").endswith("it must be given")


@pytest.mark.parametrize("command", ["compare", "robustness"])
def test_commands_beside_training_name_the_data_sets(help_of, command):
    found = re.search(r"--data DATA +(.*?)\(default", help_of(command), re.S)
    assert found is not None
    assert set(DATASETS) <= set(re.findall(r"\w+", found[1]))


@pytest.mark.parametrize(("command", "option"), [("doctor", "files"), ("robustness", "models")])
def test_what_may_be_left_out_is_not_called_required(help_of, command, option):
    text = " ".join(help_of(command).split())
    assert f"[{option} ...]" in text
    assert "(required" not in text
