"""The parameters and persistable buffers of paddle layers, released and loaded in place, and staged beside.

Every ``Parameter`` object stays the one that the model computes with, only its memory goes and comes. Paddle
does not check dtype, shape and size of a shared buffer and reads a wrong one out of bounds: so this module
checks them.

What lies on a device goes through host memory: the applier writes one tensor at a time there, and each moves
when it is complete and verified. The calls are FastDeploy's own (``paddle.empty`` or a new tensor shared into
a released parameter, a copy into one that holds memory), so an update in place leaves captured addresses as
they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from wsm import log
from wsm.actions.backends import paddle_bytes, unsupported_tensor
from wsm.actions.backends.model_loading import carry_over
from wsm.actions.backends.paddle_bytes import adoption, carrier_name, safetensors_name
from wsm.errors import GroupError
from wsm.strategies.dtype_names import paddle_name
from wsm.strategies.tensor import ITEM_BYTES, TensorReleasedError, TensorSpec
from wsm.strategies.transposing import in_source_order, swapped_shape

_log = log.logger("weights")

#: What every byte holds of a parameter that a loader has to write: no float and no boolean is that.
_MARK = 0xFF

#: From so many bytes on, all bits set is no content of integers either.
_MANY_BYTES = 64

#: How much of a parameter is looked at in one piece.
BLOCK_BYTES = 1 << 20


class PaddleWeights:
    """One rank's model shard as a :class:`wsm.actions.surfaces.WeightSurface`.

    Parameters
    ----------
    layers : paddle.nn.Layer or mapping of str to paddle.nn.Layer
        The model; or several (auxiliary ones) by the prefix that their tensor names get, ``""`` for the main
        model. A tensor that two names share is kept under the first; `tied` maps the others to it.
    transposed : collection of str
        Parameters whose last two axes are exchanged in the model (paddle's layout, ``[in, out]``), beside a
        checkpoint in torch's. Not needed where a snapshot holds what the model holds, whatever
        ``weight_need_transpose`` says on a parameter, since that attribute speaks of checkpoints.

    Raises
    ------
    BadInputError (``unsupported-tensor``)
        If a tensor's dtype has no safetensors name, it does not lie in host memory (`on_host`), or it is said
        to be transposed and is no parameter of two axes or more.

    Notes
    -----
    A strided tensor is copied to contiguous memory of its own when it is seen first, with a warning in the
    log: what it was a view of does not follow its loads. A view that :meth:`writable` or :meth:`readable`
    returned keeps its memory alive after :meth:`release`, as does any slice, reshape or shared alias.
    """

    on_host = True

    def __init__(self, layers: Any, *, transposed: Collection[str] = ()) -> None:
        self._layers = layers if isinstance(layers, Mapping) else {"": layers}
        self._tensors: dict[str, Any] = {}
        self._specs: dict[str, TensorSpec] = {}
        self._declared: dict[str, TensorSpec] = {}
        self.tied: dict[str, str] = {}
        self.transposed = frozenset(transposed)
        self._capture()

    def _capture(self) -> None:
        tensors: dict[str, Any] = {}
        specs: dict[str, TensorSpec] = {}
        tied: dict[str, str] = {}
        first_names: dict[int, str] = {}
        for name, tensor in self._named():
            if id(tensor) in first_names:
                tied[name] = first_names[id(tensor)]
                continue
            first_names[id(tensor)] = name
            specs[name] = self._spec(name, tensor)
            tensors[name] = tensor
        self._tensors, self._specs, self.tied = tensors, specs, tied
        for name, tensor in self._tensors.items():
            if tensor._is_initialized() and not tensor.is_contiguous():
                self._copy_strided(name, tensor)
        self._declared = dict(self._specs)
        for name in sorted(self.transposed):
            self._declared[name] = self._turned(name)

    def _named(self) -> Iterator[tuple[str, Any]]:
        for prefix, layer in self._layers.items():
            for name, tensor in layer.state_dict().items():
                yield f"{prefix}{name}", tensor

    def _copy_strided(self, name: str, tensor: Any) -> None:
        strides = list(tensor.stride())
        tensor.contiguous()._share_buffer_to(tensor)
        self._require_contiguous(name, tensor)
        _log.warning("parameter.copied", name=name, shape=list(tensor.shape), strides=strides)

    def specs(self) -> Mapping[str, TensorSpec]:
        """Name, shape (that sources have; see `transposed`) and dtype of every tensor, tied ones once."""
        return self._declared

    def held(self) -> Iterator[str]:
        """Iterate over the names of tensors that hold memory; tensors of size zero never do."""
        for name, tensor in self._tensors.items():
            if self._specs[name].nbytes and tensor._is_initialized():
                yield name

    def release(self) -> int:
        """Let go of the memory of every tensor that the layers have now; return the bytes let go. Idempotent.

        Blocks below 128 KiB stay in the C allocator's heap until :meth:`HostMemory.empty_cache` trims it.
        """
        freed = 0
        known = set(map(id, self._tensors.values()))
        try:
            if any(id(tensor) not in known for _, tensor in self._named()):
                self.recapture()  # a loader that failed has put another tensor in the place of one
        finally:
            for name in list(self.held()):
                self._tensors[name]._clear_data()
                freed += self._specs[name].nbytes
        return freed

    def writable(self, name: str) -> memoryview:
        """Return the tensor's bytes for writing, in new memory if it was released."""
        spec = self._specs[name]
        if not spec.nbytes:
            return memoryview(bytearray())
        tensor = self._tensors[name]
        if not tensor._is_initialized():
            self._share_into(name, self.new_tensor(name))
        return self.bytes_of(self.tensor(name))

    def readable(self, name: str) -> memoryview:
        """Return the tensor's bytes, read-only, as the source has them: a copy of a transposed one."""
        spec = self._specs[name]
        if not spec.nbytes:
            return memoryview(b"")
        if not self._tensors[name]._is_initialized():
            raise TensorReleasedError(tensor=name)
        return self.as_declared(name, self.bytes_of(self.tensor(name)))

    def restore(self, spared: Collection[str] = (), *, over_all: bool = False) -> list[str]:
        """Give every tensor memory that holds none, and return the names of those that loaders must write.

        All bits of it are set, which no loaded weights are, so it shows what a loader has left out
        (:meth:`wsm.strategies.tensor.ReplaceableTarget.restore`).
        """
        marked = []
        for name, spec in self._specs.items():
            held = self._tensors[name]._is_initialized()
            if not spec.nbytes or (held and (name in spared or not over_all)):
                continue
            np.frombuffer(self.writable(name), np.uint8).fill(0 if name in spared else _MARK)
            self._filled(name)
            if name not in spared:
                marked.append(name)
        return marked

    def recapture(self, marked: Collection[str] = ()) -> dict[str, int]:
        """Look anew which tensors the layers have: loaders may have replaced some by others.

        A new parameter keeps what loaders had hung on the old one
        (:mod:`wsm.actions.backends.model_loading`). Returns how many elements of those in `marked` still hold
        what :meth:`restore` gave them, where any does.
        """
        before = self._tensors
        self._capture()
        for name, tensor in self._tensors.items():
            if name in before and before[name] is not tensor:
                carry_over(before[name], tensor)
        left = [name for name in marked if self._tensors.get(name) is before[name]]
        return {name: count for name in left if (count := self._marked_elements(name))}

    def _marked_elements(self, name: str) -> int:
        """Count the elements with every bit set; 0 where that is content, as some integers may be -1."""
        spec = self._specs[name]
        carrier = np.dtype(f"u{ITEM_BYTES[spec.dtype]}")
        mark = (1 << 8 * carrier.itemsize) - 1
        count = sum(int((np.frombuffer(one, carrier) == mark).sum()) for one in self._blocks(name))
        no_content = spec.dtype[0] in "FB" or (
            spec.nbytes >= _MANY_BYTES and count * carrier.itemsize == spec.nbytes
        )
        return count if no_content else 0

    def _blocks(self, name: str) -> Iterator[memoryview]:
        data = self.bytes_of(self.tensor(name))
        return (data[begin : begin + BLOCK_BYTES] for begin in range(0, len(data), BLOCK_BYTES))

    def _filled(self, name: str) -> None:
        """Bring the complete bytes of :meth:`writable` to the tensor; here they are its own memory."""

    def adopts(self, name: str) -> bool:
        """Whether :meth:`adopt` may be called: the tensor is released, and its address was not captured."""
        fits = self.on_host and name not in self.transposed
        return fits and not self._tensors[name]._is_initialized()

    def adopt(self, name: str, memory: memoryview) -> None:
        """Let the tensor live in `memory`, which it keeps until it is released. Nothing is copied."""
        spec = self._specs[name]
        if memory.readonly or memory.nbytes != spec.nbytes:
            # paddle takes read-only memory for writable, and reads past the end of what is too short
            raise adoption(
                tensor=name, found=f"{memory.nbytes} bytes, {'read-only' if memory.readonly else 'writable'}"
            )
        carrier = np.dtype(carrier_name(paddle_name(self._tensors[name])))
        self._share_into(name, self._tensor_over(name, np.frombuffer(memory, carrier).reshape(spec.shape)))

    def addresses(self) -> Mapping[str, int]:
        """Address of the first byte of every held tensor."""
        return {name: int(self._tensors[name].data_ptr()) for name in self.held()}

    def stage(self) -> PaddleStaging:
        """Begin a second version beside this one; takes no memory yet."""
        return PaddleStaging(self)

    def tensor(self, name: str) -> Any:
        """Return paddle's tensor."""
        self._expect_unchanged(name)
        return self._tensors[name]

    def bytes_of(self, tensor: Any) -> memoryview:
        """Return the bytes of a tensor of this kind, writable; they stay valid as long as the view lives."""
        return paddle_bytes.bytes_of(tensor)

    def as_declared(self, name: str, data: memoryview) -> memoryview:
        """Return bytes of the named tensor as the source has them, read-only, from those of its memory."""
        if name in self.transposed:
            return in_source_order(data, self._declared[name])
        return data.toreadonly()

    def new_tensor(self, name: str) -> Any:
        """Return a paddle tensor like the named one, in new memory that was not written to."""
        carrier = np.dtype(carrier_name(paddle_name(self._tensors[name])))
        return self._tensor_over(name, np.empty(self._specs[name].shape, carrier))

    def _share_into(self, name: str, source: Any) -> None:
        tensor = self._tensors[name]
        source._share_buffer_to(tensor)
        if not tensor._is_initialized():
            raise adoption(tensor=name, found="it holds no memory")

    def _tensor_over(self, name: str, memory: np.ndarray[Any, Any]) -> Any:
        wanted = paddle_name(self.tensor(name))
        source = paddle_bytes.tensor_over(memory, wanted)
        if paddle_name(source) != wanted or tuple(source.shape) != self._specs[name].shape:
            raise adoption(tensor=name, found=f"the buffer became {paddle_name(source)}{list(source.shape)}")
        if int(source.data_ptr()) != memory.ctypes.data:
            raise adoption(tensor=name, found="paddle copied the buffer")
        return source

    def _expect_unchanged(self, name: str) -> None:
        tensor, before = self._tensors[name], self._specs[name]
        now = self._spec(name, tensor)
        self._require_contiguous(name, tensor)
        # A shared buffer that is too small leaves the tensor its shape, and paddle reads past its end.
        whole = paddle_bytes.memory_is_enough(tensor) if tensor._is_initialized() else True
        if now != before or not whole:
            expected = f"{before.dtype}{list(before.shape)}"
            found = f"{now.dtype}{list(now.shape)}{'' if whole else ' over too little memory'}"
            raise GroupError(
                f"tensor {name!r} was {expected} and is {found} now; it was given a foreign buffer, "
                "load a version into a model built anew",
                code="tensor-changed",
                tensor=name,
                expected=expected,
                found=found,
            )

    def _turned(self, name: str) -> TensorSpec:
        spec = self._specs.get(name)
        if spec is None or len(spec.shape) < 2:
            found = "unknown to the model" if spec is None else f"of the shape {list(spec.shape)}"
            raise unsupported_tensor(
                tensor=name,
                found=found,
                supported="transposed tensors of two axes or more, by their first name",
            )
        return TensorSpec(name, spec.dtype, swapped_shape(spec.shape))

    def _spec(self, name: str, tensor: Any) -> TensorSpec:
        spec = TensorSpec(
            name, safetensors_name(tensor, name=name), tuple(int(extent) for extent in tensor.shape)
        )
        if tensor._is_initialized() and self.on_host and not tensor.place.is_cpu_place():
            raise unsupported_tensor(
                tensor=name, found=f"on {tensor.place}", supported="host memory; DeviceWeights moves them"
            )
        return spec

    def _require_contiguous(self, name: str, tensor: Any) -> None:
        if tensor._is_initialized() and not tensor.is_contiguous():
            raise unsupported_tensor(tensor=name, found="strided", supported="contiguous tensors")


class PaddleStaging:
    """A second version of a shard in host memory: a :class:`wsm.actions.surfaces.StagedWeights`.

    Its flip gives every ``Parameter`` object new memory, FastDeploy's way (``_share_buffer_to``): under a
    microsecond each, whatever its size. Paddle checks nothing there, so everything is checked before.
    """

    def __init__(self, served: PaddleWeights) -> None:
        self._served = served
        self.transposed = served.transposed
        self.tied = served.tied
        self._staged: dict[str, Any] = {}
        self._flips: list[tuple[Any, Any]] = []
        self._copies: list[tuple[str, Any, Any]] = []
        self._addresses: list[tuple[str, Any, int]] = []
        self._is_ready = False
        self._old: list[Any] = []

    def specs(self) -> Mapping[str, TensorSpec]:
        """Name, shape and dtype of every tensor."""
        return self._served.specs()

    def writable(self, name: str) -> memoryview:
        """Return the staged tensor's bytes, in memory of its own."""
        if not self.specs()[name].nbytes:
            return memoryview(bytearray())
        if name not in self._staged:
            self._staged[name] = self._served.new_tensor(name)
        return self._served.bytes_of(self._staged[name])

    def readable(self, name: str) -> memoryview:
        """Return the staged tensor's bytes, read-only."""
        if not self.specs()[name].nbytes:
            return memoryview(b"")
        if name not in self._staged:
            raise TensorReleasedError(tensor=name)
        return self._served.as_declared(name, self._served.bytes_of(self._staged[name]))

    def served(self, name: str) -> memoryview:
        """Return the bytes of the tensor that serves, read-only."""
        return self._served.readable(name)

    def make_ready(self, captured: frozenset[str]) -> None:
        """Pair every staged tensor with the one whose place it takes, and take hold of the old memory."""
        for name, spec in self.specs().items():
            if not spec.nbytes:
                continue
            if name not in self._staged:
                raise TensorReleasedError(tensor=name)
            tensor, staged = self._served.tensor(name), self._staged[name]
            if not tensor._is_initialized():
                raise TensorReleasedError(tensor=name)
            if paddle_name(staged) != paddle_name(tensor) or list(staged.shape) != list(tensor.shape):
                raise adoption(
                    tensor=name, found=f"{paddle_name(staged)}{list(staged.shape)} is staged for it"
                )
            if name in captured:
                self._copies.append((name, staged, tensor))
                continue
            # The flip itself would free what served before: an alias keeps it until no request waits.
            old = paddle_bytes.second_owner(tensor)
            if not old._is_shared_buffer_with(tensor):
                raise adoption(tensor=name, found="its old memory has no second owner")
            self._old.append(old)
            self._flips.append((staged, tensor))
            self._addresses.append((name, tensor, staged.data_ptr()))

        self._is_ready = True

    def is_ready(self) -> bool:
        """Whether every staged tensor is paired with the one whose place it takes."""
        return self._is_ready

    def flip(self) -> None:
        """Share the staged memory into every parameter, and copy the bytes of captured ones."""
        for staged, tensor in self._flips:
            staged._share_buffer_to(tensor)
        for _, staged, tensor in self._copies:
            self._copy(staged, tensor)
        self._flips.clear()
        self._copies.clear()

    def unflipped(self) -> str | None:
        """Return the first parameter that was not copied, or lies elsewhere than staged; None if all do."""
        if self._copies or not self._is_ready:
            return next((name for name, spec in self.specs().items() if spec.nbytes), None)
        return next((name for name, tensor, address in self._addresses if tensor.data_ptr() != address), None)

    def give_back(self) -> int:
        """Let go of what does not serve, one tensor at a time; return the bytes of the shard."""
        freed = sum(self.specs()[name].nbytes for name in self._staged)
        self._flips.clear()
        self._copies.clear()
        self._addresses.clear()
        self._is_ready = False
        while self._staged:
            self._staged.popitem()
        while self._old:
            self._old.pop()
        return freed

    def _copy(self, staged: Any, tensor: Any) -> None:
        import paddle  # noqa: PLC0415 - imported with the first version long before

        with paddle.no_grad():
            tensor.copy_(staged, True)


class _ThroughHost:
    """What is written into a buffer on the host, one tensor at a time, and moved when it is complete."""

    _on_host: tuple[str, np.ndarray[Any, Any]] | None = None

    def _host_memory(self, name: str, memory: np.ndarray[Any, Any]) -> memoryview:
        self._on_host = name, memory
        return memory.reshape(-1).view(np.uint8).data

    def _taken(self, name: str) -> np.ndarray[Any, Any]:
        on_host, self._on_host = self._on_host, None
        if on_host is None or on_host[0] != name:
            raise adoption(tensor=name, found="no bytes of it are staged")
        return on_host[1]


class DeviceWeights(_ThroughHost, PaddleWeights):
    """One rank's model shard on a device, as a :class:`wsm.actions.surfaces.WeightSurface`.

    Extra memory: one tensor on the host while it is written or read, and one on the device while it is moved.
    What :meth:`readable` returns is a copy on the host, for which it blocks.

    Parameters
    ----------
    layers, transposed
        As for :class:`PaddleWeights`, which raises the same errors; tensors need not lie in host memory.
    place : paddle place
        Where the tensors belong, for example ``paddle.CUDAPlace(0)``; a released tensor does not know it.
    """

    on_host = False

    def __init__(self, layers: Any, place: Any, *, transposed: Collection[str] = ()) -> None:
        super().__init__(layers, transposed=transposed)
        self._place = place

    def _filled(self, name: str) -> None:
        self.written(name)

    def _blocks(self, name: str) -> Iterator[memoryview]:
        flat = self.tensor(name).detach().reshape([-1])
        step = BLOCK_BYTES // ITEM_BYTES[self._specs[name].dtype]
        return (self.bytes_of(flat[begin : begin + step]) for begin in range(0, flat.shape[0], step))

    def writable(self, name: str) -> memoryview:
        """Return host memory for the tensor's bytes; :meth:`written` moves them. One tensor at a time."""
        if not self._specs[name].nbytes:
            return memoryview(bytearray())
        return self._host_memory(name, self.host_memory(name))

    def written(self, name: str) -> None:
        """Move the bytes that were written for `name` to the device. Blocks until they are there."""
        import paddle  # noqa: PLC0415 - a second of import time that only a loading worker pays

        if not self._specs[name].nbytes:
            return
        tensor = self._tensors[name]
        source = self.on_device(name, self._taken(name))
        if tensor._is_initialized():
            with paddle.no_grad():
                tensor.copy_(source, True)
        else:
            source._share_buffer_to(tensor)
        if not tensor._is_initialized():
            raise adoption(tensor=name, found="it holds no memory")

    def stage(self) -> DeviceStaging:
        """Begin a second version beside this one; takes no memory yet."""
        return DeviceStaging(self)

    def host_memory(self, name: str) -> np.ndarray[Any, Any]:
        """Return host memory for the bytes of the named tensor."""
        carrier = np.dtype(carrier_name(paddle_name(self.tensor(name))))
        return np.empty(self._specs[name].shape, carrier)

    def on_device(self, name: str, memory: np.ndarray[Any, Any]) -> Any:
        """Return a tensor like the named one, on the device, with the bytes of `memory`. Blocks."""
        import paddle  # noqa: PLC0415 - a second of import time that only a loading worker pays

        wanted = paddle_name(self._tensors[name])
        source = paddle.to_tensor(memory, place=self._place)
        if paddle_name(source) != wanted:
            source = source.view(wanted)
        if paddle_name(source) != wanted or tuple(source.shape) != self._specs[name].shape:
            raise adoption(tensor=name, found=f"the bytes became {paddle_name(source)}{list(source.shape)}")
        return source

    def bytes_of(self, tensor: Any) -> memoryview:
        """Return a copy of a tensor's bytes on the host, read-only. Blocks."""
        tensor = tensor.detach()
        carrier = carrier_name(paddle_name(tensor))
        if carrier != paddle_name(tensor):
            tensor = tensor.view(carrier)
        copied: np.ndarray[Any, Any] = tensor.numpy()
        return copied.reshape(-1).view(np.uint8).data.toreadonly()


class DeviceStaging(_ThroughHost, PaddleStaging):
    """A :class:`wsm.actions.surfaces.StagedWeights` for parameters in device memory, through host memory."""

    def __init__(self, served: DeviceWeights) -> None:
        super().__init__(served)
        self._device = served

    def writable(self, name: str) -> memoryview:
        """Return host memory for the tensor's bytes; :meth:`written` moves them. One tensor at a time."""
        if not self.specs()[name].nbytes:
            return memoryview(bytearray())
        return self._host_memory(name, self._device.host_memory(name))

    def written(self, name: str) -> None:
        """Move the bytes that were written for `name` to the device, into memory of their own. Blocks."""
        if not self.specs()[name].nbytes:
            return
        self._staged[name] = self._device.on_device(name, self._taken(name))
