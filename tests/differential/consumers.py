"""What the loops of cases do with their batches; printed into the programs that name them.

Each is called with `make`, which makes the loader, and the log.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import itertools
import os
import pickle
import queue
import sys
import tempfile
import threading
import traceback
import warnings

import torch
import torch.multiprocessing
import torch.utils.dlpack

from tests.differential.values import Log, describe, generator_states, inmost, mapped, tensors_of


def batches_of(loader, log, most=200):
    """Yield a pass's batches, with a line for each of the first errors, behind which it ends; hold none.

    Those are more than the batches of any case: a pass that is left has drawn as far as its loader reads ahead.
    """
    errors, end = 0, False
    try:
        batches = iter(loader)
    except Exception as error:
        log.raised(error)
        end = True
    while not end and errors < most:
        try:
            yield next(batches)
        except StopIteration:
            log.note("end")
            end = True
        except Exception as error:
            log.raised(error)
            error.__traceback__ = None  # torch's holds the iterator in a cycle: its end would take 5 s a worker
            errors += 1


def drained(batches, log, receive, last):
    """Have each batch received, and let go of all but the last ones; hold none."""
    for batch in batches:
        receive(batch)
        del batch
        log.drop(last)


def each(make, log, receive, epochs=1, last=0):
    loader = make()
    for _ in range(epochs):
        drained(batches_of(loader, log), log, receive, last)


def hold(make, log, epochs=1, last=0):
    each(make, log, log.receive, epochs, last)


def told(make, log, epochs=2):
    """Tell the dataset of each epoch in memory that worker processes share."""
    loader = make()
    for epoch in range(epochs):
        loader.dataset.rows[0] = epoch + 1
        drained(batches_of(loader, log), log, log.receive, 0)


def changed(make, log, at=-1, epochs=2, last=2, exact=True):
    """Change the dataset behind batch `at` of each pass; tell what its code has left behind, where that is exact."""
    log.words = exact
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()) as printed:
        warnings.simplefilter("always")
        loader = make()
        dataset = inmost(loader.dataset)
        module = sys.modules[type(dataset).__module__]
        for _ in range(epochs):
            for number, batch in enumerate(batches_of(loader, log)):
                log.receive(batch)
                del batch
                if number == at:
                    try:
                        module.change(dataset)
                    except Exception as error:
                        log.raised(error)
                log.drop(last)
    if exact:
        left = vars(dataset), module.CALLS, module.OUT.getvalue(), printed.getvalue(), generator_states()
        log.note(describe(left))
    log.lines += [f"warned: {one.message}" for one in caught if "penstock" in str(one.message).lower()]


def unordered(make, log, epochs=1):
    loader = make()
    for _ in range(epochs):
        one = Log()
        for batch in batches_of(loader, one, most=1000):
            one.receive(batch)
        log.lines += sorted(one.lines)
        one.lines.clear()
        one.end()
        log.lines += one.lines


def _rest(tensor, how):
    if how == "row":
        return tensor[:1] if tensor.dim() else tensor
    if how == "element":
        return tensor.reshape(-1)[-1:]
    if how == "detached":
        return tensor.detach()
    if how == "storage":
        return tensor.untyped_storage()
    if how == "view":
        return tensor.view(torch.uint8) if tensor.dim() else tensor
    if how == "data":
        return tensor.data
    plain = tensor.detach().resolve_conj().resolve_neg()
    try:
        if how == "dlpack":
            return torch.utils.dlpack.from_dlpack(plain)
        return plain.numpy() if how == "array" else memoryview(plain.numpy())
    except (TypeError, BufferError, RuntimeError, ValueError):
        return tensor.detach()


def hold_rest(make, log, how, epochs=1, last=3):
    def receive(batch):
        log.receive(batch, keep=mapped(batch, lambda tensor: _rest(tensor, how)))
        gc.collect(0)

    each(make, log, receive, epochs, last)


def hold_one(make, log, epochs=1, last=3):
    numbers = itertools.count()

    def receive(batch):
        found, number = tensors_of(batch), next(numbers)
        log.receive(batch, keep=found[number % len(found)] if found else 0)

    each(make, log, receive, epochs, last)


def hold_for_backward(make, log, epochs=1):
    """Hold the very tensors in a graph: a product keeps its factor for the way back."""
    loader = make()
    weight = torch.ones((), requires_grad=True)
    losses = []
    for _ in range(epochs):
        for batch in batches_of(loader, log):
            losses += [
                (weight * tensor).reshape(-1)[:1].nan_to_num(0, 0, 0).sum()
                for tensor in tensors_of(batch)
                if tensor.dtype == torch.float32 and not tensor.requires_grad and tensor.layout == torch.strided
            ]
    for loss in losses:
        weight.grad = None
        loss.backward()
        log.note(f"gradient {weight.grad}")


def write(make, log, epochs=1, last=2):
    def receive(batch):
        log.note(describe(batch))
        for tensor in tensors_of(batch):
            try:
                with torch.no_grad():
                    tensor.zero_()
            except (RuntimeError, NotImplementedError) as error:
                log.raised(error)
        log.receive(batch)

    each(make, log, receive, epochs, last)


def copies(make, log, how, epochs=1, last=2):
    def receive(batch):
        try:
            if how == "saved":
                torch.save(batch, file := io.BytesIO())
                file.seek(0)
                copied = torch.load(file, weights_only=False)
            else:
                copied = copy.deepcopy(batch) if how == "deep" else pickle.loads(pickle.dumps(batch))
        except Exception as error:
            log.raised(error)
            copied = None
        log.receive((batch, copied))

    each(make, log, receive, epochs, last)


def in_thread(make, log, epochs=1, last=2):
    loader, batches = make(), queue.Queue[object](maxsize=2)

    def work():
        while (batch := batches.get()) is not None:
            try:
                log.receive(batch)
            except Exception as error:  # without an end of it: the caller waits for room in the queue
                log.raised(error)
            del batch
            log.drop(last)

    thread = threading.Thread(target=work)
    thread.start()
    passed = Log()
    for _ in range(epochs):
        for batch in batches_of(loader, passed):
            batches.put(batch)
            del batch
    batches.put(None)
    thread.join()
    log.lines += passed.lines


def _take(batches, taken):
    taken += [next(batches, None) for _ in range(2)]


def by_thread(make, log, epochs=1, last=2):
    loader = make()
    for _ in range(epochs):
        batches = batches_of(loader, log)
        while True:
            taken: list[object] = []
            thread = threading.Thread(target=_take, args=(batches, taken))
            thread.start()
            thread.join()
            for batch in taken:
                log.receive(batch)
            log.drop(last)
            if None in taken:
                break
            del taken, batch


def _receiving(there, back):
    log = Log()
    while (batch := there.get()) is not None:
        log.receive(batch)
        del batch
        back.put(log.lines[-1])
        log.drop(3)
    log.lines.clear()
    log.end()
    back.put(log.lines)


def to_process(make, log, epochs=1, last=2):
    context = torch.multiprocessing.get_context("fork")
    there, back = context.Queue(), context.Queue()
    process = context.Process(target=_receiving, args=(there, back), daemon=True)
    process.start()

    def receive(batch):
        log.receive(batch)
        if batch is not None:
            there.put(batch)
            log.note(back.get())

    each(make, log, receive, epochs, last)
    there.put(None)
    log.lines += back.get()
    process.join()


def leave(make, log, after, epochs=1, keep=False):
    loader = make()
    left: list[object] = []
    for number in range(epochs + 1):
        batches = batches_of(loader, log)
        for _ in range(after) if number < epochs else iter(int, 1):
            if (batch := next(batches, left)) is left:
                break
            log.receive(batch)
        log.note("left")
        if keep:
            left.append(batches)
        del batches


def two_passes(make, log, last=2, loaders=1):
    first = make()
    passes = [batches_of(first, log), batches_of(first if loaders == 1 else make(), log)]
    while passes:
        for one in list(passes):
            if (batch := next(one, log)) is log:
                passes.remove(one)
            else:
                log.receive(batch)
            del batch
        log.drop(last)


def fail(make, log, after, epochs=1):
    """Fail in the middle of a pass, with an error whose traceback holds the loop's names; then take a whole one."""
    loader = make()
    errors = []
    for _ in range(epochs):
        try:
            for number, batch in enumerate(loader):
                log.receive(batch)
                if number == after:
                    raise RuntimeError("bad step 1")
        except RuntimeError as error:
            log.raised(error)
            errors.append(error)
        log.drop(1)
    hold(lambda: loader, log)


def fork(make, log, after, then, epochs=1, last=2):
    """Fork in the middle of a pass: the child goes on with `then`, and the parent with its pass, both at once."""
    loader = make()
    hold(lambda: loader, log, epochs=epochs - 1, last=last)
    batches = batches_of(loader, log)
    drained((next(batches, None) for _ in range(after)), log, log.receive, last)
    with tempfile.TemporaryFile("w+") as file:
        child = os.fork()
        if not child:
            code = 1
            try:
                own = Log()
                if then != "nothing":
                    hold((lambda: loader) if then == "new pass" else make, own, epochs=epochs, last=last)
                own.end()
                log.end()
                file.write("\n".join([*own.lines, "held", *log.lines]))
                file.flush()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        drained(batches, log, log.receive, last)
        hold(lambda: loader, log, epochs=epochs, last=last)
        log.note(f"the child ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")
        file.seek(0)
        log.lines += file.read().splitlines()


def reset(make, log, epochs=1, last=2):
    ways = itertools.cycle((lambda tensor: tensor.set_(torch.UntypedStorage(0)), lambda tensor: tensor.resize_(0)))

    def receive(batch):
        empty = next(ways)
        for tensor in tensors_of(batch):
            with contextlib.suppress(RuntimeError), torch.no_grad():
                empty(tensor)
        log.receive(batch)

    each(make, log, receive, epochs, last)


def share(make, log, epochs=1, last=2):
    def receive(batch):
        mapped(batch, lambda tensor: tensor.share_memory_() if tensor.layout == torch.strided else tensor)
        log.receive(batch)

    each(make, log, receive, epochs, last)
