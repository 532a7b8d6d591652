package node

import (
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

// TestLanesOf: the fastest link of the start decides for all.
func TestLanesOf(t *testing.T) {
	for fastest, lanes := range map[uint64]int{0: 1, 10e9: 1, 16e9: 1, 25e9: 2, 40e9: 3, 100e9: 7, 400e9: 8} {
		if got := lanesOf(cluster.View{FastestLink: fastest}); got != lanes {
			t.Errorf("a link of %d bit/s: %d lanes, expected %d", fastest, got, lanes)
		}
	}
}
