"""Batches of the collators of Transformers and TRL, gathered and padded from the columns of a table.

What a collator does to lists of numbers, a Python object a token, is done here to a column at a time; what it does to
the padded tensors (its draws among it) is done by its own methods. Whatever is unusual is left to the collator: the
options that are not known here, other tokenizers' `pad`, nulls, rows that do not fit, and each error.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad as pad_end

from penstock.recipe.originals import is_original, own_class, replaced_in, replaced_in_class
from penstock.tables import own_collators
from penstock.tables.column import NotGathered
from penstock.tables.padding import (
    Batch,
    Rows,
    boundaries,
    bounds_of,
    document_numbers,
    laid_out,
    number_column,
    positions,
    token_mask,
    up_to,
)

# --- tokenizer.pad ----------------------------------------------------------------------------------------------------


class _Tokenizer:
    """A tokenizer whose `pad` is Transformers' own, as a pass is to see it.

    frozen: what its padding depends on stays as it is now, as in torch's worker processes.
    """

    def __init__(self, tokenizer: Any, *, frozen: bool) -> None:
        self.tokenizer = tokenizer
        self._held = self._facts() if frozen else None

    def is_plain(self) -> bool:
        """Return whether nothing was put in the place of its own methods, which a pass that has them does not ask."""
        return self._held is not None or all(_is_base_method(self.tokenizer, name) for name in _PADDING.split())

    def _facts(self) -> tuple[list[str], str, Any, Any]:
        one = self.tokenizer
        return list(one.model_input_names), one.padding_side, one.pad_token_id, one.pad_token_type_id

    def facts(self) -> tuple[list[str], bool, Any, Any]:
        """Return the names of its inputs, whether it pads on the left, and the padding of tokens and token types."""
        names, side, token, kind = self._held or self._facts()
        if side not in ("left", "right") or type(token) is not int or type(kind) is not int:
            raise NotGathered
        return names, side == "left", token, kind

    def pad(self, batch: Batch, names: Iterable[str], collator: Any, padding: Any, longest: Any) -> dict[str, Any]:
        """Return the tensors that `tokenizer.pad` makes of some columns.

        longest: the argument max_length. The tokenizer itself says what padding means, and warns.
        """
        strategy, _, most, _ = self.tokenizer._get_padding_truncation_strategies(
            padding=padding, max_length=longest, verbose=not batch.quiet
        )
        inputs, left, token, kind = self.facts()
        names, masks, main = list(names), "attention_mask" in inputs, inputs[0]
        lengths = batch.lengths(main) if main in names else np.zeros(1, dtype=np.int64)
        width = int(lengths.max())
        if not width:
            raise NotGathered
        if strategy.value != "do_not_pad":
            width = up_to(most if strategy.value == "max_length" else width, collator.pad_to_multiple_of)
        elif (lengths != width).any():
            raise NotGathered
        fills = {main: token, "token_type_ids": kind, "special_tokens_mask": 1}
        fills |= {"attention_mask": 0} if masks else {}
        made = {}
        for name in names:
            if batch.is_list(name) and type(batch.first[name]) is not type(batch.first[main]):
                raise NotGathered  # lists beside arrays, of which the tokenizer sees to one kind only
            if name not in fills:
                made[name] = batch.as_it_is(name)
            elif (batch.lengths(name) != lengths).any():
                raise NotGathered
            else:
                made[name] = batch.padded(name, width, fills[name], left=left)
        if masks and "attention_mask" not in made:
            made["attention_mask"] = token_mask(lengths, width, left=left)
        return made


def _encoding(made: dict[str, Any]) -> Any:
    return own_class("transformers.tokenization_utils_base", "BatchEncoding")(made)


# --- what each collator makes -----------------------------------------------------------------------------------------


def _with_padding(collator: Any, tokenizer: _Tokenizer, batch: Batch) -> Any:
    made = tokenizer.pad(batch, batch.columns, collator, collator.padding, collator.max_length)
    for name in ("label", "label_ids"):
        if name in made:
            made["labels"] = made[name]
            del made[name]
    return _encoding(made)


def _language_modeling(collator: Any, tokenizer: _Tokenizer, batch: Batch) -> Any:
    if collator.whole_word_mask:
        raise NotGathered
    if collator.seed is not None and not (
        isinstance(collator.generator, torch.Generator) and collator._generator_pid == os.getpid()
    ):
        collator.create_rng("pt")
    made = tokenizer.pad(batch, batch.columns, collator, True, None)
    special = made.pop("special_tokens_mask", None)
    ids = made["input_ids"]
    if not collator.mlm:
        _, _, pad, _ = tokenizer.facts()
        made["labels"] = labels = ids.clone()
        labels[labels == pad] = -100
        return _encoding(made)
    if special is None and _is_base_method(tokenizer.tokenizer, "get_special_tokens_mask"):
        special = torch.isin(ids, torch.tensor(sorted(tokenizer.tokenizer.all_special_ids)))
    made["input_ids"], made["labels"] = collator.torch_mask_tokens(ids, special_tokens_mask=special)
    return _encoding(made)


def _without_labels(collator: Any, tokenizer: _Tokenizer, batch: Batch) -> tuple[str, dict[str, Any], bool]:
    """Return the column of labels, the tensors of the others, and whether the tokenizer pads on the left."""
    if "label" in batch.columns and "labels" in batch.columns:
        raise NotGathered
    label = "label" if "label" in batch.columns else "labels"
    names = [name for name in batch.columns if name != label]
    made = tokenizer.pad(batch, names, collator, collator.padding, collator.max_length)
    return label, made, tokenizer.facts()[1]


def _seq2seq(collator: Any, tokenizer: _Tokenizer, batch: Batch) -> Any:
    name, made, left = _without_labels(collator, tokenizer, batch)
    if name not in batch.columns:
        made["labels"] = None
        return _encoding(made)
    if collator.padding in (False, "do_not_pad"):
        raise NotGathered
    fixed = collator.padding == "max_length" and collator.max_length is not None
    width = up_to(collator.max_length if fixed else int(batch.lengths(name).max()), collator.pad_to_multiple_of)
    made["labels"] = batch.padded(name, width, collator.label_pad_token_id, left=left, whole=True)
    if collator.model is not None and hasattr(collator.model, "prepare_decoder_input_ids_from_labels"):
        made["decoder_input_ids"] = collator.model.prepare_decoder_input_ids_from_labels(labels=made["labels"])
    return _encoding(made)


def _token_classification(collator: Any, tokenizer: _Tokenizer, batch: Batch) -> Any:
    name, made, left = _without_labels(collator, tokenizer, batch)
    if name in batch.columns:
        width = made["input_ids"].shape[1]
        made[name] = batch.padded(name, width, collator.label_pad_token_id, left=left, whole=True)
    return _encoding(made)


def _defaults(collator: Any, _: Any, batch: Batch) -> Any:
    made, labelled = {}, {"label", "label_ids"}
    name = next((one for one in ("label", "label_ids") if one in batch.columns), None)
    if name is not None:
        found = batch.column(name, listed=name == "label_ids")
        labels = batch.as_it_is(name)
        stacked = name == "label_ids" and isinstance(batch.first[name], torch.Tensor)
        if not stacked:  # truth values are whole numbers to Python, but for those of numpy
            if found.dtype == torch.bool and isinstance(batch.first[name], np.ndarray | np.bool_):
                raise NotGathered
            labels = labels.to(torch.float32 if found.dtype.is_floating_point else torch.int64)
        made["labels"] = labels
    for name, column in batch.columns.items():
        if name in labelled or (column is None and isinstance(batch.first[name], str)):
            continue
        made[name] = batch.as_it_is(name)
    return made


_FLAT_KEYS = (
    {"labels", "position_ids", "input_ids"},
    {"labels", "position_ids", "input_ids", "seq_idx"},
    {"max_length_q", "max_length_k"},
)


def _flattening(collator: Any, _: Any, batch: Batch) -> Any:
    if type(collator.separator_id) is not int or type(collator.position_ids_start) is not int:
        raise NotGathered
    if (collator._int_64_keys, collator._batch_dim_keys, collator._py_int_keys) != _FLAT_KEYS:
        raise NotGathered
    lengths, ids, labels = batch.documents()
    lengths = lengths[lengths > 0]
    if not len(lengths):
        raise NotGathered
    made = laid_out(lengths, ids, labels, collator.separator_id)
    if collator.return_position_ids:
        made["position_ids"] = positions(lengths)[None] + collator.position_ids_start
    if collator.return_seq_idx:
        made["seq_idx"] = document_numbers(lengths)[None]
    if collator.return_flash_attn_kwargs:
        made |= bounds_of(lengths)
    return made


def _of_trl(collator: Any, _: Any, batch: Batch) -> Any:
    multiple, pad = collator.pad_to_multiple_of, collator.pad_token_id
    labelled = "labels" if "labels" in batch.columns else "input_ids"
    lengths, of_labels = batch.lengths("input_ids"), batch.lengths(labelled)
    # torch.tensor([]) holds no whole numbers, and torch.tensor(tensor) warns each time
    if type(pad) is not int or isinstance(batch.first["input_ids"], torch.Tensor) or not lengths.all():
        raise NotGathered
    documents = lengths
    if "seq_lengths" in batch.columns and (collator.padding_free or collator.return_position_ids):
        ends = batch.lengths("seq_lengths").cumsum()
        documents = batch.flat("seq_lengths").numpy()
        sums = np.diff(documents.cumsum()[ends - 1], prepend=0)
        if not documents.all() or (documents < 0).any() or (sums != lengths).any():
            raise NotGathered
    if collator.padding_free:
        if (of_labels != lengths).any():
            raise NotGathered
        return _padding_free(batch, labelled, documents, pad, up_to(int(lengths.sum()), multiple))
    if not of_labels.all():
        raise NotGathered
    width = up_to(int(lengths.max()), multiple)
    made = {"input_ids": batch.padded("input_ids", width, pad, whole=True)}
    made["labels"] = batch.padded(labelled, up_to(int(of_labels.max()), multiple), -100, whole=True)
    mask = token_mask(lengths, width)
    if collator.return_position_ids:
        made["position_ids"] = torch.zeros_like(mask)
        made["position_ids"][mask.bool()] = positions(documents)
    return made | {"attention_mask": mask}


def _padding_free(batch: Batch, labelled: str, documents: Rows, pad: int, width: int) -> dict[str, Any]:
    """Return the documents of TRL's batch one behind another. Each token of the padding is a document."""
    total = int(batch.lengths("input_ids").sum())
    documents = np.concatenate([documents, np.ones(width - total, dtype=np.int64)])
    ids, labels = (pad_end(batch.flat(name), (0, width - total), value=pad) for name in ("input_ids", labelled))
    bounds, longest = boundaries(documents), int(documents.max())
    labels[bounds[:-1].long()] = -100
    return {
        "input_ids": ids[None],
        "labels": labels[None],
        "position_ids": positions(documents)[None],
        **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), bounds),
        **dict.fromkeys(("max_length_q", "max_length_k"), longest),
        "seq_idx": document_numbers(documents)[None],
    }


# --- which collators are known ----------------------------------------------------------------------------------------


class _Known(NamedTuple):
    """A class of collators, or a function of the user's."""

    module: str
    name: str
    attributes: frozenset[str]
    """Of its objects: one that has others is of a version that is not known."""
    make: Callable[[Any, Any, Batch], Any]


_HF, _TRL = "transformers.data.data_collator", "trl.trainer.sft_trainer"
_PADS = "tokenizer padding max_length pad_to_multiple_of return_tensors"
_MASKS = "mlm_probability mask_replace_prob random_replace_prob seed generator _generator_pid"
_FLAT = "return_position_ids separator_id return_flash_attn_kwargs return_seq_idx position_ids_start"
_SETS = "_int_64_keys _batch_dim_keys _py_int_keys"
_COLLATORS = tuple(
    _Known(module, name, frozenset(attributes.split()), make)
    for module, name, attributes, make in (
        (_HF, "DataCollatorWithPadding", _PADS, _with_padding),
        (_HF, "DataCollatorForTokenClassification", f"{_PADS} label_pad_token_id", _token_classification),
        (_HF, "DataCollatorForSeq2Seq", f"{_PADS} label_pad_token_id model", _seq2seq),
        (
            _HF,
            "DataCollatorForLanguageModeling",
            f"tokenizer mlm whole_word_mask pad_to_multiple_of return_tensors {_MASKS}",
            _language_modeling,
        ),
        (_HF, "DataCollatorWithFlattening", f"return_tensors {_FLAT} {_SETS}", _flattening),
        (_HF, "DefaultDataCollator", "return_tensors", _defaults),
        (
            "penstock.tables.packed",
            "Packed",
            "tokens lengths longer vocab_size",
            lambda packed, _, rows: packed.gathered(rows),
        ),
        (
            _TRL,
            "DataCollatorForLanguageModeling",
            "pad_token_id padding_free return_position_ids pad_to_multiple_of return_tensors",
            _of_trl,
        ),
    )
)
_modes = torch._C._len_torch_function_stack  # a default device is one
_METHODS = "__call__ torch_call torch_mask_tokens create_rng get_generator __getattr__ __getattribute__"
_TOKENIZER = ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase")
_PADDING = "pad _pad _get_padding_truncation_strategies"


def _is_base_method(tokenizer: Any, name: str) -> bool:
    base = own_class(*_TOKENIZER)
    return name not in vars(tokenizer) and getattr(type(tokenizer), name, None) is vars(base).get(name, base)


def _known(collate_fn: Any) -> _Known | None:
    """Return what makes the batches of a collator that is as its package has it; None: it is another function."""
    default = getattr(sys.modules.get(_HF), "default_data_collator", None)
    is_default = collate_fn is default is not None and is_original(default, _HF, "default_data_collator")
    for one in _COLLATORS:
        if type(collate_fn) is own_class(one.module, one.name) or (is_default and one.make is _defaults):
            break
    else:
        make = own_collators.make_of(collate_fn)
        return None if make is None else _Known("", "", frozenset(getattr(collate_fn, "__dict__", ())), make)
    functions = "pad" if one.module == _TRL else "pad_without_fast_tokenizer_warning torch_default_data_collator"
    if replaced_in(one.module, functions) is not None:
        return None
    if is_default:
        return one
    held = vars(collate_fn)
    if replaced_in_class(type(collate_fn), _METHODS) is not None or held.get("return_tensors", "pt") != "pt":
        return None
    if held.keys() != one.attributes:
        return None
    if "tokenizer" in held:
        tokenizer, base = held["tokenizer"], own_class(*_TOKENIZER)
        if base is None or not isinstance(tokenizer, base) or replaced_in_class(base, _PADDING) is not None:
            return None
        if not all(_is_base_method(tokenizer, name) for name in _PADDING.split()):
            return None
    return one


def is_known(collate_fn: Any) -> bool:
    """Return whether a collate_fn is a collator of Transformers or TRL as its package has it, or one that is read."""
    return _known(collate_fn) is not None


def draws(collate_fn: Any) -> bool:
    """Return whether a known collator draws random numbers."""
    return type(collate_fn).__module__ in (_HF, _TRL) and bool(getattr(collate_fn, "mlm", False))


class CollatedBatches:
    """Makes the batches that a collator would make of rows of a table.

    Args:
        table: a pyarrow.Table.
        first: the package's sample of the first row, whose keys are the columns that the collator is given.
        frozen: the collator counts as it is now, as in torch's worker processes.
    """

    def __init__(self, collate_fn: Any, table: Any, first: Mapping[str, Any], *, frozen: bool = False) -> None:
        self._known = _known(collate_fn)
        self._first, self._columns = first, {name: number_column(table, name, value) for name, value in first.items()}
        # Of nulls the package's formats of arrays make errors, also in columns that the collator does not look at.
        formatted = any(isinstance(value, torch.Tensor | np.ndarray | np.generic) for value in first.values())
        self._whole = [one.held for one in self._columns.values() if one is not None] if formatted else []
        self._collator = copy.copy(collate_fn) if frozen else collate_fn
        tokenizer = getattr(collate_fn, "tokenizer", None) if self._known and self._known.module else None
        self._tokenizer = None if tokenizer is None else _Tokenizer(tokenizer, frozen=frozen)

    def batch(self, rows: Rows, *, quiet: bool = False) -> Any | None:
        """Return the batch of some rows of the table; None: the collator makes it, or raises its error.

        quiet: the tokenizer does not warn of arguments that exclude each other.
        """
        known, collator = self._known, self._collator
        if known is None or _modes() or (vars(collator) and vars(collator).keys() != known.attributes):
            return None
        if (known.module and getattr(collator, "return_tensors", "pt") != "pt") or (
            self._tokenizer and not self._tokenizer.is_plain()
        ):
            return None
        if any(column.has_nulls(rows) for column in self._whole):
            return None
        try:
            return known.make(collator, self._tokenizer, Batch(self._columns, self._first, rows, quiet=quiet))
        except Exception:  # of what the collator knows better, or raises
            return None
