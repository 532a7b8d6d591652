package metrics

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Latency has histograms of the time from a push to its sum, by priority. Priorities are grouped by powers of two, as
// programs use one for each tensor: 0, 1, 2..3, 4..7 and so on, and the same below 0.
type Latency struct{ *prometheus.HistogramVec }

// NewLatency makes empty histograms.
func NewLatency() Latency {
	return Latency{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "fptps_push_latency_seconds", Help: "Time from the call of a push to the arrival of its sum, by priority.",
		Buckets: prometheus.ExponentialBuckets(100e-6, 2, 18), // to 13 s
	}, []string{"priority"})}
}

// Observer returns the function that counts a push whose sum has arrived; nil if there are no histograms.
func (l Latency) Observer() func(priority int32, d time.Duration) {
	if l.HistogramVec == nil {
		return nil
	}
	return func(priority int32, d time.Duration) { l.WithLabelValues(group(priority)).Observe(d.Seconds()) }
}

// groups are the names of the groups below 0, with 0, and above 0.
var groups = func() (names [3][33]string) {
	names[1][0] = "0"
	for n := 1; n <= 32; n++ {
		from, to := int64(1)<<(n-1), min(int64(1)<<n-1, -math.MinInt32)
		if from == to {
			names[2][n], names[0][n] = fmt.Sprint(from), fmt.Sprint(-from)
			continue
		}
		names[2][n], names[0][n] = fmt.Sprintf("%d..%d", from, to), fmt.Sprintf("%d..%d", -to, -from)
	}
	return names
}()

// group returns the name of a priority's group.
func group(priority int32) string {
	size, sign := int64(priority), 1
	switch {
	case priority > 0:
		sign = 2
	case priority < 0:
		size, sign = -size, 0
	}
	return groups[sign][bits.Len64(uint64(size))]
}
