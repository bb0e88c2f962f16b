"""Which functions that a native plan stands for are still the ones that their packages define.

A program, or a test of one, may put a function of its own in the place of any method or function. The native core would
then not do what the program wants, so that no plan is native where a function was replaced. A function counts as its
package's own if its globals and its code come from that package: this does not depend on whether Penstock or the
program was imported first, and a mock never does.

A hook of Penstock's own passes for the function that it stands for, which it names as `__wrapped__`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch

from penstock.recipe.steps import Refusal
from penstock.system.warn_user import PACKAGE

# By module, or class in a module after a colon: the functions that torchvision's transforms come to on images. A name
# that a release does not have is passed over.
_DRAWING = {"torch": "rand randint randperm empty log exp tensor linspace arange"}
_CALLING = {"torch.nn.modules.module:Module": "__call__ _call_impl __getattr__ __getattribute__"}
_PICTURES = {
    "PIL.Image:Image": (
        "__array_interface__ __arrow_c_array__ __getattr__ __getattribute__ _copy_info _crop _ensure_mutable _new "
        "convert copy crop filter frombytes getbands height histogram im load mode paste point resize rotate size "
        "split tobytes transform transpose width"
    ),
    "PIL.Image": "blend fromarray frombuffer frombytes merge new",
    "PIL.ImageEnhance": "Brightness Color Contrast Sharpness",
    "PIL.ImageEnhance:_Enhance": "enhance",
    **{f"PIL.ImageEnhance:{name}": "__init__" for name in ("Brightness", "Color", "Contrast", "Sharpness")},
    "PIL.ImageFilter": "SMOOTH",
    "PIL.ImageFilter:BuiltinFilter": "filter",
    "PIL.ImageOps": "_border _color _lut autocontrast equalize expand invert posterize solarize",
    "PIL.ImageStat:Stat": "__init__ mean _getmean _getcount _getsum",
}
_OPENING = {
    "builtins": "open",
    "PIL.Image:Image": "convert copy load _new _copy_info __getattr__ __getattribute__",
    "PIL.Image": "open preinit init frombytes _getdecoder _decompression_bomb_check",
    "PIL.ImageFile:ImageFile": "__init__ load load_end load_prepare __getattr__ __getattribute__ convert",
    "PIL.JpegImagePlugin:JpegImageFile": "__init__ _open load load_read load_end load_prepare convert __getattr__",
    "PIL.JpegImagePlugin": "APP COM DQT SOF Skip _accept jpeg_factory",
}
_BLURS = "gaussian_blur _get_gaussian_kernel1d _get_gaussian_kernel2d _cast_squeeze_out"
_TENSORS = "convert_image_dtype crop get_dimensions hflip pad resize rgb_to_grayscale vflip"
_EFFECTS = (
    "adjust_brightness adjust_contrast adjust_hue adjust_saturation adjust_sharpness affine autocontrast equalize "
    "invert perspective posterize rotate solarize"
)
_FIRST = {
    "torchvision.transforms.functional": (
        "_compute_resized_output_size _get_inverse_affine_matrix _is_numpy _is_pil_image center_crop crop "
        "convert_image_dtype erase gaussian_blur get_dimensions hflip normalize pad pil_to_tensor resize resized_crop "
        f"rgb_to_grayscale to_pil_image to_tensor vflip {_EFFECTS}"
    ),
    "torchvision.transforms.autoaugment": "_apply_op",
    "torchvision.transforms._functional_pil": (
        "_is_pil_image _parse_fill crop get_dimensions get_image_num_channels hflip pad resize to_grayscale vflip "
        f"{_EFFECTS}"
    ),
    "torchvision.transforms._functional_tensor": f"{_TENSORS} normalize erase {_BLURS} _cast_squeeze_in _max_value",
    "torch.nn.functional": "interpolate",
}
_SECOND = {
    "torchvision.transforms.v2.functional": (
        "center_crop crop horizontal_flip vertical_flip normalize pad resize resized_crop rgb_to_grayscale "
        f"pil_to_tensor to_image to_dtype get_size erase gaussian_blur {_EFFECTS}"
    ),
    "torchvision.transforms.v2._transform": "_get_kernel tree_flatten tree_unflatten check_type has_any is_pure_tensor",
    "torchvision.transforms.v2._utils": "_get_fill check_type has_any query_chw query_size",
    "torchvision.transforms.v2.functional._augment": "erase_image",
    "torchvision.transforms.v2.functional._color": (
        "_rgb_to_grayscale_image _rgb_to_grayscale_image_pil rgb_to_grayscale_image"
    ),
    "torchvision.transforms.v2.functional._geometry": (
        "_center_crop_compute_crop_anchor _center_crop_compute_padding _center_crop_image_pil "
        "_center_crop_parse_output_size _compute_resized_output_size _do_native_uint8_resize_on_cpu "
        "_affine_image_pil _affine_parse_args _get_inverse_affine_matrix _rotate_image_pil _horizontal_flip_image_pil "
        "_pad_with_scalar_fill _parse_pad_padding _resize_image_pil _resized_crop_image_pil "
        "_resized_crop_image_pil_dispatch _vertical_flip_image_pil center_crop_image crop_image horizontal_flip_image "
        "interpolate pad_image resize_image resized_crop_image vertical_flip_image"
    ),
    "torchvision.transforms.v2.functional._meta": "_get_size_image_pil get_size get_size_image",
    "torchvision.transforms.v2.functional._misc": (
        "normalize_image to_dtype_image gaussian_blur_image _gaussian_blur_image_pil _get_gaussian_kernel1d "
        "_get_gaussian_kernel2d"
    ),
    "torchvision.transforms.v2.functional._type_conversion": "to_image",
    "torchvision.transforms.v2.functional._utils": "_get_kernel is_pure_tensor",
}
_KERNELS = (
    "center_crop crop horizontal_flip vertical_flip normalize pad resize resized_crop rgb_to_grayscale to_dtype erase "
    f"gaussian_blur {_EFFECTS}"
)
_KERNEL_INPUTS = ("PIL.Image:Image", "torch:Tensor", "torchvision.tv_tensors:Image")
# What the samples of Hugging Face datasets come through.
_ARROW = {
    "datasets.arrow_dataset:Dataset": "__getitem__ __getitems__ __len__ _getitem num_rows",
    "datasets.arrow_dataset": "format_table get_formatter query_table",
    "datasets.features.features:Features": "decode_batch decode_example",
    "datasets.formatting": "get_format_type_from_alias get_formatter",
    "datasets.formatting.formatting": (
        "_check_valid_index_key _query_table _query_table_with_indices_mapping format_table key_to_query_type "
        "query_table"
    ),
    "datasets.formatting.formatting:Formatter": "__call__",
    "datasets.formatting.formatting:NumpyArrowExtractor": "_arrow_array_to_numpy extract_batch extract_row",
    "datasets.formatting.formatting:PythonArrowExtractor": "extract_batch extract_row",
    "datasets.formatting.formatting:PythonFeaturesDecoder": "decode_batch decode_row",
    "datasets.formatting.formatting:PythonFormatter": "format_batch format_row",
    **{
        f"datasets.formatting.{name}": (
            "_consolidate _recursive_tensorize _tensorize format_batch format_row recursive_tensorize"
        )
        for name in ("np_formatter:NumpyFormatter", "torch_formatter:TorchFormatter")
    },
    "datasets.table:IndexedTableMixin": "fast_gather fast_slice",
    "torch": "tensor",
}

_TABLES = {
    "transforms": _DRAWING | _CALLING | _PICTURES | _FIRST | _SECOND,
    "first": _DRAWING | _CALLING | _PICTURES | _FIRST,
    "arrow": _ARROW,
    "opening": _OPENING | {"torchvision.datasets.folder": "pil_loader", "torchvision": "get_image_backend"},
}

#: Methods that tell how an object reads, and nothing of what it does to an image.
_HARMLESS = {"__init__", "__init_subclass__", "__repr__", "extra_repr", "__class_getitem__"}
#: The methods of a dataset that its samples come from, and those that its other parts are found with.
READING = "__getitem__ __getitems__ __len__ __getattr__ __getattribute__ _sample read label path"


def replaced_in_transforms() -> Refusal | None:
    """Return which function that torchvision's transforms come to was replaced, or None."""
    if hooked():
        return Refusal("torch.nn.Module", "it has hooks for the modules of all classes", "no global module hooks")
    return _replaced_beneath_transforms()


def hooked() -> bool:
    """Return whether hooks are called with every torch.nn.Module."""
    return bool(torch.nn.modules.module._has_any_global_hook())  # type: ignore[no-untyped-call]


def replaced_in_opening() -> Refusal | None:
    """Return which function that opens and decodes image files was replaced, or None."""
    found = _replaced_in_table("opening", _TABLES["opening"])
    image = sys.modules.get("PIL.Image")
    plugin = sys.modules.get("PIL.JpegImagePlugin")
    if found is None and image is not None and plugin is not None:
        given = image.OPEN.get("JPEG")
        if "jpeg" in image.DECODERS or (given is not None and given[0] is not plugin.jpeg_factory):
            return _refusal("PIL's reader of JPEG", image.DECODERS.get("jpeg") or given[0])
    return found


def replaced_in_arrow() -> Refusal | None:
    """Return which function that the samples of Hugging Face datasets come through was replaced, or None."""
    return _replaced_in_table("arrow", _TABLES["arrow"])


def replaced_in(module: str, names: str) -> Refusal | None:
    """Return which of these functions of a module (or class in it, after a colon) was replaced, or None."""
    return _replaced_in_table(f"{module} {names}", {module: names})


def replaced_in_class(kind: type, names: str = "") -> Refusal | None:
    """Return which of these methods (default: any) of a class of a package's own was replaced, or None."""
    return _replaced((kind, names), lambda: _looks_at_class(kind, names), lambda: _found_in_class(kind, names))


def own_class(module: str, name: str) -> Any:
    """Return a class of a package's own by its name in a module; None: there is none, or one of a program's."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind if isinstance(kind, type) and _root(kind.__module__) == _root(module) else None


def is_original(value: object, module: str, name: str = "") -> bool:
    """Return whether a function is defined by a module, under this name if one is given."""
    return not _is_foreign(value, module, "", name)


def snapshot(kinds: Iterable[type]) -> tuple[Refusal | None, Callable[[], bool]]:
    """Return which function that transforms of these classes come to was replaced, and whether all stay as they are.

    The second is a function that takes microseconds.
    """
    bases = {base: None for kind in kinds for base in kind.__mro__ if base is not object}
    own = [base for base in bases if _root(base.__module__) != "torch"]
    second = any(base.__module__.startswith("torchvision.transforms.v2") for base in own)
    looks = [*map(_look_at_names, own), *_looks_at_table(_TABLES["transforms" if second else "first"])]
    if second:
        looks += ((_itself, registered, dict(registered)) for registered in _kernels())
    replaced = _replaced_beneath_transforms() or next(filter(None, map(replaced_in_class, own)), None)
    return replaced, partial(_unchanged, tuple(looks))


# --- what is looked at ------------------------------------------------------------------------------------------------

#: What takes functions out of something, that thing, and what was taken.
_Look = tuple[Callable[[Any], Any], Any, Any]
#: What a function is called in messages, the function, and whether it is foreign.
_Found = tuple[str, Any, bool]

#: By question: the looks of a time when nothing was replaced.
_original: dict[Any, tuple[_Look, ...]] = {}


def _unchanged(looks: tuple[_Look, ...]) -> bool:
    try:
        for take, holder, before in looks:  # noqa: SIM110  called for each image, and a generator costs more
            if take(holder) != before:
                return False
        return True
    except Exception:  # a function was deleted; or what took its place cannot be compared
        return False


def _replaced(key: Any, look: Callable[[], Iterable[_Look]], find: Callable[[], Iterator[_Found]]) -> Refusal | None:
    """Return what was replaced, or None: looking closer only where something is not as it was when nothing was."""
    known = _original.get(key)
    if known is not None and _unchanged(known):
        return None
    looks = tuple(look())
    refusal = next((_refusal(name, value) for name, value, foreign in find() if foreign), None)
    if refusal is None:
        _original[key] = looks
    else:
        _original.pop(key, None)
    return refusal


def _replaced_beneath_transforms() -> Refusal | None:
    found = _replaced_in_table("transforms", _TABLES["transforms"])
    return found or _replaced("kernels", lambda: [(_image_kernels, None, _image_kernels())], _found_in_kernels)


def _replaced_in_table(key: str, table: Mapping[str, str]) -> Refusal | None:
    return _replaced(key, lambda: _looks_at_table(table), lambda: _found_in_table(table))


def _looks_at_table(table: Mapping[str, str]) -> Iterator[_Look]:
    """Yield the looks at the functions of a table, and at what of it is not imported yet."""
    for where, names in table.items():
        holder = _holder(where)
        if holder is None:
            yield _holder, where, None
        elif present := [name for name in names.split() if name in vars(holder)]:
            take: Callable[[Any], Any] = itemgetter(*present)
            yield take, vars(holder), take(vars(holder))


def _looks_at_class(kind: type, names: str) -> Iterator[_Look]:
    bases = (base for base in kind.__mro__ if base is not object and (names or _root(base.__module__) != "torch"))
    return map(_look_at_names, bases)


def _look_at_names(kind: type) -> _Look:
    return vars, kind, dict(vars(kind))


def _itself(value: Any) -> Any:
    return value


def _kernels() -> list[dict[type, Any]]:
    """Return what version 2 has registered for each function, by the type of the input."""
    registry = getattr(sys.modules.get("torchvision.transforms.v2.functional._utils"), "_KERNEL_REGISTRY", {})
    functional = sys.modules.get("torchvision.transforms.v2.functional")
    return [registry.get(getattr(functional, name, None), {}) for name in _KERNELS.split()]


def _image_kernels(_: Any = None) -> list[list[Any]]:
    """Return the kernels that are registered for images, function by function."""
    inputs = [_holder(where) for where in _KERNEL_INPUTS]
    return [[registered.get(given) for given in inputs] for registered in _kernels()]


def _found_in_kernels() -> Iterator[_Found]:
    for name, kernels in zip(_KERNELS.split(), _image_kernels(), strict=True):
        for kernel in kernels:
            if kernel is not None:
                # The wrapper of a kernel is the package's, too.
                both = (kernel, getattr(kernel, "__wrapped__", kernel))
                foreign = any(_is_foreign(one, "torchvision", "", "") for one in both)
                yield f"the kernel of v2.functional.{name}", kernel, foreign


def _found_in_table(table: Mapping[str, str]) -> Iterator[_Found]:
    for where, names in table.items():
        holder = _holder(where)
        if isinstance(holder, type):
            yield from _found_in_class(holder, names)
        elif holder is not None:
            for name in names.split():
                if name in vars(holder):
                    value = vars(holder)[name]
                    yield f"{where}.{name}", value, _is_foreign(value, where, "", name)


def _found_in_class(kind: type, names: str) -> Iterator[_Found]:
    """Yield the methods of a class and its bases; where names are given, only those."""
    for base in kind.__mro__:
        if base is object or base.__module__ == "typing":
            continue
        for name in names.split() or (vars(base).keys() - _HARMLESS if _root(base.__module__) != "torch" else ()):
            if name in vars(base):
                value = vars(base)[name]
                yield f"{base.__qualname__}.{name}", value, _is_foreign(value, base.__module__, base.__qualname__, name)


def _holder(where: str) -> Any:
    """Return a module, or a class in one, where it is imported."""
    module, _, kind = where.partition(":")
    found = sys.modules.get(module)
    return vars(found).get(kind) if kind and found is not None else found


def _refusal(name: str, value: object) -> Refusal:
    return Refusal(name, f"it was replaced by {_described(value)}", "the function as it is")


# --- whose a function is ----------------------------------------------------------------------------------------------

_PLAIN = (type, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)


def _is_foreign(value: Any, module: str, kind: str, name: str) -> bool:
    """Return whether what is found under a name is a function, or acts as one, of another package.

    Args:
        value: what is there.
        module: the module that should have defined it, or another one of its package.
        kind: the qualified name of the class that it is found in; empty: it is found in a module.
        name: what it is called there; empty: by any name.
    """
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        return any(_is_foreign(part, module, kind, name) for part in (value.fget, value.fset) if part is not None)
    if isinstance(value, cached_property):
        value = value.func
    if type(value) is FunctionType:
        original = _stood_for(value)
        if original is not None:
            return _is_foreign(original, module, kind, name)
        home = value.__globals__.get("__name__", "")
        if not isinstance(home, str) or not _may_define(home, module) or not _is_code_of(value, home):
            return True
        inside, _, called = value.__code__.co_qualname.rpartition(".")
        if kind:  # methods have other names for themselves, such as __copy__
            return bool(inside) and inside.rpartition(".")[2] != kind.rpartition(".")[2]
        return bool(name) and called != name
    if isinstance(value, _PLAIN):
        return isinstance(value, BuiltinFunctionType) and bool(name) and value.__name__ != name
    return callable(value) or (hasattr(type(value), "__get__") and _root(type(value).__module__) not in _STANDARD)


# Penstock's own is the memory of encoded images (encoded_image.py), an attribute of each image before Pillow 11.
_STANDARD = {"builtins", "abc", "_abc", __name__.partition(".")[0]}


def _stood_for(function: FunctionType) -> Any:
    """Return what a hook of Penstock's own stands for, or None where the function is none."""
    # By its code: a function of a program's that wraps a hook carries all its attributes.
    if not function.__code__.co_filename.startswith((PACKAGE, "<penstock.")):
        return None
    return getattr(function, "__wrapped__", None)


def _is_code_of(function: FunctionType, module: str) -> bool:
    path = module.replace(".", os.sep)
    return function.__code__.co_filename.endswith((f"{path}.py", os.path.join(path, "__init__.py")))


def _may_define(home: str, module: str) -> bool:
    """Return whether a module is of the package of another, or of one that this package imports functions from."""
    return _root(home) == _root(module) or (_root(module), _root(home)) == ("torchvision", "torch")


def _root(module: str) -> str:
    return module.partition(".")[0]


def _described(value: Any) -> str:
    value = getattr(value, "__func__", value)
    if type(value) is FunctionType:
        return f"{value.__globals__.get('__name__', '?')}.{value.__code__.co_qualname}"
    return f"a {type(value).__module__}.{type(value).__qualname__}"
