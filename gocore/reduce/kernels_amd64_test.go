//go:build amd64 && !purego

package reduce

import (
	"reflect"
	"testing"

	"golang.org/x/sys/cpu"

	"fptps/gocore/wire"
)

// A mistake in the choice of kernels would only make fptps slow, which no other test notices.
func TestVectorKernelsAreUsed(t *testing.T) {
	if !cpu.X86.HasAVX2 || !cpu.X86.HasF16C {
		t.Skip("this machine has no AVX2 or no F16C")
	}
	plain := scalar()
	for d := range models {
		if d == wire.Timedelta64 || d == wire.LongDouble || d == wire.CLongDouble {
			continue // these have one kernel
		}
		if reflect.ValueOf(active[d].add).Pointer() == reflect.ValueOf(plain[d].add).Pointer() {
			t.Errorf("%v is summed by the plain kernel", d)
		}
	}
	for _, d := range []wire.DType{wire.Float32, wire.Float64} {
		if reflect.ValueOf(active[d].adam).Pointer() == reflect.ValueOf(plain[d].adam).Pointer() {
			t.Errorf("%v is updated by the plain kernel", d)
		}
	}
	for _, d := range []wire.DType{wire.Float16, wire.BFloat16} {
		if reflect.ValueOf(active[d].addWide).Pointer() == reflect.ValueOf(plain[d].addWide).Pointer() {
			t.Errorf("%v is summed by the plain kernel", d)
		}
	}
}
