"""Transformers' Trainer, TRL's SFTTrainer and Accelerate over torch's loader, then under penstock.install().

"one" runs the cases of one process, "found" those of two ranks; see test_transformers.py.
"""

from __future__ import annotations

import gc
import json
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import accelerate
import datasets
import torch
from accelerate.utils import DataLoaderConfiguration
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

import penstock
from tests.differential.values import describe
from tests.frameworks.launching import begin, end

ROWS, BATCH, WORDS = 26, 4, 60
SMALL: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "pad_token_id": 0,
}  # fmt: skip


def tokenizer() -> Any:
    words = {name: number for number, name in enumerate(("[PAD]", "[MASK]", "[UNK]", "[EOS]"))}
    words |= {f"w{number}": number for number in range(len(words), WORDS)}
    whole = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]", "eos_token": "[EOS]"}
    return PreTrainedTokenizerFast(tokenizer_object=whole, padding_side="right", **names)


def tokens(number: int) -> list[int]:
    return [4 + (number * 7 + place * 3) % (WORDS - 4) for place in range(2 + number * 5 % 17)]


def table(*columns: str, rows: int = ROWS) -> Any:
    """Return a dataset of tokens, masks and labels, no two rows of which are alike."""
    everything = {
        "input_ids": [tokens(number) for number in range(rows)],
        "attention_mask": [[1] * len(tokens(number)) for number in range(rows)],
        "label": [number % 2 for number in range(rows)],
        "length": [len(tokens(number)) for number in range(rows)],
        "text": [" ".join(f"w{token}" for token in tokens(number)) for number in range(rows)],
    }
    return datasets.Dataset.from_dict({name: everything[name] for name in columns})


class Rows(Dataset[Any]):
    """A class of a user's around the table."""

    def __init__(self) -> None:
        self.hf = table("input_ids", "label")

    def __len__(self) -> int:
        return len(self.hf)

    def __getitem__(self, index: int) -> Any:
        row = self.hf[index]
        return {"input_ids": row["input_ids"], "labels": row["label"]}


def digest(value: Any) -> int:
    """Return a checksum of all that a batch holds."""
    return zlib.crc32(describe(dict(sorted(value.items()))).encode())


class Recording:
    """What a Trainer's steps were given, and their losses to the last bit."""

    seen: list[Any]

    def training_step(self, model: Any, inputs: Any, *others: Any) -> Any:
        given = digest(inputs)
        loss = super().training_step(model, inputs, *others)  # type: ignore[misc]
        self.seen.append([given, float(loss).hex()])
        return loss

    def prediction_step(self, model: Any, inputs: Any, *others: Any, **named: Any) -> Any:
        self.seen.append(["evaluation", digest(inputs)])
        return super().prediction_step(model, inputs, *others, **named)  # type: ignore[misc]


class RecordingTrainer(Recording, Trainer):
    pass


class RecordingSFT(Recording, SFTTrainer):
    pass


CONSTANT: dict[str, Any] = {
    "per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH, "lr_scheduler_type": "constant",
    "learning_rate": 1e-2, "report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "seed": 7,
    "num_train_epochs": 2, "dataloader_pin_memory": False,
}  # fmt: skip


def release(*adapters: Any) -> None:
    """End the persistent workers: where the garbage collector does, torch waits 5 seconds for each."""
    for one in adapters:
        getattr(one, "base_dataloader", one)._iterator = None


def outcome(trainer: Any, resume: Path | None = None) -> dict[str, Any]:
    """Train, and return what was seen: batches, losses, metrics, the model's end, and the classes of the loaders."""
    trainer.seen = []
    loaders = []
    make = trainer.get_train_dataloader

    def noted() -> Any:
        loaders.append(make())
        return loaders[-1]

    trainer.get_train_dataloader = noted
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    metrics = trainer.evaluate() if trainer.eval_dataset is not None else {}
    end = b"".join(one.detach().numpy().tobytes() for one in trainer.model.parameters())
    made = loaders[0]
    release(made, *getattr(trainer, "_eval_dataloaders", {}).values())
    return {
        "seen": trainer.seen,
        "metrics": {name: number for name, number in metrics.items() if "second" not in name and "runtime" not in name},
        "end": zlib.crc32(end),
        "length": len(made) if hasattr(made.dataset, "__len__") else None,
        "loader": read_by(getattr(made, "base_dataloader", made)),
    }


def read_by(loader: Any) -> str:
    """Return whose loader it is, and of ours what says that a collator's batches are gathered."""
    if type(loader) is not penstock.DataLoader:
        return type(loader).__module__.partition(".")[0]
    return f"penstock{', gathered' * ('native   gather' in loader.explain())}"


def trained(
    folder: Path,
    data: Callable[[], Any],
    kind: str = "padded",
    padding: Any = True,
    evaluation: Callable[[], Any] | None = None,
    resume: Path | None = None,
    **arguments: Any,
) -> Any:
    """Return what Trainer sees. `kind`: "padded" or "masked"; `padding`: True, or "max_length"."""
    set_seed(3)
    words = tokenizer()
    words.model_max_length = 20
    model: Any = (BertForSequenceClassification if kind == "padded" else BertForMaskedLM)(BertConfig(**SMALL))
    collator = DataCollatorWithPadding(words, padding) if kind == "padded" else DataCollatorForLanguageModeling(words)
    trainer = RecordingTrainer(
        model=model,
        args=TrainingArguments(output_dir=str(folder), **{**CONSTANT, **arguments}),
        train_dataset=data(),
        eval_dataset=None if evaluation is None else evaluation(),
        data_collator=collator,
        processing_class=words,
    )
    return outcome(trainer, resume)


def fine_tuned(folder: Path, columns: tuple[str, ...], **arguments: Any) -> Any:
    set_seed(3)
    given = {**CONSTANT, "max_length": 24, "bf16": False, "dataset_num_proc": None, **arguments}
    model = LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2))
    trainer = RecordingSFT(
        model=model,
        args=SFTConfig(output_dir=str(folder), **given),
        train_dataset=table(*columns),
        processing_class=tokenizer(),
    )
    return outcome(trainer)


def own_loop(folder: Path, workers: int, **config: Any) -> Any:
    """Return what a loop of one's own around Accelerate sees in two epochs."""
    set_seed(3)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))
    model = BertForSequenceClassification(BertConfig(**SMALL))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collator = DataCollatorWithPadding(tokenizer())
    data = table("input_ids", "attention_mask", "label").rename_column("label", "labels")
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True, collate_fn=collator, num_workers=workers)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    seen = []
    for _ in range(2):
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen.append([digest(batch), float(loss).hex()])
    return {"seen": seen, "loader": read_by(loader.base_dataloader)}


def stream(shards: int = 4, rows: int = ROWS) -> Any:
    return table("input_ids", "label", rows=rows).to_iterable_dataset(num_shards=shards).shuffle(3, buffer_size=10)


PLAIN = partial(table, "input_ids", "attention_mask", "label")
FEW = partial(PLAIN, rows=14)
IDS, LENGTHS = partial(table, "input_ids"), partial(table, "input_ids", "label", "length")
WORKERS: dict[str, Any] = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}
Run = Callable[[Path], Any]


def resumed(run: Callable[..., Any], step: int, **arguments: Any) -> Run:
    """Return a run with checkpoints, and what one that begins at one of them sees."""

    def both(folder: Path) -> Any:
        whole = run(folder, save_strategy="steps", save_steps=step, **arguments)
        again = run(folder / "again", resume=folder / f"checkpoint-{step}", **arguments)
        return {**again, "whole": whole["seen"], "whole end": whole["end"]}

    return both


ONE: dict[str, Run] = {
    "padded": partial(trained, data=PLAIN, evaluation=FEW),
    "padded, workers": partial(
        trained, data=PLAIN, evaluation=FEW, eval_strategy="epoch", dataloader_drop_last=True, **WORKERS
    ),
    "padded, accumulated": partial(trained, data=PLAIN, gradient_accumulation_steps=3, dataloader_drop_last=True),
    "a class": partial(trained, data=Rows, dataloader_num_workers=2),
    "masked": partial(trained, data=IDS, kind="masked"),
    "masked, workers": partial(trained, data=IDS, kind="masked", **WORKERS),
    "by length": partial(trained, data=PLAIN, train_sampling_strategy="group_by_length"),
    "by length, known": partial(trained, data=LENGTHS, train_sampling_strategy="group_by_length", **WORKERS),
    "rebalanced": partial(trained, data=PLAIN, train_sampling_strategy="batch_rebalance"),
    "stream": partial(trained, data=stream, max_steps=11),
    "stream, workers": partial(trained, data=stream, max_steps=11, dataloader_num_workers=2),
    "resumed": resumed(partial(trained, data=PLAIN), 5),
    "resumed, workers": resumed(partial(trained, data=PLAIN, **WORKERS), 10),
    "resumed, by length": resumed(partial(trained, data=PLAIN, train_sampling_strategy="group_by_length"), 5),
    "resumed, masked": resumed(partial(trained, data=IDS, kind="masked"), 5),
    "resumed, accumulated": resumed(partial(trained, data=PLAIN, gradient_accumulation_steps=2), 4),
    "resumed, stream": resumed(partial(trained, data=stream, max_steps=11), 5),
    "resumed, not skipped": resumed(partial(trained, data=PLAIN, ignore_data_skip=True), 5),
    "text": partial(fine_tuned, columns=("text",)),
    "tokens": partial(fine_tuned, columns=("input_ids",), **WORKERS),
    "packed": partial(fine_tuned, columns=("text",), packing=True, packing_strategy="wrapped"),
    "padding-free": partial(fine_tuned, columns=("text",), padding_free=True, max_length=None),
    "Accelerate": partial(own_loop, workers=0),
    "Accelerate, workers": partial(own_loop, workers=2, use_seedable_sampler=True),
}  # fmt: skip


def continued(folder: Path) -> Any:
    """Return what two ranks see that begin at the checkpoint of one process, whose batches were twice as large."""
    return trained(folder, PLAIN, resume=folder.parents[1] / "ours" / LARGE / "checkpoint-2")


LARGE = "twice the batch"
ONE[LARGE] = partial(trained, data=PLAIN, per_device_train_batch_size=2 * BATCH, save_strategy="steps", save_steps=2)
#: Of two ranks. The folder of one process is theirs, too.
TWO: dict[str, Run] = {
    "padded": partial(trained, data=PLAIN, evaluation=FEW),
    "masked": partial(trained, data=IDS, kind="masked", dataloader_num_workers=1),
    "by length": partial(trained, data=PLAIN, train_sampling_strategy="group_by_length"),
    "rebalanced": partial(trained, data=PLAIN, train_sampling_strategy="batch_rebalance"),
    "split": partial(trained, data=PLAIN, accelerator_config={"split_batches": True}),
    "stream": partial(trained, data=stream, max_steps=9, accelerator_config={"dispatch_batches": False}),
    "stream, dispatched": partial(trained, data=stream, padding="max_length", max_steps=9),
    "stream, dispatched, split": partial(
        trained, data=stream, max_steps=9, accelerator_config={"dispatch_batches": True, "split_batches": True}
    ),
    "resumed": resumed(partial(trained, data=PLAIN), 2),
    "resumed, workers": resumed(partial(trained, data=PLAIN, dataloader_num_workers=1), 6),
    "continued": continued,
}  # fmt: skip


def run_all(cases: dict[str, Run], folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, run in cases.items():
        results[name] = {"theirs": run(folder / "theirs" / name)}
        with penstock.install():
            results[name]["ours"] = run(folder / "ours" / name)
    return results


def main(verb: str, folder: Path) -> None:
    begin()
    gc.freeze()  # Trainer collects garbage as it begins: what the imports have made is none
    if verb == "one":
        (folder / "one.json").write_text(json.dumps(run_all(ONE, folder)))
    else:
        end(folder / verb, run_all(TWO, folder))
