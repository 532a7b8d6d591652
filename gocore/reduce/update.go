package reduce

import (
	"math"

	"fptps/gocore/wire"
)

// Optimisers' steps, for float32 and float64. Every product, sum, quotient and root is rounded separately, on every
// machine, so that the same gradients give the same weights everywhere.

// AdamStep holds the coefficients of one step of Adam.
type AdamStep struct {
	Mean   float64 // 1 - beta1: weight of the new gradient in the mean
	Decay  float64 // beta2
	Square float64 // 1 - beta2
	Root   float64 // square root of the second moment's bias correction
	Eps    float64
	Rate   float64 // minus the learning rate, divided by the first moment's bias correction
	Keep   float64 // factor of the weights after weight decay: 1 without
}

// updates are the kernels of optimisers; nil if the type has none.
type updates struct {
	combine func(dst, x, y []byte, a float64)
	adam    func(dst, gradient, weights, mean, square []byte, s AdamStep)
	adagrad func(dst, gradient, weights, squares []byte, rate, eps float64)
	fill    func(dst []byte, v float64)
}

// CanUpdate reports whether d has optimisers' steps.
func CanUpdate(d wire.DType) bool { return active[d].combine != nil }

// Combine sets dst to x + a*y. The three may be the same memory.
func Combine(d wire.DType, dst, x, y []byte, a float64) { active[d].combine(dst, x, y, a) }

// Adam makes one step of Adam: mean += Mean*(gradient - mean); square = Decay*square + Square*gradient*gradient;
// dst = Keep*weights + Rate*mean / (sqrt(square)/Root + Eps). dst may be gradient or weights.
func Adam(d wire.DType, dst, gradient, weights, mean, square []byte, s AdamStep) {
	active[d].adam(dst, gradient, weights, mean, square, s)
}

// Adagrad makes one step of Adagrad: squares += gradient*gradient; dst = weights + rate*gradient / (sqrt(squares) + eps).
// dst may be gradient or weights.
func Adagrad(d wire.DType, dst, gradient, weights, squares []byte, rate, eps float64) {
	active[d].adagrad(dst, gradient, weights, squares, rate, eps)
}

// Fill sets all elements to v.
func Fill(d wire.DType, dst []byte, v float64) { active[d].fill(dst, v) }

// plainUpdates are the kernels in plain Go. The conversion around a product prevents a fused multiply-add.
func plainUpdates[T float]() updates {
	return updates{combine[T], adam[T], adagrad[T], fill[T]}
}

func combine[T float](dst, x, y []byte, a float64) {
	d, by := view[T](dst), T(a)
	u, v := view[T](x)[:len(d)], view[T](y)[:len(d)]
	for i := range d {
		d[i] = u[i] + T(by*v[i])
	}
}

func adam[T float](dst, gradient, weights, mean, square []byte, s AdamStep) {
	d := view[T](dst)
	g, w, m, v := view[T](gradient)[:len(d)], view[T](weights)[:len(d)], view[T](mean)[:len(d)], view[T](square)[:len(d)]
	fresh, decay, squared, root, eps, rate, keep := T(s.Mean), T(s.Decay), T(s.Square), T(s.Root), T(s.Eps), T(s.Rate), T(s.Keep)
	for i := range d {
		m[i] += T(fresh * (g[i] - m[i]))
		v[i] = T(decay*v[i]) + T(T(squared*g[i])*g[i])
		d[i] = T(keep*w[i]) + T(rate*m[i])/(T(math.Sqrt(float64(v[i])))/root+eps)
	}
}

func adagrad[T float](dst, gradient, weights, squares []byte, rate, eps float64) {
	d, by, least := view[T](dst), T(rate), T(eps)
	g, w, v := view[T](gradient)[:len(d)], view[T](weights)[:len(d)], view[T](squares)[:len(d)]
	for i := range d {
		v[i] += T(g[i] * g[i])
		d[i] = w[i] + T(by*g[i])/(T(math.Sqrt(float64(v[i])))+least)
	}
}

func fill[T float](dst []byte, v float64) {
	d := view[T](dst)
	for i := range d {
		d[i] = T(v)
	}
}
