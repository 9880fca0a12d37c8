"""A second version of paddle tensors in host memory, and the flip that makes it the served one.

Responsible for giving every ``Parameter`` object new memory while it stays the one that the model computes
with, FastDeploy's way (``_share_buffer_to``): under a microsecond each, whatever its size. Paddle checks
nothing there, so everything is checked before. It must not know where bytes come from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from wsm.actions.backends import errors
from wsm.actions.backends.paddle_bytes import second_owner
from wsm.strategies.paddle_dtypes import paddle_name
from wsm.strategies.tensor import TensorReleasedError, TensorSpec


class ServedTensors(Protocol):
    """What is known of the shard whose place is to be taken."""

    def specs(self) -> Mapping[str, TensorSpec]:
        """Name, shape and dtype of every tensor."""
        ...

    def readable(self, name: str) -> memoryview:
        """Return the bytes of the tensor, read-only; an error if they were released."""
        ...

    def tensor(self, name: str) -> Any:
        """Return paddle's tensor, seen to be what its spec says."""
        ...

    def new_tensor(self, name: str) -> Any:
        """Return a paddle tensor of the same dtype and shape in new memory."""
        ...

    def bytes_of(self, tensor: Any) -> memoryview:
        """Return the bytes of such a tensor, writable."""
        ...

    @property
    def transposed(self) -> Collection[str]:
        """Names of tensors whose last two axes are exchanged in memory."""
        ...

    @property
    def tied(self) -> Mapping[str, str]:
        """Further names of shared tensors, and the name that each is kept under."""
        ...

    def as_declared(self, name: str, data: memoryview) -> memoryview:
        """Return bytes of the named tensor as the source has them, read-only, from those of its memory."""
        ...


class PaddleStaging:
    """A :class:`wsm.actions.surfaces.StagedWeights` for parameters in host memory.

    Parameters
    ----------
    served : ServedTensors
        The shard whose place is to be taken.
    """

    def __init__(self, served: ServedTensors) -> None:
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
        """Return the staged tensor's bytes, in memory of its own.

        Raises
        ------
        KeyError
            If the model has no such tensor.
        GroupError (``tensor-changed``), GroupError (``adoption``)
            If paddle's tensor is not what it was, or will not adopt memory.
        """
        if not self.specs()[name].nbytes:
            return memoryview(bytearray())
        if name not in self._staged:
            self._staged[name] = self._served.new_tensor(name)
        return self._served.bytes_of(self._staged[name])

    def readable(self, name: str) -> memoryview:
        """Return the staged tensor's bytes, read-only.

        Raises
        ------
        TensorReleasedError
            If nothing was staged for it.
        """
        if not self.specs()[name].nbytes:
            return memoryview(b"")
        if name not in self._staged:
            raise TensorReleasedError(tensor=name)
        return self._served.as_declared(name, self._served.bytes_of(self._staged[name]))

    def served(self, name: str) -> memoryview:
        """Return the bytes of the tensor that serves, read-only.

        Raises
        ------
        TensorReleasedError
            If it holds no memory.
        """
        return self._served.readable(name)

    def make_ready(self, captured: frozenset[str]) -> None:
        """Pair every staged tensor with the one whose place it takes, and take hold of the old memory.

        Raises
        ------
        TensorReleasedError
            If a tensor was not staged, or the served one holds no memory.
        GroupError (``tensor-changed``), GroupError (``adoption``)
            If the served tensor is not what it was, or its memory could not be held on to.
        """
        for name, spec in self.specs().items():
            if not spec.nbytes:
                continue
            if name not in self._staged:
                raise TensorReleasedError(tensor=name)
            tensor, staged = self._served.tensor(name), self._staged[name]
            if not tensor._is_initialized():
                raise TensorReleasedError(tensor=name)
            if paddle_name(staged) != paddle_name(tensor) or list(staged.shape) != list(tensor.shape):
                raise errors.adoption(
                    tensor=name, found=f"{paddle_name(staged)}{list(staged.shape)} is staged for it"
                )
            if name in captured:
                self._copies.append((name, staged, tensor))
                continue
            # The flip itself would free what served before: an alias keeps it until no request waits.
            old = second_owner(tensor)
            if not old._is_shared_buffer_with(tensor):
                raise errors.adoption(tensor=name, found="its old memory has no second owner")
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
