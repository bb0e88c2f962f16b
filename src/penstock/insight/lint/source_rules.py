"""Rules about how source is built: images that nobody closes, and files that __init__ reads one by one."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from penstock.insight.check import State
from penstock.insight.lint.functions import Function
from penstock.insight.lint.name_rules import dotted
from penstock.insight.lint.remark import Remark, place

#: Attributes of an image that do not read its pixels.
# fmt: off
_LAZY = frozenset(
    [
        "size", "width", "height", "format", "mode", "info", "filename", "fp", "readonly", "palette",
        "getexif", "get_format_mimetype", "n_frames", "seek", "tell", "verify", "draft", "custom_mimetype",
        "is_animated", "getbands",
    ]
)
# fmt: on
#: Functions that read a whole sample.
# fmt: off
_READERS = frozenset(
    [
        "PIL.Image.open", "torch.load", "torch.serialization.load", "numpy.load", "numpy.loadtxt",
        "numpy.genfromtxt", "cv2.imread", "imageio.imread", "imageio.v2.imread", "imageio.v3.imread",
        "skimage.io.imread", "soundfile.read", "librosa.load", "librosa.core.audio.load", "torchaudio.load",
        "torchaudio._backend.load", "torchvision.io.read_image", "torchvision.io.image.read_image",
        "torchvision.io.read_file", "torchvision.io.image.read_file", "torchvision.io.decode_image",
        "scipy.io.loadmat", "nibabel.load", "pydicom.dcmread", "tifffile.imread",
    ]
)
# fmt: on
_READER_METHODS = frozenset(("read_bytes",))
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def open_images(functions: Iterable[Function]) -> Iterator[Remark]:
    """Yield remarks on functions that open an image by its path, and leave its file open."""
    for function in functions:
        if function.tree is None:
            continue
        source = _Source(function, function.tree)
        calls = [call for call in source.calls("PIL.Image.open") if source.stays_open(call)]
        if calls:
            yield Remark(
                "open-image",
                State.LOOK,
                place(function.name, function.file, calls[0].lineno),
                "Image.open() leaves the file open until something reads its pixels",
                "The file of an image of several frames (GIF, TIFF, WebP) stays open for as long as the object lives, "
                "and so does that of an image whose pixels nobody reads: in the end 'Too many open files'.",
                "with Image.open(path) as image: return image.convert('RGB')",
            )


def reads_all(functions: Iterable[Function]) -> Iterator[Remark]:
    """Yield remarks on functions that __init__ calls, and that read samples in a loop."""
    for function in functions:
        if function.tree is None:
            continue
        source = _Source(function, function.tree)
        calls = [call for call in source.all_calls() if source.in_loop(call) and source.reads_sample(call)]
        if calls:
            yield Remark(
                "reads-all",
                State.LOOK,
                place(function.name, function.file, calls[0].lineno),
                f"{ast.unparse(calls[0].func)}() in a loop reads the samples when the dataset is made",
                "The first batch waits for all files, and every process that starts with the dataset holds or copies "
                "what was read.",
                "Keep the paths, and read in __getitem__; penstock.DataLoader(cache='8GiB') keeps what was read once.",
            )


class _Source:
    """The source of a function, as a tree whose nodes know their parents."""

    def __init__(self, function: Function, tree: ast.AST) -> None:
        self._function = function
        self._tree = tree
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}

    def all_calls(self) -> Iterator[ast.Call]:
        return (node for node in ast.walk(self._tree) if isinstance(node, ast.Call))

    def calls(self, name: str) -> Iterator[ast.Call]:
        """Yield the calls of a function by its full name."""
        return (call for call in self.all_calls() if self._name(call.func) == name)

    def in_loop(self, node: ast.AST) -> bool:
        """Return whether a node lies in a loop or comprehension."""
        while (parent := self._parents.get(node)) is not None:
            if isinstance(parent, _LOOPS) and node is not getattr(parent, "iter", None):
                first = getattr(parent, "generators", [None])[0]
                if node is not first or first is None:
                    return True
            node = parent
        return False

    def reads_sample(self, call: ast.Call) -> bool:
        """Return whether a call reads a whole sample."""
        if self._name(call.func) in _READERS:
            return True
        return isinstance(call.func, ast.Attribute) and call.func.attr in _READER_METHODS

    def stays_open(self, call: ast.Call) -> bool:
        """Return whether what Image.open() returns is neither closed nor read in this function."""
        if not call.args or not self._is_path(call.args[0]) or self._settles(call):
            return False
        parent = self._parents.get(call)
        if isinstance(parent, ast.NamedExpr):
            names = [parent.target]
        elif isinstance(parent, ast.Assign | ast.AnnAssign):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            names = [target for target in targets if isinstance(target, ast.Name)]
        else:
            return True
        named = {name.id for name in names}
        uses = (node for node in ast.walk(self._tree) if isinstance(node, ast.Name) and node.id in named)
        return bool(named) and not any(isinstance(use.ctx, ast.Load) and self._settles(use) for use in uses)

    def _settles(self, node: ast.AST) -> bool:
        """Return whether what is done with an image closes it, or reads its pixels."""
        parent = self._parents.get(node)
        if isinstance(parent, ast.withitem):
            return True
        if isinstance(parent, ast.Attribute):
            return parent.attr not in _LAZY
        if isinstance(parent, ast.Call) and node in parent.args:
            name = self._name(parent.func) or ""
            manages = isinstance(parent.func, ast.Attribute) and parent.func.attr == "enter_context"
            return manages or name == "contextlib.closing" or name.startswith(("numpy.", "torchvision.", "PIL."))
        return False

    def _is_path(self, node: ast.expr) -> bool:
        """Return whether an argument may be a path: not an open file that others close, nor bytes in memory."""
        if isinstance(node, ast.Call):
            name, attribute = self._name(node.func), node.func.attr if isinstance(node.func, ast.Attribute) else ""
            return name not in ("io.BytesIO", "_io.BytesIO", "open") and attribute != "open"
        if not isinstance(node, ast.Name):
            return True
        for one in ast.walk(self._tree):
            if isinstance(one, ast.withitem) and _binds(one.optional_vars, node.id):
                return False
            if isinstance(one, ast.Assign) and any(_binds(target, node.id) for target in one.targets):
                return not isinstance(one.value, ast.Call) or self._is_path(one.value)
        return True

    def _name(self, node: ast.expr) -> str | None:
        names = dotted(node)
        return None if names is None else self._function.resolve(names, node.lineno).name


def _binds(target: ast.AST | None, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name
