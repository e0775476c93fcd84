"""Models of the user's own on the command line: what is wrong with one is one sentence, before anything is written."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import Command
from graph_files import ring
from topoff.data.check import check
from topoff.experiments.jobs import Job, Watcher
from topoff.experiments.processes import train_job
from topoff.models.by_name import make_model
from topoff.training.build import make_setup
from topoff.training.config import make_config
from topoff.training.loop import Training
from topoff.training.run_folder import RunFolder

TOP = "import sys\nimport torch\nfrom torch import nn\nfrom torch_geometric.nn import GCNConv\n\n\n"
CLASS = """class Net(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = GCNConv(in_channels, out_channels)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)
"""
RETURN = "        return self.conv(x, edge_index)\n"
MADE = "        self.conv = GCNConv(in_channels, out_channels)\n"
COUNT = 0


def forward(*lines: str) -> str:
    """Return a module whose model has another forward; its first line is line 13."""
    return TOP + CLASS.replace(RETURN, "".join(f"        {line}\n" for line in lines))


def made(*lines: str) -> str:
    """Return a module whose model is made in another way; the first line is line 10."""
    return TOP + CLASS.replace(MADE, "".join(f"        {line}\n" for line in lines))


IN_FORWARD = r"mine\d+\.py, line 13, in forward: "
WRONG = {  # the module, and what is said of it
    "too few columns": (
        made("self.conv = GCNConv(in_channels, 2)"),
        r"one column per class, \((\d+), 3\) for \1 nodes \(got \(\1, 2\)\); use out_channels as the width",
    ),
    "too many columns": (made("self.conv = GCNConv(in_channels, 7)"), r"one column per class.*\(got \(\d+, 7\)\)"),
    "a constructor that raises": (
        made("raise RuntimeError('no weights\\nhere')"),
        r"the constructor of .*:Net to build .*\(got mine\d+.py, line 10, in __init__: RuntimeError: no weights here\)",
    ),
    "a constructor that exits": (made("sys.exit()"), r"line 10, in __init__: SystemExit"),
    "a constructor that is stopped": (made("raise KeyboardInterrupt"), r"line 10, in __init__: KeyboardInterrupt"),
    "a constructor that forgets": (
        TOP + CLASS.replace("        super().__init__()\n", ""),
        r"line 9, in __init__: AttributeError: cannot assign module before Module.__init__\(\) call",
    ),
    "nothing but a constructor": (
        TOP + "class Net(nn.Module):\n    def __init__(self, in_channels):\n        self.size = in_channels\n",
        r"mine\d+:Net to be a whole torch.nn.Module \(got AttributeError: .*; call super\(\).__init__\(\) first",
    ),
    "a constructor with other arguments": (
        TOP + CLASS.replace("out_channels):", "out_channels, flavour):"),
        r"the constructor of mine\d+:Net to need only arguments such as .* \(got 'flavour'\); give that one a default",
    ),
    "something else than itself": (
        TOP + "class Net(nn.Module):\n    def __new__(cls):\n        return 5\n",
        r"mine\d+:Net to make a torch.nn.Module \(got 5\)",
    ),
    "a forward that raises": (
        forward("raise ValueError('Expected more (got less)')"),
        IN_FORWARD + "ValueError: Expected",
    ),
    "a forward without words": (
        TOP
        + "class Mute(Exception):\n    def __str__(self):\n        raise TypeError\n\n\n"
        + forward("raise Mute")[len(TOP) :],
        r"line 18, in forward: Mute: without words",
    ),
    "a forward that asserts": (forward("assert x.size(1) == 99, 'odd'"), IN_FORWARD + "AssertionError: odd"),
    "a forward that raises in training": (
        forward("if self.training: raise RuntimeError('not now')", RETURN.strip()),
        r"to run in training mode on \d+ nodes .*\(got " + IN_FORWARD + "RuntimeError: not now",
    ),
    "a backward that raises": (
        TOP
        + "class Bad(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x.clone()\n"
        + "\n    @staticmethod\n    def backward(ctx, grad):\n        raise RuntimeError('no way back')\n\n\n"
        + forward("return Bad.apply(self.conv(x, edge_index))")[len(TOP) :],
        r"to compute its gradient .*\(got mine\d+\.py, line 14, in backward: RuntimeError: no way back",
    ),
    "a forward that exits": (forward("sys.exit('enough')"), IN_FORWARD + "SystemExit: enough"),
    "a forward that exits in training": (forward("if self.training: sys.exit(0)", RETURN.strip()), "SystemExit: 0"),
    "a forward that is stopped": (forward("raise KeyboardInterrupt()"), IN_FORWARD + "KeyboardInterrupt"),
    "a forward deep inside": (
        forward("return self.conv(x[:, :1], edge_index)"),
        IN_FORWARD + r"RuntimeError: (mm: )?mat1 and mat2 shapes cannot be multiplied",
    ),
    "no forward": (TOP + CLASS.partition("    def forward")[0], r"forward"),
    "one dimension": (forward("return self.conv(x, edge_index)[:, 0]"), r"\(got \(\d+,\)\); return a row for every"),
    "no dimension": (forward("return self.conv(x, edge_index).sum()"), r"\(got \(\)\); return a row for every node"),
    "three dimensions": (forward("return self.conv(x, edge_index)[None]"), r"\(got \(1, \d+, 3\)\)"),
    "fewer rows": (forward("return self.conv(x, edge_index)[:5]"), r"\(got \(5, 3\)\); return a row for every node"),
    "a tuple": (forward("return self.conv(x, edge_index), x"), r"\(got a tuple of 2\); return that one tensor alone"),
    "a dict": (forward("return {'out': self.conv(x, edge_index)}"), r"\(got a dict of 1\)"),
    "None": (forward("self.conv(x, edge_index)"), r"\(got None\)"),
    "an array": (forward("return self.conv(x, edge_index).detach().numpy()"), r"\(got a ndarray\)"),
    "integers": (forward("return self.conv(x, edge_index).argmax(1)"), r"floating-point numbers \(got torch.int64\)"),
    "complex numbers": (forward("return self.conv(x, edge_index) * 1j"), r"\(got torch.complex128\)"),
    "a sparse tensor": (forward("return self.conv(x, edge_index).to_sparse()"), "layout torch.sparse_coo"),
    "another device": (forward("return self.conv(x, edge_index).to('meta')"), r"on cpu \(got meta\)"),
    "NaN": (
        forward("return self.conv(x, edge_index) * float('nan')"),
        r"mine\d+:Net's output to be finite \(got nan at (\d+) of \1 nodes in its plain forward\); look in its forward",
    ),
    "NaN in training": (
        forward("return self.conv(x, edge_index) * (float('nan') if self.training else 1)"),
        r"in training mode mine\d+:Net's output to be finite \(got nan at .*; look in its forward",
    ),
    "infinity": (forward("return self.conv(x, edge_index) / 0"), r"\(got (inf|nan) at"),
    "weights that are NaN": (
        made("self.conv = GCNConv(in_channels, out_channels)", "nn.init.constant_(self.conv.bias, float('nan'))"),
        r"to be finite \(got nan at .*: 'conv.bias' of the model is not finite\); initialise it",
    ),
    "no gradient": (
        forward("return self.conv(x, edge_index).detach()"),
        r"to depend on its parameters \(got one without a gradient\); look for detach\(\)",
    ),
    "no parameters": (
        TOP + CLASS.replace(MADE, "").replace("self.conv(x, edge_index)", "x[:, :3]"),
        "parameters to train",
    ),
    "an attribute that is not there": (
        TOP + CLASS.replace("x, edge_index):", "x, edge_index, altitude):"),
        r"the graph to have 'altitude', an argument of Net.forward",
    ),
    "a forward that cannot be told": (
        TOP + CLASS.replace(MADE, MADE + MADE.replace("conv", "other")).replace("x, edge_index):", "*args):"),
        r"Net.forward to name its arguments .*: name them there, as in forward\(self, x, edge_index\)",
    ),
    "no Python": (TOP + "class Net(nn.Module:\n    pass\n", r"imported \(got mine\d+\.py, line 7: SyntaxError: .*\)"),
    "an unknown encoding": ("# coding: nonsense\n", r"\(got mine\d+\.py: SyntaxError: .*nonsense.*\); correct it"),
    "no indentation": (TOP + "class Net(nn.Module):\npass\n", r"mine\d+\.py, line 8: IndentationError"),
    "an import that fails": (TOP + "from torch import no_such_thing\n", r"mine\d+\.py, line 7: ImportError: cannot"),
    "a module that is absent": ("import no_such_module_at_all\n", r"\(got: No module named 'no_such_module_at_all'"),
    "a module that raises": (
        TOP + "raise RuntimeError('on import')\n",
        r"mine\d+\.py, line 7: RuntimeError: on import",
    ),
    "a module that exits": (TOP + "sys.exit(0)\n", r"mine\d+\.py, line 7: SystemExit: 0"),
    "no module": (TOP + "class Net:\n    pass\n", r"subclass of torch.nn.Module \(got <class 'mine\d+.Net'>\)"),
    "an instance": (TOP + "Net = nn.Linear(2, 3)\n", r"subclass of torch.nn.Module \(got Linear\(in_features=2"),
    "a function": (TOP + "def Net():\n    pass\n", r"subclass of torch.nn.Module \(got <function Net"),
    "another name": (TOP + CLASS.replace("Net", "Nest"), r"subclass of torch.nn.Module \(got no such name\)"),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder with a graph in it."""
    data = ring()
    np.savez(tmp_path / "graph.npz", **{key: value.numpy() for key, value in data})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(place: Path, text: str) -> str:
    """Write a module of the user's under a name that is new to this process; return the model's name."""
    global COUNT
    COUNT += 1
    (place / f"mine{COUNT}.py").write_text(text)
    sys.modules.pop(f"mine{COUNT}", None)
    return f"mine{COUNT}:Net"


def refused(command: Command, place: Path, *words: object, sentence: str) -> None:
    """Run a verb that must leave nothing but one sentence."""
    before = sorted(path.name for path in place.iterdir())
    done = command(*words, code=2)
    assert re.fullmatch(rf"topoff: Expected .*{sentence}.*\n", done.err), done.err
    assert done.out == ""
    left = sorted(path.name for path in place.iterdir() if path.name != "__pycache__")
    assert left == before


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("kind", WRONG)
def test_a_model_that_does_not_work_is_one_sentence(tmp_path: Path, kind: str) -> None:
    text, sentence = WRONG[kind]
    config = make_config({"dataset": "graph.npz", "model": write(tmp_path, text), "method": "full"})
    with pytest.raises(ValueError, match=f"^Expected .*{sentence}"):
        make_setup(config, ring())


EVERYWHERE = {  # verbs that use a model of the user's
    "train": ("train graph.npz --out run", "a forward that exits in training"),
    "dry run": ("train graph.npz --dry-run", "a tuple"),
    "measure": ("measure graph.npz --epochs 1", "too few columns"),
    "constructor": ("train graph.npz --out run", "a constructor that exits"),
    "module": ("train graph.npz --out run", "a module that exits"),
    "several seeds": ("train graph.npz --out run --seeds 0-1", "a forward that is stopped"),
}


@pytest.mark.parametrize("verb", EVERYWHERE)
def test_every_verb_tries_the_model_first(command: Command, place: Path, verb: str) -> None:
    line, kind = EVERYWHERE[verb]
    text, sentence = WRONG[kind]
    name = write(place, text)
    refused(command, place, *line.split(), "--model", name, sentence=sentence)


def test_a_job_of_a_comparison_tries_the_model_first(place: Path) -> None:
    text, sentence = WRONG["a forward that exits"]
    config = make_config({"dataset": "graph.npz", "model": write(place, text), "method": "full"})
    with pytest.raises(ValueError, match=sentence):
        train_job(Job(config, place / "run", "topoff compare"), watcher=Watcher())


def test_a_model_that_fails_later_leaves_its_best_weights(command: Command, place: Path) -> None:
    late = "self.calls = getattr(self, 'calls', 0) + self.training"
    name = write(place, forward(late, "if self.calls > 7: sys.exit(0)", RETURN.strip()))
    done = command("train", "graph.npz", "--model", name, "--epochs", "9", "--method", "full", "--out", "run", code=2)
    assert re.search(
        r"topoff: Expected the model to run \(got mine\d+.py, line 14, in forward: SystemExit: 0\)", done.err
    )
    assert (place / "run" / "model.safetensors").is_file()
    assert command("evaluate", "run", "--trust", "--json").json["data_changed"] is False


def test_weights_that_a_failure_kept_do_not_outlive_the_next_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create()
    setup = make_setup(make_config({"dataset": "graph.npz", "epochs": 2}), check(ring()))
    folder.save_model(setup.model.state_dict())
    Training(setup, folder=folder).run()
    assert not (folder.path / "model.safetensors").exists()  # the weights of the checkpoint count


def test_a_training_that_diverges_leaves_its_best_weights(command: Command, place: Path) -> None:
    once = ["if self.training: self.calls = getattr(self, 'calls', 0) + 1"]
    name = write(
        place, forward(*once, "return self.conv(x, edge_index) * (1e200 if getattr(self, 'calls', 0) == 7 else 1)")
    )
    words = ["--epochs", "9", "--method", "full", "--lr", "1e200", "--optimizer", "sgd", "--out", "run", "--quiet"]
    done = command("train", "graph.npz", "--model", name, *words, code=2)
    assert re.fullmatch(r"topoff: Expected .* \(got .*epoch \d.*\); lower --lr, or set --clip 1.0.*\n", done.err)


def test_weights_and_features_are_named_as_the_reason(command: Command, place: Path) -> None:
    data = ring()
    data.edge_weight = -torch.ones(data.num_edges, dtype=torch.float64)
    np.savez("negative.npz", **{key: value.numpy() for key, value in data})
    negative = (
        r"gcn's output to be finite \(got nan .*: 60 of 60 edge weights are negative.*\); make the weights positive"
    )
    refused(command, place, "train", "negative.npz", "--out", "run", "--quiet", sentence=negative)
    data = ring()
    data.x *= 1e300
    np.savez("huge.npz", **{key: value.numpy() for key, value in data})
    huge = r"'x' to hold numbers up to .*, whose squares torch.float64 can hold \(got .*e\+300 in row \d+\); scale it"
    assert re.search(huge, command("train", "huge.npz", "--out", "run", "--quiet", code=2).err)
    assert not Path("run").exists()


@pytest.mark.parametrize(("key", "model"), [("hidden", "gcn"), ("heads", "gat"), ("hidden", "own")])
def test_sizes_that_no_memory_holds_are_refused_before_they_are_allocated(
    command: Command, place: Path, key: str, model: str
) -> None:
    model = (
        write(
            place,
            TOP
            + CLASS.replace("out_channels):", "out_channels, hidden_channels):").replace(
                MADE, MADE + "        self.wide = nn.Linear(hidden_channels, hidden_channels)\n"
            ),
        )
        if model == "own"
        else model
    )
    sentence = rf"fits into memory \(got {key} 1,000,000,000, which needs about .* are free\); lower {key}"
    words = ["--model", model, f"--{key}", 10**9, "--out", "run", "--quiet"]
    refused(command, place, "train", "graph.npz", *words, sentence=sentence)


def test_memory_that_runs_out_is_one_sentence(command: Command, place: Path) -> None:
    name = write(place, forward("torch.empty(2**50)", RETURN.strip()))
    sentence = r"enough memory \(got .*are free\); choose smaller batches"
    refused(command, place, "train", "graph.npz", "--model", name, "--out", "run", "--quiet", sentence=sentence)


def test_nothing_is_drawn_and_no_statistics_move(place: Path) -> None:
    norm = made("self.conv = GCNConv(in_channels, out_channels)", "self.norm = nn.BatchNorm1d(out_channels)")
    name = write(
        place, norm.replace(RETURN, "        return nn.functional.dropout(self.norm(self.conv(x, edge_index)))\n")
    )
    config, data = make_config({"dataset": "x", "model": name, "method": "full"}), ring()
    torch.manual_seed(config.seed)
    fresh = make_model(name, in_channels=4, out_channels=3).double()
    after = torch.get_rng_state()
    setup = make_setup(config, data)
    assert torch.equal(torch.get_rng_state(), after)
    assert all(
        torch.equal(one, other)
        for one, other in zip(fresh.state_dict().values(), setup.model.state_dict().values(), strict=True)
    )
    assert all(parameter.grad is None for parameter in setup.model.parameters())
