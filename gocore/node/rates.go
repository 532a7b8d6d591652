package node

import (
	"fmt"
	"math"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"

	"fptps/gocore/cluster"
	"fptps/gocore/transport"
)

const (
	// payloadShare is TCP's payload in an Ethernet frame, of 1514 bytes.
	payloadShare = 1448.0 / 1514
	// fullShare is how much of a link is used: at 102% of it a queue of 6 ms stands
	// before it, at 99% none.
	fullShare = 0.99
)

// payloadRate is the bytes per second of payload that go over a link of so many
// bits per second.
func payloadRate(bits uint64) float64 { return float64(bits) / 8 * payloadShare * fullShare }

// ratesOf gives the rates of this node, me, in its cluster.
func ratesOf(view cluster.View, aggregators []uint32) transport.Rates {
	own := payloadRate(view.Me().LinkRate)
	rates := transport.Rates{Out: own, In: own, To: map[uint32]float64{}}
	for _, m := range view.Members {
		senders := 0
		for _, other := range view.Members {
			if exchange(m, other, aggregators) {
				senders++
			}
		}
		if senders > 0 && m.LinkRate > 0 {
			rates.To[uint32(m.ID)] = payloadRate(m.LinkRate) / float64(senders)
		}
	}
	return rates
}

// laneRate is the link in bit/s that one lane fills: its loops move some 2 GB/s each way.
const laneRate = 16e9

// maxLanes bounds the lanes: each is two threads.
const maxLanes = 8

// lanesOf is how many lanes the data plane of every node of a cluster has: enough for
// its fastest link. All nodes know the same view.
func lanesOf(view cluster.View) int {
	fastest := uint64(0)
	for _, m := range view.Members {
		fastest = max(fastest, m.LinkRate)
	}
	return max(1, min(maxLanes, int(math.Ceil(float64(fastest)/laneRate))))
}

// linkRate is the rate of this node's link in bit/s, 0 where nobody knows it.
func (c *Config) linkRate() uint64 {
	if c.LinkRate >= 0 {
		return uint64(c.LinkRate)
	}
	device, ok := interfaceOf(net.ParseIP(c.Host))
	if !ok || device.Flags&net.FlagLoopback != 0 {
		return 0
	}
	text, err := os.ReadFile("/sys/class/net/" + device.Name + "/speed")
	if err != nil {
		return 0
	}
	megabits, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || megabits <= 0 { // -1: it does not know
		return 0
	}
	return uint64(megabits) * 1e6
}

// interfaceOf finds the network interface that has an address.
func interfaceOf(ip net.IP) (net.Interface, bool) {
	devices, err := net.Interfaces()
	if err != nil || ip == nil {
		return net.Interface{}, false
	}
	for _, device := range devices {
		addresses, err := device.Addrs()
		if err != nil {
			continue
		}
		for _, address := range addresses {
			if network, ok := address.(*net.IPNet); ok && network.IP.Equal(ip) {
				return device, true
			}
		}
	}
	return net.Interface{}, false
}

var rateText = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(k|m|g)?(?:bit)?$`)

// bits reads a rate as tc writes it.
func bits(field func(*Config) *int64) func(*Config, string) error {
	return func(c *Config, value string) error {
		parts := rateText.FindStringSubmatch(strings.ToLower(value))
		if parts == nil {
			return fmt.Errorf("a rate in bits per second is expected, such as 1gbit, 500mbit or 0")
		}
		number, err := strconv.ParseFloat(parts[1], 64)
		number *= map[string]float64{"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[parts[2]]
		if err != nil || number > 1e13 || number > 0 && number < 1e4 {
			return fmt.Errorf("a rate of 10kbit to 10000gbit is expected, or 0")
		}
		*field(c) = int64(number)
		return nil
	}
}
