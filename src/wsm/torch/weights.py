"""Parameters and persistent buffers of torch modules: released, loaded, and staged beside those that serve.

Every ``Parameter`` object stays the one that the model computes with; its memory goes and comes. Contiguous
memory of the host is written where it lies. All else (devices, strided tensors) is written into a copy on
the host, one tensor at a time, and moved when it is complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from wsm.actions.backends import unsupported_tensor
from wsm.errors import GroupError
from wsm.strategies.dtype_names import DTYPES_BY_NAME
from wsm.strategies.tensor import TensorReleasedError, TensorSpec


@dataclass(frozen=True)
class _TensorLayout:
    """How a tensor lies in memory, whether or not it holds any."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_contiguous: bool

    @classmethod
    def of(cls, tensor: Tensor) -> _TensorLayout:
        shape = tuple(tensor.shape)
        return cls(shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_contiguous())

    def is_plain(self) -> bool:
        """Whether its bytes can be written where they lie."""
        return self.device.type == "cpu" and self.is_contiguous

    def new(self) -> Tensor:
        with torch.inference_mode(mode=False):  # whatever the engine's loop is in: it is to be written later
            return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} with strides {list(self.strides)} on {self.device}"


@dataclass(frozen=True)
class _Place:
    """Where a module keeps a tensor."""

    owner: nn.Module
    attribute: str
    tensor: Tensor

    def is_kept(self) -> bool:
        return getattr(self.owner, self.attribute, None) is self.tensor


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the host; they keep its memory."""
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())


class _Tensors(ABC):
    """Tensors whose bytes are written and read by name."""

    def __init__(
        self, specs: Mapping[str, TensorSpec], tied: Mapping[str, str], layouts: Mapping[str, _TensorLayout]
    ) -> None:
        self._specs = specs
        self.tied = tied
        self._layouts = layouts
        self._on_host: dict[str, Tensor] = {}
        # What a target has says what it can do: memory of the host alone is admitted as such.
        if not all(layout.is_plain() for layout in layouts.values()):
            self.written = self._move

    def specs(self) -> Mapping[str, TensorSpec]:
        """Name, shape and dtype of every tensor, tied ones once."""
        return self._specs

    def writable(self, name: str) -> memoryview:
        """Return host memory for the tensor's bytes: its own, or what ``written(name)`` moves to it."""
        if not self._specs[name].nbytes:
            return memoryview(bytearray())
        tensor = self._allocated(name)
        if not self._layouts[name].is_plain():
            tensor = self._on_host[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        return _bytes_of(tensor)

    def _move(self, name: str) -> None:
        on_host = self._on_host.pop(name, None)
        if on_host is not None:
            self._held(name).copy_(on_host)

    def readable(self, name: str) -> memoryview:
        """Return the tensor's bytes, read-only: a copy unless it is contiguous memory of the host. Blocks."""
        if not self._specs[name].nbytes:
            return memoryview(b"")
        return _bytes_of(self._held(name).cpu().contiguous()).toreadonly()

    @abstractmethod
    def _allocated(self, name: str) -> Tensor:
        """Return the tensor that is written, detached, in new memory if it has none."""

    @abstractmethod
    def _held(self, name: str) -> Tensor:
        """Return the tensor, detached; raise TensorReleasedError if it has no memory."""


class TorchWeights(_Tensors):
    """One rank's model shard as a :class:`wsm.actions.surfaces.WeightSurface`.

    Parameters
    ----------
    modules : torch.nn.Module or mapping of str to torch.nn.Module
        The model, on its device and not released; or several by the prefix that their tensor names get.
        What counts is what ``state_dict()`` names: parameters and persistent buffers. A tensor that several
        names share is kept under the first, and `tied` maps the others to it.
    excluded : collection of str
        Patterns (:mod:`fnmatch`) of names that no version holds; those tensors stay as the module has them.

    Raises
    ------
    BadInputError (``unsupported-tensor``)
        If an entry is no plain tensor of one of safetensors' dtypes, lies on the meta device, is made by a
        hook of ``state_dict()``, or shares a part of its memory with another one.

    Notes
    -----
    A loader that puts another parameter in the place of one is noticed when that is used next: GroupError
    (``tensor-changed``). Views and slices of a parameter that others keep also keep its memory after
    :meth:`release`, and do not follow a flip.
    """

    def __init__(
        self, modules: nn.Module | Mapping[str, nn.Module], *, excluded: Collection[str] = ()
    ) -> None:
        self._places: dict[str, list[_Place]] = {}
        layouts: dict[str, _TensorLayout] = {}
        specs: dict[str, TensorSpec] = {}
        tied: dict[str, str] = {}
        named = modules if isinstance(modules, Mapping) else {"": modules}
        first: dict[object, str] = {}
        for prefix, module in named.items():
            for inner, tensor in module.state_dict(keep_vars=True).items():
                name = prefix + inner
                if any(fnmatchcase(name, pattern) for pattern in excluded):
                    continue
                place = _place_of(module, inner, name, tensor)
                layout = _TensorLayout.of(tensor)
                same = (layout, tensor.data_ptr()) if tensor.numel() else id(tensor)
                if same in first:
                    tied[name] = first[same]
                    self._places[first[same]].append(place)
                    continue
                first[same] = name
                specs[name] = TensorSpec(name, DTYPES_BY_NAME[_dtype_name(tensor)], layout.shape)
                layouts[name] = layout
                self._places[name] = [place]
        super().__init__(specs, tied, layouts)
        self._refuse_overlaps()

    def held(self) -> Iterator[str]:
        """Iterate over the names of tensors that hold memory; tensors of size zero never do."""
        return (
            name
            for name, spec in self._specs.items()
            if spec.nbytes and any(place.tensor.numel() for place in self._places[name])
        )

    def release(self) -> int:
        """Let go of the memory of every tensor; return its bytes. Idempotent."""
        self.synchronize()
        self._on_host.clear()
        freed = 0
        for name in list(self.held()):
            layout = self._layouts[name]
            self.exchange(name, torch.empty(0, dtype=layout.dtype, device=layout.device))
            freed += self._specs[name].nbytes
        for name in self._specs:
            self.current(name)  # another parameter's memory is none that this has let go
        return freed

    def addresses(self) -> Mapping[str, int]:
        """Address of the first byte of every held tensor."""
        return {name: self.address(name) for name in self.held()}

    def address(self, name: str) -> int:
        """Return where the first byte lies; 0 if the modules have another tensor, or it holds no memory."""
        places = self._places[name]
        found = {int(place.tensor.data_ptr()) if place.is_kept() else 0 for place in places}
        return found.pop() if len(found) == 1 else 0

    def stage(self) -> TorchStaging:
        """Begin a second version beside this one; takes no memory yet."""
        return TorchStaging(self, self._layouts)

    def current(self, name: str) -> Tensor:
        """Return the tensor that serves, detached, of size zero if it was released.

        Raises
        ------
        GroupError (``tensor-changed``)
            If the modules have another one now, or it lies otherwise in memory.
        """
        places, expected = self._places[name], self._layouts[name]
        tensor = places[0].tensor.detach()
        lies = _TensorLayout.of(tensor)
        kept = all(place.is_kept() for place in places) and (not tensor.numel() or self.address(name))
        if kept and (lies == expected or not tensor.numel()):
            return tensor
        found = str(lies) if kept else "another parameter"
        raise GroupError(
            f"tensor {name!r} was {expected} and is {found} now; what replaces parameters behind wsm cannot "
            "be served by it: let it write into them, or make TorchWeights of the module anew",
            code="tensor-changed",
            tensor=name,
            expected=str(expected),
            found=found,
        )

    def exchange(self, name: str, tensor: Tensor) -> Tensor:
        """Let the parameter live in the memory of `tensor`; return what it lived in. Copies nothing."""
        before = self._places[name][0].tensor.detach()
        for place in self._places[name]:
            place.tensor.data = tensor
        return before

    def synchronize(self) -> None:
        """Wait until the devices have done what reads or writes the tensors."""
        for device in {layout.device for layout in self._layouts.values()}:
            if device.type != "cpu":
                torch.get_device_module(device).synchronize(device)

    def _allocated(self, name: str) -> Tensor:
        if not self.current(name).numel():
            self.exchange(name, self._layouts[name].new())
        return self.current(name)

    def _held(self, name: str) -> Tensor:
        tensor = self.current(name)
        if not tensor.numel():
            raise TensorReleasedError(tensor=name)
        return tensor

    def _refuse_overlaps(self) -> None:
        """Refuse a tensor that is a view of another one: new memory for the one would leave the other."""
        ends: dict[torch.device, tuple[int, str]] = {}
        held = [(self._places[name][0].tensor, name) for name in self.held()]
        for tensor, name in sorted(held, key=lambda each: each[0].data_ptr()):
            end, before = ends.get(tensor.device, (0, ""))
            if tensor.data_ptr() < end:
                raise _unfit(name, f"in memory that it shares with {before!r}")
            reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
            ends[tensor.device] = tensor.data_ptr() + (reach + 1) * tensor.element_size(), name


class TorchStaging(_Tensors):
    """A second version of a shard beside the one that serves: a :class:`wsm.actions.surfaces.StagedWeights`.

    Its flip gives every parameter the staged memory, which copies nothing; the bytes of captured tensors are
    copied to where those lie.
    """

    def __init__(self, weights: TorchWeights, layouts: Mapping[str, _TensorLayout]) -> None:
        super().__init__(weights.specs(), weights.tied, layouts)
        self._weights = weights
        self._beside: dict[str, Tensor] = {}
        self._captured: frozenset[str] = frozenset()
        self._addresses: dict[str, int] = {}
        self._left: list[str] = []
        self._is_ready = False

    def served(self, name: str) -> memoryview:
        """Return the bytes of the tensor that serves, read-only."""
        return self._weights.readable(name)

    def make_ready(self, captured: frozenset[str]) -> None:
        """See that every tensor is staged, and that the one whose place it takes serves."""
        names = [name for name, spec in self._specs.items() if spec.nbytes]
        addresses = {}
        for name in names:
            staged, serving = self._held(name), self._weights.current(name)
            if not serving.numel():
                raise TensorReleasedError(tensor=name)
            addresses[name] = (serving if name in captured else staged).data_ptr()
        self._captured, self._addresses, self._left = captured, addresses, names
        self._is_ready = True

    def is_ready(self) -> bool:
        """Whether every tensor is staged and was compared with the one whose place it takes."""
        return self._is_ready

    def flip(self) -> None:
        """Give every parameter what was staged for it. Goes on where it raised."""
        copied = False
        while self._left:
            name = self._left[-1]
            if name in self._captured:
                self._weights.current(name).copy_(self._beside[name])
                copied = True
            elif self._weights.address(name) != self._addresses[name]:
                self._beside[name] = self._weights.exchange(name, self._beside[name])
            self._left.pop()
        if copied:
            self._weights.synchronize()

    def unflipped(self) -> str | None:
        """Return the first tensor that does not serve what was staged for it; None if all do."""
        if not self._is_ready:
            return next((name for name, spec in self._specs.items() if spec.nbytes), None)
        if self._left:
            return self._left[-1]
        lies = self._weights.address
        return next((name for name, at in self._addresses.items() if lies(name) != at), None)

    def give_back(self) -> int:
        """Let go of what does not serve, one tensor at a time; return its bytes. Idempotent."""
        self._weights.synchronize()
        freed = sum(self._specs[name].nbytes for name in self._beside)
        self._is_ready = False
        self._left, self._addresses = [], {}
        self._on_host.clear()
        while self._beside:
            self._beside.popitem()
        return freed

    def _allocated(self, name: str) -> Tensor:
        if name not in self._beside:
            self._beside[name] = self._layouts[name].new()
        return self._beside[name]

    def _held(self, name: str) -> Tensor:
        if name not in self._beside:
            raise TensorReleasedError(tensor=name)
        return self._beside[name]


def _place_of(module: nn.Module, inner: str, name: str, tensor: object) -> _Place:
    """Return where a module keeps an entry of its state dict; refuse what wsm cannot release and load."""
    if not isinstance(tensor, Tensor):
        raise _unfit(name, f"a {type(tensor).__name__}")
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ or hasattr(tensor, "full_tensor"):
        raise _unfit(name, f"a {type(tensor).__name__}, which is no plain tensor")
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        raise _unfit(name, f"{tensor.layout} on {tensor.device}")
    if _dtype_name(tensor) not in DTYPES_BY_NAME:
        raise _unfit(name, f"of dtype {tensor.dtype}")
    if any(n > 1 and not step for n, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise _unfit(name, "expanded: several elements are one in memory")
    path, _, attribute = inner.rpartition(".")
    try:
        place = _Place(module.get_submodule(path), attribute, tensor)
    except AttributeError:
        place = None
    if place is None or not place.is_kept():
        raise _unfit(name, "made by a hook of state_dict(), and no parameter or buffer of that name")
    return place


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _unfit(name: str, found: str) -> Exception:
    supported = "plain strided tensors, each with memory of its own or tied as a whole"
    return unsupported_tensor(tensor=name, found=found, supported=supported)
