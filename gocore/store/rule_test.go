package store

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
)

// reference is the model for all optimisers: one weight in float64, with the equations of the papers and of PyTorch's
// documentation. It computes the bias-corrected moments, which the store's order of operations avoids.
type reference struct {
	rule                            Rule
	weight, velocity, mean, squares float64
	steps                           int
}

func (d *reference) step(g, rate float64) {
	d.steps++
	r, t := d.rule, float64(d.steps)
	if r.Kind == AdamW {
		d.weight -= rate * r.WeightDecay * d.weight
	} else {
		g += r.WeightDecay * d.weight
	}
	switch r.Kind {
	case SGD:
		if d.velocity = r.Momentum*d.velocity + g; d.steps == 1 {
			d.velocity = g
		}
		switch {
		case r.Nesterov:
			g += r.Momentum * d.velocity
		case r.Momentum != 0:
			g = d.velocity
		}
		d.weight -= rate * g
	case Adam, AdamW:
		d.mean = r.Betas[0]*d.mean + (1-r.Betas[0])*g
		d.squares = r.Betas[1]*d.squares + (1-r.Betas[1])*g*g
		mean, squares := d.mean/(1-math.Pow(r.Betas[0], t)), d.squares/(1-math.Pow(r.Betas[1], t))
		d.weight -= rate * mean / (math.Sqrt(squares) + r.Eps)
	case Adagrad:
		if d.steps == 1 {
			d.squares = r.Initial
		}
		d.squares += g * g
		d.weight -= rate / (1 + (t-1)*r.RateDecay) * g / (math.Sqrt(d.squares) + r.Eps)
	}
}

var rules = []Rule{
	{Kind: SGD, Rate: 0.1},
	{Kind: SGD, Rate: 0.1, WeightDecay: 0.01},
	{Kind: SGD, Rate: 0.05, Momentum: 0.9},
	{Kind: SGD, Rate: 0.05, Momentum: 0.9, WeightDecay: 0.1},
	{Kind: SGD, Rate: 0.05, Momentum: 0.9, WeightDecay: 0.1, Nesterov: true},
	{Kind: Adam, Rate: 0.01, Betas: [2]float64{0.9, 0.999}, Eps: 1e-8},
	{Kind: Adam, Rate: 0.01, Betas: [2]float64{0.3, 0.9}, Eps: 1e-3, WeightDecay: 0.1},
	{Kind: AdamW, Rate: 0.01, Betas: [2]float64{0.9, 0.999}, Eps: 1e-8, WeightDecay: 0.1},
	{Kind: Adagrad, Rate: 0.1, Eps: 1e-10},
	{Kind: Adagrad, Rate: 0.1, Eps: 1e-10, RateDecay: 0.1, WeightDecay: 0.1, Initial: 0.5},
}

// rounding bounds the difference between 100 steps and exact arithmetic, relative to the largest weight. A step rounds up to ten
// times, each time by at most 2^-24 (2^-53) of a number no larger than the weights. The errors are independent, so they grow as
// the square root: sqrt(1000) = 32 roundings, and half as much again for the worst element. A 16-bit float is rounded once more
// when it is sent.
var rounding = map[wire.DType]float64{
	wire.Float32: 50 * 0x1p-24, wire.Float64: 50 * 0x1p-53, wire.Float16: 0x1p-11 + 50*0x1p-24, wire.BFloat16: 0x1p-8 + 50*0x1p-24,
}

// Every optimiser on every type, with a learning rate that changes twice.
func TestHundredSteps(t *testing.T) {
	const elements = 203
	for i, rule := range rules {
		for dtype, tolerance := range rounding {
			t.Run(fmt.Sprintf("%s %d %v", rule.Kind, i, dtype), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(uint64(i), uint64(dtype)))
				weights := normal(rng, elements)
				r := newRig(t, 2, wire.Sync, dtype, weights)
				r.setRule(rule)
				second := make([]reference, elements)
				for e, w := range r.values(r.bytes(weights)) {
					second[e] = reference{rule: rule, weight: w}
				}
				largest, worst, rate := 0.0, 0.0, rule.Rate
				for round := uint64(1); round <= 100; round++ {
					gradient := normal(rng, elements)
					var told *float32
					if round == 40 || round == 70 {
						next := float32(rate / 2)
						told, rate = &next, float64(next)
					}
					got := r.complete(round, gradient, told)
					for e, g := range r.values(r.bytes(gradient)) {
						second[e].step(g, rate)
						largest = max(largest, math.Abs(second[e].weight))
						worst = max(worst, math.Abs(got[e]-second[e].weight))
					}
				}
				if worst > tolerance*largest || math.IsNaN(worst) {
					t.Errorf("off by %.2g of the largest weight, %.2g is rounding", worst/largest, tolerance)
				}
				t.Logf("off by %.2g of the largest weight, %.2g is rounding", worst/largest, tolerance)
				r.end()
			})
		}
	}
}

func normal(rng *rand.Rand, n int) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = rng.NormFloat64()
	}
	return values
}

// A rule of the same kind keeps the state and the step count; another kind resets both.
func TestSetRuleAgain(t *testing.T) {
	momentum := Rule{Kind: SGD, Rate: 0.5, Momentum: 0.5}
	faster := Rule{Kind: SGD, Rate: 1, Momentum: 0.25}
	r := newRig(t, 2, wire.Sync, wire.Float64, []float64{8})
	r.setRule(momentum)
	expect := func(round uint64, want float64) {
		t.Helper()
		if got := r.complete(round, []float64{1}, nil)[0]; got != want {
			t.Errorf("round %d: %v, expected %v", round, got, want)
		}
	}
	expect(1, 7.5) // velocity 1
	r.setRule(faster)
	expect(2, 6.25) // velocity 1.25
	r.setRule(Rule{Kind: Adagrad, Rate: 1})
	expect(3, 5.25) // 1 / sqrt(1)
	r.setRule(momentum)
	expect(4, 4.75) // velocity 1 again
	r.end()
}

func TestSetRuleIsRefused(t *testing.T) {
	sgd := Rule{Kind: SGD, Rate: 1}
	plain := newRig(t, 2, wire.Sync, wire.Float32, []float64{1})
	plain.complete(1, []float64{1}, nil)
	own := newRig(t, 2, wire.Async, wire.Float32, []float64{1})
	own.pushed(t, 1, 1, []float64{1})
	for name, tc := range map[string]struct {
		err  error
		says string
	}{
		"no tensor":     {plain.SetRule(tensorID+1, sgd), "initialised"},
		"pushed":        {plain.SetRule(tensorID, sgd), "before the first push"},
		"pushed, async": {own.SetRule(tensorID, sgd), "before the first push"},
		"integers":      {newRig(t, 2, wire.Sync, wire.Int64, []float64{1}).SetRule(tensorID, sgd), "int64"},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.says) {
			t.Errorf("%s: error %v, expected one about %q", name, tc.err, tc.says)
		}
	}
}

func TestRuleRoundTrip(t *testing.T) {
	for _, rule := range rules {
		if back, err := ParseRule(rule.Text()); err != nil || back != rule {
			t.Errorf("%+v came back as %+v, error %v", rule, back, err)
		}
	}
}

var wrongRules = map[string]string{
	`{"kind": "SGD", "lr": -1}`:                               "lr",
	`{"kind": "SGD", "lr": 1e39}`:                             "lr",
	`{"kind": "SGD", "lr": NaN}`:                              "read",
	`{"kind": "LBFGS", "lr": 1}`:                              "LBFGS",
	`{"kind": "SGD", "lr": 1, "momentum": -0.1}`:              "momentum",
	`{"kind": "SGD", "lr": 1, "nesterov": true}`:              "nesterov",
	`{"kind": "SGD", "lr": 1, "weight_decay": -1}`:            "weight_decay",
	`{"kind": "Adam", "lr": 1, "betas": [0.9, 1], "eps": 1}`:  "betas",
	`{"kind": "Adam", "lr": 1, "betas": [-0.1, 0], "eps": 1}`: "betas",
	`{"kind": "Adam", "lr": 1, "eps": -1}`:                    "eps",
	`{"kind": "Adagrad", "lr": 1, "lr_decay": -1}`:            "lr_decay",
	`{"kind": "SGD", "lr": 1, "surprise": 1}`:                 "surprise",
	`[]`: "read",
	``:   "read",
}

func TestInvalidRulesAreRefused(t *testing.T) {
	for text, says := range wrongRules {
		if _, err := ParseRule([]byte(text)); fault.CodeOf(err) != fault.Value || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error %v, expected one about %q", text, err, says)
		}
	}
}

func FuzzParseRule(f *testing.F) {
	for _, rule := range rules {
		f.Add(rule.Text())
	}
	for text := range wrongRules {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		rule, err := ParseRule(text)
		if err != nil {
			return
		}
		if back, err := ParseRule(rule.Text()); err != nil || back != rule {
			t.Errorf("%+v came back as %+v, error %v", rule, back, err)
		}
	})
}
