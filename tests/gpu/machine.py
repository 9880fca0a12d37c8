"""What a machine with GPUs has, and what this one lacks of it, each by name.

Asks the NVIDIA driver itself, so that it can be run before any paddle is installed:
``python tests/gpu/machine.py`` says what is missing and exits with 1, or with 0 where there is a GPU. It must
not know wsm.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

DRIVER = "libcuda.so.1"
_SUCCESS = 0


def missing_hardware() -> str | None:
    """Return what this machine lacks of a GPU and its driver; None if it has both."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError as error:
        return f"no NVIDIA driver: {DRIVER} cannot be loaded ({error})"
    status = driver.cuInit(0)
    if status != _SUCCESS:
        return f"no usable GPU: the driver answers cuInit with the error {status}"
    if not _count(driver):
        return "no GPU: the driver sees none (CUDA_VISIBLE_DEVICES may hide them)"
    return None


def missing_for_gpu_tests(framework: str) -> str | None:
    """Return what this machine, or the installed ``paddle`` or ``torch``, lacks for tests marked ``gpu``."""
    lacking = missing_hardware()
    if lacking is not None:
        return lacking
    try:
        module = importlib.import_module(framework)
    except ImportError as error:
        return f"no {framework}: {error}"
    # By name: what is read as an attribute here must be there in every build of paddle.
    is_built = module.is_compiled_with_cuda() if framework == "paddle" else vars(module.version)["cuda"]
    if not is_built:
        return f"no CUDA in {framework}: {module.__version__} of {sys.executable} is a CPU build"
    return None


def gpus() -> int:
    """Return how many GPUs this process sees; 0 where there is no driver."""
    return 0 if missing_hardware() is not None else _count(ctypes.CDLL(DRIVER))


def occupied_bytes(device: int) -> int:
    """Return how many bytes of a GPU are taken, by whomever, as the driver counts them.

    Raises
    ------
    OSError
        If the driver refuses.
    """
    driver = ctypes.CDLL(DRIVER)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with _context(driver, device):
        _expect(driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
    return total.value - free.value


@contextmanager
def _context(driver: ctypes.CDLL, device: int) -> Iterator[None]:
    """Make the context that paddle computes in current, the device's primary one."""
    context = ctypes.c_void_p()
    _expect(driver.cuInit(0), "cuInit")
    _expect(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    try:
        _expect(driver.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
        try:
            yield
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)


def _count(driver: ctypes.CDLL) -> int:
    found = ctypes.c_int()
    return found.value if driver.cuDeviceGetCount(ctypes.byref(found)) == _SUCCESS else 0


def _expect(status: int, call: str) -> None:
    if status != _SUCCESS:
        raise OSError(status, f"{call} of the NVIDIA driver failed")


def main() -> None:
    """Say what is missing; for ``make test-gpu``, before it installs anything."""
    lacking = missing_hardware()
    if lacking is not None:
        sys.exit(f"the GPU tests cannot run here: {lacking}")


if __name__ == "__main__":
    main()
