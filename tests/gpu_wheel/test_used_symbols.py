"""What the reading of the source finds, whatever way a module comes by its part of paddle."""

from __future__ import annotations

import ast

import pytest

from tests.gpu_wheel.used_symbols import Reading


def found(text: str, *, attributes: tuple[str, ...] = (), ours: tuple[str, ...] = ()) -> set[str]:
    reading = Reading("module.py", ast.parse(text), frozenset(attributes), frozenset(ours))
    return {use.symbol for use in reading.uses()}


@pytest.mark.parametrize(
    "text",
    [
        "import paddle\npaddle.device.cuda.empty_cache()",
        "import paddle.device as d\nd.cuda.empty_cache()",
        "from paddle.device import cuda as c\nc.empty_cache()",
        "import sys\nsys.modules['paddle'].device.cuda.empty_cache()",
        "def f(paddle):\n    paddle.device.cuda.empty_cache()",
        "def f(paddle):\n    c = paddle.device.cuda\n    c.empty_cache()",
        "def f(paddle):\n    getattr(paddle.device.cuda, 'empty_cache', None)",
        "def g():\n    import paddle\n    return paddle.device\ng().cuda.empty_cache()",
        "from paddle import device\ndef g():\n    return device\nc = g().cuda if d else d\nc.empty_cache()",
        "def f(self, paddle):\n    self.c = paddle.device\ndef g(self):\n    self.c.cuda.empty_cache()",
    ],
)
def test_a_call_is_found_whichever_way_leads_to_it(text):
    assert "paddle.device.cuda.empty_cache" in found(text)


def test_a_call_is_counted_by_its_arguments_and_not_where_they_cannot_be_counted():
    text = "import paddle\npaddle.zeros([2], dtype='int8')\npaddle.ones(*shape)\npaddle.full([2], **how)"
    reading = Reading("module.py", ast.parse(text), frozenset(), frozenset())
    calls = {use.symbol: use.call for use in reading.uses()}
    assert calls == {"paddle.zeros": (1, ("dtype",)), "paddle.ones": None, "paddle.full": None}


def test_what_objects_of_paddle_can_do_is_found_on_any_object_but_our_own():
    text = "import os\ntensor.copy_(other)\nself.copy_(other)\nos.copy_(other)\ntensor.unknown()"
    assert found(text, attributes=("copy_",)) == {"paddle.Tensor.copy_"}


def test_private_names_that_nobody_here_defines_are_found_although_no_build_has_them():
    text = "tensor._brand_new()\ngetattr(tensor, 'asked_for')\nthing._ours\nself._own\ngetattr(thing, 'ours')"
    assert found(text, ours=("_ours", "ours")) == {"of what._brand_new", "of what.asked_for"}
