//go:build amd64 && !purego

package reduce

import "unsafe"

//go:noescape
func avxCombineF32(dst, x, y *byte, blocks int, a float64)

//go:noescape
func avxCombineF64(dst, x, y *byte, blocks int, a float64)

//go:noescape
func avxAdamF32(dst, gradient, weights, mean, square *byte, blocks int, s AdamStep)

//go:noescape
func avxAdamF64(dst, gradient, weights, mean, square *byte, blocks int, s AdamStep)

//go:noescape
func avxAdagradF32(dst, gradient, weights, squares *byte, blocks int, rate, eps float64)

//go:noescape
func avxAdagradF64(dst, gradient, weights, squares *byte, blocks int, rate, eps float64)

// vectorUpdates makes kernels: the bodies in assembly process the whole blocks, and rest the remaining elements.
func vectorUpdates(
	combine func(dst, x, y *byte, blocks int, a float64),
	adam func(dst, gradient, weights, mean, square *byte, blocks int, s AdamStep),
	adagrad func(dst, gradient, weights, squares *byte, blocks int, rate, eps float64),
	rest updates,
) updates {
	return updates{
		combine: func(dst, x, y []byte, a float64) {
			n := len(dst) / block
			combine(unsafe.SliceData(dst), unsafe.SliceData(x), unsafe.SliceData(y), n, a)
			n *= block
			rest.combine(dst[n:], x[n:], y[n:], a)
		},
		adam: func(dst, gradient, weights, mean, square []byte, s AdamStep) {
			n := len(dst) / block
			adam(unsafe.SliceData(dst), unsafe.SliceData(gradient), unsafe.SliceData(weights), unsafe.SliceData(mean), unsafe.SliceData(square), n, s)
			n *= block
			rest.adam(dst[n:], gradient[n:], weights[n:], mean[n:], square[n:], s)
		},
		adagrad: func(dst, gradient, weights, squares []byte, rate, eps float64) {
			n := len(dst) / block
			adagrad(unsafe.SliceData(dst), unsafe.SliceData(gradient), unsafe.SliceData(weights), unsafe.SliceData(squares), n, rate, eps)
			n *= block
			rest.adagrad(dst[n:], gradient[n:], weights[n:], squares[n:], rate, eps)
		},
		fill: rest.fill,
	}
}
