"""The contract of the native core.

What is bytes here is raw: paths as os.fsencode gives them, names each followed by a NUL. The heavy functions
let Python's lock go while they work. Objects may be used from any thread unless it says otherwise.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview | NDArray[Any]

MAX_DIMS: Final[int]
"""Dimensions of a sample that the native core takes at the most."""
DTYPES: Final[tuple[str, ...]]
"""torch's names of the dtypes that it knows."""

# --- files -----------------------------------------------------------------------------------------------------

class FileTable:
    """A table of files: which bytes belong to a sample, by its index. Its kinds are PathTable and ShardTable."""

class PathTable(FileTable):
    """The files of a source: a root folder and a compact table of names inside it. Immutable; picklable."""

    def __init__(self, root: bytes, names: Buffer, suffix: bytes = b"", beneath: bool = False) -> None: ...
    def __len__(self) -> int: ...
    def name(self, i: int) -> bytes: ...
    def path(self, i: int) -> bytes: ...
    def names(self) -> bytes: ...
    def open(self, i: int) -> int:
        """Return a new descriptor. Raises OSError; PermissionError without errno for what leaves root."""

    def refresh(self) -> None:
        """Notice that the root folder was replaced by another of the same name."""

class CacheTier:
    """The bytes of samples, kept in a file until it is full; shared by all processes that have its two files open.

    Args:
        index: descriptor of the index, open to read and write; an empty file becomes one.
        data: descriptor of the file of the bytes, open to read and write.
        samples: how many the dataset has.
        limit: the most bytes of the data file that this process uses.

    Raises:
        ValueError: the index is not one of so many samples.
    """

    def __init__(self, index: int, data: int, samples: int, limit: int) -> None: ...
    @staticmethod
    def in_memory(samples: int, limit: int, error: int = 0) -> CacheTier:
        """Return a tier in memory that no file system names; error: errno for which it keeps nothing."""

    def counts(self) -> tuple[int, int, int, int, int, int]:
        """Return samples and bytes that all processes kept, the limit, hits, dropped samples, and errno of a write."""

class SampleCache:
    """Tiers of one dataset's cache, the nearest first."""

    def __init__(self, tiers: list[CacheTier]) -> None: ...
    def find(self, sample: int, name: bytes) -> bytes | None:
        """Return the bytes of a sample, None where no tier has them."""

class JpegIndex:
    """An index of the decoder states of a dataset's JPEG files, shared by all processes that have its file open.

    Args:
        descriptor: of a file, open to read and, where it is writable, to write; an empty one becomes an index.
        samples: how many the dataset has.
        slot_bytes: what the index keeps of each, LEAST_SLOT to MOST_SLOT.
        writable: states are kept; else only used.

    Raises:
        ValueError: it is another file, or no such index can be.
        RuntimeError: the file cannot be read or written.
    """

    LEAST_SLOT: Final[int]
    MOST_SLOT: Final[int]

    def __init__(self, descriptor: int, samples: int, slot_bytes: int, writable: bool) -> None: ...
    @staticmethod
    def in_memory(samples: int, slot_bytes: int) -> JpegIndex:
        """Return an index in memory that no file system names."""

    @staticmethod
    def file_bytes(samples: int, slot_bytes: int) -> int:
        """Return the size of an index's file."""

    def refresh(self) -> None:
        """Look which samples other processes have kept."""

    def index_files(self, table: FileTable, begin: int, end: int) -> None:
        """Keep all states of the samples of a table from begin to end - 1, as far as they are decoded natively."""

    def counts(self) -> tuple[int, int, int, int, int]:
        """Return the samples that it knows, its bytes, and of this process hits, changed files and errno of a write."""

def first_bad_name(names: Buffer) -> int | None:
    """Return the index of the first name that is empty, absolute or has a component '..'."""

def list_folder(root: bytes, suffix: bytes) -> bytes:
    """Return the files of one folder that end in suffix, without it, sorted. Raises OSError."""

def scan_image_folder(
    root: bytes, extensions: list[str], threads: int
) -> tuple[PathTable, bytes, bytes, bytes, bytes, int]:
    """Return (paths, classes, counts int64, folders, stamps int64 (n, 4), start in ns). Raises OSError."""

def folders_unchanged(root: bytes, folders: Buffer, stamps: Buffer, threads: int) -> bool:
    """Return whether each folder has its stamp still."""

def crc32(data: bytes, before: int = 0) -> int:
    """Return the CRC-32 of some bytes, `before` being that of those before them, as zlib.crc32 does."""

def crc32c(buffer: Buffer, seed: int = 0) -> int:
    """Return the CRC-32C (Castagnoli, RFC 3720) of a buffer, `seed` being that of the bytes before it.

    Python's lock is released for buffers of 16 KiB and more.
    """

class RowFile:
    """Rows of equal length in an open file, read when they are asked for. Immutable, for any number of threads.

    Args:
        descriptor: of the file, open for reading; it is duplicated.
        start: byte of the first row.
        row_bytes: length of a row.
        count: number of rows.
    """

    def __init__(self, descriptor: int, start: int, row_bytes: int, count: int) -> None: ...
    def __len__(self) -> int: ...
    def read(self, positions: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Write the rows at these positions to `out`, of shape (positions, row_bytes).

        Raises IndexError for a row that the file does not have, OSError where it cannot be read or ends before.
        """

class ShardTable(FileTable):
    """The samples of packed shards: sample i is a part of a shard, which row i of the index names. Immutable.

    Args:
        rows: of the index.
        shards: (path, length) of each.
        columns: where in a row the number of the shard, the length of the ID and the member begin.
        verify: the CRC-32C of each sample is compared when it is read.
        max_open: how many shards stay open; None: half of the descriptors that the process may have, 4,096 at the most.
    """

    def __init__(
        self,
        rows: RowFile,
        shards: list[tuple[bytes, int]],
        columns: list[int],
        verify: bool,
        max_open: int | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def open_shards(self) -> int: ...

# --- images ------------------------------------------------------------------------------------------------------

def decode_jpeg(
    data: bytes, box: tuple[int, int, int, int] | None = None, max_pixels: int = 0
) -> NDArray[np.uint8] | str:
    """Return the RGB pixels of box (x0, y0, x1, y1), or why Pillow must decode the image."""

class Recipe:
    """What is done to an image's bytes; built by penstock.recipe.reader. Immutable."""

    def __init__(
        self,
        channels: int,
        operations: Sequence[dict[str, Any]],
        dtype: str,
        layout: str,
        table: bytes | None,
        fills: Sequence[tuple[bytes, bytes]],
    ) -> None: ...

def map_size(recipe: Recipe, width: int, height: int) -> tuple[int, int] | None:
    """Return (height, width) of the result where only crops, pads and flips lead to it, whatever is drawn."""

def axis_maps(
    recipe: Recipe,
    seed: int,
    epoch: int,
    samples: NDArray[np.int64],
    positions: NDArray[np.int64],
    width: int,
    height: int,
    maps: NDArray[np.int32],
) -> None:
    """Write which source row each row of the result shows, then which source column each column does.

    A position outside the picture is -1 - k, where fill k is shown; outside in both, the greater k. Other threads run.

    Args:
        samples, positions: those that the draws are for, with seed and epoch.
        width, height: of the source.
        maps: written to; shape (samples, height + width) of map_size().

    Raises:
        ValueError: maps of another shape, or a recipe that map_size() gives None for.
    """

def run_recipe(
    recipe: Recipe, image: NDArray[np.uint8], seed: int, epoch: int, sample: int, position: int
) -> tuple[bytes, tuple[int, int, int]]:
    """Return the result's bytes and its shape (channels, height, width). Raises ValueError."""

def draw(recipe: Recipe, seed: int, epoch: int, sample: int, position: int, width: int, height: int) -> list[Any]:
    """Return what was drawn for each operation: (top, left, height, width), flipped or not, Effects, or None."""

class Effects:
    """What an augmentation does to one picture, as it was drawn."""

    def __len__(self) -> int: ...

def draw_effects(recipe: Recipe, height: int, width: int, generator: torch.Generator) -> Effects:
    """Draw what a recipe's only operation, an augmentation, does to a picture, from a generator of torch's on the CPU.

    The generator is afterwards as torchvision's own code would leave it; no other thread draws from it meanwhile.

    Raises:
        ValueError: the recipe is not only an augmentation, or the generator has another state than is known.
    """

def draw_effects_of_sample(recipe: Recipe, height: int, width: int, draws: SampleDraws) -> Effects:
    """Draw it as the next operation of a sample: from a generator that SampleDraws.word() is the seed of."""

def linear_magnitude(share: float, side: int, bins: int, bin: int) -> float:
    """Return torch.linspace(0, share * side, bins)[bin]."""

class SampleDraws:
    """The draws of one sample, one random operation after another, as recipes draw them; one thread at a time.

    Args:
        seed, epoch, sample: the key, each below 2**64.
        position: where the sample stands in the order of the epoch.
    """

    def __init__(self, seed: int, epoch: int, sample: int, position: int) -> None: ...
    count: int
    """How many operations have drawn: the next one's number."""

    def word(self) -> int:
        """Return the first 32 random bits of the next operation."""

    def resized_crop(
        self, least: float, most: float, narrow: float, wide: float, height: int, width: int
    ) -> tuple[int, int, int, int] | None:
        """Return RandomResizedCrop's (top, left, height, width) for scale=(least, most), ratio=(narrow, wide).

        None, and nothing is drawn, where a recipe would refuse them.
        """

    def crop(self, crop_height: int, crop_width: int, height: int, width: int) -> tuple[int, int, int, int] | None:
        """Return RandomCrop's (top, left, height, width) in a padded picture; None where that is too small."""

    def flip(self, p: float) -> bool:
        """Return whether to flip, with probability p."""

def output_spec(recipe: Recipe, width: int = 0, height: int = 0) -> tuple[tuple[int, int, int] | None, str]:
    """Return the result's shape for sources of this size, None when it depends on the sample, and its dtype."""

# --- order -------------------------------------------------------------------------------------------------------

def count_from_start(indices: NDArray[np.int64], size: int) -> bool:
    """Return whether any index is negative, and so counts from the end. Raises IndexError for one out of range."""

class KeyedPermutation:
    """A permutation as a function of (seed, epoch, position). Immutable."""

    def __init__(self, size: int, seed: int, epoch: int) -> None: ...
    def take(self, begin: int, out: NDArray[np.int64]) -> None: ...

class KeyedDraws:
    """Uniform draws below a bound (1 to 2**63), with replacement, by (seed, epoch, position). Immutable."""

    def __init__(self, bound: int, seed: int, epoch: int) -> None: ...
    def take(self, begin: int, out: NDArray[np.int64]) -> None: ...

# --- batches -----------------------------------------------------------------------------------------------------

def bytes_of(owner: object, address: int, bytes: int) -> NDArray[np.uint8]:
    """Return memory that belongs to an object, which the array holds."""

def advise_huge_pages(address: int, bytes: int) -> None:
    """Ask the system for huge pages where whole ones fit into memory."""

def discard_pages(address: int, bytes: int) -> None:
    """Give the pages of memory that nobody reads any more back to the system: they are zero when they are next used."""

class Spec:
    """Shape and dtype of one sample."""

    def __init__(self, dtype: str, shape: Sequence[int]) -> None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...

def address(array: NDArray[Any]) -> int:
    """Return where the first element of an array lies in memory."""

class Filler:
    """Fills one row of a batch with one sample. Immutable."""

    def cached(self, cache: SampleCache) -> Filler | None:
        """Return the same filler of files whose bytes a cache keeps; None where samples are not files."""

class GatherFiller(Filler):
    def __init__(self, rows: NDArray[np.uint8] | torch.Tensor, spec: Spec) -> None: ...

class ColumnFiller(Filler):
    """Rows of a column of an Arrow table, converted to the dtype of the spec.

    Args:
        chunks: the bytes of the rows of each chunk: (rows, bytes of a row).
        dtype: of the stored elements.

    Raises:
        ValueError: a dtype that is not converted to that of the spec; rows of other bytes than the spec's elements.
    """

    def __init__(self, chunks: list[NDArray[np.uint8]], dtype: str, spec: Spec) -> None: ...

class ImageArrayFiller(Filler):
    def __init__(self, images: NDArray[np.uint8] | torch.Tensor, recipe: Recipe) -> None: ...

class TensorFileFiller(Filler):
    def __init__(self, paths: FileTable) -> None: ...

class ImageFileFiller(Filler):
    def __init__(self, paths: FileTable | None, recipe: Recipe, max_pixels: int) -> None: ...
    def indexed(self, index: JpegIndex) -> ImageFileFiller:
        """Return the same filler, which goes by an index of decoder states and adds to it."""

    def keeping_pixels(self, cache: SampleCache, operations: int) -> PixelCacheFiller:
        """Return the same filler, of which a cache keeps the pixels that the recipe's first operations make.

        Raises ValueError where the recipe has fewer operations, or one of these draws.
        """

class ViewFiller(Filler):
    """Fills rows with one view of each image; the fields of a sample share what is decoded."""

def view_fillers(paths: FileTable | None, recipes: Sequence[Recipe], max_pixels: int) -> list[ViewFiller]:
    """Return the fillers of the views of images, one for each recipe, in the order of the fields of a sample.

    A recipe draws as if it came behind those before it in one.
    """

class PixelCacheFiller(Filler):
    """Fills rows from the pixels that a cache has, else from files, whose pixels it keeps."""

    def keep(self, sample: int, name: bytes, pixels: NDArray[np.uint8]) -> bool:
        """Have the cache keep what the first operations make of an image that was decoded from the file of this name.

        Returns whether they can be done, and a tier had space. Raises ValueError for an array of other dimensions than
        (height, width) or (height, width, channels).
        """

class PixelFileFiller(Filler):
    """Decoded images in .npy files of uint8: (height, width, 3), or (height, width) for recipes from mode L."""

    def __init__(self, paths: FileTable, recipe: Recipe) -> None: ...

def read_file(program: Program, source: int, local: int, name: bytes | None, most: int) -> NDArray[np.uint8] | str:
    """Return the bytes of a sample's file, or of its copy in a cache, read in the calling thread without Python's lock.

    A str says why Pillow must read it. name: of the file, where the source has no table. most: bytes of a file that is
    read.
    """

def sizes(recipe: Recipe, width: int, height: int) -> list[tuple[int, int]]:
    """Return (height, width) before each operation and of the result; nothing where torchvision would raise."""

def transform_image(
    recipe: Recipe, schema: object, array: object, width: int, height: int, draws: Sequence[Any], out: torch.Tensor
) -> bool | str:
    """Write what the recipe makes of a Pillow image into `out`, in the calling thread.

    schema and array are what the image's __arrow_c_array__ returns. draws holds, for each operation, what was drawn:
    (top, left, height, width) of a random crop or erasing, whether to flip, Effects, or None. Returns whether the image
    has no info after a step, as it added pixels around the image, say; or why Python must do it, `out` is then
    undefined. Raises ValueError for draws that fit no operation.
    """

def transform_tensor(recipe: Recipe, image: torch.Tensor, draws: Sequence[Any], out: torch.Tensor) -> bool | str:
    """Write what the recipe makes of a uint8 tensor (channels, height, width) into `out`; else as transform_image().

    Its channels lie side by side, or one behind the other.
    """

def decode_tensor(
    data: torch.Tensor, room: Callable[[int, int, int], torch.Tensor], grey: bool, rgb: bool
) -> torch.Tensor | str:
    """Return what `room`, called with (height, width, channels), gave for the pixels of a JPEG file; or why not.

    An image in grey has one channel, or three with `rgb`; others have three, and are left with `grey`.
    """

def certify_jpeg(data: bytes) -> tuple[int, int, int, int] | str:
    """Return (width, height, components, end) of a JPEG file that Pillow decodes without an error; or why not.

    Known of sequential files of one scan: Pillow gives pixels whatever their entropy-coded data hold. `end` is the
    position after the end-of-image marker, where Pillow stops.
    """

def transform_jpeg(recipe: Recipe, data: bytes, draws: Sequence[Any], out: torch.Tensor) -> bool | str:
    """Write what the recipe makes of a JPEG file's RGB pixels into `out`, decoding no more than it needs.

    draws, the result and what is raised are those of transform_image().
    """

def take_integers(values: list[Any], positions: NDArray[np.int64], out: NDArray[np.int64]) -> bool:
    """Write the values at these positions to `out`. False: one is not an int itself, does not fit, or is not in the
    list; what is written then is undefined. Raises ValueError where `out` is not as long as the positions.
    """

class ArrowColumn:
    """A column of an Arrow table. Any thread may read it; it holds the arrays of its chunks."""

    rows: int

    def __init__(self) -> None: ...
    def add(self, schema: object, array: object, sizes: list[int]) -> None:
        """Add the rows of an array, which is moved here.

        Args:
            schema, array: capsules of the Arrow C data interface.
            sizes: of the array's buffers, and of its children's, in bytes: depth first, those of a dictionary last.

        Raises ValueError for types that are not read here, and for buffers that are too small.
        """

    def objects(self, rows: NDArray[np.int64]) -> list[Any]:
        """Return what pyarrow's to_pylist() gives for rows. Raises IndexError, and ValueError of a damaged file."""

    def has_nulls(self, rows: NDArray[np.int64]) -> bool:
        """Return whether one of the rows, or a value within one, is null."""

    def write_lengths(self, rows: NDArray[np.int64], out: int) -> bool:
        """Write the numbers of elements of lists to an address, as int64. False: a row is null, or is not a list."""

    def write_flat(self, rows: NDArray[np.int64], out: int, room: int, dtype: str) -> bool:
        """Write the numbers of rows to an address, one row behind another: each one, or the elements of a list.

        False: one is null, or there are not `room` of them. Raises ValueError for types that are not converted.
        """

    def write_padded(self, rows: NDArray[np.int64], out: int, width: int, dtype: str, fill: bytes, left: bool) -> bool:
        """Write lists of numbers to an address as rows of `width`: longer ones are cut, shorter ones are filled.

        Args:
            fill: one element of the dtype.
            left: it stands before the numbers, else behind them.

        False: a row, or one of its numbers, is null. Raises ValueError for types that are not converted.
        """

def gather_rows(
    array: int, rows: int, stride: int, row_bytes: int, numbers: int, count: int, out: int, windows: bool
) -> bool:
    """Copy rows of an array, one behind another. False, and nothing is written: a number is not that of a row.

    Args:
        array: the address of row 0; row k lies k * stride bytes from it. The caller holds all memory.
        numbers: the address of the numbers of `count` rows, int64.
        out: the address of count * row_bytes bytes.
        windows: negative numbers are none of rows; False: they count from the end.
    """

class ColumnRows:
    """Columns of one length, in memory that the caller holds, whose elements are gathered as rows of one dtype."""

    def __init__(self, rows: int, dtype: str) -> None: ...
    def add(self, address: int, stride: int, dtype: str) -> bool:
        """Add a column whose elements lie `stride` bytes apart. False: they are not converted here."""

    def gather(self, numbers: int, count: int, out: int) -> bool:
        """Write rows one behind another, as `gather_rows` does. Negative numbers count from the end."""

def write_integers(values: list[Any], out: int) -> bool:
    """Write values to an address as int64. False: one is not an int itself, or does not fit."""

class Stacker:
    """Copies plain tensors into rows of a batch.

    Args:
        kind: torch.Tensor.
        api: its __dlpack_c_exchange_api__.

    Raises:
        ValueError: an API of another DLPack than version 1.
    """

    def __init__(self, kind: type, api: object) -> None: ...
    def stack(self, out: torch.Tensor, begin: int, values: list[Any]) -> bool:
        """Copy values to out[begin:], which is contiguous. False: one of them is not `kind` itself, contiguous, on the
        CPU, and of the rows' dtype and shape; what is written then is undefined. Lazy signs are not looked at.
        """

class Program:
    """For each source of a dataset, one filler a field. Immutable."""

    def __init__(self, sources: list[list[Filler]]) -> None: ...

class PreparedBatch:
    """A batch that lacks its memory: what Pool.prepare() returns and Pool.submit() takes."""

class PythonJob:
    """A row that Python must fill."""

    @property
    def batch(self) -> int: ...
    @property
    def sample(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def field(self) -> int: ...
    @property
    def reason(self) -> str: ...

Failure = tuple[int, int, str, int, str | None, str, tuple[int, ...]]
"""(position, field, code, errno, reason, dtype, shape); code is "python", "io", "escapes" or "mismatch"."""

def count_stages(enabled: bool) -> None:
    """Set whether pools that are made from now on count what their stages take: for benchmarks of the count itself."""

def ready_seconds() -> float:
    """Return how long the calling thread has waited for a CPU so far, ready to run; 0.0: the kernel does not tell."""

class ThreadClock:
    """Where the time of the thread that makes it goes, from then on."""

    def __init__(self) -> None: ...
    def lap(self, nanoseconds: int) -> tuple[int, int, int]:
        """Return, of the time since the last call, which took so long: (nanoseconds on a CPU, nanoseconds ready to run,
        bytes that storage gave). The last two are 0 where the thread was off the CPU for less than 50 us.
        """

class CpuShare:
    """Keeps the thread that makes it at its share of the CPUs beside other programs, once it waits for one."""

    def __init__(self) -> None: ...
    def look(self) -> None:
        """Look whether the calling thread waits for CPUs: at most every 20 ms."""

    @property
    def keeps(self) -> bool:
        """Whether a thread wakes to keep the share."""

class NotedIndices:
    """Yields the indices of a batch, each noted in a record that another process can read.

    record: int64 words: kind of the index (1: a number), stage, index, when its sample began (ns, CLOCK_MONOTONIC).
    describe: called with each index that is not an int of 64 bits, which it notes.
    """

    def __init__(self, record: Buffer, indices: Iterable[Any], describe: Callable[[Any], object]) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...

class LoopCounter:
    """What the loop over a loader's batches does with its time, added up. Any thread may call any method."""

    def __init__(self) -> None: ...
    def add(self, waited: float, worked: float | None, in_flight: int = 0) -> None:
        """Count a batch that was waited for.

        worked: seconds between the batch before and the call for this one; None: it is the first of its pass.
        """

    def hand_out(self, samples: int) -> None:
        """Count a batch that is handed out, and its samples."""

    def add_work(self, seconds: float) -> None:
        """Count what a loop did with the last batch of its pass."""

    def light(self, seconds: float) -> bool:
        """Return whether passes in the caller's thread read their samples in less than so many seconds each."""

    def counts(self) -> tuple[int, int, float, float, float, float, tuple[int, ...]]:
        """Return (batches, in_flight, waited, first_waited, worked, longest_wait, waits): see LoopTimes."""

    def direct(self) -> tuple[int, int, tuple[tuple[float, int, float, int, float], ...]]:
        """Return batches and samples that were handed out, and the fields of observe.StageTime that passes in the
        caller's thread counted for each stage in observe.CALLER_STAGES.
        """

class WorkClock:
    """The clock of one piece of work of the calling thread, which begins when this is made.

    stage: its number in observe.CALLER_STAGES.
    """

    def __init__(self, counter: LoopCounter, stage: int) -> None: ...
    def end(self, samples: int) -> float:
        """Count the work, which is done, and return its seconds."""

    @property
    def begun(self) -> float:
        """When it began, by time.perf_counter()."""

class CallerClock:
    """The clock of one pass in the caller's thread."""

    def __init__(self, counter: LoopCounter) -> None: ...
    def called(self) -> None:
        """Take note that next() is called."""

    def read(self) -> None:
        """Take note that the samples of the batch are there."""

    def made(self, samples: int, iterated: bool = False) -> None:
        """Count the stages of a batch that is made. iterated: it took one, going through an iterable dataset."""

    def handed(self, number: int, every: float, looked: float, brief: float) -> bool:
        """Count batch `number` (from 1 on), which is handed out; a second call for it counts nothing.

        Returns whether CPU times are due: `every` so many seconds, and at the first batch of a pass where they were
        last `looked` at (by time.perf_counter()) more than `brief` seconds ago.
        """

    def failed(self) -> None:
        """Take note of an error in the place of a batch."""

    def ended(self) -> bool:
        """Take note of the end of the pass; return whether a batch of it came."""

    def moments(self) -> tuple[float, float, float]:
        """Return when next() was called, when the samples were there and when the batch was made."""

    @property
    def samples(self) -> int:
        """Samples of the latest batch."""

class Pool:
    """Worker threads that fill batches. Raises RuntimeError in a process forked off from its own."""

    def __init__(
        self, program: Program, threads: int, readers: int = 0, ahead_bytes: int = 0, recorded: bool = False
    ) -> None:
        """Start the threads; where reads block, up to `readers` more read files ahead and hold so many bytes.

        recorded: take_spans() says what each thread did.
        """

    def take_spans(self) -> list[tuple[str, str, float, float, int]]:
        """Return what each worker did since the last call, a batch at a time, and each reader, a file at a time.

        Each is the thread's name ("calling thread": one that calls run_here or wait), the stage that took most of the
        time, begin and end by time.perf_counter(), and samples. A worker keeps 16,384 pieces that were not taken, and
        as many all readers together.
        """

    def prepare(
        self,
        seed: int,
        epoch: int,
        local: NDArray[np.int64],
        sample: NDArray[np.int64],
        position: NDArray[np.int64],
        source: NDArray[np.int32] | None,
        names: bytes | None,
    ) -> PreparedBatch:
        """Return a batch without its memory, which readers know of until it is submitted or released.

        Args:
            local: the samples in their sources.
            sample: the samples in the whole dataset, of which random draws depend.
            position: where the samples stand in the epoch's order, of which random draws depend.
            source: the source of each sample; None: source 0.
            names: the files, each followed by a NUL, where the source has no table of them.

        Raises ValueError, IndexError.
        """

    def submit(self, batch: PreparedBatch, fields: list[tuple[object, int, int, Spec]], staged: bool = False) -> int:
        """Queue a batch and return its number.

        Args:
            batch: of this pool, not submitted yet.
            fields: of each field what holds the memory of its rows (it is kept until the batch is retired), the
                address, the bytes there, and the rows' Spec.
            staged: images in memory are copied here, and worked on later; rows of arrays are not.

        Raises ValueError.
        """

    def run_here(self, number: int) -> None:
        """Fill what is left of a batch in the calling thread; the workers do too."""

    def wait(self, number: int, seconds: float) -> str:
        """Wait: "done", "python" (rows wait for Python and nobody serves them), "timeout" or "closed".

        0 seconds waits for ever. Signals are seen.
        """

    def at_hand(self, number: int) -> bool:
        """Return whether wait() would not wait: at the most it fills the batch itself."""

    def retire(self, number: int) -> list[Failure]:
        """Forget a finished batch and return what failed in it."""

    def add_python_server(self) -> None:
        """Say that threads serve take_python from now on."""

    def take_python(self, block: bool) -> PythonJob | None:
        """Return the next row for Python. None: there is none now; with block, the pool is closed."""

    def finish_tensor(self, job: PythonJob, data: NDArray[np.uint8], spec: Spec) -> None:
        """Finish a row with a tensor's bytes."""

    def finish_pixels(self, job: PythonJob, pixels: NDArray[np.uint8]) -> str | None:
        """Finish a row with an image's pixels; or leave it and return why they cannot be used."""

    def fail_python(self, job: PythonJob) -> None:
        """Finish a row as failed; the error stays in Python."""

    def busy(self) -> list[tuple[int, int, float]]:
        """Return (batch, position in it, seconds since it was taken) of each sample that is being read natively now.

        Samples in memory are taken a few at once: seconds are then since the first of them.
        """

    def stages(self) -> list[tuple[str, float, int]]:
        """Return (stage, seconds, samples) for each stage that any sample has come through since the pool was made.

        The seconds are those of all threads together, the callers of run_here, wait and finish_pixels among them. A
        sample counts each time that it goes through a stage; one that fails there does not, but for a wrong CRC-32. Of
        samples in memory each field counts, at once, and its seconds when the thread is done with its part of the
        batch. May be called in any thread and after close(); it waits for nothing.

        The stages:
            "open": a file is opened by its name.
            "read": its bytes are read.
            "check": the CRC-32 of a tensor's elements.
            "decode": a JPEG becomes pixels.
            "resize": all that a recipe does before its last pass.
            "convert": that pass into the row: crops, flips, pads, element type, normalisation.
            "write": elements that were read aside are copied into the row.
            "gather": a row of an array in memory is copied into the row.
            "wait": a worker waits for a file that a reader is bringing.
            "read_ahead": a reader opens a file and brings its bytes: seconds of readers, not of workers.
        """

    @property
    def read_depth(self) -> int:
        """The number of readers at work: 0 where reads do not block."""

    def start_readers(self) -> None:
        """Start readers, whether or not reads block: for tests. They cease where reads do not."""

    def reading(self) -> dict[str, int]:
        """Return what readers have done since the pool was made. May be called in any thread and after close().

        The counts:
            "depth": readers at work now.
            "deepest": the most that there were at a time.
            "ahead": samples whose file a reader had brought when a worker came for it.
            "awaited": samples for which a worker waited until a reader had brought it.
            "direct": samples that workers read themselves while readers were at work.
            "seen": reads at which it was seen whether the thread sleeps for them.
            "blocked": of these, those that did.
            "bytes": of the files that readers brought.
            "most_held": the most bytes that were held ahead at a time.
        """

    def close(self) -> None: ...
    @property
    def abandoned(self) -> bool:
        """Whether this is a process forked off from the pool's own."""

class TorchLoader:
    """Makes the objects of torch.save files, as torch.load(weights_only=True) does.

    Nothing that a file names is looked up or called. Storages own their memory and cannot be resized by torch. Any
    number of threads may use one loader at once; Python's lock is released while a file is read and parsed.

    Args:
        api: torch.Tensor.__dlpack_c_exchange_api__, or torch's function that makes a tensor of a DLPack capsule.
        dtypes: torch's, in the order of DType in native/tensor/dtype.h; None for one that it lacks.
        view: called as view(bytes, dtype, offset, size, stride) for a tensor that is not all of its storage.
        parameter: torch._utils._rebuild_parameter.
        size: torch.Size.
        ordered_dict: collections.OrderedDict.
        increment_version: called with a list of tensors that were written.
        refused: makes of a reason, a str, what is returned for a file that is left to torch.load.

    Raises:
        ValueError: an API of another DLPack than version 1.
    """

    def __init__(
        self,
        api: object,
        dtypes: Sequence[torch.dtype | None],
        view: Callable[..., torch.Tensor],
        parameter: Callable[..., torch.Tensor],
        size: type,
        ordered_dict: type,
        increment_version: Callable[[list[torch.Tensor]], None],
        refused: Callable[[str], object],
    ) -> None: ...
    def path(self, path: str, anywhere: bool) -> Any:
        """Return what the file holds, or a refusal; anywhere: tensors of other devices count as the CPU's."""

    def descriptor(self, fd: int, start: int, anywhere: bool) -> tuple[Any, int]:
        """Return the same for an open file from `start` on, and where torch.load leaves the position."""

    def bytes(self, bytes: bytes, start: int, anywhere: bool) -> tuple[Any, int]:
        """Return the same for a file in memory."""

    def parts(self, fd: int, start: int, asked: list[tuple[int, list[int], int, int]]) -> Any:
        """Return the tensors that lie one behind another from `start` to the end of an open file, or a refusal.

        asked: of each, the number of its dtype, its shape, and its begin and end behind `start`. Each has a storage of
        its own.
        """

class NumpyLoader:
    """Makes the arrays of .npy files, in one dimension and the order of the file.

    Any number of threads may use one loader at once; Python's lock is released while a file is read and parsed.

    Args:
        empty: numpy.empty.
        dtypes: numpy's, in the order of DType in native/tensor/dtype.h; None: there is none.
        refused: makes of a reason, a str, what is returned for a file that is left to numpy.load.
    """

    def __init__(
        self, empty: Callable[..., Any], dtypes: list[np.dtype[Any] | None], refused: Callable[[str], object]
    ) -> None: ...
    def path(self, path: str) -> Any:
        """Return a refusal or (array, shape, whether it is in Fortran's order, bytes of the file up to its end)."""

    def descriptor(self, fd: int, start: int) -> Any:
        """Return the same for an open file from `start` on."""

    def bytes(self, bytes: bytes, start: int) -> Any:
        """Return the same for a file in memory."""

    def part(self, path: str, dtype: np.dtype[Any], element: int, count: int, offset: int) -> Any:
        """Return a refusal or the elements of a file from `offset` on, as numpy.fromfile does.

        element: bytes of one. count: at most so many; -1: all.
        """

    def archive(self, fd: int) -> Any:
        """Return a refusal or the NpzArchive of an open file, which the caller keeps open."""

    def member(self, archive: NpzArchive, index: int) -> Any:
        """Return a refusal or (array, shape, whether it is in Fortran's order) of a record of an archive."""

class OpenCvLoader:
    """Makes the arrays of JPEG files that jpeg/ decodes, as OpenCV has them before it turns them.

    Any number of threads may use one loader at once; Python's lock is released while a file is read and decoded.

    Args:
        empty: numpy.empty, of bytes.
        refused: makes of a reason, a str, what is returned for a file that is left to OpenCV.
    """

    def __init__(self, empty: Callable[..., Any], refused: Callable[[str], object]) -> None: ...
    def path(self, path: str, channels: int, rgb: bool) -> Any:
        """Return a refusal or (array, the application segments of the file where they may hold an orientation).

        Args:
            path: of the file.
            channels: 1 (luma of a file in colours), 3, or 0: those of the file.
            rgb: red comes first, not blue.
        """

    def bytes(self, bytes: NDArray[np.uint8], channels: int, rgb: bool) -> Any:
        """Return the same for a file in memory."""

class NpzArchive:
    """Where the records of an .npz archive lie."""

    def names(self) -> list[str]:
        """Return the names of the records, in the order of the file."""

class WavLoader:
    """Reads ranges of WAV files. Any number of threads may use one at once; Python's lock is released while it reads.

    A file that is left to another library is a refusal. What is found in a file of a code that is not among those of
    `trusted`, a mask, is the number of the code: an index of WavCode in native/tensor/wav_file.h.

    Args:
        numpy_empty: numpy.empty.
        dtypes: numpy's for float64, float32, int32 and int16.
        torch_empty: makes a tensor of float32 of a shape.
        refused: makes of a reason, a str, what is returned for a file that is left to another library.
    """

    def __init__(
        self,
        numpy_empty: Callable[..., Any],
        dtypes: list[np.dtype[Any]],
        torch_empty: Callable[..., torch.Tensor],
        refused: Callable[[str], object],
    ) -> None: ...
    def describe(self, path: str) -> Any:
        """Return (frames, channels, frames a second, code) or a refusal."""

    def array(
        self, source: str | bytes, start: int, stop: int, frames: int, value: int, always_2d: bool, trusted: int
    ) -> Any:
        """Return (array of shape (frames, channels) or (frames,), frames a second, end), a refusal or a code.

        end: of the frames in the file. source: a path, or the bytes of a file. start, stop: as of a slice. frames: at
        most so many; negative: up to stop. value: an index of dtypes.
        """

    def tensor(self, source: str | bytes, start: int, frames: int, trusted: int, plain: bool) -> Any:
        """Return (tensor of shape (channels, frames), frames a second), a refusal or a code; frames below 0: all.

        plain: refuse what FFmpeg might read in another way: more than two channels, S/PDIF, DTS.
        """
