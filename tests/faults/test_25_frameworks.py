"""Row 25: Trainer, Accelerate, Lightning, timm, MONAI, PyG under `penstock.install()`: train, stop in an epoch, resume.

The losses equal those with torch's loader, bit for bit, in a run that does not stop, and in one that stops in the
middle of an epoch and is resumed by its framework or by the loader's state.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as tud

import penstock
from tests.data import Made, grey_files

SAMPLES, BATCH, EPOCHS, RATE = 43, 4, 3, 0.01
STEPS = -(-SAMPLES // BATCH)
#: In the middle of the second epoch.
STOP = STEPS + 4
X = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(1))
Y = X.sum(1).sin()
ROWS = tud.TensorDataset(X, Y)

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


@dataclass(frozen=True)
class Run:
    """A run that does not stop, one that stops and saves, or one that is resumed where that one stopped."""

    folder: Path
    installed: bool
    workers: int = 0
    dropout: float = 0
    stop: int = -1
    resumed: bool = False

    def look(self, loader: Any) -> None:
        """Assert that a loader is ours where ours are installed."""
        assert type(getattr(loader, "base_dataloader", loader)) is (
            penstock.DataLoader if self.installed else tud.DataLoader
        )


class Model(torch.nn.Module):
    """Notes its losses, which depend on the order of the batches, and on the global generator where it drops out."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.Sequential(torch.nn.Dropout(run.dropout), torch.nn.Linear(3, 1))
        self.losses: list[float] = []

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = (self.layers(x).squeeze(1) - y).square().mean()
        self.losses.append(loss.item())
        return {"loss": loss}


# --- loops of the program's own ---------------------------------------------------------------------------------------


def loop(run: Run, loader: Any, inputs: Callable[[Any], Any]) -> list[float]:
    """Train with a loop as programs write them; what has no state is resumed by skipping batches."""
    model = Model(run)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    stated = hasattr(loader, "state_dict")
    saved: dict[str, Any] = {"epoch": 0}
    if run.resumed:
        saved = torch.load(run.folder / "saved.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        torch.set_rng_state(saved["begun"])
        if stated:
            loader.load_state_dict(saved["loader"])
    for epoch in range(saved["epoch"], EPOCHS):
        begun, batches = torch.get_rng_state(), iter(loader)
        if run.resumed and epoch == saved["epoch"]:
            if not stated:
                list(islice(batches, STOP % STEPS))
            torch.set_rng_state(saved["generator"])
        for batch in batches:
            model(*inputs(batch))["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            if len(model.losses) == run.stop:
                state = {"loader": loader.state_dict()} if stated else {}
                state |= {"model": model.state_dict(), "epoch": epoch, "begun": begun}
                torch.save({**state, "generator": torch.get_rng_state()}, run.folder / "saved.pt")
                return model.losses
    return model.losses


def timm(run: Run) -> list[float]:
    data = importlib.import_module("timm.data")
    dataset = data.ImageDataset(str(grey_files(run.folder / "images", SAMPLES)))
    made: dict[str, Any] = {"batch_size": BATCH, "is_training": True, "no_aug": True, "use_prefetcher": False}
    loader = data.create_loader(dataset, (3, 8, 8), num_workers=run.workers, persistent_workers=False, **made)
    run.look(loader)
    return loop(run, loader, lambda batch: (batch[0].mean((2, 3)), batch[0].mean((1, 2, 3)).sin()))


def monai(run: Run, derived: bool) -> list[float]:
    data = importlib.import_module("monai.data")
    transforms = importlib.import_module("monai.transforms")
    steps = transforms.Compose([transforms.EnsureTyped(["x", "y"]), transforms.ScaleIntensityd("x")])
    dataset = data.Dataset([{"x": x, "y": y} for x, y in zip(X, Y, strict=True)], steps)
    kind: Any = data.DataLoader if derived else partial(tud.DataLoader, collate_fn=data.list_data_collate)
    loader = kind(dataset, batch_size=BATCH, shuffle=True, num_workers=run.workers)
    if not derived:
        run.look(loader)
    return loop(run, loader, lambda batch: (batch["x"], batch["y"]))


def pyg(run: Run, derived: bool) -> list[float]:
    data = importlib.import_module("torch_geometric.data")
    loaders = importlib.import_module("torch_geometric.loader")
    pool = importlib.import_module("torch_geometric.nn").global_mean_pool
    graphs = [data.Data(x=X[number : number + 1 + number % 5], y=Y[number]) for number in range(SAMPLES)]
    collate = importlib.import_module("torch_geometric.loader.dataloader").Collater(graphs)
    kind: Any = loaders.DataLoader if derived else partial(tud.DataLoader, collate_fn=collate)
    loader = kind(graphs, batch_size=BATCH, shuffle=True, num_workers=run.workers)
    if not derived:
        run.look(loader)
    return loop(run, loader, lambda batch: (pool(batch.x, batch.batch), batch.y))


# --- loops of frameworks ----------------------------------------------------------------------------------------------


def accelerated(run: Run, dispatched: bool) -> list[float]:
    accelerate = importlib.import_module("accelerate")
    config = accelerate.utils.DataLoaderConfiguration(use_seedable_sampler=True, dispatch_batches=dispatched)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
    model = Model(run)
    loader: Any = tud.DataLoader(ROWS, BATCH, shuffle=True, num_workers=run.workers)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    _, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    run.look(loader)
    first, skip = divmod(STOP, STEPS) if run.resumed else (0, 0)
    if run.resumed:
        accelerator.load_state(str(run.folder / "saved"))
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        for batch in accelerator.skip_first_batches(loader, skip) if epoch == first else loader:
            accelerator.backward(model(*batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            if len(model.losses) == run.stop:
                accelerator.save_state(str(run.folder / "saved"))
                return model.losses
    return model.losses


def trainer(run: Run) -> list[float]:
    transformers = importlib.import_module("transformers")

    class Stop(transformers.TrainerCallback):  # type: ignore[name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **held: Any) -> None:
            run.look(held["train_dataloader"])
            control.should_save = control.should_training_stop = state.global_step == run.stop

    args = transformers.TrainingArguments(
        str(run.folder / "saved"), num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, learning_rate=RATE,
        seed=3, report_to=[], save_strategy="no", use_cpu=True, dataloader_num_workers=run.workers, disable_tqdm=True,
    )  # fmt: skip
    model, dataset = Model(run), Made(lambda index: {"x": X[index], "y": Y[index]}, SAMPLES)
    transformers.Trainer(model, args, train_dataset=dataset, callbacks=[Stop()]).train(
        resume_from_checkpoint=run.resumed
    )
    return model.losses


def lightning(run: Run, make: Callable[..., Any] = tud.DataLoader, **options: Any) -> list[float]:
    kind = importlib.import_module("lightning")
    callbacks = importlib.import_module("lightning.pytorch.callbacks")

    class Module(kind.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(run)

        def training_step(self, batch: Any, number: int) -> Any:
            if len(self.model.losses) == run.stop:
                raise InterruptedError("the machine was lost")
            run.look(self.trainer.train_dataloader)
            return self.model(*batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), RATE)

    every = {"every_n_train_steps": STOP} if run.stop == STOP else {"every_n_epochs": 1}
    saver = callbacks.ModelCheckpoint(run.folder, save_top_k=-1, filename="{step}", **every)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    fitter = kind.Trainer(max_epochs=EPOCHS, accelerator="cpu", callbacks=[saver], **quiet)
    if not options:
        options = {"generator": torch.Generator().manual_seed(7)}
    loader: Any = make(ROWS, BATCH, shuffle=True, num_workers=run.workers, **options)
    module = Module()
    with contextlib.suppress(InterruptedError):
        fitter.fit(module, loader, ckpt_path=max(run.folder.glob("*.ckpt")) if run.resumed else None)
    return module.model.losses


#: The module of each, and what trains.
FRAMEWORKS: dict[str, tuple[str, Callable[..., list[float]]]] = {
    "Trainer": ("transformers", trainer),
    "Accelerate": ("accelerate", partial(accelerated, dispatched=False)),
    "Accelerate, dispatched": ("accelerate", partial(accelerated, dispatched=True)),
    "Lightning": ("lightning", lightning),
    "timm": ("timm", timm),
    "MONAI": ("monai", partial(monai, derived=False)),
    "MONAI's loader": ("monai", partial(monai, derived=True)),
    "PyG": ("torch_geometric", partial(pyg, derived=False)),
    "PyG's loader": ("torch_geometric", partial(pyg, derived=True)),
}


@pytest.fixture(autouse=True)
def _no_accelerator_stays() -> Iterator[None]:
    yield
    with contextlib.suppress(ImportError):
        state = importlib.import_module("accelerate.state")
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


@pytest.fixture
def train(name: str, workers: int, tmp_path: Path, only_full: Any) -> Callable[..., list[float]]:
    """Return what trains by a framework, and returns the losses of all steps."""
    module, function = FRAMEWORKS[name]
    pytest.importorskip(module, reason=f"{module} is not installed")
    only_full(workers)

    def run(folder: str, *, installed: bool, **how: Any) -> list[float]:
        (tmp_path / folder).mkdir(exist_ok=True)
        with penstock.install() if installed else contextlib.nullcontext():
            return function(Run(tmp_path / folder, installed, workers, **how))

    return run


EVERY = pytest.mark.parametrize("name", FRAMEWORKS)
WORKERS = pytest.mark.parametrize("workers", [0, 2])


@EVERY
@WORKERS
def test_losses_are_those_with_torchs_loader(train: Any) -> None:
    wanted = train("torch", installed=False, dropout=0.3)
    assert train("ours", installed=True, dropout=0.3) == wanted
    assert len(set(wanted)) > STEPS


@EVERY
@WORKERS
def test_a_run_that_stopped_is_resumed(train: Any) -> None:
    wanted = train("torch", installed=False)
    before = train("ours", installed=True, stop=STOP)
    assert len(before) == STOP
    assert before + train("ours", installed=True, resumed=True) == wanted


@pytest.mark.parametrize("stop", [STEPS, STOP])
def test_lightning_resumes_the_order_of_a_seed(stop: int, tmp_path: Path) -> None:
    """Lightning calls iter() before set_epoch."""
    pytest.importorskip("lightning", reason="lightning is not installed")
    train = partial(lightning, make=penstock.DataLoader, seed=7)
    whole = train(Run(tmp_path / "whole", True))
    before = train(Run(tmp_path / "stopped", True, stop=stop))
    assert (before, before + train(Run(tmp_path / "stopped", True, resumed=True))) == (whole[:stop], whole)
