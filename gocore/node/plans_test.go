package node

import (
	"testing"

	"fptps/gocore/cluster"
)

// A change of 6% is reported: of a link, of a path, of what is known at all.
func TestNews(t *testing.T) {
	path := func(peer uint32, rate float64) map[uint32]float64 { return map[uint32]float64{peer: rate} }
	known := cluster.Capacity{Up: 100, Down: 100, Carried: 100, Paths: path(8, 100)}
	with := func(change func(c *cluster.Capacity)) cluster.Capacity {
		c := known
		change(&c)
		return c
	}
	for name, tc := range map[string]struct {
		now  cluster.Capacity
		want bool
	}{
		"nothing":              {known, false},
		"links, a little":      {with(func(c *cluster.Capacity) { c.Up, c.Down, c.Carried = 105, 95, 95 }), false},
		"what is sent":         {with(func(c *cluster.Capacity) { c.Up = 107 }), true},
		"what is received":     {with(func(c *cluster.Capacity) { c.Down = 93 }), true},
		"what was sent":        {with(func(c *cluster.Capacity) { c.Carried = 93 }), true},
		"a path, a little":     {with(func(c *cluster.Capacity) { c.Paths = path(8, 105) }), false},
		"a path":               {with(func(c *cluster.Capacity) { c.Paths = path(8, 107) }), true},
		"another path":         {with(func(c *cluster.Capacity) { c.Paths = path(9, 100) }), true},
		"a path is not known":  {with(func(c *cluster.Capacity) { c.Paths = nil }), true},
		"a link is not known":  {with(func(c *cluster.Capacity) { c.Up = 0 }), true},
		"one more path":        {with(func(c *cluster.Capacity) { c.Paths = map[uint32]float64{8: 100, 9: 100} }), true},
		"everything is as new": {cluster.Capacity{}, true},
	} {
		if got := isNews(tc.now, known); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
