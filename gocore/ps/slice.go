package ps

import (
	"math"
	"slices"

	"fptps/gocore/fault"
)

// Bounds divides the keys among n servers in equal ranges, as ps-lite does: server i has
// the keys from bounds[i] up to but not including bounds[i+1].
func Bounds(n int) []uint64 {
	bounds := make([]uint64, n+1)
	for i := range bounds {
		bounds[i] = math.MaxUint64 / uint64(n) * uint64(i)
	}
	return bounds
}

// Slice divides a request among the servers; a server without any of its keys gets an empty part.
func Slice(k *KVs, bounds []uint64) ([]KVs, error) {
	servers := len(bounds) - 1
	if n := len(k.Keys); n > 0 && k.Keys[n-1] >= bounds[servers] {
		return nil, fault.New(fault.Value, "key %d: with %d servers, keys are below %d", k.Keys[n-1], servers, bounds[servers])
	}
	parts := make([]KVs, servers)
	from, start := 0, 0 // next key, and first byte of its value
	for i := range parts {
		count, _ := slices.BinarySearch(k.Keys[from:], bounds[i+1])
		end := from + count
		parts[i] = KVs{Keys: k.Keys[from:end], DType: k.DType}
		if k.Lens != nil {
			parts[i].Lens = k.Lens[from:end]
		}
		if len(k.Vals) > 0 {
			bytes := 0
			for key := from; key < end; key++ {
				bytes += k.length(key) * k.DType.Size()
			}
			parts[i].Vals = k.Vals[start : start+bytes]
			start += bytes
		}
		from = end
	}
	return parts, nil
}
