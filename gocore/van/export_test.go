package van

import "time"

// LingerLong has a van wait so long for what was sent to leave that a busy machine is no reason to drop it.
func LingerLong(v Van) {
	if z, ok := v.(*zmqVan); ok {
		z.linger = time.Minute
	}
}
