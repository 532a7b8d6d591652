package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"fptps/gocore/fault"
	"fptps/gocore/reduce"
	"fptps/gocore/wire"
)

// The kinds of rules, named as in torch.optim.
const (
	SGD     = "SGD"
	Adam    = "Adam"
	AdamW   = "AdamW"
	Adagrad = "Adagrad"
)

// maxStates is the largest number of state arrays of any rule.
const maxStates = 2

// Rule is an optimiser with its hyper-parameters, named as in torch.optim. Hyper-parameters that its kind does not have are
// zero. It is sent as JSON.
type Rule struct {
	Kind        string     `json:"kind"`
	Rate        float64    `json:"lr"`
	WeightDecay float64    `json:"weight_decay"`
	Momentum    float64    `json:"momentum,omitempty"`                  // SGD
	Nesterov    bool       `json:"nesterov,omitempty"`                  // SGD
	Betas       [2]float64 `json:"betas,omitzero"`                      // Adam and AdamW
	Eps         float64    `json:"eps,omitempty"`                       // all but SGD
	RateDecay   float64    `json:"lr_decay,omitempty"`                  // Adagrad
	Initial     float64    `json:"initial_accumulator_value,omitempty"` // Adagrad
}

// ParseRule decodes and validates a rule. Its errors are Value errors.
func ParseRule(text []byte) (Rule, error) {
	var r Rule
	if err := decode(text, &r); err != nil {
		return Rule{}, fault.New(fault.Value, "an optimiser that this node cannot read: %v", err)
	}
	if err := r.check(); err != nil {
		return Rule{}, err
	}
	return r, nil
}

// Text encodes the rule for ParseRule.
func (r Rule) Text() []byte { return encode(r) }

// decode reads JSON without unknown fields.
func decode(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// encode writes JSON for decode.
func encode(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("store: %v", err)) // only NaN and Inf have no JSON, and what decode has read has neither
	}
	return text
}

// check returns a Value error if the rule is invalid.
func (r *Rule) check() error {
	if problem := r.problem(); problem != "" {
		return fault.New(fault.Value, "optimiser %s: %s", r.Kind, problem)
	}
	return nil
}

// problem describes why the rule is invalid; "" if it is valid.
func (r *Rule) problem() string {
	switch r.Kind {
	case SGD, Adam, AdamW, Adagrad:
	default:
		return "SGD, Adam, AdamW or Adagrad is expected"
	}
	if !wire.GoodLearningRate(r.Rate) {
		return fmt.Sprintf("lr=%v: a float32 number, 0 or more, is expected", r.Rate)
	}
	for _, field := range []struct {
		name  string
		value float64
	}{
		{"momentum", r.Momentum}, {"weight_decay", r.WeightDecay}, {"eps", r.Eps}, {"lr_decay", r.RateDecay},
		{"initial_accumulator_value", r.Initial},
	} {
		if !(field.value >= 0 && field.value <= math.MaxFloat32) {
			return fmt.Sprintf("%s=%v: a number, 0 or more, is expected", field.name, field.value)
		}
	}
	for _, beta := range r.Betas {
		if !(beta >= 0 && beta < 1) {
			return fmt.Sprintf("betas=(%v, %v): numbers from 0 to below 1 are expected", r.Betas[0], r.Betas[1])
		}
	}
	if r.Nesterov && r.Momentum == 0 {
		return "nesterov=True needs a momentum"
	}
	return ""
}

// stateCount is the number of the rule's state arrays: SGD has the momentum, Adam the means of the gradients and of their
// squares, Adagrad the sum of squares. A nil rule has none.
func (r *Rule) stateCount() int {
	switch {
	case r == nil || r.Kind == SGD && r.Momentum == 0:
		return 0
	case r.Kind == Adam || r.Kind == AdamW:
		return 2
	}
	return 1
}

// fill sets a state array to its initial value.
func (r *Rule) fill(d wire.DType, state []byte) {
	if r.Initial != 0 {
		reduce.Fill(d, state, r.Initial)
	}
}

// step sets dst to the weights after one step with gradient. It may overwrite gradient; dst may be gradient or weights.
// The equations, and the order of the operations, are those of torch.optim (PyTorch 2.x, one tensor at a time, maximize and
// dampening off):
//
//   - SGD: momentum after Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013), as
//     PyTorch has it, where the rate multiplies the whole velocity.
//   - Adam: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015), algorithm 1. AdamW: Loshchilov and Hutter,
//     "Decoupled Weight Decay Regularization" (2019), algorithm 2.
//   - Adagrad: Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning" (2011), with a diagonal matrix.
func (r *Rule) step(d wire.DType, dst, gradient, weights []byte, p *weights) {
	if r.WeightDecay != 0 && r.Kind != AdamW {
		reduce.Combine(d, gradient, gradient, weights, r.WeightDecay)
	}
	t := float64(p.steps)
	switch r.Kind {
	case SGD:
		direction := gradient
		if r.Momentum != 0 {
			velocity := p.state[0]
			reduce.Combine(d, velocity, gradient, velocity, r.Momentum)
			if r.Nesterov {
				reduce.Combine(d, gradient, gradient, velocity, r.Momentum)
			} else {
				direction = velocity
			}
		}
		reduce.Combine(d, dst, weights, direction, -p.rate)
	case Adam, AdamW:
		step := reduce.AdamStep{
			Keep: 1, Mean: 1 - r.Betas[0], Decay: r.Betas[1], Square: 1 - r.Betas[1], Eps: r.Eps,
			Root: math.Sqrt(1 - math.Pow(r.Betas[1], t)),
			Rate: -p.rate / (1 - math.Pow(r.Betas[0], t)),
		}
		if r.Kind == AdamW {
			step.Keep = 1 - p.rate*r.WeightDecay
		}
		reduce.Adam(d, dst, gradient, weights, p.state[0], p.state[1], step)
	case Adagrad:
		reduce.Adagrad(d, dst, gradient, weights, p.state[0], -p.rate/(1+(t-1)*r.RateDecay), r.Eps)
	}
}
