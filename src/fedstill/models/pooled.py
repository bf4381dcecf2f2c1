"""A convolution, 2×2 max-pooling and ReLU as a few matrix products: on a CPU the fastest form of a narrow layer.

A convolution of few channels leaves most of a processor's lanes idle, and most of its time goes into moving numbers.
Here images lie as (height, channels, width, batch), so that everything runs along the batch, and two neighbouring
outputs that are pooled together come out of one product: of k × (k + 1) pixels, by the same kernel twice, once shifted.
Rows are read where they lie, as windows that overlap. Same numbers as the layers one after the other, other last bits.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import conv2d, max_pool2d, pad, relu

from fedstill.core.classifier import watched

_relu_backward = torch.ops.aten.threshold_backward.default
NARROW = 16
"""Below so many output channels a product makes two rows at once, so that it is tall enough to be fast."""


def applies(x: Tensor, body: nn.Module) -> bool:
    """Can a body's layers be computed so on x: on a CPU, in float32, with nobody who watches or rewrites them?"""
    rewritten = torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling()
    other = rewritten or torch.is_autocast_enabled("cpu") or forward_ad._current_level >= 0
    return not other and x.device.type == "cpu" and x.dtype is torch.float32 and len(x) > 0 and not watched(body)


def in_rows(images: Tensor, padding: int) -> Tensor:
    """Images (batch, channels, height, width), with zeros around them, as (height, channels, width, batch)."""
    _, channels, height, width = images.shape
    turned = images.flatten(1).t().contiguous()  # of two dimensions: torch turns those fast
    rows = turned.view(channels, height, width, -1).transpose(0, 1)
    return pad(rows, (0, 0, padding, padding, 0, 0, padding, padding)) if padding else rows


def in_images(rows: Tensor) -> Tensor:
    """The other way: rows as images."""
    return rows.permute(3, 1, 0, 2)


def pooled(rows: Tensor, layer: nn.Conv2d) -> Tensor:
    """ReLU of the 2×2 maxima of a convolution, without its padding; rows in, rows out.

    Its kernel has an odd side, the rows' height and width are even. Where a pixel is infinite, its neighbours' outputs
    become NaN.
    """
    out: Tensor = _Pooled.apply(rows, layer.weight, layer.bias)  # type: ignore[no-untyped-call]
    return out


@cache
def _places(outputs: int, inputs: int, side: int, tall: int) -> Tensor:
    """Where the kernel stands in a wide one of `tall` rows of two outputs each: once for each of the 2 · tall shifts.

    The wide kernel has a row for each (output row, output column, channel), a column for each (row, channel, column)
    of the window.
    """
    wide = torch.arange(tall * 2 * outputs * (side - 1 + tall) * inputs * (side + 1))
    wide = wide.view(tall, 2, outputs, side - 1 + tall, inputs, side + 1)
    shifts = [wide[i, j, :, i : i + side, :, j : j + side] for i in range(tall) for j in range(2)]
    return torch.stack(shifts).transpose(2, 3).flatten()


@cache
def _sources(outputs: int, inputs: int, side: int, tall: int) -> Tensor:
    """For each place of the wide kernel the kernel's number that stands there; the one past the last is zero."""
    count = outputs * inputs * side * side
    sources = torch.full((tall * 2 * outputs * (side - 1 + tall) * inputs * (side + 1),), count)
    sources[_places(outputs, inputs, side, tall)] = torch.arange(count).repeat(2 * tall)
    return sources


def _wide(weight: Tensor, tall: int) -> Tensor:
    """The kernel once for each shift, with zeros around it."""
    outputs, inputs, side, _ = weight.shape
    numbers = pad(weight.reshape(-1), (0, 1))
    return numbers.index_select(0, _sources(outputs, inputs, side, tall)).view(tall * 2 * outputs, -1)


def _narrowed(slopes: Tensor, tall: int, weight: Tensor) -> Tensor:
    """The other way: of the wide kernel's gradient that of the kernel."""
    outputs, inputs, side, _ = weight.shape
    shifts = slopes.view(-1).index_select(0, _places(outputs, inputs, side, tall))
    return shifts.view(2 * tall, *weight.shape).sum(0)


class Products:
    """One such layer on one batch of rows: `out`, what comes out of it, and with `slopes` the way back, once.

    Args:
        x: rows.
        weight: the convolution's kernel.
        bias: of its outputs.
        returns: will there be a way back?
    """

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor, returns: bool) -> None:
        height, inputs, width, batch = x.shape
        outputs, _, side, _ = weight.shape
        high, across = (height - side + 1) // 2, (width - side + 1) // 2
        self.x, self.weight = x, weight
        self.tall = 2 if outputs < NARROW else 1
        row, line = inputs * width * batch, across * batch
        # (height, channels, shift, output, batch): each pixel where the j-th of a product's k + 1 columns needs it
        pixels = x.contiguous().as_strided(
            (height, inputs, side + 1, across, batch), (row, width * batch, batch, 2 * batch, 1)
        )
        shifted, deep = pixels.contiguous(), inputs * (side + 1) * line
        self.windows = shifted.as_strided(
            (2 * high // self.tall, (side - 1 + self.tall) * inputs * (side + 1), line), (self.tall * deep, line, 1)
        )
        self.wide = _wide(weight, self.tall)
        made = torch.bmm(self.wide.expand(len(self.windows), -1, -1), self.windows)
        self.made = made.view(high, 2, 2, outputs, line)
        left, right = self.made[:, :, 0], self.made[:, :, 1]
        self.best = torch.maximum(left, right)
        upper, lower = self.best[:, 0], self.best[:, 1]
        self.flat = torch.maximum(upper, lower).add_(bias[:, None]).relu_()
        if returns:  # who was the largest, as ones and zeros in place; of equals the first, as torch pools
            left.ge_(right)
            upper.ge_(lower)
        self.out = self.flat.view(high, outputs, across, batch)

    def slopes(self, slope: Tensor, wanted: Sequence[bool]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Of the gradient of `out` that of x, kernel and bias, those that are wanted; written over what was made."""
        slope = _relu_backward(slope.reshape(self.flat.shape), self.flat, 0)
        rows, routed = self.best, self.made
        torch.mul(slope, rows[:, 0], out=rows[:, 0])
        torch.sub(slope, rows[:, 0], out=rows[:, 1])
        torch.mul(rows, routed[:, :, 0], out=routed[:, :, 0])
        torch.sub(rows, routed[:, :, 0], out=routed[:, :, 1])
        routed = routed.view(len(self.windows), len(self.wide), -1)
        for_x, for_weight, for_bias = wanted
        back = _spread(routed, self.wide, self.tall, self.x, self.weight) if for_x else None
        wide = torch.bmm(routed, self.windows.transpose(1, 2)).sum(0) if for_weight else None
        kernel = None if wide is None else _narrowed(wide, self.tall, self.weight)
        return back, kernel, slope.sum((0, 2)) if for_bias else None


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        products = Products(x, weight, bias, returns=any(ctx.needs_input_grad))
        ctx.save_for_backward(x, weight, bias)
        ctx.products = products
        return products.out.view(products.out.shape)  # another object than what is kept: no circle

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        products, ctx.products = ctx.products, None
        if torch.is_grad_enabled() or products is None:  # to be differentiated in turn, or a second time
            x, weight, bias = ctx.saved_tensors
            return _again(x, weight, bias, given[0], ctx.needs_input_grad)
        return products.slopes(given[0], ctx.needs_input_grad)


def _spread(routed: Tensor, wide: Tensor, tall: int, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the inputs: every window's added where the window lay, then the shifted columns together."""
    height, inputs, width, batch = x.shape
    columns = weight.shape[-1] + 1
    deep, line = inputs * columns, routed.shape[-1]
    flow = x.new_zeros(height, deep, line)
    windows = flow.as_strided((len(routed), wide.shape[1], line), (tall * deep * line, line, 1))
    turned = wide.t()
    for window, part in zip(windows.unbind(0), routed.unbind(0), strict=True):
        window.addmm_(turned, part)
    pairs = flow.view(height, inputs, columns // 2, 2, line // batch, batch).transpose(3, 4)
    back = x.new_zeros(height, inputs, width // 2, 2, batch)
    for shift in range(columns // 2):
        back[:, :, shift : shift + line // batch] += pairs[:, :, shift]
    return back.view(x.shape)


def _again(
    x: Tensor, weight: Tensor, bias: Tensor, slope: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients by torch's own layers, so that they have gradients themselves."""
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        out = relu(max_pool2d(conv2d(x.permute(3, 1, 0, 2), weight, bias), 2)).permute(2, 1, 3, 0)
    asked = [one for one, needed in zip((x, weight, bias), wanted, strict=True) if needed]
    found = iter(torch.autograd.grad(out, asked, slope, create_graph=further))
    return tuple(next(found) if needed else None for needed in wanted)
