"""The rank of this process as its launcher's variables say it, before a process group runs."""

from __future__ import annotations

import os
import sys
from typing import Any

from penstock.errors import InvalidOption

# Variables of torchrun, of programs that are about to make a process group, and of launchers that name ranks otherwise.
_OF_TORCH = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_COUNTS_ELSEWHERE = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "MV2_COMM_WORLD_SIZE")

_WAY_OUT = (
    "call torch.distributed.init_process_group() before the first pass, or give shard=(rank, number of ranks); "
    "shard=None reads the whole dataset in every process"
)


def launched_as() -> tuple[int, int] | None:
    """Return (rank, ranks) of Ray Train's worker, or of RANK and WORLD_SIZE, as torchrun sets them.

    None: nothing says that there are other ranks.

    Raises:
        InvalidOption: one of the two is missing or no number, they contradict each other or LOCAL_RANK and
            LOCAL_WORLD_SIZE, or another launcher has started several processes.
    """
    if (in_train := _in_ray_train()) is not None:
        return in_train
    rank, world = (os.environ.get(name, "").strip() for name in ("RANK", "WORLD_SIZE"))
    if rank and world:
        if not (rank.isdecimal() and world.isdecimal() and int(rank) < int(world)):
            said = f"RANK={rank} and WORLD_SIZE={world} are not a rank and a number of ranks"
            raise InvalidOption(f"shard='auto': {said}")
        for name, bound in (("LOCAL_RANK", int(rank)), ("LOCAL_WORLD_SIZE", int(world))):
            local = os.environ.get(name, "").strip()
            if local.isdecimal() and int(local) > bound:
                raise InvalidOption(
                    f"shard='auto': RANK={rank} and WORLD_SIZE={world} contradict {name}={local}; {_WAY_OUT}"
                )
        return int(rank), int(world)
    if rank or world:
        has, lacks = ("RANK", "WORLD_SIZE") if rank else ("WORLD_SIZE", "RANK")
        raise InvalidOption(f"shard='auto': {has}={rank or world} is set, and {lacks} is not; {_WAY_OUT}")
    launched = [name for name in _OF_TORCH if os.environ.get(name)]
    launched += [
        name for name in _COUNTS_ELSEWHERE if (count := os.environ.get(name, "")).isdecimal() and int(count) > 1
    ]
    if launched:
        names = " and ".join(f"{name}={os.environ[name]}" for name in launched)
        raise InvalidOption(
            f"shard='auto': {names} says that this may be one of several processes, and RANK and WORLD_SIZE are not "
            f"set to say which; {_WAY_OUT}"
        )
    return None


def _in_ray_train() -> tuple[int, int] | None:
    """Return (rank, ranks) where this process is a worker of Ray Train, which has imported ray.train then."""
    train: Any = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        found = context.get_world_rank(), context.get_world_size()
    except Exception:  # of whatever kind: this is not a worker
        return None
    return found if all(type(number) is int for number in found) else None


def rank_here(variable: str = "RANK") -> int:
    """Return the rank of this process as torchrun has set it, 0 where nothing has. variable: or "LOCAL_RANK"."""
    rank = os.environ.get(variable, "").strip()
    return int(rank) if rank.isdecimal() else 0
