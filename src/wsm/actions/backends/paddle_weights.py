"""The parameters and persistable buffers of paddle layers on a CPU, released and loaded in place.

Responsible for the identity of the tensors: every ``Parameter`` object stays the one that the model
computes with, only its memory goes and comes. It must not know where bytes come from. Everything
that paddle does not check itself (dtype, shape and size of a shared buffer) is checked here, because
a wrong one is read out of bounds silently.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from wsm import log
from wsm.actions.backends import errors, paddle_bytes
from wsm.actions.backends._paddle_staging import PaddleStaging
from wsm.actions.backends.loader_attributes import carry_over
from wsm.actions.backends.paddle_bytes import carrier_name, safetensors_name
from wsm.strategies.paddle_dtypes import paddle_name
from wsm.strategies.tensor import TensorReleasedError, TensorSpec
from wsm.strategies.transposing import in_source_order, swapped_shape

_log = log.logger("weights")

#: From so many bytes on, all bits set is no content of integers either.
_MANY_BYTES = 64


class PaddleWeights:
    """One rank's model shard as a :class:`wsm.actions.surfaces.WeightSurface`.

    Parameters
    ----------
    layers : paddle.nn.Layer or mapping of str to paddle.nn.Layer
        The model; or several (auxiliary ones) by the prefix that their tensor names get, ``""`` for the
        main model. A tensor that two names share is kept once, under the first.
    transposed : collection of str
        Names of parameters whose last two axes are exchanged in the model, beside what sources bring: a
        model in the layout of paddle, ``[in, out]``, and a checkpoint in that of torch. Not needed where a
        snapshot holds what the model holds, whatever ``weight_need_transpose`` says on a parameter, since
        that attribute speaks of checkpoints.

    Attributes
    ----------
    on_host : bool
        Whether tensors that lie elsewhere than in host memory are refused.
    tied : dict of str to str
        Further names of shared tensors, and the name that each is kept under; a source may use any of them.

    Raises
    ------
    BadInputError (``unsupported-tensor``)
        If a tensor's dtype has no safetensors name, it does not lie in host memory, or it is said to be
        transposed and is no parameter of two axes or more.

    Notes
    -----
    A strided tensor is copied to contiguous memory of its own when it is seen first, with a warning in the
    log: what it was a view of is another tensor then, and does not follow its loads.

    A view that :meth:`writable` or :meth:`readable` returned keeps its memory alive after
    :meth:`release`, as does any slice, reshape or shared alias: drop them, and measure.
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
        self._tensors, self._specs, self.tied = {}, {}, {}
        first_names: dict[int, str] = {}
        for prefix, layer in self._layers.items():
            for local_name, tensor in layer.state_dict().items():
                name = f"{prefix}{local_name}"
                if id(tensor) in first_names:
                    self.tied[name] = first_names[id(tensor)]
                    continue
                first_names[id(tensor)] = name
                self._specs[name] = self._spec(name, tensor)
                self._tensors[name] = tensor
        for name, tensor in self._tensors.items():
            if tensor._is_initialized() and not tensor.is_contiguous():
                self._copy_strided(name, tensor)
        self._declared = dict(self._specs)
        for name in sorted(self.transposed):
            self._declared[name] = self._turned(name)

    def _copy_strided(self, name: str, tensor: Any) -> None:
        """Give a strided tensor contiguous memory of its own, with what it holds."""
        strides = list(tensor.stride())
        tensor.contiguous()._share_buffer_to(tensor)
        self._require_contiguous(name, tensor)
        _log.warning(log.PARAMETER_COPIED, name=name, shape=list(tensor.shape), strides=strides)

    def specs(self) -> Mapping[str, TensorSpec]:
        """Name, shape and dtype of every tensor, tied ones once; known without any memory held.

        Shapes are those that sources have; see `transposed`.
        """
        return self._declared

    def held(self) -> Iterator[str]:
        """Iterate over the names of tensors that hold memory; tensors of size zero never do."""
        for name, tensor in self._tensors.items():
            if self._specs[name].nbytes and tensor._is_initialized():
                yield name

    def release(self) -> int:
        """Let go of every tensor's memory; return the bytes let go. Idempotent.

        Blocks below the C allocator's mapping threshold (128 KiB) stay in its heap until
        :meth:`HostMemory.empty_cache` trims it.
        """
        freed = 0
        for name in list(self.held()):
            self._tensors[name]._clear_data()
            freed += self._specs[name].nbytes
        return freed

    def writable(self, name: str) -> memoryview:
        """Return the tensor's bytes for writing, in new memory if it was released.

        Raises
        ------
        KeyError
            If the model has no such tensor.
        GroupError (``tensor-changed``), GroupError (``adoption``)
            If paddle's tensor and this shard's description of it have parted.
        """
        spec = self._specs[name]
        if not spec.nbytes:
            return memoryview(bytearray())
        tensor = self._tensors[name]
        if not tensor._is_initialized():
            self._share_into(name, self.new_tensor(name))
        return self.bytes_of(self.tensor(name))

    def readable(self, name: str) -> memoryview:
        """Return the tensor's bytes, read-only, as the source has them: a copy of a transposed one.

        Raises
        ------
        KeyError
            If the model has no such tensor.
        TensorReleasedError
            If it holds no memory. Paddle itself would answer with an empty array.
        GroupError (``tensor-changed``)
            If paddle's tensor and this shard's description of it have parted.
        """
        spec = self._specs[name]
        if not spec.nbytes:
            return memoryview(b"")
        if not self._tensors[name]._is_initialized():
            raise TensorReleasedError(tensor=name)
        return self.as_declared(name, self.bytes_of(self.tensor(name)))

    def restore(self) -> list[str]:
        """Give every tensor memory that holds none, and return their names.

        All bits of it are set, which no loaded weights are: so it is seen what a loader has left out.
        """
        released = [name for name, spec in self._specs.items() if spec.nbytes]
        released = [name for name in released if not self._tensors[name]._is_initialized()]
        for name in released:
            carrier = np.dtype(carrier_name(paddle_name(self._tensors[name])))
            memory = np.empty(self._specs[name].shape, carrier)
            memory.reshape(-1).view(np.uint8)[:] = 0xFF
            self._share_into(name, self._placed(name, memory))
        return released

    def recapture(self, restored: Collection[str] = ()) -> list[str]:
        """Look anew which tensors the layers have: loaders may have replaced some by others.

        A parameter that was replaced keeps what loaders had hung on the one before it
        (:func:`wsm.actions.backends.loader_attributes.carry_over`).

        Returns
        -------
        list of str
            Those of `restored` that still hold nothing but what :meth:`restore` gave them.
        """
        before = dict(self._tensors)
        self._capture()
        for name, tensor in self._tensors.items():
            if name in before and before[name] is not tensor:
                carry_over(before[name], tensor)
        left = [name for name in restored if self._tensors.get(name) is before[name]]
        return [name for name in left if _untouched(self._specs[name], self.readable(name))]

    def _placed(self, name: str, memory: np.ndarray[Any, Any]) -> Any:
        """Return a tensor like the named one where it belongs, over or from an array of its carrier."""
        return self._tensor_over(name, memory)

    def adopts(self, name: str) -> bool:
        """Whether :meth:`adopt` may be called: the tensor is released, and its address was not captured."""
        fits = self.on_host and name not in self.transposed
        return fits and not self._tensors[name]._is_initialized()

    def adopt(self, name: str, memory: memoryview) -> None:
        """Let the tensor live in `memory`, which it keeps until it is released. Nothing is copied.

        Raises
        ------
        KeyError
            If the model has no such tensor.
        GroupError (``tensor-changed``), GroupError (``adoption``)
            If paddle's tensor and this shard's description of it have parted, or `memory` does not fit it.
        """
        spec = self._specs[name]
        if memory.readonly or memory.nbytes != spec.nbytes:
            # paddle takes read-only memory for writable, and reads past the end of what is too short
            raise errors.adoption(
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
        """Return paddle's tensor.

        Raises
        ------
        KeyError
            If the model has no such tensor.
        GroupError (``tensor-changed``)
            If it and this shard's description of it have parted.
        """
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
        """Return a paddle tensor like the named one, in new memory that was not written to.

        Raises
        ------
        GroupError (``tensor-changed``), GroupError (``adoption``)
            If the named tensor is not what it was, or paddle makes another tensor of the memory.
        """
        carrier = np.dtype(carrier_name(paddle_name(self._tensors[name])))
        return self._tensor_over(name, np.empty(self._specs[name].shape, carrier))

    def _share_into(self, name: str, source: Any) -> None:
        """Let the named tensor live in the memory of one like it."""
        tensor = self._tensors[name]
        source._share_buffer_to(tensor)
        if not tensor._is_initialized():
            raise errors.adoption(tensor=name, found="it holds no memory")

    def _tensor_over(self, name: str, memory: np.ndarray[Any, Any]) -> Any:
        """Return a tensor like the named one that lives in `memory`, an array of its carrier."""
        wanted = paddle_name(self.tensor(name))
        source = paddle_bytes.tensor_over(memory, wanted)
        if paddle_name(source) != wanted or tuple(source.shape) != self._specs[name].shape:
            raise errors.adoption(
                tensor=name, found=f"the buffer became {paddle_name(source)}{list(source.shape)}"
            )
        if int(source.data_ptr()) != memory.ctypes.data:
            raise errors.adoption(tensor=name, found="paddle copied the buffer")
        return source

    def _expect_unchanged(self, name: str) -> None:
        tensor, before = self._tensors[name], self._specs[name]
        now = self._spec(name, tensor)
        self._require_contiguous(name, tensor)
        # A shared buffer that is too small leaves the tensor its shape, and paddle reads past its end.
        whole = paddle_bytes.memory_is_enough(tensor) if tensor._is_initialized() else True
        if now != before or not whole:
            raise errors.tensor_changed(
                tensor=name,
                expected=f"{before.dtype}{list(before.shape)}",
                found=f"{now.dtype}{list(now.shape)}{'' if whole else ' over too little memory'}",
            )

    def _turned(self, name: str) -> TensorSpec:
        spec = self._specs.get(name)
        if spec is None or len(spec.shape) < 2:
            found = "unknown to the model" if spec is None else f"of the shape {list(spec.shape)}"
            raise errors.unsupported_tensor(
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
            raise errors.unsupported_tensor(
                tensor=name, found=f"on {tensor.place}", supported="host memory; DeviceWeights moves them"
            )
        return spec

    def _require_contiguous(self, name: str, tensor: Any) -> None:
        if tensor._is_initialized() and not tensor.is_contiguous():
            raise errors.unsupported_tensor(tensor=name, found="strided", supported="contiguous tensors")


def _untouched(spec: TensorSpec, data: memoryview) -> bool:
    """Whether every bit is set, in a tensor where that is no content: integers may all be -1."""
    counts = spec.dtype[0] in "FB" or spec.nbytes >= _MANY_BYTES
    return counts and bool((np.frombuffer(data, np.uint8) == 0xFF).all())
