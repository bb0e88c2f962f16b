"""Cases made from seeds."""

from __future__ import annotations

import random
import re
import sys
from dataclasses import replace

from tests.differential.case import INDEXING, Case
from tests.differential.indexing import module_of

_FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
_DTYPES = (
    *_FLOATS, "uint8", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "bool",
    "complex64", "complex128", "complex32", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
_SMALL = ("", "1", "3", "7", "2, 3", "4, 1, 3", "0", "2, 0", "3, 4, 4")
_LARGE = ("3, 40, 40", "80, 100", "16385", "3, 64, 64", "5000", "2, 70, 130")
_GROWING = ("4000 + 900 * (i % 7)", "3, 40 + i % 5, 40 + i", "200 * i + 1", "[7, 60, 6000, 20_000][i % 4]")
_FORMS = (
    ".t()", ".transpose(0, -1)", "[..., ::2]", "[None]", "[..., 1:]", ".unsqueeze(-1)", ".flip(0)", ".mT",
    ".expand(2, *{shape})", ".as_subclass(Marked)", ".requires_grad_()", ".conj()", ".imag", ".to_sparse()",
    ".contiguous(memory_format=torch.channels_last)", ".numpy()", "[0]",
    ".sum()", ".squeeze()", ".reshape(-1)[:i % 4 + 1]",
)  # fmt: skip
_OTHERS = (
    "i", "i / 3", "i % 2 == 0", "f'text {i}'", "b'bytes'", "np.float32(i)", "np.int16(i)", "np.arange(3, dtype='>i4')",
    "np.full((2, 3), i, dtype=np.uint8)", "[i, i + 1]", "(i, 'b')", "{'k': i}", "{'k': torch.tensor(i), 'l': [i]}",
    "Pair(i, torch.tensor([i]))", "np.full((130, 130), i, dtype=np.float32)", "torch.nn.Parameter(torch.ones(2) * i)",
    "collections.OrderedDict(b=i, a=torch.ones(2))", "np.float64(i)", "np.bool_(i % 2)", "[]", "()", "{}",
    "collections.defaultdict(int, a=i)", "True", "np.zeros((0, 3))", "np.asfortranarray(np.full((3, 4), i))",
    "2**62 + i", "np.ones(4, dtype=np.float16)[::2] * i", "torch.tensor(i)", "numbers(i, torch.float32, 4)[1:3]",
    "bytearray(b'ab')", "range(i, i + 2)",
)  # fmt: skip
_UNFIT = (
    "None", "photo(i)", "photo(i, 'L')", "Point(i, torch.ones(2))", "{1, 2}", "object", "2**70", "slice(i)",
    "numbers(i, torch.float32, i % 5 + 1)", "numbers(i, torch.float32, 2 + (i == 5), 3)", "np.array(['a', 'b'])",
    "np.array([None, i])", "[i] * (i % 3)", "{'k': i} if i % 4 else {'l': i}", "i if i % 5 else 'text'",
    "torch.tensor(i) if i % 3 else i", "complex(i, 1)", "overlaps(numbers(i, torch.int32, 6))",
    "torch.ones(2, device='meta')",
    "numbers(i, torch.float32, 3).to(torch.float64 if i == 4 else torch.float32)",
    "torch.quantize_per_tensor(torch.ones(3) * i, 0.1, 0, torch.qint8)", "torch.Generator", "photo(i, 'P')",
)  # fmt: skip
_DRAWS = ("torch.rand(3)", "torch.randint(9, ())", "random.random()", "np.random.rand(2)", "random.choice('abc')")
#: What seeds a global generator in a sample: an error in threads. Order and draws are torch's own without seed= only.
_SEEDS = (
    "np.random.seed(i) or np.random.rand(2)", "random.seed(i) or random.random()",
    "(torch.manual_seed(i), torch.rand(3))[1]",
    *(
        f"alike(i, '{how}', torchvision.transforms.{step})"
        for how in ("number", "index", "state", "fork")
        for step in ("RandomCrop(7)", "v2.RandomResizedCrop(6)", "v2.ColorJitter(0.4)",
            "Compose([torchvision.transforms.RandomHorizontalFlip(), torchvision.transforms.RandomCrop(6)])")
    ),
)  # fmt: skip
_RANDOM = ("shuffle", "Random", "iter(", "generator")
#: Memory that worker processes, and threads, share.
_SHARED = (
    "torch.zeros(1).share_memory_()", "torch.zeros(1).share_memory_().numpy()",
    "np.frombuffer(torch.multiprocessing.RawArray('d', 1))",
    "torch.frombuffer(torch.multiprocessing.RawArray('f', 1), dtype=torch.float32)",
)  # fmt: skip
#: torch's workers end in a TypeError of its own, which lacks the words: it takes a group for an error of one text.
_GROUP = (
    "ExceptionGroup('bad group 1', [ValueError(i)]) if ours or get_worker_info() is None else "
    "RuntimeError('bad group 1')"
)
_WRONG = (
    "ValueError(f'bad sample {i}')", "KeyError(f'bad key {i}')", "IndexError(f'bad index {i}')",
    "RuntimeError(f'bad thing {i}')", "OSError(5, f'bad file {i}')", "Odd(i, 'odd')",
    "StopIteration if ours else RuntimeError",  # torch's loader ends the epoch there, as Python's generators do not
    "UnicodeDecodeError('utf8', b'a', 0, 1, f'bad byte {i}')", "FileNotFoundError(2, 'No such file', f'bad name {i}')",
    "AssertionError(f'bad claim {i}')", "NotImplementedError", "StopAsyncIteration",
    *((_GROUP,) if sys.version_info >= (3, 11) else ()),
)  # fmt: skip
_COLLATES = (
    "listed", "stacking", "padding", "joined", "views", "unbound", "slices", "part_of_large", "twice", "shared",
    "expanded", "lazily", "marked", "with_grad", "as_point", "as_pinnable", "as_arrays", "sparse", "first_fails",
    "WithTable(10)", "WithTable(70_000)", "Keeping()", "Reused()",
)  # fmt: skip
_AS_TENSORS = ("{}", "torch.from_numpy({}.copy())", "torch.as_tensor(np.array({}))", "{}.astype(np.float32)")
_PHOTOS = ("jpg RGB", "jpg RGB", "jpg L", "jpg CMYK", "png RGB", "png P", "webp RGB")
_STEPS = (
    (), ("Resize(32)", "CenterCrop(28)"), ("Resize((20, 30))",), ("CenterCrop(50)",),
    ("Grayscale(3)", "CenterCrop(32)"),
    ("Pad(3)", "Resize((24, 24), antialias=True)"),
    ("Resize((33, 17), interpolation=torchvision.transforms.InterpolationMode.BICUBIC)",),
)  # fmt: skip
#: Memory that is used again in a worker is, in torch's loader, what the batch happens to hold at that time; and torch's
#: workers lose the bits of conjugated and negated views.
_OF_NO_WORKER = ("Reused()", "lazily")
#: These hand out samples: an array's strides are those of the sample in threads, a row's behind torch's workers.
_OF_SAMPLES = ("listed", "part_of_large", "as_arrays")
#: What threads do as the caller's own thread does, and torch's workers cannot do.
_OF_NO_THREAD = (
    "requires_grad", "Parameter", "with_grad", "_neg_view", ".imag", ".conj()", "Odd(", "Unicode", "Group(", "quantize",
    "'>i", "'>f",
)  # fmt: skip
#: numpy parses a header by ast.literal_eval, which two threads of Python 3.11.7 may not call (python/cpython#106905).
_OF_ONE_THREAD = ("mmap_mode",)
#: torch's workers never send a subclass's tensor of these: its loader waits forever.
_OF_NO_SUBCLASS = ("uint16", "uint32", "uint64", "complex32", "float8_e4m3fn", "float8_e5m2")
_KINDS = ("map",) * 10 + ("getitems", "unsized", "unmeasured", "rows", "rows", "files", "files", "iterable", "iterable",
    "sized", "list", "names", "tensors", "tensors", "subset", "concat", "stack")  # fmt: skip


def _tensor(draw: random.Random, large: bool) -> str:
    shape = draw.choice(_LARGE if large else _SMALL)
    if large and draw.random() < 0.15:
        shape = draw.choice(_GROWING)
    dtype = draw.choice(("float32", "float32", "uint8", "int64", "float16", "complex64", "bool") if large else _DTYPES)
    text = f"numbers(i, torch.{dtype}{', ' * bool(shape)}{shape})"
    if draw.random() < 0.35:
        form = draw.choice(_FORMS)
        if form == ".conj()" and "complex" not in dtype:
            form = ".unsqueeze(0)"
        if "Marked" in form and dtype in _OF_NO_SUBCLASS:
            form = ""
        text += form.format(shape=f"({shape}{',' * bool(shape)})")
    return text


def _fields(draw: random.Random, large: bool) -> tuple[str, ...]:
    found = []
    for _ in range(draw.choice((1, 1, 2, 2, 3, 5))):
        chance = draw.random()
        if chance < 0.62:
            found.append(_tensor(draw, large and draw.random() < 0.7))
        else:
            found.append(draw.choice(_OTHERS if chance < 0.96 else _UNFIT))
    return tuple(found)


def _file(draw: random.Random, large: bool) -> tuple[str, str]:
    path, kind = "f'{self.folder}/{i}", draw.choice(("torch", "numpy", "photo"))
    if kind == "torch":
        content = draw.choice(
            (_tensor(draw, large), _tensor(draw, large), f"({_tensor(draw, large)}, i)", "{'k': torch.ones(3) * i}")
        )
        options = draw.choice(("", "", ", weights_only=True", ", mmap=True", ", map_location='cpu'"))
        return (f"torch.save({content}, {path}.pt')", f"torch.load({path}.pt'{options})")
    if kind == "numpy":
        shape = draw.choice(_LARGE if large else ("3", "2, 3", "0", "4, 1, 3"))
        content = f"numbers(i, torch.{draw.choice(('float32', 'uint8', 'int64', 'float16', 'bool'))}, {shape}).numpy()"
        content += draw.choice(("", "", ".T", ".astype('>f4')", "[..., ::2]"))
        load = f"np.load({path}.npy'{draw.choice(('', '', ', mmap_mode=chr(114)'))})"
        form = draw.choice(_AS_TENSORS)
        return f"np.save({path}.npy', {content})", form.format(load)
    name, mode = draw.choice(_PHOTOS).split()
    size = f"{draw.choice((40, 64, 131))}, {draw.choice((40, 48, 97))} + {draw.choice(('0', '0', 'i % 3'))}"
    module = draw.choice(("torchvision.transforms", "torchvision.transforms.v2"))
    chosen = draw.choice(_STEPS)
    steps = [f"{module}.{step}" for step in chosen]
    steps.append(f"{module}.{draw.choice(('ToTensor()', 'PILToTensor()'))}")
    if steps[-1].endswith(".ToTensor()") and draw.random() < 0.5:
        steps.append(f"{module}.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))")
    change = f"{module}.Compose([{', '.join(steps)}])"
    opened = f"Image.open({path}.{name}')" + draw.choice((".convert('RGB')", ".convert('RGB')", ""))
    if draw.random() < 0.1:
        opened = f"Image.open(io.BytesIO(open({path}.{name}', 'rb').read())).convert('RGB')"
    return f"photo(i, '{mode}', {size}).save({path}.{name}'); self.change = {change}", f"self.change({opened})"


def _indexing(draw: random.Random) -> Case:
    kind, length = (
        draw.choice((*["indexing"] * 18, *INDEXING)),
        draw.choice((0, 1, 2, 5, 7, 9, 9, 12, 13, 13, 17, 17, 23, 23, 23)),
    )
    module = module_of(draw, length)
    return Case(kind, length, "bare", ("",), "", module.source, (), (), "hold", (), pins=False, pure=module.pure)


def _dataset(draw: random.Random) -> Case:
    kind, large = draw.choice(_KINDS), draw.random() < 0.45
    length = draw.choice((0, 1, 2, 5, 9, 12, 17, 23, 30)) if not large else draw.choice((6, 12, 20, 30, 60))
    fields, rows, wrong = _fields(draw, large), "", ""
    container = draw.choice(("bare", "tuple", "tuple", "tuple", "dict", "dict", "list", "Pair", "Point"))
    if container == "Point" and draw.random() < 0.7:
        container = "tuple"
    if kind == "rows":
        shape = draw.choice(_LARGE if large else _SMALL[1:])
        rows = f"numbers(3, torch.{draw.choice(('float32', 'uint8', 'int64'))}, {length}, {shape})"
        if draw.random() < 0.3:
            rows += ".numpy()"
        fields = (draw.choice(("self.rows[i]", "self.rows[i : i + 2]", "self.rows[i][..., ::2]")), *fields[1:])
        if draw.random() < 0.25:
            rows, fields = draw.choice(_SHARED), ("float(self.rows[0]) + i", *fields[1:])
    if kind == "files":
        rows, field = _file(draw, large)
        fields = (field, *fields[1:])
    if kind == "tensors":
        fields = tuple(
            f"numbers({n}, torch.{dtype}, {length}{', ' * bool(shape)}{shape})"
            + draw.choice(
                ("", "", "", "[..., ::2]", ".flip(0)", "" if dtype in _OF_NO_SUBCLASS else ".as_subclass(Marked)")
            )
            for n in range(len(fields))
            for shape in [draw.choice(_LARGE[:1] if large else _SMALL)]
            for dtype in [draw.choice(_DTYPES)]
        )
    elif draw.random() < 0.1 and kind not in ("list", "names"):
        wrong = f"if i {draw.choice(('== 5', '% 4 == 3', '== 0'))}: raise {draw.choice(_WRONG)}"
    return Case(kind, length, container, fields, wrong, rows, (), (), "hold", (), pins=False)


def _order(draw: random.Random, case: Case) -> list[str]:
    lengths = {"subset": (case.length + 1) // 2, "concat": 2 * case.length}
    length = lengths.get(case.kind, case.length)
    batch = draw.choice((None, 1, 1, 2, 3, 4, 4, 5, 8))
    size = [] if batch == 1 and draw.random() < 0.5 else [f"batch_size={batch}"]
    if batch is not None and draw.random() < 0.2:
        size.append("drop_last=True")
    if case.kind in ("iterable", "sized"):
        return size
    names = [f"name {i}" for i in range(length)]
    chosen = [draw.randrange(length) for _ in range(draw.randrange(3, 15))] if length else []
    if case.kind in ("unsized", "unmeasured"):
        return [*size, f"sampler={chosen}"] if draw.random() < 0.7 else [f"batch_sampler={[chosen[:2], chosen[2:]]}"]
    if length == 0:
        return size  # a sampler's own error comes from iter() of torch's loader, from next() of threads
    if case.kind == "names":
        draw.shuffle(names)
        return [*size, f"sampler={names}"]
    chance = draw.random()
    if chance < 0.35:
        return size
    if chance < 0.6:
        return [*size, "shuffle=True"] + ["generator=torch.Generator().manual_seed(3)"] * (draw.random() < 0.3)
    if chance < 0.7:
        return [f"batch_sampler={[chosen[n : n + 3] for n in range(0, len(chosen), 3)]}"]
    if chance < 0.74:
        return [f"batch_sampler=BatchSampler({chosen}, 3, {draw.random() < 0.5})"]
    return [*size, "sampler=" + draw.choice((
        f"{chosen}", f"iter({chosen})" if draw.random() < 0.1 else f"{chosen}",
        f"torch.tensor({chosen}, dtype=torch.int64)",
        f"np.array({chosen}, dtype=np.int64)", f"SubsetRandomSampler({chosen})", f"range({length})[::-1]",
        f"WeightedRandomSampler([1.0] * {length}, {len(chosen)})", f"[-1 - n for n in {chosen}]",
        f"RandomSampler(range({length}), replacement=True, num_samples={len(chosen) + 1})",
    ))]  # fmt: skip


def _is_drawn_from(case: Case) -> bool:
    """Return whether a later pass, or loader, gets other samples behind one that has read further ahead."""
    return "generator=" in str(case.options) or "sampler=iter(" in str(case.options)


def _loop(draw: random.Random, case: Case, workers: int, persistent: bool) -> Case:
    epochs, last = draw.choice((1, 1, 2, 2, 3)), draw.choice((0, 1, 2, 5, 1000))
    held = (f"epochs={epochs}", f"last={last}")
    after = f"after={draw.randrange(5)}"
    then = ["new loader", "nothing"]
    if not persistent or not workers:
        then.append("new pass")
    rest = draw.choice(("row", "element", "detached", "storage", "view", "data", "dlpack", "array", "memory"))
    loop, arguments = draw.choice((
        *[("hold", held)] * 4,
        *[("hold_rest", (f"how='{rest}'", *held))] * 2,
        ("hold_one", held),
        ("hold_for_backward", held[:1]),
        ("write", held),
        ("copies", (f"how='{draw.choice(('saved', 'deep', 'pickled'))}'", *held)),
        ("in_thread", held),
        ("by_thread", held),
        ("to_process", held),
        ("leave", (after, held[0], f"keep={draw.random() < 0.5}")),
        ("two_passes", (held[1], f"loaders={draw.choice((1, 2))}")),
        ("fail", (after, held[0])),
        ("fork", (after, f"then='{draw.choice(then)}'", *held)),
        ("reset", held),
        ("share", held),
    ))  # fmt: skip
    if case.rows in _SHARED:
        loop, arguments = "told", held[:1]
    if case.kind in INDEXING and (not case.pure or draw.random() < 0.7):
        exact = not (workers or case.own)
        change = f"at={draw.choice((0, 0, 1, 2))}" if (exact or not case.own) and draw.random() < 0.35 else "at=-1"
        loop, arguments = "changed", (change, f"epochs={draw.choice((1, 2, 2, 3))}", held[1], f"exact={exact}")
    own_tensors = case.kind in ("list", "names", "rows", "tensors", *INDEXING) or "WithTable" in str(case.options)
    if loop in ("write", "reset") and "thread" in str(case.own) and own_tensors:
        loop, arguments = "hold", held  # threads share the dataset's tensors, as the caller's thread does
    ahead = "thread" in str(case.own) or (workers and case.kind == "tensors")
    if loop in ("leave", "fail", "two_passes", "fork") and ahead and _is_drawn_from(case):
        loop, arguments = "hold", held  # threads read further ahead, and a pass that is left has drawn as far as that
    if loop == "fork" and workers and "torch.tensor(" in str(case.options):
        loop, arguments = "hold", held  # tensors as indices cannot be sent after a fork
    if loop in ("to_process", "fork") and any(word in str(case) for word in _OF_NO_THREAD):
        loop, arguments = "hold", held  # what a queue cannot send, it drops
    if loop in ("in_thread", "by_thread", "to_process") and case.kind in INDEXING:
        loop, arguments = "hold", held  # a sample may be None, which ends these
    if loop == "in_thread" and "Reused()" in str(case.options):
        loop, arguments = "hold", held  # what the thread sees is a matter of time, with torch's loader too
    return replace(case, loop=loop, arguments=arguments)


def quick_case_of(seed: int, kind: str | None = None) -> Case:
    case = case_of(seed, kind)
    options = tuple(o for o in case.options if not re.search("spawn|forkserver", o))
    return replace(case, options=options, own=tuple(o for o in case.own if "auto" not in o))


#: Arguments that start workers.
_OF_WORKERS = (
    "num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "in_order",
)  # fmt: skip
_OF_PROCESSES = ("to_process", "fork", "unordered")
_OF_OWN_MEMORY = ("write", "reset")


def light_case_of(seed: int, kind: str | None = None) -> Case:
    """Return a case that starts no process: torch's loader reads in the caller's thread, ours there or in threads."""
    case = case_of(seed, kind, light=True)
    options = tuple(o for o in case.options if not o.startswith(_OF_WORKERS))
    if case.loop in _OF_PROCESSES:
        case = replace(case, loop="hold", arguments=("epochs=2", "last=2"))
    text = str(case)
    alone = case.wrong or case.kind in ("iterable", "sized") or case.loop in _OF_OWN_MEMORY or _is_drawn_from(case)
    alone = alone or not case.pure or (case.kind in INDEXING and seed % 6 > 0)
    alone = alone or any(
        word in text for word in (*_OF_NO_THREAD, *_OF_ONE_THREAD, *_OF_SAMPLES, *_OF_NO_WORKER, *_DRAWS, *_SEEDS)
    )
    workers = [] if alone else ["num_workers=2", "worker_method='thread'"]
    if workers and case.loop == "told" and not re.search("shuffle=True|Random", str(options)):
        workers.append("persistent_workers=True")  # workers that persist draw fewer base seeds than torch's passes here
    own = (*workers, *(o for o in case.own if o.startswith("seed=")))
    if case.loop == "changed":
        case = replace(
            case, arguments=(case.arguments[0] if not own else "at=-1", *case.arguments[1:-1], f"exact={not own}")
        )
    return replace(case, options=options, own=own)


def case_of(seed: int, kind: str | None = None, *, light: bool = False) -> Case:
    """Return a case. kind: "indexing" where it is to be of INDEXING; None: it is of any kind."""
    draw = random.Random(seed)
    indexes = kind is not None or draw.random() < (0.35 if light else 0.1)
    case, busy = _indexing(draw) if indexes else _dataset(draw), draw.random() < 0.12 and not (light or indexes)
    if light and not indexes:
        case = replace(case, length=min(case.length, 9))
    if busy:  # many batches of large fields in workers: their memory is used again and again
        fields = (f"numbers(i, torch.float32, {draw.choice(_LARGE)})", draw.choice((*_OTHERS[:4], _tensor(draw, True))))
        case = replace(case, kind="map", length=60, container="tuple", fields=fields, rows="", wrong="")
    options = _order(draw, case)
    if busy:
        options = [f"batch_size={draw.choice((2, 4))}", *["shuffle=True"] * draw.randrange(2)]
    workers = draw.choice((0, 0, 1, 2, 2, 2, 3)) or int(busy)
    if ".conj()" in str(case.fields) + case.rows:
        workers = 0  # as for collate_fns: torch's workers cannot stack these views
    method = draw.choice((None,) * 6 + ("process", "thread", "thread")) if draw.random() > 0.02 else "auto"
    persistent = workers > 0 and draw.random() < 0.4
    if method in ("thread", "auto") and not case.pure:
        method = None
    if method in ("thread", "auto") and any(word in str(case) for word in (*_OF_NO_THREAD, *_OF_ONE_THREAD)):
        method = None
    if workers or draw.random() < 0.7:
        options.append(f"num_workers={workers}")
    own = [] if method is None else [f"worker_method='{method}'"]
    if persistent:
        options.append("persistent_workers=True")
    if workers and draw.random() < 0.3:
        options.append(f"prefetch_factor={draw.choice((1, 2, 4))}")
    if draw.random() < (0.08 if indexes else 0.15 if busy else 0.45):
        collate = draw.choice(_COLLATES)
        strided = collate in _OF_SAMPLES and re.search(r"np\.|numpy|as_arrays", f"{case}{collate}")
        here = not (workers or method)
        if (here or collate not in _OF_NO_WORKER) and not (strided and method in ("thread", "auto")):
            options.append(f"collate_fn={collate}")
    context = draw.random()
    if workers and context < 0.05:
        options.append("multiprocessing_context='fork'")
    elif workers == 1 and context < 0.07 and not (case.wrong or indexes):
        options.append(f"multiprocessing_context='{draw.choice(('spawn', 'forkserver'))}'")
    if workers and draw.random() < 0.05:
        options.append("timeout=50")
    pins = draw.random() < (0.3 if busy else 0.15)
    if pins:
        options.append("pin_memory=True")
    if method in (None, "process") and draw.random() < 0.08 and case.kind not in ("tensors", "rows", *INDEXING):
        case = replace(case, fields=(*case.fields, draw.choice(_DRAWS)))
    elif indexes:
        fixed = case.pure and not any(word in str(options) for word in _RANDOM)
        own += ["seed=7"] * (fixed and draw.random() < 0.1)
    elif method != "thread" and draw.random() < 0.08 and case.kind not in ("tensors", "rows"):
        case = replace(case, fields=(*case.fields, draw.choice(_SEEDS)))
        fixed = case.kind not in ("iterable", "sized") and not any(word in str(options) for word in _RANDOM)
        own += ["seed=7"] * (fixed and draw.random() < 0.5)
    case = replace(case, options=tuple(options), own=tuple(own), pins=pins)
    if workers and case.pure and draw.random() < 0.03:
        return replace(case, options=(*options, "in_order=False"), loop="unordered", arguments=("epochs=2",))
    case = _loop(draw, case, workers, persistent)
    if busy and draw.random() < 0.2 and case.loop == "hold":
        then = "new loader" if persistent else "new pass"
        arguments = f"after={draw.randrange(9)}", f"then='{then}'", "epochs=2", "last=2"
        case = replace(case, loop="fork", arguments=arguments)
    return case
