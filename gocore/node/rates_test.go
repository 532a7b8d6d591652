package node

import (
	"math"
	"net"
	"strings"
	"testing"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
)

func TestLinkRateSetting(t *testing.T) {
	for value, want := range map[string]int64{
		"": -1, "0": 0, "1gbit": 1e9, "1Gbit": 1e9, "2.5g": 25e8, "500mbit": 5e8, "64kbit": 64e3, "1000000": 1e6,
	} {
		c, err := ParseConfig(environment("FPTPS_LINK_RATE=" + value))
		if err != nil || c.LinkRate != want {
			t.Errorf("%q: %d, %v; expected %d", value, c.LinkRate, err, want)
		}
	}
	for _, value := range []string{"fast", "-1", "1gb", "gbit", "1 gbit", "1e9", "9kbit", "99999gbit", "."} {
		_, err := ParseConfig(environment("FPTPS_LINK_RATE=" + value))
		if fault.CodeOf(err) != fault.Config || !strings.Contains(err.Error(), "FPTPS_LINK_RATE="+value) {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// TestRates: each node paces itself to its own link, and starts with its part of the
// peer's if all who may send to the peer do.
func TestRates(t *testing.T) {
	const bits = 8e9 // so that payload(bits) is 1e9 times two shares
	payload := bits / 8 * payloadShare * fullShare
	view := cluster.View{Self: 9, Members: []cluster.Member{
		{ID: 8, Role: cluster.RoleServer, Share: 1, LinkRate: 2 * bits},
		{ID: 10, Role: cluster.RoleServer, Share: 0, LinkRate: bits}, // sums nothing
		{ID: 9, Role: cluster.RoleWorker, LinkRate: bits},
		{ID: 11, Role: cluster.RoleWorker, Share: 1, LinkRate: bits},
		{ID: 13, Role: cluster.RoleWorker}, // nobody knows its link
		{ID: 1, Role: cluster.RoleScheduler},
	}}
	shares, err := sharesOf(view)
	if err != nil {
		t.Fatal(err)
	}
	rates := ratesOf(view, shares.Aggregators())
	near := func(a, b float64) bool { return math.Abs(a-b) < 1 }
	if !near(rates.Out, payload) || !near(rates.In, payload) {
		t.Errorf("own link: %v, %v; expected %v", rates.Out, rates.In, payload)
	}
	for id, want := range map[uint32]float64{
		8:  2 * payload / 3, // three workers send to it
		9:  payload / 2,     // the two that sum
		11: payload / 3,     // server 8, workers 9 and 13
	} {
		if !near(rates.To[id], want) {
			t.Errorf("to node %d: %v, expected %v", id, rates.To[id], want)
		}
	}
	for _, id := range []uint32{1, 10, 13} {
		if rate, limited := rates.To[id]; limited {
			t.Errorf("to node %d: %v", id, rate)
		}
	}
}

func TestLinkRateOfTheInterface(t *testing.T) {
	c := Config{LinkRate: -1, Host: "127.0.0.1"}
	if got := c.linkRate(); got != 0 {
		t.Errorf("loopback has a rate of %d", got)
	}
	for _, host := range []string{"", "a.name", "203.0.113.77"} {
		c.Host = host
		if got := c.linkRate(); got != 0 {
			t.Errorf("host %q has a rate of %d", host, got)
		}
	}
	if device, ok := interfaceOf(net.IPv4(127, 0, 0, 1)); !ok || device.Flags&net.FlagLoopback == 0 {
		t.Errorf("the interface of 127.0.0.1: %+v, %v", device, ok)
	}
	c = Config{LinkRate: 5, Host: "127.0.0.1"}
	if got := c.linkRate(); got != 5 {
		t.Errorf("a given rate became %d", got)
	}
}

// TestLanesOf: the fastest link of the cluster decides for all.
func TestLanesOf(t *testing.T) {
	for _, tc := range []struct {
		links []uint64
		lanes int
	}{
		{[]uint64{0, 0}, 1}, {[]uint64{1e9, 10e9}, 1}, {[]uint64{16e9}, 1}, {[]uint64{1e9, 25e9, 0}, 2},
		{[]uint64{40e9}, 3}, {[]uint64{100e9, 100e9}, 7}, {[]uint64{400e9}, 8},
	} {
		var view cluster.View
		for _, rate := range tc.links {
			view.Members = append(view.Members, cluster.Member{LinkRate: rate})
		}
		if got := lanesOf(view); got != tc.lanes {
			t.Errorf("links of %v bit/s: %d lanes, expected %d", tc.links, got, tc.lanes)
		}
	}
}
